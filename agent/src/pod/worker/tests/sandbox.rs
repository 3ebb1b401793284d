//! Sandboxes that break, and what becomes of those inside.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{calls, is_ready};
use crate::pod::fake::{Fake, Node, State};
use crate::pod::sample;

const CHANGED: &str = "SandboxChanged Pod sandbox changed, it will be killed and re-created.";

#[tokio::test(start_paused = true)]
async fn what_runs_in_a_broken_sandbox_is_told_and_ends_in_order() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &["s:sidecar", "t:sidecar"], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let before = node.fake.state().events.len();
    node.fake.break_sandbox();
    node.until("begun anew", |state| calls(state, &["start a"]).len() == 2)
        .await;
    let state = node.fake.state();
    let order = calls(&state, &["stop"]);
    let stops = ["stop a 30s", "stop t 30s", "stop s 30s", "stop sandbox s0"];
    assert_eq!(order, stops);
    let mut told = state.events[before..before + 4].to_vec();
    told[1..].sort();
    let all = ["a", "s", "t"].map(|name| format!("Killing Stopping container {name}"));
    assert_eq!(told[0], CHANGED);
    assert_eq!(told[1..], all);
}

#[tokio::test(start_paused = true)]
async fn what_a_new_sandbox_has_ended_begins_anew_at_once_however_it_ended() {
    // The policy, and how often `a` and `b` are started of which `b` has ended with 0.
    for (policy, want) in [("OnFailure", (3, 1)), ("Always", (3, 2)), ("Never", (1, 1))] {
        let node = Node::start(&Fake::new());
        node.fake.state().polite.insert("a".into());
        let runs = ("b".to_owned(), (Duration::from_secs(1), 0));
        node.fake.state().runs.extend([runs]);
        let pod = sample::pod(policy, &[], &["a", "b"]);
        node.apply(&pod).await;
        node.until("begun", |state| calls(state, &["start b"]).len() == 1)
            .await;
        sleep(Duration::from_secs(2)).await;
        node.fake.state().runs.clear();
        for _ in 0..2 {
            sleep(Duration::from_secs(15)).await;
            node.fake.break_sandbox();
            sleep(Duration::from_secs(1)).await;
        }
        let state = node.fake.state();
        let starts = |name: &str| calls(&state, &[&format!("start {name}")]).len();
        let first = (starts("a"), starts("b").min(2));
        assert_eq!(first, want, "{policy}: {:?}", state.calls);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ran_before_the_machine_began_anew_is_told_of_its_new_sandbox() {
    for ran in [true, false] {
        let node = Node::start(&Fake::new());
        let mut pod = sample::pod("Always", &[], &["a"]);
        let id = ran.then_some("hanok://a.0");
        let ended = json!({"terminated": {"exitCode": 137}});
        let status = json!({"phase": "Running", "containerStatuses": [{"name": "a", "ready": false,
            "restartCount": 0, "image": "i:1", "imageID": "", "containerID": id,
            "state": if ran { ended } else { json!({"waiting": {}}) }}]});
        pod.status = Some(serde_json::from_value(status).expect("a status"));
        node.apply(&pod).await;
        node.until("ready", is_ready).await;
        let state = node.fake.state();
        assert_eq!(state.events.iter().any(|event| event == CHANGED), ran);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_new_sandbox_has_ended_is_not_over_while_there_is_none_yet() {
    let node = Node::start(&Fake::new());
    node.fake.state().polite.insert("a".into());
    let pod = sample::pod("OnFailure", &[], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.fake.state().broken_network = Some("no addresses".into());
    node.fake.break_sandbox();
    let tries = |state: &State| calls(state, &["run sandbox 1"]).len();
    node.until("tried twice", |state| tries(state) >= 2).await;
    node.fake.state().broken_network = None;
    node.until("begun anew", |state| calls(state, &["start a"]).len() == 2)
        .await;
    let state = node.fake.state();
    let mut phases = state.statuses.iter().map(|status| status.phase.as_deref());
    assert!(!phases.any(|phase| phase == Some("Succeeded")));
}
