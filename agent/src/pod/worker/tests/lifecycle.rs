//! Programs that do not start, how long a restart waits, and what a deletion waits for.

use std::time::Duration;

use hanok_runtime::api::NamespaceMode;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use super::{assert_nothing_left, calls, deleted, is_ready, phase, waiting};
use crate::pod::fake::{Fake, Node, Pull};
use crate::pod::sample;
use crate::pod::status::status_of;

/// A pod of one container `a` with these fields.
fn pod(policy: &str, grace: i64, fields: Value) -> Pod {
    let mut container = json!({"name": "a", "image": "i:1"});
    let fields = fields.as_object().expect("a map").clone();
    container.as_object_mut().expect("a map").extend(fields);
    sample::from(json!({
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": grace,
        "containers": [container, {"name": "b", "image": "i:1"}],
    }))
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_not_there_fails_for_good_only_under_never() {
    for (policy, restarts) in [("Never", false), ("OnFailure", true), ("Always", true)] {
        let node = Node::start(&Fake::new());
        node.fake
            .state()
            .missing
            .extend(["a", "b"].map(str::to_owned));
        node.apply(&pod(policy, 5, json!({}))).await;
        sleep(Duration::from_secs(100)).await;
        let state = node.fake.state();
        let starts = calls(&state, &["create a"]).len();
        assert_eq!(starts, if restarts { 5 } else { 1 }, "{policy}");
        assert_eq!(phase(&state) == "Failed", !restarts, "{policy}");
        let status = status_of(state.statuses.last(), "a").expect("a status");
        let states = [status.state.as_ref(), status.last_state.as_ref()];
        let mut ended = states.into_iter().flatten();
        let ended = ended.find_map(|state| state.terminated.as_ref());
        let ended = ended.map(|ended| (ended.exit_code, ended.reason.as_deref()));
        assert_eq!(ended, Some((128, Some("StartError"))), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_init_program_that_is_not_there_under_never_fails_the_pod_before_any_app() {
    let node = Node::start(&Fake::new());
    node.fake.state().missing.insert("i".into());
    node.apply(&sample::pod("Never", &["i"], &["a"])).await;
    node.until("failed", |state| phase(state) == "Failed").await;
    assert!(calls(&node.fake.state(), &["create a"]).is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_looks_into_a_container_waits_for_it() {
    let node = Node::start(&Fake::new());
    node.fake.state().refused.insert("a".into());
    let pod = sample::from(json!({
        "restartPolicy": "Always",
        "containers": [{"name": "a", "image": "i:1"}],
        "ephemeralContainers": [{"name": "e", "image": "i:1", "targetContainerName": "a"}],
    }));
    node.apply(&pod).await;
    let event = "Failed Error: unable to find target container a";
    node.until("told", |state| {
        state.events.iter().any(|told| told == event)
    })
    .await;
    assert!(calls(&node.fake.state(), &["create e"]).is_empty());
    node.fake.state().refused.clear();
    node.until("started", |state| !calls(state, &["start e"]).is_empty())
        .await;
    let state = node.fake.state();
    assert_eq!(calls(&state, &["start"]), ["start a.0", "start e.0"]);
}

#[tokio::test(start_paused = true)]
async fn who_looks_into_a_container_that_ends_meanwhile_looks_into_the_next_run() {
    let node = Node::start(&Fake::new());
    let pod = |ephemeral: Value| {
        sample::from(json!({
            "restartPolicy": "Always",
            "containers": [{"name": "a", "image": "i:1"}],
            "ephemeralContainers": ephemeral,
        }))
    };
    node.apply(&pod(json!([]))).await;
    node.until("running", |state| !calls(state, &["start a"]).is_empty())
        .await;
    let (pull_ends, ends) = oneshot::channel();
    {
        let mut state = node.fake.state();
        state.pull = Pull::Hangs;
        state.pull_ends = Some(ends);
    }
    let e = json!({"name": "e", "image": "e:1", "targetContainerName": "a"});
    node.apply(&pod(json!([e]))).await;
    node.until("pulled", |state| !calls(state, &["pull e"]).is_empty())
        .await;
    let first = {
        let mut state = node.fake.state();
        state.pull = Pull::Works;
        state.containers[0].id.clone()
    };
    node.fake.exit(&first, 1);
    node.until("restarted", |state| calls(state, &["start a"]).len() == 2)
        .await;
    pull_ends.send(()).expect("somebody pulls");
    node.until("started", |state| !calls(state, &["start e"]).is_empty())
        .await;
    let state = node.fake.state();
    let of_e = calls(&state, &["create e", "start e"]);
    assert_eq!(of_e, ["create e.0", "create e.0", "start e.0"]);
    let newest = |name| state.containers.iter().rfind(|one| one.config.name == name);
    let (a, e) = (newest("a").expect("an a"), newest("e").expect("an e"));
    assert_ne!(a.id, first);
    let target = NamespaceMode::Target(a.id.clone());
    assert_eq!(e.config.security.pid, Some(target));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_cannot_be_made_is_tried_again_and_deleted_at_once() {
    let node = Node::start(&Fake::new());
    node.fake.state().refused.insert("a".into());
    let pod = sample::pod("Always", &[], &["a"]);
    node.apply(&pod).await;
    node.until("tried again", |state| {
        calls(state, &["create a"]).len() == 3
    })
    .await;
    assert_eq!(waiting(&node.fake.state()), "CreateContainerError");
    let began = Instant::now();
    node.apply(&deleted(&pod, 30)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_nothing_left(&node.fake.state());
}

#[tokio::test(start_paused = true)]
async fn an_end_with_0_backs_off_like_any_other_and_a_long_run_forgets_it() {
    let node = Node::start(&Fake::new());
    let run = |after| ("a".to_owned(), (Duration::from_secs(after), 0));
    node.fake.state().runs.extend([run(1)]);
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    let mut starts = Vec::new();
    for count in 1..=9 {
        for _ in 0..20_000 {
            if calls(&node.fake.state(), &["start a"]).len() >= count {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        starts.push(Instant::now());
        // The eighth run is a long one.
        node.fake
            .state()
            .runs
            .extend([run(if count >= 7 { 660 } else { 1 })]);
    }
    let pauses: Vec<_> = starts
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert_eq!(pauses, [1, 11, 21, 41, 81, 161, 301, 660]);
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_shim_dies_again_and_again_backs_off_too() {
    let node = Node::start(&Fake::new());
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    let mut starts = Vec::new();
    for count in 1..=4 {
        node.until("started", |state| calls(state, &["start a"]).len() >= count)
            .await;
        starts.push(Instant::now());
        node.fake.lose_sight_of("a");
    }
    let pauses: Vec<_> = starts
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert_eq!(pauses, [0, 10, 20]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_gives_the_pods_grace_and_not_that_of_a_probe() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    let probe = json!({"exec": {"command": ["test"]}, "terminationGracePeriodSeconds": 1});
    let pod = pod("Always", 40, json!({"startupProbe": probe}));
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&deleted(&pod, 40)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert_eq!(calls(&node.fake.state(), &["stop a"]), ["stop a 40s"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_wait_for_a_restart_that_was_given_more_time() {
    let node = Node::start(&Fake::new());
    let pod = pod("Always", 300, json!({}));
    node.fake.state().deaf.insert("a".into());
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let mut changed = pod.clone();
    changed.metadata.generation = Some(4);
    changed.spec.as_mut().expect("a spec").containers[0].image = Some("i:2".into());
    node.apply(&changed).await;
    sleep(Duration::from_secs(5)).await;
    let began = Instant::now();
    node.apply(&deleted(&changed, 3)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_probes_answer_does_not_wait_for_what_it_left_behind() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    node.fake.state().open_output = true;
    let probe = json!({"exec": {"command": ["test"]}, "timeoutSeconds": 8});
    node.apply(&pod("Always", 5, json!({"readinessProbe": probe})))
        .await;
    let began = Instant::now();
    node.until("ready", is_ready).await;
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

/// A pod whose container has another image and generation.
fn with_image(pod: &Pod, image: &str) -> Pod {
    let mut pod = pod.clone();
    pod.metadata.generation = Some(pod.metadata.generation.unwrap_or(1) + 1);
    let containers = &mut pod.spec.as_mut().expect("a spec").containers;
    containers[0].image = Some(image.to_owned());
    pod
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_replaced_within_a_second_stays_ready() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let before = node.fake.state().statuses.len();
    let replaced = with_image(&pod, "i:2");
    node.apply(&replaced).await;
    node.until("told", |state| {
        let status = status_of(state.statuses.last(), "a").expect("a status");
        status.restart_count == 1 && is_ready(state)
    })
    .await;
    let state = node.fake.state();
    assert!(state.statuses[before..].iter().all(super::ready));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_takes_longer_is_told() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.fake.state().pull = Pull::Hangs;
    let began = Instant::now();
    node.apply(&with_image(&pod, "i:2")).await;
    node.until("not ready", |state| !is_ready(state)).await;
    let told = began.elapsed();
    assert!(told >= Duration::from_secs(1), "{told:?}");
    assert!(told < Duration::from_secs(2), "{told:?}");
}
