//! One law per test: which status follows from which observation.

mod retold;
mod told;

use std::time::Duration;

use super::*;
use crate::pod::sample::{self, exited, pod, record, running, sandbox, view};
use hanok_runtime::api::{ContainerState, PodView, SandboxState};
use serde_json::{Value, json};

/// The status of a pod with default facts.
fn status(pod: &Pod, view: PodView) -> PodStatus {
    status_with(pod, view, facts(), None)
}

fn status_with(pod: &Pod, view: PodView, facts: Facts, last: Option<&PodStatus>) -> PodStatus {
    build(&Inputs {
        pod,
        seen: &Observation::new(view, last),
        facts: &facts,
        probes: &ProbeResults::default(),
        last,
        now: sample::now(),
    })
}

fn facts() -> Facts {
    Facts {
        host_ips: vec!["192.0.2.1".into()],
        start_time: sample::now(),
        ..Facts::default()
    }
}

fn parse(status: Value) -> PodStatus {
    serde_json::from_value(status).expect("a status")
}

fn phase_of(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

/// `TYPE=STATUS reason message` of one condition.
fn condition(status: &PodStatus, type_: &str) -> String {
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions
        .find(|condition| condition.type_ == type_)
        .expect("the condition");
    let reason = found.reason.as_deref().unwrap_or_default();
    let message = found.message.as_deref().unwrap_or_default();
    format!("{} {reason} {message}", found.status)
        .trim()
        .to_owned()
}

/// The state of one app or init container as JSON.
fn state(status: &PodStatus, name: &str) -> Value {
    let found = status_of(Some(status), name).expect("the container");
    serde_json::to_value(&found.state).expect("JSON")
}

#[test]
fn first_status_of_a_new_pod_names_every_container() {
    let pod = pod("Always", &["i"], &["a"]);
    let status = status(&pod, PodView::default());
    let want = json!({
        "phase": "Pending",
        "qosClass": "BestEffort",
        "resources": {},
        "observedGeneration": 3,
        "hostIP": "192.0.2.1",
        "hostIPs": [{"ip": "192.0.2.1"}],
        "startTime": "2027-01-15T08:00:00Z",
        "conditions": [
            {"type": "PodReadyToStartContainers", "status": "False",
             "reason": "PodSandboxNotReady", "message": "no pod sandbox exists",
             "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": 3},
            {"type": "Initialized", "status": "False", "reason": "ContainersNotInitialized",
             "message": "containers with incomplete status: [i]",
             "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": 3},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady",
             "message": "containers with unready status: [a]",
             "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": 3},
            {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady",
             "message": "containers with unready status: [a]",
             "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": 3},
            {"type": "PodScheduled", "status": "True",
             "lastTransitionTime": "2027-01-15T08:00:00Z", "observedGeneration": 3},
        ],
        "initContainerStatuses": [{"name": "i", "image": "i:1", "imageID": "", "ready": false,
            "restartCount": 0, "started": false,
            "state": {"waiting": {"reason": "PodInitializing"}}}],
        "containerStatuses": [{"name": "a", "image": "i:1", "imageID": "", "ready": false,
            "restartCount": 0, "started": false,
            "state": {"waiting": {"reason": "PodInitializing"}}}],
    });
    assert_eq!(serde_json::to_value(&status).expect("JSON"), want);
}

#[test]
fn status_of_a_running_pod() {
    let pod = pod("Always", &[], &["a"]);
    let status = status(&pod, view(vec![running(&pod, "a")]));
    assert_eq!(phase_of(&status), "Running");
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.5"));
    for type_ in [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
    ] {
        assert_eq!(condition(&status, type_), "True", "{type_}");
    }
    let container = status_of(Some(&status), "a").expect("the container");
    let want = json!({"name": "a", "image": "i:1", "imageID": "docker.io/library/i@sha256:aa",
        "containerID": "hanok://a.0", "ready": true, "resources": {}, "started": true, "restartCount": 0,
        "state": {"running": {"startedAt": "2027-01-15T07:58:20Z"}}});
    assert_eq!(serde_json::to_value(container).expect("JSON"), want);
}

#[test]
fn a_container_shows_who_it_is_and_what_it_may_have() {
    let amounts = json!({"cpu": "100m", "memory": "64Mi"});
    let pod = sample::from(
        json!({"resources": {"requests": {"cpu": "1"}}, "containers": [
        {"name": "a", "image": "i:1", "resources": {"limits": amounts, "requests": amounts}}]}),
    );
    let mut record = running(&pod, "a");
    record.config.stop_signal = "SIGQUIT".into();
    record.identity = Some(hanok_runtime::api::Identity {
        uid: 1000,
        gid: 5,
        groups: vec![7],
    });
    let before = status(&pod, view(vec![record.clone()]));
    let shown = |status: &PodStatus| {
        let container = status_of(Some(status), "a").expect("the container");
        let shown = serde_json::to_value(container).expect("JSON");
        ["user", "stopSignal", "resources", "allocatedResources"].map(|field| shown[field].clone())
    };
    let user = json!({"linux": {"uid": 1000, "gid": 5, "supplementalGroups": [5, 7]}});
    let both = json!({"limits": amounts, "requests": amounts});
    assert_eq!(
        shown(&before),
        [user, json!("SIGQUIT"), both.clone(), amounts]
    );
    assert_eq!(
        serde_json::to_value(&before.allocated_resources).expect("JSON"),
        json!({"cpu": "1", "memory": "64Mi"})
    );
    // What is promised shows at once, what is in force when it is.
    let more = json!({"cpu": "200m", "memory": "64Mi"});
    let mut resized = pod;
    let spec = resized.spec.as_mut().expect("a spec");
    spec.containers[0].resources =
        serde_json::from_value(json!({"limits": more, "requests": more})).expect("resources");
    let during = status_with(&resized, view(vec![record]), facts(), Some(&before));
    assert_eq!(shown(&during)[2..], [both, more.clone()]);
    let after = status_with(
        &resized,
        view(vec![running(&resized, "a")]),
        facts(),
        Some(&before),
    );
    assert_eq!(shown(&after)[2], json!({"limits": more, "requests": more}));
}

#[test]
fn phase_follows_containers_and_policy() {
    let ok = |pod: &Pod| exited(pod, "a", 0, 0, 5);
    let bad = |pod: &Pod| exited(pod, "a", 0, 1, 5);
    let runs = |pod: &Pod| running(pod, "a");
    type Make = fn(&Pod) -> hanok_runtime::api::Container;
    let table: [(&str, Make, &str); 8] = [
        ("Always", ok, "Running"),
        ("Always", bad, "Running"),
        ("OnFailure", ok, "Succeeded"),
        ("OnFailure", bad, "Running"),
        ("Never", ok, "Succeeded"),
        ("Never", bad, "Failed"),
        ("Never", runs, "Running"),
        (
            "Never",
            |pod| record(pod, "a", 0, ContainerState::Created),
            "Pending",
        ),
    ];
    for (policy, make, want) in table {
        let pod = pod(policy, &[], &["a"]);
        let status = status(&pod, view(vec![make(&pod)]));
        assert_eq!(
            phase_of(&status),
            want,
            "{policy} {:?}",
            status.container_statuses
        );
    }
}

#[test]
fn one_container_that_never_started_keeps_the_pod_pending() {
    let pod = pod("Always", &[], &["a", "b"]);
    assert_eq!(
        phase_of(&status(&pod, view(vec![running(&pod, "a")]))),
        "Pending"
    );
}

#[test]
fn an_init_failure_under_never_fails_the_pod_and_no_app_ran() {
    let pod = pod("Never", &["i"], &["a"]);
    let status = status(&pod, view(vec![exited(&pod, "i", 0, 7, 5)]));
    assert_eq!(phase_of(&status), "Failed");
    assert_eq!(state(&status, "i")["terminated"]["exitCode"], 7);
    assert_eq!(state(&status, "a")["waiting"]["reason"], "PodInitializing");
    let retried = self::pod("Always", &["i"], &["a"]);
    let status = self::status(&retried, view(vec![exited(&retried, "i", 0, 7, 5)]));
    assert_eq!(phase_of(&status), "Pending");
}

#[test]
fn a_terminal_phase_waits_for_sidecars_to_stop() {
    let pod = pod("Never", &["s:sidecar"], &["a"]);
    let done = exited(&pod, "a", 0, 0, 1);
    let last = parse(json!({"phase": "Running"}));
    let stopping = Facts {
        ending: Ending::Stopping,
        ..facts()
    };
    let records = vec![running(&pod, "s"), done.clone()];
    let status = status_with(&pod, view(records), stopping.clone(), Some(&last));
    assert_eq!(phase_of(&status), "Running");
    let records = vec![exited(&pod, "s", 0, 143, 0), done];
    let status = status_with(&pod, view(records), stopping, Some(&last));
    assert_eq!(phase_of(&status), "Succeeded");
    assert_eq!(condition(&status, "Ready"), "False PodCompleted");
    assert_eq!(condition(&status, "Initialized"), "True PodCompleted");
}

#[test]
fn a_terminal_phase_is_final() {
    let pod = pod("Always", &[], &["a"]);
    for phase in ["Succeeded", "Failed"] {
        let last = parse(json!({"phase": phase}));
        let status = status_with(&pod, view(vec![running(&pod, "a")]), facts(), Some(&last));
        assert_eq!(phase_of(&status), phase);
    }
}

#[test]
fn a_deleted_pods_phase_becomes_terminal_when_its_containers_have_stopped() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.metadata.deletion_timestamp = Some(Time(sample::now()));
    let last = parse(json!({"phase": "Running"}));
    let ended = Facts {
        ending: Ending::Ended,
        ..facts()
    };
    for (code, want) in [(0, "Succeeded"), (143, "Failed")] {
        let records = vec![exited(&pod, "a", 0, code, 1)];
        let status = status_with(&pod, view(records), ended.clone(), Some(&last));
        assert_eq!(phase_of(&status), want);
        assert_eq!(state(&status, "a")["terminated"]["exitCode"], code);
    }
    let never_ran = status_with(&pod, view(vec![]), ended, None);
    assert_eq!(phase_of(&never_ran), "Failed");
}

#[test]
fn a_crash_loop_shows_the_back_off_and_the_last_end() {
    let pod = pod("Always", &[], &["a"]);
    let looping = CrashLoop {
        name: "a".into(),
        delay: Duration::from_secs(80),
    };
    let facts = Facts {
        crash_loops: vec![looping],
        ..facts()
    };
    let status = status_with(&pod, view(vec![exited(&pod, "a", 3, 1, 5)]), facts, None);
    assert_eq!(phase_of(&status), "Running");
    let container = status_of(Some(&status), "a").expect("the container");
    assert_eq!(container.restart_count, 3);
    let waiting = &state(&status, "a")["waiting"];
    assert_eq!(waiting["reason"], "CrashLoopBackOff");
    let message = format!(
        "back-off 1m20s restarting failed container=a pod=web_default({})",
        sample::UID
    );
    assert_eq!(waiting["message"], message.as_str());
    let last = serde_json::to_value(&container.last_state).expect("JSON");
    assert_eq!(last["terminated"]["exitCode"], 1);
    assert_eq!(last["terminated"]["containerID"], "hanok://a.3");
}

#[test]
fn a_failed_start_shows_its_reason() {
    let pod = pod("Always", &[], &["a"]);
    let waiting = Waiting {
        reason: "ErrImagePull".into(),
        message: "no such host".into(),
    };
    let facts = Facts {
        waiting: [("a".to_owned(), waiting)].into(),
        ..facts()
    };
    let status = status_with(&pod, view(vec![]), facts, None);
    let want = json!({"waiting": {"reason": "ErrImagePull", "message": "no such host"}});
    assert_eq!(state(&status, "a"), want);
    assert_eq!(phase_of(&status), "Pending");
}

#[test]
fn last_state_is_the_run_before() {
    let pod = pod("Always", &[], &["a"]);
    let records = vec![
        record(&pod, "a", 1, ContainerState::Running),
        exited(&pod, "a", 0, 9, 60),
    ];
    let status = status(&pod, view(records));
    let container = status_of(Some(&status), "a").expect("the container");
    assert_eq!(container.restart_count, 1);
    let last = serde_json::to_value(&container.last_state).expect("JSON");
    assert_eq!(last["terminated"]["exitCode"], 9);
}

#[test]
fn times_of_conditions_change_only_with_their_answer() {
    let pod = pod("Always", &[], &["a"]);
    let earlier = "2020-01-01T00:00:00Z";
    let last = parse(json!({"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": earlier},
        {"type": "ContainersReady", "status": "False", "lastTransitionTime": earlier},
        {"type": "example.com/gate", "status": "True", "lastTransitionTime": earlier},
    ]}));
    let status = status_with(&pod, view(vec![running(&pod, "a")]), facts(), Some(&last));
    let time = |type_: &str| {
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions
            .find(|condition| condition.type_ == type_)
            .expect("it");
        serde_json::to_value(&found.last_transition_time).expect("JSON")
    };
    assert_eq!(time("Ready"), earlier);
    assert_eq!(time("ContainersReady"), "2027-01-15T08:00:00Z");
    assert_eq!(time("example.com/gate"), earlier);
    let again = status_with(&pod, view(vec![running(&pod, "a")]), facts(), Some(&status));
    assert_eq!(again, status);
}

#[test]
fn readiness_gates_hold_the_pod_back() {
    let mut pod = pod("Always", &[], &["a"]);
    let gates = json!([{"conditionType": "example.com/a"}, {"conditionType": "example.com/b"}]);
    pod.spec.as_mut().expect("a spec").readiness_gates =
        serde_json::from_value(gates).expect("gates");
    let last = parse(json!({"conditions": [{"type": "example.com/b", "status": "False"}]}));
    let status = status_with(&pod, view(vec![running(&pod, "a")]), facts(), Some(&last));
    assert_eq!(condition(&status, "ContainersReady"), "True");
    let want = "False ReadinessGatesNotReady corresponding condition of pod readiness gate \
        \"example.com/a\" does not exist., the status of pod readiness gate \"example.com/b\" is \
        not \"True\", but False";
    assert_eq!(condition(&status, "Ready"), want);
}

#[test]
fn sidecars_count_for_ready_and_show_among_init_containers() {
    let pod = pod("Always", &["s:sidecar"], &["a"]);
    let records = vec![exited(&pod, "s", 0, 1, 1), running(&pod, "a")];
    let status = status(&pod, view(records));
    assert_eq!(condition(&status, "Initialized"), "True");
    assert_eq!(
        condition(&status, "Ready"),
        "False ContainersNotReady containers with unready status: [s]"
    );
    assert_eq!(status.init_container_statuses.iter().flatten().count(), 1);
    assert_eq!(status.container_statuses.iter().flatten().count(), 1);
    assert_eq!(phase_of(&status), "Running");
}

#[test]
fn a_lost_container_is_unknown_and_counts_as_a_restart() {
    let last = parse(json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "ready": true, "restartCount": 2, "image": "i:1", "imageID": "x",
         "containerID": "hanok://old", "state": {"running": {}}}]}));
    let restarted = pod("Always", &[], &["a"]);
    let status = status_with(&restarted, PodView::default(), facts(), Some(&last));
    let container = status_of(Some(&status), "a").expect("the container");
    assert_eq!(container.restart_count, 3);
    let end = serde_json::to_value(&container.last_state).expect("JSON");
    assert_eq!(end["terminated"]["exitCode"], 137);
    assert_eq!(end["terminated"]["reason"], "ContainerStatusUnknown");
    assert_eq!(phase_of(&status), "Running");

    let never = pod("Never", &[], &["a"]);
    let status = status_with(&never, PodView::default(), facts(), Some(&last));
    assert_eq!(phase_of(&status), "Failed");
    assert_eq!(state(&status, "a")["terminated"]["exitCode"], 137);
}

#[test]
fn what_was_made_before_a_lost_run_does_not_hide_it() {
    let last = parse(json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "ready": true, "restartCount": 0, "image": "i:1", "imageID": "x",
         "containerID": "hanok://lost", "state": {"running": {}}}]}));
    let restarted = pod("Always", &[], &["a"]);
    let made = sample::record(&restarted, "a", 0, ContainerState::Created);
    let status = status_with(&restarted, view(vec![made]), facts(), Some(&last));
    let container = status_of(Some(&status), "a").expect("the container");
    assert_eq!(container.restart_count, 1);
    let end = serde_json::to_value(&container.last_state).expect("JSON");
    assert_eq!(end["terminated"]["reason"], "ContainerStatusUnknown");
    assert_eq!(phase_of(&status), "Running");
}

#[test]
fn what_was_told_of_a_lost_run_is_kept_beside_an_older_record() {
    let pod = pod("Always", &["i"], &["a"]);
    let began = "2027-01-15T08:00:00Z";
    let mut last = parse(json!({"containerStatuses": [
        {"name": "a", "ready": true, "restartCount": 4, "image": "i:1", "imageID": "",
         "containerID": "hanok://lost", "state": {"running": {"startedAt": began}}}]}));
    let mut older = exited(&pod, "a", 3, 255, 500);
    older.sandbox = hanok_runtime::api::SandboxId("older".into());
    // The second time, the run is known from the status of the first.
    for _ in 0..2 {
        let status = status_with(&pod, view(vec![older.clone()]), facts(), Some(&last));
        let shown = status_of(Some(&status), "a").expect("the container");
        assert_eq!(shown.restart_count, 5);
        let ended = shown.last_state.as_ref();
        let ended = ended.and_then(|last| last.terminated.as_ref());
        let ended = ended.expect("an end");
        assert_eq!(ended.container_id.as_deref(), Some("hanok://lost"));
        let began_at = ended.started_at.as_ref().map(|time| time.0.to_string());
        assert_eq!(began_at.as_deref(), Some(began));
        assert!(state(&status, "a")["waiting"].is_object());
        last = status;
    }
}

#[test]
fn a_pod_refused_after_a_reboot_shows_how_its_containers_ended() {
    let pod = pod("Always", &[], &["a"]);
    let last = parse(json!({"phase": "Pending", "containerStatuses": [
        {"name": "a", "ready": true, "restartCount": 0, "image": "i:1", "imageID": "",
         "containerID": "hanok://lost", "state": {"running": {}}}]}));
    let failure = Failure {
        reason: "OutOfcpu".into(),
        message: "no".into(),
    };
    let refused = Facts {
        rejected: true,
        failure: Some(failure),
        ending: Ending::Ended,
        ..facts()
    };
    let status = status_with(&pod, PodView::default(), refused, Some(&last));
    assert_eq!(
        (phase_of(&status), status.reason.as_deref()),
        ("Failed", Some("OutOfcpu"))
    );
    let ended = &state(&status, "a")["terminated"];
    assert_eq!(ended["reason"], "ContainerStatusUnknown");
}

#[test]
fn a_lost_init_record_counts_as_done_once_the_app_has_run() {
    let pod = pod("Always", &["i"], &["a"]);
    let status = status(&pod, view(vec![running(&pod, "a")]));
    assert_eq!(state(&status, "i")["terminated"]["reason"], "Completed");
    assert_eq!(condition(&status, "Initialized"), "True");
    assert_eq!(phase_of(&status), "Running");
}

#[test]
fn a_failed_pod_says_why() {
    let pod = pod("Always", &[], &["a"]);
    let failure = Failure {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
    };
    let facts = Facts {
        failure: Some(failure),
        ..facts()
    };
    let status = status_with(&pod, view(vec![]), facts, None);
    assert_eq!(phase_of(&status), "Failed");
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(condition(&status, "Ready"), "False PodFailed");
}

#[test]
fn addresses_are_one_per_family_with_the_nodes_first() {
    let pod = pod("Always", &[], &["a"]);
    let mut sandbox = sandbox(0, SandboxState::Ready);
    sandbox.ips = ["fd00::5", "fd00::6", "10.1.0.5"].map(str::to_owned).into();
    let with = |host: &str| {
        let facts = Facts {
            host_ips: vec![host.into()],
            ..facts()
        };
        let view = PodView {
            sandboxes: vec![sandbox.clone()],
            containers: vec![],
        };
        let status = status_with(&pod, view, facts, None);
        status
            .pod_ips
            .into_iter()
            .flatten()
            .map(|ip| ip.ip)
            .collect::<Vec<_>>()
    };
    assert_eq!(with("192.0.2.1"), ["10.1.0.5", "fd00::5"]);
    assert_eq!(with("2001:db8::1"), ["fd00::5", "10.1.0.5"]);
}

#[test]
fn a_pod_on_the_nodes_network_has_the_nodes_addresses() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.spec.as_mut().expect("a spec").host_network = Some(true);
    assert_eq!(
        status(&pod, view(vec![])).pod_ip.as_deref(),
        Some("192.0.2.1")
    );
}

#[test]
fn a_stopped_pod_keeps_its_address() {
    let pod = pod("Never", &[], &["a"]);
    let last = parse(json!({"phase": "Succeeded", "podIPs": [{"ip": "10.1.0.9"}]}));
    let view = PodView {
        sandboxes: vec![sandbox(0, SandboxState::NotReady)],
        containers: vec![exited(&pod, "a", 0, 0, 3)],
    };
    let status = status_with(&pod, view, facts(), Some(&last));
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.9"));
    assert_eq!(
        condition(&status, "PodReadyToStartContainers"),
        "False PodSandboxNotReady pod sandbox is not ready"
    );
}
