//! Which pods run, beside which others, and in place of which.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodCondition, Taint};
use serde_json::json;
use tokio::sync::oneshot;

use super::*;
use crate::pod::admit::{NodeView, Placement};
use crate::quantity::Amount;

/// A fake node with a CPU and room for a few pods.
fn small() -> std::sync::Arc<Fake> {
    let fake = Fake::new();
    let allocatable = [("cpu", "1"), ("memory", "1Gi"), ("pods", "3")];
    let allocatable =
        allocatable.map(|(name, text)| (name.to_owned(), Amount::parse(text).expect("a quantity")));
    fake.state().node = NodeView {
        placement: Some(Placement {
            name: "n1".into(),
            allocatable: allocatable.into(),
            ..Placement::default()
        }),
        ..NodeView::default()
    };
    fake
}

/// A pod with a name and UID of its own that asks for so much CPU.
fn pod(name: &str, cpu: &str) -> Pod {
    let mut pod = sample::from(json!({
        "restartPolicy": "Always",
        "containers": [{"name": name, "image": "i:1", "resources": {"requests": {"cpu": cpu}}}],
    }));
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod
}

/// A pod that only runs where there is a certain label.
fn choosy() -> Pod {
    let mut pod = pod("choosy", "10m");
    let spec = pod.spec.as_mut().expect("a spec");
    spec.node_selector = Some(BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]));
    pod
}

fn critical(name: &str, cpu: &str) -> Pod {
    let mut pod = pod(name, cpu);
    pod.spec.as_mut().expect("a spec").priority = Some(2_000_000_000);
    pod
}

/// The newest status of the pod with that name.
fn status(node: &Node, name: &str) -> PodStatus {
    let entry = node.pods.pod_by_name("default", name);
    entry.map(|entry| entry.status).unwrap_or_default()
}

/// Waits until the pod's phase is that one.
async fn until_phase(node: &Node, name: &str, phase: &str) {
    for _ in 0..600 {
        if status(node, name).phase.as_deref() == Some(phase) {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{name} is not {phase} but {:#?}", status(node, name));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_not_refused_by_labels_and_taints_that_the_node_has_no_more() {
    let taint: Taint =
        serde_json::from_value(json!({"key": "k", "effect": "NoExecute"})).expect("a taint");
    let fake = small();
    let then = fake.state().node.clone();
    let mut with_label = then.clone();
    let mut with_taint = then.clone();
    if let (Some(label), Some(tainted)) = (&mut with_label.placement, &mut with_taint.placement) {
        label.labels = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
        tainted.taints = vec![taint];
    }
    let node = Node::start(&fake);
    let choosy = choosy();

    fake.state().node_then = Some(with_label);
    node.apply(&choosy).await;
    until_phase(&node, "choosy", "Running").await;
    fake.state().node = with_taint.clone();
    fake.state().node_then = Some(then);
    node.apply(&pod("welcome", "10m")).await;
    until_phase(&node, "welcome", "Running").await;
    fake.state().node = with_taint.clone();
    fake.state().node_then = Some(with_taint);
    node.apply(&pod("unwelcome", "10m")).await;
    until_phase(&node, "unwelcome", "Failed").await;
    let reason = status(&node, "unwelcome").reason;
    assert_eq!(reason.as_deref(), Some("TaintToleration"));
    let calls = fake.state().calls.clone();
    let looks = calls
        .iter()
        .filter(|call| *call == "look at the node")
        .count();
    assert_eq!(looks, 3, "{calls:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_while_the_node_is_asked_for_never_starts() {
    let fake = small();
    let node = Node::start(&fake);
    let choosy = choosy();
    let then = fake.state().node.clone();
    fake.state().node_then = Some(then);
    node.apply(&choosy).await;
    node.send(PodUpdate::Gone(PodUid("uid-choosy".into())))
        .await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(status(&node, "choosy").reason, None);
    assert!(fake.state().sandboxes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_name_is_taken_while_the_node_is_asked_for_waits() {
    let fake = small();
    let node = Node::start(&fake);
    let mut with_label = fake.state().node.clone();
    if let Some(label) = &mut with_label.placement {
        label.labels = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    }
    let (end, ends) = oneshot::channel();
    (fake.state().node_then, fake.state().look_ends) = (Some(with_label), Some(ends));
    node.apply(&choosy()).await;
    let mut other = pod("choosy", "10m");
    other.metadata.uid = Some("uid-other".into());
    node.apply(&other).await;
    until_phase(&node, "choosy", "Running").await;
    end.send(()).expect("somebody looks");
    sleep(Duration::from_secs(5)).await;
    let uids = || {
        let state = node.fake.state();
        let uids = state.sandboxes.iter().map(|one| one.config.uid.0.clone());
        uids.collect::<Vec<_>>()
    };
    assert_eq!(uids(), ["uid-other"]);
    node.send(PodUpdate::Gone(PodUid("uid-other".into()))).await;
    node.until("runs after the other one", |state| {
        state
            .sandboxes
            .iter()
            .any(|one| one.config.uid.0 == "uid-choosy")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_judged_by_what_is_known_when_nobody_can_ask_for_the_node() {
    let fake = small();
    let node = Node::start(&fake);
    let (end, ends) = oneshot::channel();
    let then = fake.state().node.clone();
    (fake.state().node_then, fake.state().look_ends) = (Some(then), Some(ends));
    drop(end);
    node.apply(&choosy()).await;
    until_phase(&node, "choosy", "Failed").await;
    assert_eq!(
        status(&node, "choosy").reason.as_deref(),
        Some("NodeAffinity")
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_fails_for_good_and_says_why() {
    let node = Node::start(&small());
    node.apply(&pod("first", "700m")).await;
    until_phase(&node, "first", "Running").await;
    node.apply(&pod("second", "400m")).await;
    until_phase(&node, "second", "Failed").await;
    let failed = status(&node, "second");
    let message =
        "Node didn't have enough resource: cpu, requested: 400, used: 700, capacity: 1000";
    assert_eq!(failed.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(failed.message, Some(format!("Pod was rejected: {message}")));
    assert_eq!(failed.container_statuses, None);
    assert_eq!(failed.conditions, None);
    let state = node.fake.state();
    let event = format!("OutOfcpu {message}");
    let told = state.events.iter().filter(|told| **told == event).count();
    assert_eq!(told, 1, "{:#?}", state.events);
    assert!(calls(&state, &["create second", "pull"]).len() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_frees_what_it_had_when_its_containers_have_ended() {
    let node = Node::start(&small());
    node.fake
        .state()
        .runs
        .insert("first".into(), (Duration::from_secs(5), 0));
    let mut first = pod("first", "700m");
    first.spec.as_mut().expect("a spec").restart_policy = Some("Never".into());
    node.apply(&first).await;
    until_phase(&node, "first", "Running").await;
    // While it ends it still counts.
    node.apply(&pod("early", "400m")).await;
    until_phase(&node, "early", "Failed").await;
    until_phase(&node, "first", "Succeeded").await;
    node.apply(&pod("second", "400m")).await;
    until_phase(&node, "second", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_rejected_pod_takes_nothing_away() {
    let node = Node::start(&small());
    node.apply(&pod("large", "1100m")).await;
    until_phase(&node, "large", "Failed").await;
    node.apply(&pod("fits", "1")).await;
    until_phase(&node, "fits", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_ran_before_a_restart_are_not_refused_by_the_new_agent() {
    let fake = small();
    let node = Node::start(&fake);
    let (first, second) = (pod("first", "500m"), pod("second", "500m"));
    node.apply(&first).await;
    node.apply(&second).await;
    until_phase(&node, "second", "Running").await;
    node.kill().await;
    // The node has shrunk, and the newest statuses have not reached the server.
    if let Some(placement) = &mut fake.state().node.placement {
        placement.allocatable =
            BTreeMap::from([("pods".to_owned(), Amount::parse("1").expect("a quantity"))]);
    }
    let node = Node::start(&fake);
    node.apply(&second).await;
    node.apply(&first).await;
    until_phase(&node, "first", "Running").await;
    until_phase(&node, "second", "Running").await;
    node.apply(&pod("third", "1m")).await;
    until_phase(&node, "third", "Failed").await;
    assert_eq!(calls(&fake.state(), &["run sandbox"]).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_over_does_not_count_after_a_restart() {
    let node = Node::start(&small());
    let mut over = pod("over", "900m");
    over.status = Some(PodStatus {
        phase: Some("Succeeded".into()),
        ..PodStatus::default()
    });
    node.apply(&over).await;
    node.apply(&pod("next", "900m")).await;
    until_phase(&node, "next", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_waits_for_the_end_of_those_whose_place_it_takes() {
    let node = Node::start(&small());
    node.fake.state().deaf.insert("low".into());
    node.apply(&pod("low", "600m")).await;
    node.apply(&pod("high", "100m")).await;
    until_phase(&node, "low", "Running").await;
    until_phase(&node, "high", "Running").await;
    node.apply(&critical("critical", "500m")).await;
    sleep(Duration::from_secs(5)).await;
    // The victim has its grace period, and what it frees is spoken for.
    assert_eq!(status(&node, "low").phase.as_deref(), Some("Running"));
    assert_eq!(status(&node, "low").reason, None);
    let waits = node.pods.of_uid(&PodUid("uid-critical".into()));
    assert!(waits.is_some_and(|waits| !waits.own_status));
    node.apply(&pod("late", "300m")).await;
    until_phase(&node, "late", "Failed").await;
    until_phase(&node, "critical", "Running").await;
    until_phase(&node, "low", "Failed").await;
    let low = status(&node, "low");
    assert_eq!(low.reason.as_deref(), Some("Preempting"));
    let message = "Preempted in order to admit critical pod";
    assert_eq!(low.message.as_deref(), Some(message));
    let conditions = low.conditions.unwrap_or_default();
    let is_disruption = |condition: &&PodCondition| condition.type_ == "DisruptionTarget";
    let disruption = conditions.iter().find(is_disruption).expect("a condition");
    assert_eq!(disruption.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(
        disruption.message.as_deref(),
        Some("Pod was preempted by Kubelet to accommodate a critical pod.")
    );
    let state = node.fake.state();
    let order = calls(&state, &["stop", "start"]);
    assert_eq!(
        order,
        [
            "start low.0",
            "start high.0",
            "stop low 30s",
            "stop sandbox s0-uid-low",
            "start critical.0"
        ],
    );
    let event = format!("Preempting {message}");
    assert!(state.events.contains(&event), "{:#?}", state.events);
}

#[tokio::test(start_paused = true)]
async fn a_pod_to_be_deleted_before_it_ran_is_not_judged() {
    let node = Node::start(&small());
    node.apply(&deleted(&pod("large", "1100m"), 0)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(node.fake.state().events.is_empty());
}
