//! What pods write to the disk.

use serde_json::json;

use super::*;

/// A pod `a` that may write so much.
fn pod(limit: &str) -> Pod {
    let limits = json!({"limits": {"ephemeral-storage": limit}});
    let container = json!({"name": "a", "image": "i:1", "resources": limits});
    sample::from(json!({"restartPolicy": "Always", "containers": [container]}))
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_writes_more_than_it_may_is_ended_for_good_at_once() {
    let node = Node::start(&Fake::new());
    node.apply(&pod("1Mi")).await;
    node.until("ready", is_ready).await;
    node.fake.state().written = 1 << 20;
    sleep(Duration::from_secs(60)).await;
    assert!(is_ready(&node.fake.state()));
    let began = Instant::now();
    node.fake.state().written += 1;
    node.until("evicted", |state| phase(state) == "Failed")
        .await;
    assert!(began.elapsed() <= Duration::from_secs(17));
    let state = node.fake.state();
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    let status = state.statuses.last().expect("a status");
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    assert_eq!(status.message.as_deref(), Some(message));
    let event = format!("Evicted {message}");
    let told = state.events.iter().filter(|told| **told == event).count();
    assert_eq!(told, 1, "{:#?}", state.events);
    assert_eq!(calls(&state, &["stop a"]), ["stop a 2s"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_waits_for_no_look_at_the_disk() {
    let node = Node::start(&Fake::new());
    let pod = pod("1Mi");
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let began = Instant::now();
    node.apply(&deleted(&pod, 30)).await;
    node.until("gone", |state| state.terminated == 1).await;
    assert!(began.elapsed() <= Duration::from_secs(1));
}
