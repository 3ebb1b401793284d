//! One law per test: what is planned for which observation.

mod states;

use super::*;
use crate::pod::back_off::after;
use crate::pod::labels;
use crate::pod::sample::{self, exited, pod, record, running, sandbox, view};
use hanok_runtime::api::PodView;
use k8s_openapi::api::core::v1::PodStatus;

/// Plans with nothing under way and no probes.
fn planned(pod: &Pod, view: PodView) -> PodActions {
    planned_with(pod, view, None, &[], &ProbeResults::default())
}

fn planned_with(
    pod: &Pod,
    view: PodView,
    last: Option<&PodStatus>,
    starting: &[&str],
    probes: &ProbeResults,
) -> PodActions {
    plan(&Inputs {
        pod,
        seen: &Observation::new(view, last),
        starting: &starting.iter().map(|name| (*name).to_owned()).collect(),
        restarted: &BTreeMap::new(),
        probes,
        back_off_cap: back_off::CAP,
        now: sample::now(),
    })
}

fn starts(actions: &PodActions) -> Vec<&str> {
    let names = actions.start.iter().map(|start| start.name.as_str());
    names.collect()
}

fn stops(actions: &PodActions) -> Vec<(&str, StopReason)> {
    let stops = actions.stop.iter();
    stops.map(|stop| (stop.name.as_str(), stop.why)).collect()
}

/// The record of a run after which a back-off of so many seconds stands.
fn crashing(pod: &Pod, name: &str, delay: u64, finished: u64) -> api::Container {
    let mut record = exited(pod, name, 1, 1, finished);
    record.created_at = sample::ago(finished + 5);
    let (_, container) = spec::find_container(pod, name).expect("the sample has it");
    let step = Step {
        delay: Duration::from_secs(delay),
        key: back_off::key(&container),
    };
    let annotations = &mut record.config.annotations;
    annotations.insert(labels::BACK_OFF.into(), step.annotation());
    record
}

#[test]
fn a_new_pod_gets_its_first_sandbox_and_nothing_else() {
    let actions = planned(&pod("Always", &["i"], &["a"]), PodView::default());
    let want = PodActions {
        create_sandbox: Some(0),
        ..PodActions::default()
    };
    assert_eq!(actions, want);
}

#[test]
fn sandbox_is_recreated_when_it_no_longer_serves() {
    let pod = pod("Always", &[], &["a"]);
    let mut without_ip = sandbox(0, SandboxState::Ready);
    without_ip.ips.clear();
    let mut on_host = sandbox(0, SandboxState::Ready);
    on_host.config.network = NamespaceMode::Node;
    let ready = |attempt| sandbox(attempt, SandboxState::Ready);
    let table = [
        vec![sandbox(0, SandboxState::NotReady)],
        vec![without_ip],
        vec![on_host],
        vec![sandbox(1, SandboxState::NotReady), ready(0)],
        vec![ready(1), ready(0)],
    ];
    for sandboxes in table {
        let newest = sandboxes[0].config.attempt;
        let containers = vec![running(&pod, "a")];
        let view = PodView {
            sandboxes,
            containers,
        };
        let actions = planned(&pod, view);
        assert_eq!(actions.create_sandbox, Some(newest + 1));
        assert_eq!(stops(&actions), [("a", StopReason::OldSandbox)]);
        assert!(actions.start.is_empty());
    }
}

#[test]
fn a_pod_on_the_nodes_network_needs_no_address() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.spec.as_mut().expect("a spec").host_network = Some(true);
    let mut sandbox = sandbox(0, SandboxState::Ready);
    sandbox.config.network = NamespaceMode::Node;
    sandbox.ips.clear();
    let view = PodView {
        sandboxes: vec![sandbox],
        containers: Vec::new(),
    };
    assert_eq!(starts(&planned(&pod, view)), ["a"]);
}

#[test]
fn a_new_sandbox_runs_the_init_containers_again_from_the_first() {
    let pod = pod("Always", &["i1", "i2"], &["a"]);
    let view = PodView {
        sandboxes: vec![
            sandbox(1, SandboxState::Ready),
            sandbox(0, SandboxState::NotReady),
        ],
        containers: vec![
            exited(&pod, "i1", 0, 0, 60),
            exited(&pod, "i2", 0, 0, 50),
            exited(&pod, "a", 0, 137, 5),
        ],
    };
    let actions = planned(&pod, view);
    assert_eq!(starts(&actions), ["i1"]);
    assert_eq!(actions.start[0].attempt, 1);
}

#[test]
fn a_job_that_only_the_status_remembers_is_not_run_again() {
    let status = |code| -> PodStatus {
        serde_json::from_value(serde_json::json!({"containerStatuses": [
            {"name": "a", "ready": false, "restartCount": 1, "image": "", "imageID": "",
             "state": {"terminated": {"exitCode": code}}}]}))
        .expect("a status")
    };
    let pod = pod("OnFailure", &[], &["a"]);
    let none = ProbeResults::default();
    let with = |view, code| planned_with(&pod, view, Some(&status(code)), &[], &none);
    assert_eq!(with(PodView::default(), 0), stop_pod());
    assert_eq!(with(PodView::default(), 1).create_sandbox, Some(0));
    let restarted = with(view(Vec::new()), 1);
    assert_eq!(starts(&restarted), ["a"]);
    assert_eq!(restarted.start[0].attempt, 2);
}

#[test]
fn an_init_container_under_way_is_left_alone() {
    let pod = pod("Always", &["i1", "i2"], &["a"]);
    let none = ProbeResults::default();
    let first = planned_with(&pod, view(Vec::new()), None, &["i1"], &none);
    assert_eq!(first, PodActions::default());
    let records = vec![exited(&pod, "i1", 0, 0, 9)];
    let second = planned_with(&pod, view(records), None, &["i2"], &none);
    assert_eq!(second, PodActions::default());
}

#[test]
fn a_removed_init_record_is_not_run_again() {
    let pod = pod("Always", &["i1", "i2"], &["a"]);
    let beside_app = planned(&pod, view(vec![running(&pod, "a")]));
    assert_eq!(beside_app, PodActions::default());
    let first_gone = planned(&pod, view(vec![exited(&pod, "i2", 0, 0, 3)]));
    assert_eq!(starts(&first_gone), ["a"]);
    // Nor while the first app container is pulled for.
    let pulled = planned_with(
        &pod,
        view(Vec::new()),
        None,
        &["a"],
        &ProbeResults::default(),
    );
    assert!(starts(&pulled).is_empty());
}

#[test]
fn an_init_container_killed_for_memory_has_failed_even_with_exit_code_0() {
    let pod = pod("Never", &["i1"], &["a"]);
    let mut record = exited(&pod, "i1", 0, 0, 3);
    record.reason = "OOMKilled".into();
    assert_eq!(planned(&pod, view(vec![record])), stop_pod());
}

#[test]
fn a_sidecar_lets_the_next_one_start_once_it_has_started() {
    let pod = pod("Always", &["s:sidecar", "i"], &["a"]);
    assert_eq!(starts(&planned(&pod, view(vec![]))), ["s"]);
    let runs = || view(vec![running(&pod, "s")]);
    assert_eq!(starts(&planned(&pod, runs())), ["i"]);
    let under_way = planned_with(&pod, runs(), None, &["s"], &ProbeResults::default());
    assert_eq!(under_way, PodActions::default());
}

#[test]
fn a_sidecar_with_a_startup_probe_is_waited_for() {
    let mut pod = pod("Never", &["s:sidecar"], &["a"]);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.init_containers.as_mut().expect("init containers")[0].startup_probe =
        Some(Default::default());
    let runs = || view(vec![running(&pod, "s")]);
    assert_eq!(planned(&pod, runs()), PodActions::default());
    let mut probes = ProbeResults::default();
    let verdicts = crate::pod::probe::Verdicts {
        started: Some(true),
        ..Default::default()
    };
    probes.set(running(&pod, "s").id, verdicts);
    let actions = planned_with(&pod, runs(), None, &[], &probes);
    assert_eq!(starts(&actions), ["a"]);
}

#[test]
fn sidecars_are_restarted_under_every_policy_and_beside_later_init_containers() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = pod(policy, &["s:sidecar", "i"], &["a"]);
        let dead = || exited(&pod, "s", 0, 0, 1);
        assert_eq!(
            starts(&planned(&pod, view(vec![dead()]))),
            ["s"],
            "{policy}"
        );
        let during_init = planned(&pod, view(vec![dead(), running(&pod, "i")]));
        assert_eq!(starts(&during_init), ["s"], "{policy}");
        let beside_app = planned(&pod, view(vec![dead(), running(&pod, "a")]));
        assert_eq!(starts(&beside_app), ["s"], "{policy}");
    }
}

#[test]
fn created_containers_are_started_again_with_the_same_count() {
    let pod = pod("Never", &[], &["a"]);
    let created = record(&pod, "a", 2, ContainerState::Created);
    let want = Start {
        name: "a".into(),
        attempt: 2,
        back_off: None,
    };
    assert_eq!(planned(&pod, view(vec![created])).start, [want]);
}

#[test]
fn unknown_containers_are_killed_first() {
    let pod = pod("Always", &[], &["a"]);
    let unknown = record(&pod, "a", 0, ContainerState::Unknown);
    let actions = planned(&pod, view(vec![unknown]));
    assert_eq!(stops(&actions), [("a", StopReason::Unknown)]);
    assert!(actions.start.is_empty());
}

#[test]
fn the_first_restart_is_at_once_and_the_next_ones_back_off() {
    let pod = pod("Always", &[], &["a"]);
    let seconds = Duration::from_secs;
    let first = planned(&pod, view(vec![exited(&pod, "a", 0, 1, 0)]));
    let step = first.start[0].back_off.expect("a restart has a back-off");
    assert_eq!((first.start[0].attempt, step.delay), (1, seconds(10)));

    let waiting = planned(&pod, view(vec![crashing(&pod, "a", 10, 4)]));
    assert!(waiting.start.is_empty());
    let want = CrashLoop {
        name: "a".into(),
        delay: seconds(10),
    };
    assert_eq!(waiting.crash_loops, [want]);
    assert_eq!(waiting.wait_until, Some(after(sample::now(), seconds(6))));

    let passed = planned(&pod, view(vec![crashing(&pod, "a", 10, 10)]));
    let step = passed.start[0].back_off.expect("a restart has a back-off");
    assert_eq!((passed.start[0].attempt, step.delay), (2, seconds(20)));
    assert_eq!(passed.wait_until, None);
}

#[test]
fn what_was_made_and_never_started_hides_no_back_off() {
    let pod = pod("Always", &[], &["a"]);
    let made = record(&pod, "a", 2, ContainerState::Created);
    let actions = planned(&pod, view(vec![made, crashing(&pod, "a", 40, 4)]));
    assert!(actions.start.is_empty());
    assert_eq!(actions.crash_loops[0].delay, Duration::from_secs(40));
}

#[test]
fn a_run_that_the_node_has_stopped_is_followed_as_the_kubelet_does_it() {
    let pod = pod("Always", &[], &["a"]);
    let ended = |attempt, seconds| api::Container {
        created_at: sample::ago(seconds + 15),
        ..exited(&pod, "a", attempt, 137, seconds)
    };
    let backed_off = |delay| {
        let mut record = crashing(&pod, "a", delay, 1);
        record.created_at = sample::ago(16);
        record
    };
    // The record, the one before, and whether the next run begins at once.
    let table = [
        (ended(0, 1), None, true),
        (backed_off(10), Some(ended(0, 16)), true),
        (backed_off(20), Some(ended(0, 16)), false),
        (backed_off(20), None, true),
    ];
    for (newest, before, at_once) in table {
        let end = before.as_ref().and_then(back_off::end);
        let restarted = [(newest.id.clone(), end)].into();
        let records = [newest].into_iter().chain(before).collect();
        let actions = plan(&Inputs {
            pod: &pod,
            seen: &Observation::new(view(records), None),
            starting: &BTreeSet::new(),
            restarted: &restarted,
            probes: &ProbeResults::default(),
            back_off_cap: back_off::CAP,
            now: sample::now(),
        });
        assert_eq!(actions.start.len() == 1, at_once, "{restarted:?}");
    }
}

#[test]
fn a_container_in_back_off_holds_the_pod() {
    let pod = pod("OnFailure", &[], &["a"]);
    assert!(!planned(&pod, view(vec![crashing(&pod, "a", 10, 4)])).stop_pod);
}

#[test]
fn the_earliest_back_off_wakes_the_worker() {
    let pod = pod("Always", &[], &["a", "b"]);
    let records = vec![crashing(&pod, "a", 40, 4), crashing(&pod, "b", 10, 4)];
    let until = planned(&pod, view(records)).wait_until;
    assert_eq!(until, Some(after(sample::now(), Duration::from_secs(6))));
}

#[test]
fn a_changed_image_replaces_the_container_whatever_the_policy() {
    let old = pod("Never", &[], &["a", "b"]);
    let mut new = old.clone();
    new.spec.as_mut().expect("a spec").containers[0].image = Some("i:2".into());
    let actions = planned(&new, view(vec![running(&old, "a"), running(&old, "b")]));
    assert_eq!(stops(&actions), [("a", StopReason::DefinitionChanged)]);
    let ended = view(vec![exited(&old, "a", 0, 143, 0), running(&old, "b")]);
    assert_eq!(starts(&planned(&new, ended)), ["a"]);
}

#[test]
fn a_failed_probe_stops_the_container_and_the_policy_decides() {
    let pod = pod("Never", &[], &["a"]);
    let mut probes = ProbeResults::default();
    let verdicts = crate::pod::probe::Verdicts {
        alive: Some(false),
        ..Default::default()
    };
    probes.set(running(&pod, "a").id, verdicts);
    let runs = view(vec![running(&pod, "a")]);
    let actions = planned_with(&pod, runs, None, &[], &probes);
    let why = StopReason::Probe(FailedProbe::Liveness);
    assert_eq!(stops(&actions), [("a", why)]);
    let killed = view(vec![exited(&pod, "a", 0, 137, 0)]);
    assert_eq!(planned(&pod, killed), stop_pod());
}

#[test]
fn what_runs_in_an_old_sandbox_is_stopped_before_it_is_replaced() {
    let pod = pod("Always", &[], &["a"]);
    let view = PodView {
        sandboxes: vec![
            sandbox(1, SandboxState::Ready),
            sandbox(0, SandboxState::NotReady),
        ],
        containers: vec![running(&pod, "a")],
    };
    let actions = planned(&pod, view);
    assert_eq!(stops(&actions), [("a", StopReason::OldSandbox)]);
    assert!(actions.start.is_empty());
}

#[test]
fn nothing_is_planned_for_a_pod_that_runs() {
    let pod = pod("Always", &["i", "s:sidecar"], &["a", "b"]);
    let records = vec![
        exited(&pod, "i", 0, 0, 50),
        running(&pod, "s"),
        running(&pod, "a"),
        running(&pod, "b"),
    ];
    assert_eq!(planned(&pod, view(records)), PodActions::default());
}
