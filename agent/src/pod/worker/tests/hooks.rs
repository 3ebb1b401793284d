//! Hooks: when they run, how long, and what is said of them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{calls, deleted, is_ready, waiting};
use crate::pod::fake::{Fake, Node, Pull};
use crate::pod::sample;

/// A pod `a` with these hooks.
fn pod(policy: &str, hooks: Value) -> Pod {
    let container = json!({"name": "a", "image": "i:1", "lifecycle": hooks});
    sample::from(json!({"restartPolicy": policy, "containers": [container]}))
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_ends_the_container_and_says_why() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(3);
    let hooks = json!({"postStart": {"exec": {"command": ["no", "way"]}}});
    node.apply(&pod("Always", hooks)).await;
    node.until("tried again", |state| calls(state, &["stop"]).len() == 2)
        .await;
    let state = node.fake.state();
    let has = |event: &str| state.events.iter().any(|found| found == event);
    assert!(
        has("FailedPostStartHook PostStartHook failed"),
        "{:?}",
        state.events
    );
    assert!(has("Killing FailedPostStartHook"));
    assert_eq!(calls(&state, &["stop"]), ["stop a 30s", "stop a 30s"]);
    let all = serde_json::to_string(&state.statuses).expect("JSON");
    assert!(all.contains("\"reason\":\"PostStartHookError\""), "{all}");
    let message = "Exec lifecycle hook ([no way]) for Container \\\"a\\\" in Pod \\\"web_default(";
    assert!(all.contains(message), "{all}");
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_after_a_sidecar_whose_hook_failed_and_that_cannot_be_stopped() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(3);
    node.fake.state().failing_stops = 3;
    let hooks = json!({"postStart": {"exec": {"command": ["no", "way"]}}});
    let sidecar =
        json!({"name": "s", "image": "i:1", "restartPolicy": "Always", "lifecycle": hooks});
    let apps = json!([{"name": "a", "image": "i:1"}]);
    let pod = json!({"restartPolicy": "Always", "initContainers": [sidecar], "containers": apps});
    let began = Instant::now();
    node.apply(&sample::from(pod)).await;
    node.until("stopped and begun anew", |state| {
        calls(state, &["start"]).len() > 1
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(30));
    let order = calls(&node.fake.state(), &["start", "stop"]);
    let stop = "stop s 30s";
    assert_eq!(
        order[..6],
        ["start s.0", stop, stop, stop, stop, "start s.1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_hanging_post_start_hook_does_not_hold_a_deletion_back() {
    let node = Node::start(&Fake::new());
    let pod = pod("Always", json!({"postStart": {"sleep": {"seconds": 3600}}}));
    node.apply(&pod).await;
    node.until("started", |state| !calls(state, &["start"]).is_empty())
        .await;
    sleep(Duration::from_secs(5)).await;
    assert!(!is_ready(&node.fake.state()));
    assert_eq!(waiting(&node.fake.state()), "ContainerCreating");
    let began = Instant::now();
    node.apply(&deleted(&pod, 5)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(began.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_has_the_grace_period_and_the_container_what_is_left() {
    // Seconds of the hook and of the grace period; the grace after the hook; whether it failed.
    let table = [(3, 10, "stop a 7s", false), (100, 5, "stop a 2s", true)];
    for (pause, grace, stop, failed) in table {
        let node = Node::start(&Fake::new());
        let pod = pod("Always", json!({"preStop": {"sleep": {"seconds": pause}}}));
        node.apply(&pod).await;
        node.until("ready", is_ready).await;
        node.apply(&deleted(&pod, grace)).await;
        node.until("terminated", |state| state.terminated > 0).await;
        let state = node.fake.state();
        assert_eq!(calls(&state, &["stop a"]), [stop]);
        let event = "FailedPreStopHook PreStopHook failed";
        assert_eq!(state.events.iter().any(|found| found == event), failed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_before_the_stop_ends_with_its_container() {
    let node = Node::start(&Fake::new());
    let pod = pod("Always", json!({"preStop": {"sleep": {"seconds": 60}}}));
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&deleted(&pod, 100)).await;
    sleep(Duration::from_secs(5)).await;
    let id = node.fake.state().containers[0].id.clone();
    let ended = Instant::now();
    node.fake.exit(&id, 0);
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(ended.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn all_are_told_of_the_end_at_once_and_sidecars_end_when_it_is_their_turn() {
    let node = Node::start(&Fake::new());
    let pause = |seconds: u32| json!({"preStop": {"sleep": {"seconds": seconds}}});
    let pod = sample::from(json!({
        "restartPolicy": "Always",
        "initContainers": [
            {"name": "s", "image": "i:1", "restartPolicy": "Always", "lifecycle": pause(4)},
            {"name": "t", "image": "i:1", "restartPolicy": "Always"},
        ],
        "containers": [{"name": "a", "image": "i:1", "lifecycle": pause(3)}],
    }));
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let before = node.fake.state().events.len();
    node.apply(&deleted(&pod, 10)).await;
    sleep(Duration::from_millis(10)).await;
    let mut told = node.fake.state().events[before..].to_vec();
    told.sort();
    let all = ["a", "s", "t"].map(|name| format!("Killing Stopping container {name}"));
    assert_eq!(told, all);
    node.until("terminated", |state| state.terminated > 0).await;
    // The hooks of `a` and `s` have run beside each other.
    let order = calls(&node.fake.state(), &["stop a", "stop s ", "stop t"]);
    assert_eq!(order, ["stop a 7s", "stop t 7s", "stop s 6s"]);
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_that_ends_before_its_turn_holds_nobody_back() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &["s:sidecar"], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.fake.state().deaf.insert("a".into());
    let began = Instant::now();
    node.apply(&deleted(&pod, 20)).await;
    sleep(Duration::from_secs(1)).await;
    let s = node
        .fake
        .state()
        .containers
        .iter()
        .find(|one| one.config.name == "s")
        .cloned();
    node.fake.exit(&s.expect("a sidecar").id, 0);
    let a = node
        .fake
        .state()
        .containers
        .iter()
        .find(|one| one.config.name == "a")
        .cloned();
    sleep(Duration::from_secs(1)).await;
    node.fake.exit(&a.expect("an app").id, 0);
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(
        began.elapsed() < Duration::from_secs(25),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn containers_wait_for_the_post_start_hooks_of_those_before_them() {
    let node = Node::start(&Fake::new());
    let hook = json!({"postStart": {"sleep": {"seconds": 20}}});
    let pod = sample::from(json!({
        "restartPolicy": "Always",
        "containers": [{"name": "a", "image": "i:1"}, {"name": "proxy", "image": "i:1", "lifecycle": hook},
            {"name": "c", "image": "i:1"}],
    }));
    let began = Instant::now();
    node.apply(&pod).await;
    node.until("begun", |state| calls(state, &["start"]).len() == 2)
        .await;
    node.until("ready", is_ready).await;
    assert_eq!(began.elapsed().as_secs(), 20);
    let order = calls(&node.fake.state(), &["start"]);
    assert_eq!(order, ["start a.0", "start proxy.0", "start c.0"]);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_and_an_image_that_is_missing_hold_nobody_back() {
    for (answer, pull) in [(Some(3), Pull::Works), (Some(0), Pull::Fails)] {
        let node = Node::start(&Fake::new());
        node.fake.state().answer = answer;
        node.fake.state().pull = pull.clone();
        let hook = json!({"postStart": {"exec": {"command": ["hook"]}}});
        let pod = sample::from(json!({
            "restartPolicy": "Always",
            "containers": [{"name": "a", "image": "i:1", "lifecycle": hook},
                {"name": "b", "image": "i:2"}],
        }));
        node.apply(&pod).await;
        let tried = match pull {
            Pull::Fails => "pull i:2",
            _ => "start b",
        };
        node.until("tried", |state| !calls(state, &[tried]).is_empty())
            .await;
        let starts = calls(&node.fake.state(), &["start a"]).len();
        assert!(starts <= 2, "{starts}");
    }
}
