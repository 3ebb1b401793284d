//! Tables: what is planned for a pod whose containers are in these states.

use super::*;
use crate::pod::probe::Verdicts;
use serde_json::{Value, json};

/// A pod of containers of which only that is told in which they differ; `init` and `app` are their names.
fn pod_of(policy: &str, init: &[&str], app: &[&str], fields: Value) -> Pod {
    let mut pod = sample::pod(policy, init, app);
    let fields: BTreeMap<String, Value> = serde_json::from_value(fields).expect("a map");
    let spec = pod.spec.as_mut().expect("a spec");
    let all = spec.init_containers.iter_mut().flatten();
    for container in all.chain(&mut spec.containers) {
        let Some(of_this) = fields.get(&container.name) else {
            continue;
        };
        let mut merged = serde_json::to_value(&*container).expect("JSON");
        let of_this = of_this.as_object().expect("a map").clone();
        merged.as_object_mut().expect("a map").extend(of_this);
        *container = serde_json::from_value(merged).expect("a container");
    }
    pod
}

/// One word for each record: `NAME=CODE` has ended, `NAME`, `NAME+`, `NAME?` runs, is made, is lost sight of; with `@N`
/// before it in sandbox N, and else in the newest one. `ready` are the newest sandbox and whether it serves.
fn seen(pod: &Pod, (newest, serves): (u32, bool), words: &str) -> PodView {
    let of_word = |word: &str| {
        let (sandbox, word) = match word.strip_prefix('@').and_then(|word| word.split_once(':')) {
            Some((number, word)) => (number.to_owned(), word),
            None => (newest.to_string(), word),
        };
        let record = match (
            word.split_once('='),
            word.strip_suffix('+'),
            word.strip_suffix('?'),
        ) {
            (Some((name, code)), ..) => exited(pod, name, 0, code.parse().expect("a code"), 5),
            (_, Some(name), _) => record(pod, name, 0, ContainerState::Created),
            (_, _, Some(name)) => record(pod, name, 0, ContainerState::Unknown),
            _ => running(pod, word),
        };
        let sandbox = api::SandboxId(format!("s{sandbox}"));
        api::Container { sandbox, ..record }
    };
    let state = |number| match serves && number == newest {
        true => SandboxState::Ready,
        false => SandboxState::NotReady,
    };
    PodView {
        sandboxes: (0..=newest)
            .map(|number| sandbox(number, state(number)))
            .collect(),
        containers: words.split_whitespace().map(of_word).collect(),
    }
}

/// The plan in words.
fn said(actions: &PodActions) -> String {
    let mut words = Vec::new();
    words.extend(actions.stop_pod.then(|| "end".to_owned()));
    words.extend(
        actions
            .create_sandbox
            .map(|attempt| format!("sandbox {attempt}")),
    );
    words.extend(
        actions
            .stop
            .iter()
            .map(|stop| format!("stop {}", stop.name)),
    );
    words.extend(
        actions
            .start
            .iter()
            .map(|start| format!("start {}", start.name)),
    );
    words.extend(actions.reset.iter().map(|id| format!("reset {id}")));
    words.join(", ")
}

#[test]
fn regular_containers_follow_their_states() {
    let own =
        |policy: &str| json!({"a": {"restartPolicy": policy}, "b": {"restartPolicy": policy}});
    let none = || json!({});
    // Policy, fields, records, plan.
    let table = [
        ("Always", none(), "a b c", ""),
        ("Always", none(), "a=0 b=111 c", "start a, start b"),
        ("OnFailure", none(), "a=0 b=111 c", "start b"),
        ("OnFailure", none(), "a=0 b+ c", "start b"),
        ("Never", none(), "a=0 b=111 c", ""),
        ("Never", none(), "a b? c", "stop b"),
        ("Never", none(), "a b+ c", "start b"),
        ("Never", none(), "a b", "start c"),
        ("Never", none(), "a=0 b=1 c=2", "end"),
        ("Never", own("Always"), "a=0 b=111 c", "start a, start b"),
        ("Never", own("OnFailure"), "a=0 b=111 c", "start b"),
        ("Never", own("OnFailure"), "a=0 b+ c", "start b"),
        ("Always", own("Never"), "a=0 b=111 c", ""),
        ("Always", own("Never"), "a=0 b=111 c=0", "start c"),
    ];
    for (policy, fields, records, want) in table {
        let pod = pod_of(policy, &[], &["a", "b", "c"], fields.clone());
        let actions = planned(&pod, seen(&pod, (0, true), records));
        assert_eq!(said(&actions), want, "{policy} {fields} {records}");
    }
}

#[test]
fn a_sandbox_that_does_not_serve_is_replaced_while_anything_is_to_run() {
    let none = || json!({});
    let own = |name: &str, policy: &str| json!({name: {"restartPolicy": policy}});
    // Policy, fields, newest sandbox, records, plan.
    let table = [
        ("Always", none(), 0, "a b", "sandbox 1, stop a, stop b"),
        ("OnFailure", none(), 0, "a b=0", "sandbox 1, stop a"),
        ("OnFailure", none(), 1, "a=0 b=0", "end"),
        ("Never", none(), 1, "a=0 b=0", "end"),
        ("Never", none(), 0, "a b=0", "end"),
        ("Never", none(), 1, "a=137 b=0", "end"),
        ("Never", none(), 2, "", "sandbox 3"),
        (
            "Always",
            own("b", "OnFailure"),
            0,
            "a b=0",
            "sandbox 1, stop a",
        ),
        ("Always", own("b", "OnFailure"), 0, "a=0 b=0", "sandbox 1"),
        // Of these a kubelet makes nothing.
        ("Never", none(), 0, "a=0", "sandbox 1"),
        ("Never", own("b", "Always"), 0, "a=0 b=0", "sandbox 1"),
    ];
    for (policy, fields, newest, records, want) in table {
        let pod = pod_of(policy, &[], &["a", "b"], fields.clone());
        let actions = planned(&pod, seen(&pod, (newest, false), records));
        assert_eq!(said(&actions), want, "{policy} {fields} {records}");
    }
}

#[test]
fn init_containers_follow_their_states() {
    // Policy, newest sandbox and whether it serves, records, plan.
    let table = [
        ("Always", (0, true), "", "start i"),
        ("Always", (0, true), "i", ""),
        ("Always", (0, true), "i=0", "start j"),
        ("Always", (0, true), "i=0 j=0", "start a, start b"),
        ("Always", (0, true), "i=0 j", ""),
        ("Always", (0, true), "j", ""),
        ("Always", (0, true), "i=0 j+", "start j"),
        ("Always", (0, true), "i=0 j=137", "start j"),
        ("OnFailure", (0, true), "i=0 j=137", "start j"),
        ("Never", (0, true), "i=0 j=137", "end"),
        ("Always", (0, true), "i=0 j?", "stop j"),
        ("Never", (0, true), "i=0 j?", "stop j"),
        ("Always", (1, true), "@0:i=0 @0:j=0 @0:a=0", "start i"),
        ("Always", (1, true), "@0:a+", "start i"),
        ("Always", (0, false), "i=0 j=0", "sandbox 1"),
        ("OnFailure", (0, false), "i=0 j=137", "sandbox 1"),
        ("Never", (0, false), "", "sandbox 1"),
        ("Never", (0, false), "i=0 j=1", "end"),
        ("Never", (0, false), "i=0 j", "end"),
        // Of this a kubelet makes nothing.
        ("Never", (0, false), "i=0 j=0", "sandbox 1"),
    ];
    for (policy, sandbox, records, want) in table {
        let pod = sample::pod(policy, &["i", "j"], &["a", "b"]);
        let actions = planned(&pod, seen(&pod, sandbox, records));
        assert_eq!(said(&actions), want, "{policy} {sandbox:?} {records}");
    }
}

#[test]
fn sidecars_follow_their_states() {
    let passed = Verdicts {
        started: Some(true),
        alive: Some(true),
        ..Verdicts::default()
    };
    let not_started = Verdicts::default();
    let does_not_start = Verdicts {
        started: Some(false),
        ..Verdicts::default()
    };
    let ill = Verdicts {
        alive: Some(false),
        ..passed
    };
    // Policy, records, what the last one's probes say, plan.
    let table = [
        ("Always", "", passed, "start s"),
        ("Always", "s", passed, "start t"),
        ("Always", "s t", passed, "start u"),
        ("Always", "s t u", passed, "start a"),
        ("Always", "s t u", not_started, ""),
        ("Always", "s t u", does_not_start, "stop u"),
        ("Always", "s t u a", ill, "stop u"),
        ("Always", "s t u+", not_started, "start u"),
        ("Always", "s=0 t u=0", passed, "start s, start u"),
        ("Always", "s=0 t u", passed, "start s, start a"),
        ("Always", "u", passed, "start s, start t, start a"),
        ("Never", "s t u=137", passed, "start u"),
        ("Never", "s t u?", passed, "stop u"),
        ("Never", "s t u=137 a", passed, "start u"),
        ("Never", "s t u a=0", passed, "end"),
    ];
    for (policy, records, verdicts, want) in table {
        let probe = json!({"startupProbe": {}, "livenessProbe": {}});
        let sidecars = ["s:sidecar", "t:sidecar", "u:sidecar"];
        let pod = pod_of(policy, &sidecars, &["a"], json!({"u": probe}));
        let mut probes = ProbeResults::default();
        probes.set(running(&pod, "u").id, verdicts);
        let view = seen(&pod, (0, true), records);
        let actions = planned_with(&pod, view, None, &[], &probes);
        assert_eq!(said(&actions), want, "{policy} {records} {verdicts:?}");
    }
}

#[test]
fn ephemeral_containers_follow_their_states() {
    let mut pod = sample::pod("Never", &["i"], &["a"]);
    let ephemeral = json!([{"name": "e", "image": "i:1"}, {"name": "f", "image": "i:1"}]);
    pod.spec.as_mut().expect("a spec").ephemeral_containers =
        serde_json::from_value(ephemeral).expect("containers");
    let table = [
        ((0, true), "i=0 a e f", ""),
        ((0, true), "i=0 a e", "start f"),
        ((0, true), "i e=0", "start f"),
        ((0, true), "i=0 a e? f", ""),
        ((0, true), "i=0 a=0 e f", "end"),
        ((1, true), "@0:e=137 @0:f=137", "start i"),
    ];
    for (sandbox, records, want) in table {
        let actions = planned(&pod, seen(&pod, sandbox, records));
        assert_eq!(said(&actions), want, "{records}");
    }
}

#[test]
fn a_restart_of_all_takes_apps_then_init_containers_and_whoever_caused_it_at_the_end() {
    let rules = json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]}}]);
    let rules = json!({"restartPolicy": "Never", "restartPolicyRules": rules});
    let table = [
        (
            "a",
            "i=0 s a=42 b",
            "reset b.0, reset i.0, reset s.0, reset a.0",
        ),
        (
            "b",
            "i=0 s a b=42",
            "reset a.0, reset i.0, reset s.0, reset b.0",
        ),
        ("i", "i=42", "reset i.0"),
        (
            "s",
            "i=0 s=42 a b",
            "reset a.0, reset b.0, reset i.0, reset s.0",
        ),
        (
            "a",
            "i=0 s a=42 b+",
            "reset b.0, reset i.0, reset s.0, reset a.0",
        ),
    ];
    for (source, records, want) in table {
        let mut pod = pod_of(
            "Never",
            &["i", "s:sidecar"],
            &["a", "b"],
            json!({source: rules}),
        );
        let init = pod
            .spec
            .as_mut()
            .and_then(|spec| spec.init_containers.as_mut());
        init.expect("init containers")[1].restart_policy = Some("Always".into());
        let actions = planned(&pod, seen(&pod, (0, true), records));
        assert_eq!(said(&actions), want, "{records}");
    }
}

#[test]
fn what_the_node_has_stopped_to_restart_it_starts_however_it_ended() {
    // Policy, whether the image changed, exit code, whether the node has stopped it; plan.
    let table = [
        ("OnFailure", false, 0, true, "start a"),
        ("OnFailure", false, 0, false, ""),
        ("Never", false, 0, true, ""),
        ("Never", true, 0, true, "start a"),
        ("Never", true, 0, false, ""),
        ("Never", true, 143, false, "start a"),
    ];
    for (policy, changed, code, stopped, want) in table {
        let old = pod(policy, &[], &["a", "b"]);
        let mut new = old.clone();
        if changed {
            new.spec.as_mut().expect("a spec").containers[0].image = Some("i:2".into());
        }
        let ended = exited(&old, "a", 0, code, 5);
        let restarted = stopped.then(|| (ended.id.clone(), None)).into_iter();
        let actions = plan(&Inputs {
            pod: &new,
            seen: &Observation::new(view(vec![ended, running(&old, "b")]), None),
            starting: &BTreeSet::new(),
            restarted: &restarted.collect(),
            probes: &ProbeResults::default(),
            back_off_cap: back_off::CAP,
            now: sample::now(),
        });
        assert_eq!(said(&actions), want, "{policy} {changed} {code} {stopped}");
    }
}

#[test]
fn a_changed_definition_replaces_what_stays() {
    let failed = Verdicts {
        started: Some(false),
        ..Verdicts::default()
    };
    let started = Verdicts {
        started: Some(true),
        ..Verdicts::default()
    };
    // Which image changed, records, what the sidecar's startup probe says; who is stopped and why.
    let changed = StopReason::DefinitionChanged;
    let startup = StopReason::Probe(FailedProbe::Startup);
    let table = [
        ("i", "i", started, None),
        ("s", "i=0 s a", started, Some(("s", changed))),
        ("s", "i=0 s", Verdicts::default(), None),
        ("s", "i=0 s", failed, Some(("s", startup))),
        ("a", "i=0 s a", started, Some(("a", changed))),
    ];
    for (name, records, verdicts, want) in table {
        let probe = || json!({"startupProbe": {}});
        let old = pod_of("Always", &["i", "s:sidecar"], &["a"], json!({"s": probe()}));
        let mut new = old.clone();
        let spec = new.spec.as_mut().expect("a spec");
        let all = spec.init_containers.iter_mut().flatten();
        for container in all.chain(&mut spec.containers) {
            if container.name == name {
                container.image = Some("i:2".into());
            }
        }
        let mut probes = ProbeResults::default();
        probes.set(running(&old, "s").id, verdicts);
        let view = seen(&old, (0, true), records);
        let actions = planned_with(&new, view, None, &[], &probes);
        assert_eq!(stops(&actions), Vec::from_iter(want), "{name} {records}");
    }
}
