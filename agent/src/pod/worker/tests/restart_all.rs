//! `RestartAllContainers`: one container's end starts every container anew, in the sandbox that there is.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{calls, deleted, is_ready, phase};
use crate::pod::admit::NodeView;
use crate::pod::fake::{Fake, Node, State};
use crate::pod::{sample, spec};

/// An init container, a sidecar, an app, and one whose exit code 42 restarts all.
fn pod() -> Pod {
    let rules = json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "In", "values": [42]}}]);
    sample::from(json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "i", "image": "i:1"},
            {"name": "s", "image": "i:1", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "i:1"},
            {"name": "x", "image": "i:1", "restartPolicy": "Never", "restartPolicyRules": rules}],
    }))
}

/// A fake whose node can do it.
fn able() -> std::sync::Arc<Fake> {
    let fake = Fake::new();
    fake.state().node = NodeView {
        features: vec!["RestartAllContainersOnContainerExits".into()],
        ..NodeView::default()
    };
    fake
}

/// `STATUS reason` of the condition in every status that has it, without repetition.
fn conditions(state: &State) -> Vec<String> {
    let found = state.statuses.iter().filter_map(|status| {
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|found| found.type_ == "AllContainersRestarting")?;
        let reason = found.reason.clone().unwrap_or_default();
        Some(format!("{} {reason}", found.status).trim().to_owned())
    });
    let mut all: Vec<_> = found.collect();
    all.dedup();
    all
}

fn statuses(state: &State) -> Vec<ContainerStatus> {
    let last = state.statuses.last().expect("a status");
    let init = last.init_container_statuses.iter().flatten();
    init.chain(last.container_statuses.iter().flatten())
        .cloned()
        .collect()
}

#[tokio::test(start_paused = true)]
async fn one_end_starts_every_container_anew_in_the_same_sandbox() {
    let node = Node::start(&able());
    node.fake.state().runs.extend([
        ("i".into(), (Duration::from_secs(1), 0)),
        ("x".into(), (Duration::from_secs(9), 42)),
    ]);
    node.apply(&pod()).await;
    node.until("ready", is_ready).await;
    node.fake.state().runs.remove("x");
    node.until("started again", |state| {
        calls(state, &["start x"]).len() == 2
    })
    .await;
    node.until("ready again", is_ready).await;
    let state = node.fake.state();
    let order = calls(&state, &["run", "start", "stop", "remove container"]);
    let want = [
        "run sandbox 0",
        "start i.0",
        "start s.0",
        "start a.0",
        "start x.0",
        "stop a 2s",
        "stop s 2s",
        "start i.1",
        "start s.1",
        "start a.1",
        "start x.1",
    ];
    assert_eq!(order, want);
    for status in statuses(&state) {
        assert_eq!(status.restart_count, 1, "{}", status.name);
        let last = status.last_state.and_then(|last| last.terminated);
        let reason = last.and_then(|last| last.reason);
        assert_eq!(reason.as_deref(), Some("RestartingAllContainers"));
    }
    assert_eq!(
        conditions(&state),
        ["False", "True RestartAllContainersStarted", "False"]
    );
    let during = state
        .statuses
        .iter()
        .map(|status| serde_json::to_string(status).expect("JSON"));
    let message = spec::RESTARTING_ALL_MESSAGE;
    let ended = format!(
        "\"exitCode\":137,\"message\":\"{message}\",\"reason\":\"RestartingAllContainers\""
    );
    let seen: Vec<_> = during.filter(|text| text.contains(&ended)).collect();
    assert!(!seen.is_empty(), "{:#?}", state.statuses);
    assert!(seen[0].contains("\"phase\":\"Running\""), "{seen:#?}");
}

#[tokio::test(start_paused = true)]
async fn another_code_ends_the_container_for_good() {
    let node = Node::start(&able());
    let second = Duration::from_secs(1);
    node.fake.state().runs.extend([
        ("i".into(), (second, 0)),
        ("a".into(), (second, 0)),
        ("x".into(), (second, 1)),
    ]);
    node.apply(&pod()).await;
    node.until("failed", |state| phase(state) == "Failed").await;
    let state = node.fake.state();
    assert_eq!(calls(&state, &["start x"]).len(), 1);
    assert_eq!(conditions(&state), ["False", "False PodFailed"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_restarts_all_again_and_again_backs_off() {
    let node = Node::start(&able());
    let second = Duration::from_secs(1);
    node.fake
        .state()
        .runs
        .extend([("i".into(), (second, 0)), ("x".into(), (second, 42))]);
    node.apply(&pod()).await;
    let mut times = Vec::new();
    for count in 1..=4 {
        node.until("started again", |state| {
            calls(state, &["start x"]).len() >= count
        })
        .await;
        times.push(Instant::now());
    }
    let pauses = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs());
    assert_eq!(pauses.collect::<Vec<_>>(), [2, 10, 20]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_in_the_middle_is_followed_by_one_that_goes_on() {
    let fake = able();
    let node = Node::start(&fake);
    fake.state()
        .runs
        .insert("i".into(), (Duration::from_secs(1), 0));
    let mut pod = pod();
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.kill().await;
    // It had said that it restarts all, and taken away all but the cause.
    let x = fake
        .state()
        .containers
        .iter()
        .find(|record| record.config.name == "x")
        .cloned();
    let x = x.expect("a run").id;
    fake.exit(&x, 42);
    fake.state().containers.retain(|record| record.id == x);
    let mut last = fake.state().statuses.last().cloned().expect("a status");
    for condition in last.conditions.iter_mut().flatten() {
        if condition.type_ == "AllContainersRestarting" {
            condition.status = "True".into();
        }
    }
    pod.status = Some(last);
    let node = Node::start(&fake);
    node.apply(&pod).await;
    node.until("started again", |state| {
        calls(state, &["start x"]).len() == 2
    })
    .await;
    sleep(Duration::from_secs(1)).await;
    for status in statuses(&fake.state()) {
        assert_eq!(status.restart_count, 1, "{}", status.name);
    }
}

#[tokio::test(start_paused = true)]
async fn logs_outlive_a_restart_of_all_and_go_with_the_pod() {
    let node = Node::start(&able());
    let second = Duration::from_secs(1);
    node.fake
        .state()
        .runs
        .extend([("i".into(), (second, 0)), ("x".into(), (9 * second, 42))]);
    let pod = pod();
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let dir = node.fake.dir();
    let logs = dir.join(format!("logs/default_web_{}", sample::UID));
    let log = logs.join("x/0.log");
    std::fs::create_dir_all(logs.join("x")).expect("a directory");
    std::fs::write(&log, "last words").expect("a log");
    let links = || {
        std::fs::read_dir(dir.join("log-links"))
            .expect("links")
            .count()
    };
    assert_eq!(links(), 4);
    node.fake.state().runs.remove("x");
    node.until("started again", |state| {
        calls(state, &["start x"]).len() == 2 && is_ready(state)
    })
    .await;
    assert!(log.exists());
    assert_eq!(links(), 8);
    node.apply(&deleted(&pod, 5)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(!logs.exists());
    assert_eq!(links(), 0);
}
