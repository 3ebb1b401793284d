//! Whose wish comes true when there is not room for all.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::time::sleep;

use super::super::{deleted, phase};
use super::{calls, is_ready, node, pod, small};
use crate::pod::fake::State;

/// Another pod of such containers, with this priority.
fn other(uid: &str, priority: i32, a: &str) -> Pod {
    let mut other = pod(1, a, "100m");
    other.metadata.uid = Some(uid.into());
    other.metadata.name = Some(uid.into());
    other.spec.as_mut().expect("a spec").priority = Some(priority);
    other
}

#[tokio::test(start_paused = true)]
async fn wishes_come_true_in_the_order_of_their_weight() {
    let node = node(&small(4)).await;
    let full = other("full", 0, "3");
    let mut burstable = other("d", 5, "100m");
    let spec = burstable.spec.as_mut().expect("a spec");
    spec.containers[1].resources = None;
    let all = [
        full.clone(),
        other("a", 1, "100m"),
        other("b", 5, "100m"),
        other("c", 5, "100m"),
        burstable,
    ];
    for pod in &all {
        node.apply(pod).await;
    }
    node.until("started", |state| calls(state, &["start"]).len() == 10)
        .await;
    let wish = |pod: &Pod, generation: i64, cpu: &str| {
        let mut wish = pod.clone();
        let amounts = json!({"cpu": cpu, "memory": "64Mi"});
        let resources = json!({"limits": amounts, "requests": amounts});
        let spec = wish.spec.as_mut().expect("a spec");
        spec.containers[0].resources = serde_json::from_value(resources).expect("resources");
        wish.metadata.generation = Some(generation);
        wish
    };
    for (index, cpu) in [(1, "951m"), (4, "952m"), (3, "953m"), (2, "954m")] {
        node.apply(&wish(&all[index], 2, cpu)).await;
    }
    node.until("deferred", |state| {
        let told = |event: &&String| event.starts_with("ResizeDeferred");
        state.events.iter().filter(told).count() == 4
    })
    .await;
    // Room for one after the other: c has waited longer than b, d is not Guaranteed, and a is worth least.
    let order = ["95300", "95400", "95200"];
    for (step, (generation, cpu)) in [(2, "2100m"), (3, "1300m"), (4, "500m")]
        .into_iter()
        .enumerate()
    {
        node.apply(&wish(&full, generation, cpu)).await;
        let grown = |state: &State| calls(state, &["resize a 95"]);
        node.until("one more", |state| grown(state).len() == step + 1)
            .await;
        sleep(Duration::from_secs(1)).await;
        let grown = grown(&node.fake.state());
        let want = format!("resize a {} {}", order[step], 64 << 20);
        assert_eq!((grown.len(), grown.last()), (step + 1, Some(&want)));
    }
}

#[tokio::test(start_paused = true)]
async fn lesser_pods_make_room_for_the_wish_of_a_critical_one() {
    let node = node(&small(2)).await;
    let critical = other("critical", 2_000_000_000, "100m");
    node.apply(&critical).await;
    node.apply(&other("lesser", 0, "1")).await;
    node.until("started", |state| calls(state, &["start"]).len() == 4)
        .await;
    let mut wish = other("critical", 2_000_000_000, "1");
    wish.metadata.generation = Some(2);
    node.apply(&wish).await;
    node.until("resized", |state| {
        !calls(state, &["resize a 100000"]).is_empty()
    })
    .await;
    let state = node.fake.state();
    let told = |event: &String| event.starts_with("ResizeDeferred");
    assert!(!state.events.iter().any(told), "{:?}", state.events);
    let told = "Preempting Preempted in order to admit critical pod";
    assert!(
        state.events.iter().any(|event| event == told),
        "{:?}",
        state.events
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_makes_room_for_the_wish_of_a_pod_that_is_being_deleted_or_is_over() {
    for is_deleted in [true, false] {
        let node = node(&small(2)).await;
        for name in ["a", "b"] {
            let mut state = node.fake.state();
            if is_deleted {
                state.deaf.insert(name.into());
            } else {
                let ends = (Duration::from_secs(5), 0);
                state.runs.insert(name.into(), ends);
            }
        }
        let mut lesser = other("lesser", 0, "1");
        let spec = lesser.spec.as_mut().expect("a spec");
        for (container, name) in spec.containers.iter_mut().zip(["c", "d"]) {
            container.name = name.into();
        }
        let critical = |cpu: &str| {
            let mut pod = other("critical", 2_000_000_000, cpu);
            let spec = pod.spec.as_mut().expect("a spec");
            spec.restart_policy = Some("Never".into());
            pod
        };
        node.apply(&lesser).await;
        node.apply(&critical("100m")).await;
        node.until("started", |state| calls(state, &["start"]).len() == 4)
            .await;
        let mut wish = critical("1");
        wish.metadata.generation = Some(2);
        if is_deleted {
            wish = deleted(&wish, 30);
        } else {
            node.until("over", |state| phase(state) == "Succeeded")
                .await;
            sleep(Duration::from_secs(5)).await;
        }
        node.apply(&wish).await;
        sleep(Duration::from_secs(10)).await;
        let state = node.fake.state();
        assert!(calls(&state, &["stop c", "stop d"]).is_empty());
        // The lesser pod is still there to be asked, and the wish would not fit beside it.
        assert_eq!(calls(&state, &["start c", "start d"]).len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_comes_back_from_a_reboot_with_what_it_was_promised() {
    let fake = small(2);
    let node_1 = node(&fake).await;
    node_1.apply(&pod(1, "100m", "100m")).await;
    node_1.until("ready", is_ready).await;
    let mut wish = pod(2, "2", "100m");
    node_1.apply(&wish).await;
    let deferred = |event: &String| event.starts_with("ResizeDeferred");
    node_1
        .until("deferred", |state| state.events.iter().any(deferred))
        .await;
    node_1.kill().await;
    {
        let mut state = fake.state();
        state.sandboxes.clear();
        state.containers.clear();
        state.calls.clear();
    }
    wish.status = serde_json::from_value(json!({"phase": "Pending"})).expect("a status");
    let node_2 = node(&fake).await;
    node_2.apply(&wish).await;
    node_2
        .until("runs again", |state| calls(state, &["start"]).len() == 2)
        .await;
}
