//! In-place resize: what is changed, in which order, and what is said of it.

mod turns;

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{calls, is_ready};
use crate::pod::admit::{NodeView, Placement};
use crate::pod::fake::{Fake, Node, State};
use crate::pod::sample;
use crate::quantity::Amount;
use crate::sinks::PodUpdate;

/// A pod of containers `a` and `b` with these limits on CPU, and 64Mi of memory each.
fn pod(generation: i64, a: &str, b: &str) -> Pod {
    let container = |name: &str, cpu: &str| {
        let amounts = json!({"cpu": cpu, "memory": "64Mi"});
        json!({"name": name, "image": "i:1", "resources": {"limits": amounts, "requests": amounts}})
    };
    let mut pod = sample::from(json!({"containers": [container("a", a), container("b", b)]}));
    pod.metadata.generation = Some(generation);
    pod
}

fn with_policy(mut pod: Pod, policy: &str) -> Pod {
    let policies = json!([{"resourceName": "cpu", "restartPolicy": policy}]);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].resize_policy = serde_json::from_value(policies).expect("policies");
    pod
}

/// A node whose pods are all known.
async fn node(fake: &std::sync::Arc<Fake>) -> Node {
    let node = Node::start(fake);
    node.send(PodUpdate::Synced).await;
    node
}

/// The resize conditions of every status, as `TYPE reason generation`, without repetition.
fn conditions(state: &State) -> Vec<Vec<String>> {
    let of = |status: &k8s_openapi::api::core::v1::PodStatus| {
        let conditions = status.conditions.iter().flatten();
        let found = conditions.filter(|found| found.type_.starts_with("PodResize"));
        found
            .map(|found| {
                let reason = found.reason.clone().unwrap_or_default();
                let generation = found.observed_generation.unwrap_or_default();
                format!("{} {reason} {generation}", found.type_)
            })
            .collect::<Vec<_>>()
    };
    let mut all: Vec<_> = state.statuses.iter().map(of).collect();
    all.dedup();
    all
}

/// The CPU limits that the last status has in force, by container.
fn in_force(state: &State) -> Vec<Value> {
    let last = state.statuses.last().expect("a status");
    let statuses = last.container_statuses.iter().flatten();
    statuses
        .map(|status| {
            serde_json::to_value(&status.resources).expect("JSON")["limits"]["cpu"].clone()
        })
        .collect()
}

fn events(state: &State) -> Vec<String> {
    let found = state
        .events
        .iter()
        .filter(|event| event.starts_with("Resize"));
    found
        .map(|event| event.split(": ").next().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_shrinks_shrinks_before_the_pod_and_what_grows_grows_after_it() {
    let node = node(&Fake::new()).await;
    node.apply(&pod(1, "100m", "500m")).await;
    node.until("ready", is_ready).await;
    node.apply(&pod(2, "300m", "200m")).await;
    node.until("resized", |state| events(state).len() == 2)
        .await;
    sleep(Duration::from_secs(1)).await;
    let state = node.fake.state();
    let memory = 64 << 20;
    let order = calls(&state, &["resize", "cgroup"]);
    let want = [
        format!("cgroup 60000 {}", 2 * memory),
        format!("resize a 10000 {memory}"),
        format!("resize b 20000 {memory}"),
        format!("cgroup 50000 {}", 2 * memory),
        format!("resize a 30000 {memory}"),
    ];
    assert_eq!(order, want);
    assert_eq!(calls(&state, &["start", "stop"]).len(), 2);
    assert_eq!(
        events(&state),
        [
            "ResizeStarted Pod resize started",
            "ResizeCompleted Pod resize completed"
        ]
    );
    assert_eq!(
        conditions(&state),
        [vec![], vec!["PodResizeInProgress  2".to_owned()], vec![]]
    );
    assert_eq!(in_force(&state), ["300m", "200m"]);
    let last = state.statuses.last().expect("a status");
    assert_eq!(last.observed_generation, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_wants_to_begin_anew_is_restarted_with_what_it_gets() {
    let node = node(&Fake::new()).await;
    node.apply(&with_policy(pod(1, "100m", "100m"), "RestartContainer"))
        .await;
    node.until("ready", is_ready).await;
    node.apply(&with_policy(pod(2, "200m", "100m"), "RestartContainer"))
        .await;
    node.until("resized", |state| {
        calls(state, &["start a"]).len() == 2 && is_ready(state) && events(state).len() == 2
    })
    .await;
    let state = node.fake.state();
    assert_eq!(
        calls(&state, &["stop", "start b"]),
        ["start b.0", "stop a 30s"]
    );
    let killing = "Killing Container a resize requires restart";
    assert!(
        state.events.iter().any(|event| event == killing),
        "{:?}",
        state.events
    );
    let cgroups = calls(&state, &["cgroup"]);
    assert!(
        cgroups.len() == 2 && cgroups[1].starts_with("cgroup 30000 "),
        "{cgroups:?}"
    );
    assert_eq!(in_force(&state), ["200m", "100m"]);
}

#[tokio::test(start_paused = true)]
async fn memory_in_use_is_not_taken_away_and_is_tried_again() {
    let node = node(&Fake::new()).await;
    let mut pod = pod(1, "100m", "100m");
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.fake.state().memory_in_use = Some(50 << 20);
    let amounts = json!({"cpu": "100m", "memory": "32Mi"});
    let resources = json!({"limits": amounts, "requests": amounts});
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].resources = serde_json::from_value(resources).expect("resources");
    pod.metadata.generation = Some(2);
    node.apply(&pod).await;
    node.until("failed", |state| {
        conditions(state)
            .iter()
            .flatten()
            .any(|c| c == "PodResizeInProgress Error 2")
    })
    .await;
    {
        let mut state = node.fake.state();
        let error = "cannot decrease memory limits: attempting to set container \\\"a\\\" memory limit \
                     (33554432) below current usage (52428800)";
        let told = |event: &String| {
            event.starts_with("ResizeError Pod resize error: {") && event.contains(error)
        };
        assert!(state.events.iter().any(told), "{:?}", state.events);
        state.memory_in_use = None;
    }
    node.until("resized", |state| {
        conditions(state).last().is_some_and(Vec::is_empty)
    })
    .await;
    let state = node.fake.state();
    assert!(calls(&state, &["resize a"]).contains(&format!("resize a 10000 {}", 32 << 20)));
    assert_eq!(
        events(&state).last().map(String::as_str),
        Some("ResizeCompleted Pod resize completed")
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_goes_on_with_a_resize() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    node.apply(&pod(1, "100m", "100m")).await;
    node.until("ready", is_ready).await;
    node.kill().await;
    let node = Node::start(&fake);
    let mut resized = pod(2, "200m", "100m");
    resized.status = fake.state().statuses.last().cloned();
    node.apply(&resized).await;
    node.send(PodUpdate::Synced).await;
    node.until("resized", |state| events(state).len() == 2)
        .await;
    assert_eq!(calls(&fake.state(), &["start"]).len(), 2);
    assert_eq!(calls(&fake.state(), &["resize a 20000"]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_amounts_in_other_words_change_nothing() {
    let node = node(&Fake::new()).await;
    node.apply(&pod(1, "1", "100m")).await;
    node.until("ready", is_ready).await;
    node.apply(&pod(2, "1000m", "0.1")).await;
    sleep(Duration::from_secs(60)).await;
    let state = node.fake.state();
    assert!(events(&state).is_empty() && calls(&state, &["resize"]).is_empty());
    let last = state.statuses.last().expect("a status");
    assert_eq!(last.observed_generation, Some(2));
}

/// A fake whose node has so many CPUs.
fn small(cpus: i64) -> std::sync::Arc<Fake> {
    let fake = Fake::new();
    let all = [("cpu", cpus), ("memory", 1 << 40), ("pods", 110)];
    let allocatable = all.map(|(name, count)| (name.to_owned(), Amount::units(count)));
    fake.state().node = NodeView {
        placement: Some(Placement {
            allocatable: allocatable.into(),
            ..Placement::default()
        }),
        ..NodeView::default()
    };
    fake
}

#[tokio::test(start_paused = true)]
async fn a_wish_beyond_the_node_changes_nothing_and_says_so() {
    let node = node(&small(2)).await;
    node.apply(&pod(1, "100m", "100m")).await;
    node.until("ready", is_ready).await;
    node.apply(&pod(2, "2", "100m")).await;
    node.until("told", |state| {
        conditions(state)
            .last()
            .is_some_and(|last| last == &["PodResizePending Deferred 2"])
    })
    .await;
    let state = node.fake.state();
    assert_eq!(in_force(&state), ["100m", "100m"]);
    assert!(calls(&state, &["resize", "stop"]).is_empty());
    let cause = "\"generation\":2,\"error\":\"Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000\"}";
    let told = |event: &&String| {
        event.starts_with("ResizeDeferred Pod resize OutOfcpu: {\"containers\":[{\"name\":\"a\",\"resources\":{\"limits\":{\"cpu\":\"2\"")
            && event.ends_with(cause)
    };
    assert_eq!(
        state.events.iter().filter(told).count(),
        1,
        "{:?}",
        state.events
    );
    let last = state.statuses.last().expect("a status");
    assert_eq!(last.observed_generation, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_wish_waits_until_others_have_let_go_and_outlives_the_agent() {
    let fake = small(2);
    let node_1 = node(&fake).await;
    let mut other = pod(1, "1", "100m");
    other.metadata.uid = Some("other".into());
    other.metadata.name = Some("other".into());
    let mut pod = pod(1, "100m", "100m");
    node_1.apply(&pod).await;
    node_1.apply(&other).await;
    node_1
        .until("ready", |state| calls(state, &["start"]).len() == 4)
        .await;
    sleep(Duration::from_secs(1)).await;
    pod = self::pod(2, "1", "100m");
    node_1.apply(&pod).await;
    let deferred = |state: &State| {
        state
            .events
            .iter()
            .any(|event| event.starts_with("ResizeDeferred"))
    };
    node_1.until("deferred", deferred).await;
    node_1.kill().await;
    let cause =
        "Node didn't have enough resource: cpu, requested: 1100, used: 1100, capacity: 2000";
    assert!(
        fake.state()
            .events
            .iter()
            .any(|event| event.contains(cause))
    );
    fake.state().calls.clear();

    // The new agent has the promise on disk, and takes the wish for no more than it is.
    let node_2 = Node::start(&fake);
    pod.status = fake.state().statuses.last().cloned();
    node_2.apply(&pod).await;
    node_2.apply(&other).await;
    node_2.send(PodUpdate::Synced).await;
    sleep(Duration::from_secs(30)).await;
    assert!(calls(&fake.state(), &["resize"]).is_empty());
    // And it has been told already.
    let told = |event: &&String| event.starts_with("ResizeDeferred");
    assert_eq!(fake.state().events.iter().filter(told).count(), 1);
    let gone = hanok_runtime::api::PodUid("other".into());
    node_2.send(PodUpdate::Gone(gone)).await;
    node_2
        .until("resized", |state| {
            !calls(state, &["resize a 100000"]).is_empty()
        })
        .await;
}
