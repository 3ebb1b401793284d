//! What those who follow the pods are told of a status that the API server has already.

use serde_json::json;
use tokio::time::sleep;

use super::{Duration, PodUid, calls, deleted, is_ready};
use crate::pod::directory::follow::Followed;
use crate::pod::fake::{Fake, Node};
use crate::pod::{sample, spec};
use crate::sinks::PodUpdate;

/// The node's only pod, some time after it has been told of it.
async fn followed(node: &Node) -> Followed {
    sleep(Duration::from_secs(1)).await;
    node.pods.after(None).expect("a pod").1
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_as_it_was_before_a_restart_is_the_nodes_own() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    let mut pod = sample::pod("Always", &[], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let before = followed(&node).await;
    assert!(before.own_status);
    node.kill().await;
    let told = fake.state().statuses.len();
    pod.status = Some(before.status.clone());
    let node = Node::start(&fake);
    assert!(!node.pods.news().borrow().synced);
    node.apply(&pod).await;
    node.send(PodUpdate::Synced).await;
    let after = followed(&node).await;
    assert!(node.pods.news().borrow().synced);
    assert_eq!(fake.state().statuses.len(), told, "it is told again");
    assert!(after.own_status);
    assert_eq!(after.status, before.status);
}

#[tokio::test(start_paused = true)]
async fn what_others_add_to_a_status_is_followed() {
    let node = Node::start(&Fake::new());
    let mut pod = sample::pod("Always", &[], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let before = followed(&node).await;
    let mut status = before.status.clone();
    let theirs = json!({"type": "example.com/theirs", "status": "True"});
    let theirs = serde_json::from_value(theirs).expect("a condition");
    status.conditions.get_or_insert_default().push(theirs);
    pod.status = Some(status);
    node.apply(&pod).await;
    let after = followed(&node).await;
    assert!(after.revision > before.revision);
    let mut conditions = after.status.conditions.iter().flatten();
    assert!(conditions.any(|one| one.type_ == "example.com/theirs"));
    assert_eq!(spec::uid(&after.pod), spec::uid(&before.pod));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_its_namesake_is_followed_already() {
    let node = Node::start(&Fake::new());
    node.fake.state().deaf.insert("a".into());
    let old = sample::pod("Always", &[], &["a"]);
    node.apply(&old).await;
    node.until("ready", is_ready).await;
    node.apply(&deleted(&old, 30)).await;
    let mut new = old.clone();
    for uid in ["second", "third"] {
        new.metadata.uid = Some(uid.to_owned());
        node.apply(&new).await;
    }
    sleep(Duration::from_secs(1)).await;
    let of = |uid: &str| node.pods.of_uid(&PodUid(uid.to_owned()));
    let waits = of("second").expect("it waits");
    assert!(!waits.own_status && of("third").is_some());
    node.send(PodUpdate::Gone(PodUid("third".to_owned()))).await;
    sleep(Duration::from_secs(1)).await;
    assert!(of("third").is_none());
    assert_eq!(calls(&node.fake.state(), &["run"]).len(), 1);
    node.send(PodUpdate::Gone(spec::uid(&old))).await;
    node.until("the new one runs", |state| {
        calls(state, &["run"]).len() == 2
    })
    .await;
    let runs = of("second").expect("it runs");
    assert!(runs.own_status && runs.revision > waits.revision);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_somebody_has_written_over_is_told_again() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    let mut pod = sample::pod("Always", &[], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let own = followed(&node).await.status;
    let told = || fake.state().statuses.len();
    let before = told();
    let mut theirs = own.clone();
    theirs.phase = Some("Pending".to_owned());
    pod.status = Some(theirs);
    node.apply(&pod).await;
    // The object may only be behind.
    sleep(Duration::from_secs(5)).await;
    assert_eq!(told(), before);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(told(), before + 1);
    assert_eq!(fake.state().statuses.last(), Some(&own));
    pod.status = Some(own);
    node.apply(&pod).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(told(), before + 1);
}
