//! One law per test: what of a status stays, changes and goes, by what was told before.

use super::*;

const EARLIER: &str = "2020-01-01T00:00:00Z";

fn time_of(status: &PodStatus, type_: &str) -> Value {
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|found| found.type_ == type_);
    serde_json::to_value(&found.expect("the condition").last_transition_time).expect("JSON")
}

fn has(status: &PodStatus, type_: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|found| found.type_ == type_)
}

#[test]
fn containers_stand_in_the_order_of_their_names_and_init_containers_in_that_of_the_pod() {
    let pod = pod("Always", &["z", "y"], &["b", "c", "a"]);
    let status = status(&pod, PodView::default());
    let names = |list: &Option<Vec<ContainerStatus>>| -> String {
        list.iter().flatten().map(|one| one.name.as_str()).collect()
    };
    assert_eq!(names(&status.init_container_statuses), "zy");
    assert_eq!(names(&status.container_statuses), "abc");
    let want = "False ContainersNotReady containers with unready status: [b c a]";
    assert_eq!(condition(&status, "ContainersReady"), want);
}

#[test]
fn containers_share_what_a_pod_may_say_at_its_end() {
    for (names, most) in [
        (&["a"][..], 4096),
        (&["a", "b", "c", "d", "e"], 12 * 1024 / 5),
    ] {
        let pod = pod("Never", &[], names);
        let records: Vec<_> = names
            .iter()
            .map(|name| exited(&pod, name, 0, 1, 5))
            .collect();
        let said = |record: &hanok_runtime::api::Container| (record.id.clone(), "ä".repeat(2048));
        let facts = Facts {
            messages: records.iter().map(said).collect(),
            ..facts()
        };
        let status = status_with(&pod, view(records), facts, None);
        let ended = &state(&status, "a")["terminated"];
        let said = ended["message"].as_str().expect("a message").len();
        assert!(said == most || said + 1 == most, "{said} of {most}");
    }
}

#[test]
fn reason_and_message_go_with_the_phase_that_they_belong_to() {
    let pod = pod("Always", &[], &["a"]);
    let records = || view(vec![running(&pod, "a")]);
    for (phase, want) in [("Pending", None), ("Running", Some("Test"))] {
        let last = parse(json!({"phase": phase, "reason": "Test", "message": "test"}));
        let status = status_with(&pod, records(), facts(), Some(&last));
        assert_eq!(phase_of(&status), "Running");
        assert_eq!(status.reason.as_deref(), want, "{phase}");
        assert_eq!(status.message.is_some(), want.is_some(), "{phase}");
    }
}

#[test]
fn a_pod_stays_initialized_while_it_begins_anew_in_another_sandbox() {
    let pod = pod("Always", &["i"], &["a"]);
    let mut again = record(&pod, "i", 1, ContainerState::Running);
    again.sandbox = hanok_runtime::api::SandboxId("s1".into());
    let view = || PodView {
        sandboxes: vec![
            sandbox(1, SandboxState::Ready),
            sandbox(0, SandboxState::NotReady),
        ],
        containers: vec![
            again.clone(),
            exited(&pod, "i", 0, 0, 50),
            exited(&pod, "a", 0, 1, 9),
        ],
    };
    for (was, want) in [("True", "True"), ("False", "True")] {
        let last = parse(json!({"phase": "Running", "conditions": [
            {"type": "Initialized", "status": was, "lastTransitionTime": EARLIER}]}));
        let status = status_with(&pod, view(), facts(), Some(&last));
        assert_eq!(phase_of(&status), "Pending");
        assert_eq!(condition(&status, "Initialized"), want, "{was}");
        assert_eq!(state(&status, "a")["waiting"]["reason"], "PodInitializing");
    }
    // No app container has ever run.
    for (was, want) in [
        ("True", "True"),
        ("False", "False ContainersNotInitialized"),
    ] {
        let last = parse(json!({"conditions": [{"type": "Initialized", "status": was}]}));
        let view = PodView {
            containers: vec![again.clone()],
            ..view()
        };
        let status = status_with(&pod, view, facts(), Some(&last));
        assert!(condition(&status, "Initialized").starts_with(want), "{was}");
    }
}

#[test]
fn a_condition_of_a_resize_is_dated_by_its_reason() {
    let pod = pod("Always", &[], &["a"]);
    let last = parse(json!({"conditions": [
        {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "m",
         "lastTransitionTime": EARLIER, "lastProbeTime": EARLIER, "observedGeneration": 3}]}));
    let now = "2027-01-15T08:00:00Z";
    for (reason, message, changed, probed) in [
        (resize::DEFERRED, "m", EARLIER, EARLIER),
        (resize::DEFERRED, "n", EARLIER, now),
        (resize::INFEASIBLE, "m", now, now),
    ] {
        let pending = Pending {
            reason,
            event: String::new(),
            message: message.into(),
        };
        let facts = Facts {
            resize_pending: Some((pending, 3)),
            ..facts()
        };
        let with = |ending| Facts {
            ending,
            ..facts.clone()
        };
        let records = || view(vec![running(&pod, "a")]);
        let status = status_with(&pod, records(), with(Ending::No), Some(&last));
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|found| found.type_ == resize::PENDING);
        let found = serde_json::to_value(found.expect("the condition")).expect("JSON");
        assert_eq!(found["lastTransitionTime"], changed, "{reason} {message}");
        assert_eq!(found["lastProbeTime"], probed, "{reason} {message}");
        let ended = status_with(&pod, view(vec![]), with(Ending::Ended), Some(&last));
        assert!(!has(&ended, resize::PENDING));
    }
}

#[test]
fn the_node_tells_of_its_disruption_when_the_pod_has_ended() {
    let pod = pod("Always", &[], &["a"]);
    let own =
        json!({"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"});
    let facts = Facts {
        failure: Some(Failure {
            reason: "Preempting".into(),
            message: "m".into(),
        }),
        disruption: serde_json::from_value(own).expect("a condition"),
        ..facts()
    };
    let theirs = |status: &str| {
        json!({"type": "DisruptionTarget", "status": status, "reason": "EvictionByEvictionAPI",
               "lastTransitionTime": EARLIER})
    };
    let runs = || view(vec![running(&pod, "a")]);
    let ended = || view(vec![exited(&pod, "a", 0, 143, 1)]);
    let now = "2027-01-15T08:00:00Z";
    for (conditions, view, want) in [
        (json!([]), runs(), None),
        (
            json!([theirs("True")]),
            runs(),
            Some(("EvictionByEvictionAPI", EARLIER)),
        ),
        (json!([]), ended(), Some(("TerminationByKubelet", now))),
        (
            json!([theirs("False")]),
            ended(),
            Some(("TerminationByKubelet", now)),
        ),
        (
            json!([theirs("True")]),
            ended(),
            Some(("TerminationByKubelet", EARLIER)),
        ),
    ] {
        let case = conditions.to_string();
        let last = parse(json!({"phase": "Running", "reason": "Old", "conditions": conditions}));
        let status = status_with(&pod, view, facts.clone(), Some(&last));
        let Some((reason, time)) = want else {
            assert!(!has(&status, "DisruptionTarget"), "{case}");
            // While it still runs, so do phase and reason.
            assert_eq!(phase_of(&status), "Running");
            assert_eq!(status.reason.as_deref(), Some("Old"));
            continue;
        };
        let want = format!("True {reason}");
        assert_eq!(condition(&status, "DisruptionTarget"), want, "{case}");
        assert_eq!(time_of(&status, "DisruptionTarget"), time, "{case}");
    }
}

#[test]
fn a_gate_may_be_a_condition_of_the_node_that_comes_before_ready() {
    for (gate, want) in [
        ("Initialized", "True"),
        (
            "PodScheduled",
            "False ReadinessGatesNotReady corresponding condition of pod readiness gate \
             \"PodScheduled\" does not exist.",
        ),
    ] {
        let mut pod = pod("Always", &[], &["a"]);
        pod.spec.as_mut().expect("a spec").readiness_gates =
            serde_json::from_value(json!([{"conditionType": gate}])).expect("gates");
        let last = parse(json!({"conditions": [{"type": "PodScheduled", "status": "True"}]}));
        let status = status_with(&pod, view(vec![running(&pod, "a")]), facts(), Some(&last));
        assert_eq!(condition(&status, "Ready"), want);
    }
}

#[test]
fn of_a_pod_that_was_not_taken_nothing_is_said_but_why() {
    let pod = pod("Always", &[], &["a"]);
    let facts = Facts {
        rejected: true,
        failure: Some(Failure {
            reason: "OutOfcpu".into(),
            message: "m".into(),
        }),
        ..facts()
    };
    let last = parse(
        json!({"phase": "Pending", "hostIP": "192.0.2.1", "startTime": EARLIER,
        "conditions": [{"type": "PodScheduled", "status": "True"},
                       {"type": "example.com/gate", "status": "True"}],
        "containerStatuses": [{"name": "a", "ready": false, "restartCount": 0, "image": "",
                               "imageID": "", "state": {"waiting": {}}}]}),
    );
    let status = status_with(&pod, PodView::default(), facts, Some(&last));
    let want = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "m", "startTime": EARLIER,
        "qosClass": "BestEffort", "observedGeneration": 3,
        "conditions": [{"type": "example.com/gate", "status": "True"}]});
    assert_eq!(serde_json::to_value(&status).expect("JSON"), want);
}

#[test]
fn a_pod_tells_its_resources_as_a_whole() {
    let a = json!({"requests": {"cpu": "100m", "memory": "100Mi", "ephemeral-storage": "1Gi"},
                   "limits": {"cpu": "200m", "ephemeral-storage": "2Gi"}});
    let b = json!({"requests": {"cpu": "200m"}, "limits": {"memory": "1Gi", "cpu": "1"}});
    let init =
        json!([{"name": "i", "image": "i:1", "resources": {"requests": {"memory": "500Mi"}}}]);
    let own = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let runs_all =
        json!({"requests": {"cpu": "300m", "memory": "1124Mi"}, "limits": {"cpu": "1200m"}});
    let table = [
        (
            json!({}),
            json!([json!({}), json!({})]),
            json!(null),
            json!({}),
            json!({}),
        ),
        (
            json!({}),
            json!([a, b]),
            json!({"cpu": "300m", "memory": "1124Mi", "ephemeral-storage": "1Gi"}),
            json!({"requests": {"cpu": "300m", "memory": "1124Mi", "ephemeral-storage": "1Gi"},
                   "limits": {"cpu": "1200m", "memory": "1Gi", "ephemeral-storage": "2Gi"}}),
            runs_all,
        ),
        (
            json!({"initContainers": init, "overhead": {"cpu": "50m", "memory": "1Mi"}}),
            json!([{"requests": {"cpu": "100m"}}, {}]),
            json!({"cpu": "150m", "memory": "501Mi"}),
            json!({"requests": {"cpu": "150m", "memory": "501Mi"}}),
            json!({"requests": {"cpu": "150m", "memory": "501Mi"}}),
        ),
        (
            json!({"resources": own}),
            json!([a, {}]),
            json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}),
            json!({"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
                   "limits": {"cpu": "200m", "memory": "2Gi", "ephemeral-storage": "2Gi"}}),
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}),
        ),
    ];
    for (mut spec, resources, allocated, waiting, runs) in table {
        spec["containers"] = json!([
            {"name": "a", "image": "i:1", "resources": resources[0]},
            {"name": "b", "image": "i:1", "resources": resources[1]},
        ]);
        let pod = sample::from(spec.clone());
        let begins = status(&pod, view(vec![]));
        let records = [
            exited(&pod, "i", 0, 0, 5),
            running(&pod, "a"),
            running(&pod, "b"),
        ];
        let running = status(&pod, view(records.into()));
        assert_eq!(phase_of(&running), "Running", "{spec}");
        for (status, want) in [(begins, waiting), (running, runs)] {
            let status = serde_json::to_value(&status).expect("JSON");
            assert_eq!(status["allocatedResources"], allocated, "{spec}");
            assert_eq!(status["resources"], want, "{spec}");
        }
    }
}

#[test]
fn a_lost_run_is_told_in_the_words_of_its_place() {
    let last = parse(json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "ready": true, "restartCount": 0, "image": "i:1", "imageID": "x",
         "containerID": "hanok://old", "state": {"running": {}}}]}));
    for (policy, place, message) in [
        (
            "Always",
            "lastState",
            "The container could not be located when the pod was deleted.  \
             The container used to be Running",
        ),
        (
            "Never",
            "state",
            "The container could not be located when the pod was terminated",
        ),
    ] {
        let pod = pod(policy, &[], &["a"]);
        let status = status_with(&pod, PodView::default(), facts(), Some(&last));
        let container = status_of(Some(&status), "a").expect("the container");
        let shown = serde_json::to_value(container).expect("JSON");
        assert_eq!(shown[place]["terminated"]["message"], message);
    }
}

#[test]
fn addresses_are_the_first_of_each_family() {
    let pod = pod("Always", &[], &["a"]);
    for (host, ips, want) in [
        ("192.0.2.1", "10.0.0.1", "10.0.0.1"),
        ("192.0.2.1", "10.0.0.1 fd01::1", "10.0.0.1 fd01::1"),
        ("192.0.2.1", "fd01::1 10.0.0.1", "10.0.0.1 fd01::1"),
        ("192.0.2.1", "fd01::1", "fd01::1"),
        ("192.0.2.1", "10.0.0.1 10.0.0.2", "10.0.0.1"),
        (
            "192.0.2.1",
            "10.0.0.1 10.0.0.2 fd01::1 10.0.0.3 fd01::2",
            "10.0.0.1 fd01::1",
        ),
        ("fd00::1", "10.0.0.1 fd01::1", "fd01::1 10.0.0.1"),
        ("fd00::1", "fd01::1 10.0.0.1", "fd01::1 10.0.0.1"),
        ("fd00::1", "10.0.0.1", "10.0.0.1"),
    ] {
        let mut sandbox = sandbox(0, SandboxState::Ready);
        sandbox.ips = ips.split(' ').map(str::to_owned).collect();
        let view = PodView {
            sandboxes: vec![sandbox],
            containers: vec![],
        };
        let facts = Facts {
            host_ips: vec![host.into()],
            ..facts()
        };
        let status = status_with(&pod, view, facts, None);
        let shown: Vec<_> = status
            .pod_ips
            .into_iter()
            .flatten()
            .map(|ip| ip.ip)
            .collect();
        assert_eq!(shown.join(" "), want, "{host} {ips}");
        assert_eq!(status.pod_ip.as_deref(), want.split(' ').next());
    }
}
