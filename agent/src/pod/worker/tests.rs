//! One law per test: what a pod core does on a fake node, in paused time.

mod admission;
mod clock;
mod follow;
mod hooks;
mod lifecycle;
mod probes;
mod resize;
mod restart_all;
mod sandbox;
mod storage;
mod uid;

use std::time::Duration;

use hanok_runtime::api::{ContainerState, PodUid};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::{Instant, sleep};

use crate::pod::fake::{Fake, Node, Pull, State};
use crate::pod::sample;
use crate::sinks::{PodDirectory, PodUpdate};

fn phase(state: &State) -> &str {
    let last = state
        .statuses
        .last()
        .and_then(|status| status.phase.as_deref());
    last.unwrap_or_default()
}

fn ready(status: &PodStatus) -> bool {
    super::is_ready(status)
}

fn is_ready(state: &State) -> bool {
    state.statuses.last().is_some_and(ready)
}

/// The waiting reason of the only app container.
fn waiting(state: &State) -> String {
    let status = state
        .statuses
        .last()
        .and_then(|status| status.container_statuses.as_ref());
    let container = status
        .and_then(|list| list.first())
        .and_then(|status| status.state.as_ref());
    let waiting = container.and_then(|state| state.waiting.as_ref());
    waiting
        .and_then(|waiting| waiting.reason.clone())
        .unwrap_or_default()
}

/// Calls that start with one of the words.
fn calls(state: &State, words: &[&str]) -> Vec<String> {
    let wanted = |call: &&String| words.iter().any(|word| call.starts_with(word));
    state.calls.iter().filter(wanted).cloned().collect()
}

fn deleted(pod: &Pod, grace: i64) -> Pod {
    let mut pod = pod.clone();
    pod.metadata.deletion_timestamp = Some(Time(sample::now()));
    pod.metadata.deletion_grace_period_seconds = Some(grace);
    pod
}

fn uid() -> PodUid {
    PodUid(sample::UID.into())
}

/// Nothing of a pod is left on the fake.
fn assert_nothing_left(state: &State) {
    assert!(state.sandboxes.is_empty() && state.containers.is_empty() && state.volumes.is_empty());
    let pods: Vec<_> = state
        .cgroups
        .iter()
        .filter(|path| path.contains("/pod"))
        .collect();
    assert!(pods.is_empty(), "{pods:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_in_order_and_says_what_it_does() {
    let node = Node::start(&Fake::new());
    node.fake
        .state()
        .runs
        .insert("i".into(), (Duration::from_secs(3), 0));
    node.apply(&sample::pod("Always", &["i"], &["a"])).await;
    node.until("ready", is_ready).await;
    let state = node.fake.state();
    let order = calls(&state, &["run", "pull", "create", "start"]);
    let want = [
        "run sandbox 0",
        "pull i:1",
        "create i.0",
        "start i.0",
        "pull i:1",
        "create a.0",
        "start a.0",
    ];
    assert_eq!(order, want);
    let events: Vec<_> = state
        .events
        .iter()
        .map(|event| event.split(' ').next().unwrap_or_default())
        .collect();
    let one = ["Pulling", "Pulled", "Created", "Started"];
    assert_eq!(events, [one, one].concat());
    assert!(state.events[1].starts_with("Pulled Successfully pulled image \"i:1\" in 0s (0s including waiting). Image size: 42 bytes."));
    assert_eq!(phase(&state), "Running");
}

#[tokio::test(start_paused = true)]
async fn one_status_for_each_change_and_none_without() {
    let node = Node::start(&Fake::new());
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    node.until("ready", is_ready).await;
    let before = node.fake.state().statuses.len();
    for _ in 0..20 {
        node.pods.ring(&uid());
        sleep(Duration::from_secs(10)).await;
    }
    let state = node.fake.state();
    assert_eq!(state.statuses.len(), before);
    for pair in state.statuses.windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
    assert!(before <= 4, "{:#?}", state.statuses);
}

#[tokio::test(start_paused = true)]
async fn crashes_back_off_10_20_40_seconds() {
    let node = Node::start(&Fake::new());
    node.fake
        .state()
        .runs
        .insert("a".into(), (Duration::from_secs(1), 1));
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    let mut times = Vec::new();
    for count in 1..=5 {
        node.until("started again", |state| {
            calls(state, &["start"]).len() >= count
        })
        .await;
        times.push(Instant::now());
    }
    let pauses: Vec<_> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert_eq!(pauses, [1, 11, 21, 41]);
    let state = node.fake.state();
    assert!(state.statuses.iter().any(|status| {
        serde_json::to_string(status)
            .expect("JSON")
            .contains("back-off 20s restarting failed container=a pod=web_default(")
    }));
    let events = state
        .events
        .iter()
        .filter(|event| event.starts_with("BackOff"));
    assert_eq!(events.count(), 3);
    // The newest run and the one before stay for those who ask for the previous logs.
    assert!(state.containers.len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_restarts_nothing_and_goes_on_with_the_back_off() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    let pod = sample::pod("Always", &[], &["a", "b"]);
    fake.state()
        .runs
        .insert("b".into(), (Duration::from_secs(1), 1));
    node.apply(&pod).await;
    node.until("b restarted", |state| calls(state, &["start b"]).len() == 2)
        .await;
    sleep(Duration::from_secs(3)).await;
    node.kill().await;
    let last = fake.state().statuses.last().cloned();
    let before = fake.state().calls.len();

    let node = Node::start(&fake);
    let mut pod = pod;
    pod.status = last;
    node.apply(&pod).await;
    node.send(PodUpdate::Synced).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(fake.state().calls.len(), before, "{:?}", fake.state().calls);
    node.until("b restarted", |state| calls(state, &["start b"]).len() == 3)
        .await;
    let state = fake.state();
    assert_eq!(calls(&state, &["run"]).len(), 1);
    assert_eq!(calls(&state, &["start a"]).len(), 1);
    let times: Vec<_> = state
        .containers
        .iter()
        .filter_map(|record| record.started_at)
        .collect();
    let span = times
        .iter()
        .max()
        .expect("runs")
        .duration_since(sample::now().into());
    assert_eq!(span.expect("later").as_secs(), 12);
}

#[tokio::test(start_paused = true)]
async fn what_ended_while_no_agent_was_there_is_picked_up() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    let pod = sample::pod("Never", &[], &["a"]);
    node.apply(&pod).await;
    node.until("running", is_ready).await;
    node.kill().await;
    let id = fake.state().containers[0].id.clone();
    fake.exit(&id, 7);
    let node = Node::start(&fake);
    let mut pod = pod;
    pod.status = fake.state().statuses.last().cloned();
    node.apply(&pod).await;
    node.until("failed", |state| phase(state) == "Failed").await;
    node.until("clean", |state| state.volumes.is_empty()).await;
    // Its records stay: somebody may want its logs.
    assert_eq!(fake.state().containers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn deletion_stops_main_containers_then_sidecars_in_reverse() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &["s1:sidecar", "s2:sidecar"], &["a"]);
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&deleted(&pod, 10)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    let state = node.fake.state();
    let order = calls(&state, &["stop", "remove", "unmount", "terminated"]);
    assert_eq!(order[..3], ["stop a 10s", "stop s2 10s", "stop s1 10s"]);
    assert_eq!(order.last().map(String::as_str), Some("terminated"));
    assert_nothing_left(&state);
    let last = state.statuses.last().expect("a status");
    assert_eq!(last.phase.as_deref(), Some("Failed"));
    let ended = last.container_statuses.iter().flatten();
    assert!(ended.clone().all(|status| {
        status
            .state
            .as_ref()
            .is_some_and(|s| s.terminated.is_some())
    }));
    let killing = state
        .events
        .iter()
        .filter(|event| event.starts_with("Killing Stopping container"));
    assert_eq!(killing.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_second_deletion_with_less_grace_cuts_the_first_short() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.fake.state().deaf.insert("a".into());
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&deleted(&pod, 300)).await;
    sleep(Duration::from_secs(5)).await;
    let cut = Instant::now();
    node.apply(&deleted(&pod, 3)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(
        cut.elapsed() < Duration::from_secs(5),
        "{:?}",
        cut.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_object_is_gone_ends_within_two_seconds() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.fake.state().deaf.insert("a".into());
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    let gone = Instant::now();
    node.send(PodUpdate::Gone(uid())).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(
        gone.elapsed() < Duration::from_secs(4),
        "{:?}",
        gone.elapsed()
    );
    assert_nothing_left(&node.fake.state());
    sleep(Duration::from_secs(1)).await;
    assert!(node.pods.pods().is_empty());
}

#[tokio::test(start_paused = true)]
async fn deletion_cancels_a_pull_and_an_unpack() {
    for (hangs, call) in [(Pull::Hangs, "pull"), (Pull::UnpackHangs, "unpack")] {
        let node = Node::start(&Fake::new());
        let pod = sample::pod("Always", &[], &["a"]);
        node.fake.state().pull = hangs;
        node.apply(&pod).await;
        node.until(call, |state| !calls(state, &[call]).is_empty())
            .await;
        let began = Instant::now();
        node.apply(&deleted(&pod, 30)).await;
        node.until("terminated", |state| state.terminated > 0).await;
        assert!(began.elapsed() < Duration::from_secs(1), "{call}");
        assert!(calls(&node.fake.state(), &["create"]).is_empty());
        assert_nothing_left(&node.fake.state());
    }
}

#[tokio::test(start_paused = true)]
async fn deletion_gives_up_a_network_that_takes_its_time() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.fake.state().slow_network = true;
    node.apply(&pod).await;
    node.until("network", |state| !calls(state, &["network"]).is_empty())
        .await;
    sleep(Duration::from_secs(100)).await;
    let began = Instant::now();
    node.apply(&deleted(&pod, 30)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    let state = node.fake.state();
    let told = |event: &&String| event.starts_with("FailedCreatePodSandBox");
    assert_eq!(state.events.iter().find(told), None);
    assert_nothing_left(&state);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_looked_for_is_told_and_tried_again() {
    let node = Node::start(&Fake::new());
    node.fake.state().broken_store = Some("the disk is gone".into());
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    node.until("failed", |state| waiting(state) == "ImageInspectError")
        .await;
    let message = "Failed to inspect image \"i:1\": the disk is gone";
    {
        let state = node.fake.state();
        let status = state.statuses.last().expect("a status");
        let container = &status.container_statuses.as_ref().expect("a container")[0];
        let waiting = container
            .state
            .as_ref()
            .and_then(|state| state.waiting.as_ref());
        assert_eq!(
            waiting.and_then(|waiting| waiting.message.as_deref()),
            Some(message)
        );
        let inspect = format!("InspectFailed {message}");
        for event in [inspect.as_str(), "Failed Error: ImageInspectError"] {
            assert!(
                state.events.iter().any(|found| found == event),
                "{event} {:#?}",
                state.events
            );
        }
        assert!(calls(&state, &["pull", "create"]).is_empty());
    }
    node.fake.state().broken_store = None;
    node.until("ready", is_ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_pull_shows_and_backs_off_and_a_new_image_is_tried_at_once() {
    let node = Node::start(&Fake::new());
    let pod = sample::pod("Always", &[], &["a"]);
    node.fake.state().pull = Pull::Fails;
    node.apply(&pod).await;
    node.until("failed", |state| waiting(state) == "ErrImagePull")
        .await;
    node.until("backed off", |state| waiting(state) == "ImagePullBackOff")
        .await;
    let mut times = vec![Instant::now()];
    for count in 2..=4 {
        node.until("pulled again", |state| {
            calls(state, &["pull"]).len() >= count
        })
        .await;
        times.push(Instant::now());
    }
    let pauses: Vec<_> = times[1..]
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert_eq!(pauses, [20, 40]);
    {
        let state = node.fake.state();
        let has = |event: &str| state.events.iter().any(|found| found == event);
        assert!(has("Failed Error: ErrImagePull") && has("Failed Error: ImagePullBackOff"));
        assert!(has("BackOff Back-off pulling image \"i:1\""));
        let failed = "Failed Failed to pull image \"i:1\": failed to pull and unpack image \"i:1\": no such host";
        assert!(has(failed), "{:#?}", state.events);
    }
    let mut fixed = pod;
    fixed.metadata.generation = Some(4);
    fixed.spec.as_mut().expect("a spec").containers[0].image = Some("i:2".into());
    node.fake.state().pull = Pull::Works;
    let began = Instant::now();
    node.apply(&fixed).await;
    node.until("ready", is_ready).await;
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn init_failure_under_never_fails_the_pod_and_starts_no_app() {
    let node = Node::start(&Fake::new());
    node.fake
        .state()
        .runs
        .insert("i".into(), (Duration::from_secs(1), 3));
    node.apply(&sample::pod("Never", &["i"], &["a"])).await;
    node.until("failed", |state| phase(state) == "Failed").await;
    node.until("clean", |state| state.volumes.is_empty()).await;
    let state = node.fake.state();
    assert!(calls(&state, &["create a"]).is_empty());
    assert!(calls(&state, &["stop sandbox"]).len() == 1 && state.terminated == 0);
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_stops_its_sidecars_and_keeps_its_records_until_deleted() {
    let node = Node::start(&Fake::new());
    node.fake
        .state()
        .runs
        .insert("a".into(), (Duration::from_secs(5), 0));
    let pod = sample::pod("Never", &["s:sidecar"], &["a"]);
    node.apply(&pod).await;
    node.until("succeeded", |state| phase(state) == "Succeeded")
        .await;
    node.until("clean", |state| state.volumes.is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    {
        let state = node.fake.state();
        assert_eq!(
            calls(&state, &["stop s"]),
            ["stop s 30s", "stop sandbox s0"]
        );
        assert_eq!(state.containers.len(), 2);
        assert_eq!(state.terminated, 0);
    }
    node.apply(&deleted(&pod, 0)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    assert_nothing_left(&node.fake.state());
}

#[tokio::test(start_paused = true)]
async fn a_broken_sandbox_is_replaced_and_init_runs_again() {
    let node = Node::start(&Fake::new());
    node.fake
        .state()
        .runs
        .insert("i".into(), (Duration::from_secs(1), 0));
    node.apply(&sample::pod("Always", &["i"], &["a"])).await;
    node.until("ready", is_ready).await;
    node.fake.break_sandbox();
    node.until("ready again", |state| {
        calls(state, &["start a"]).len() == 2 && is_ready(state)
    })
    .await;
    let state = node.fake.state();
    let order = calls(&state, &["run", "stop", "start"]);
    let want = [
        "run sandbox 0",
        "start i.0",
        "start a.0",
        "stop a 30s",
        "stop sandbox s0",
        "run sandbox 1",
        "start i.1",
        "start a.1",
    ];
    assert_eq!(order, want);
    let changed = "SandboxChanged Pod sandbox changed, it will be killed and re-created.";
    assert!(state.events.iter().any(|event| event == changed));
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_fails_holds_containers_back_and_is_tried_again() {
    let node = Node::start(&Fake::new());
    node.fake.state().broken_volume = Some("configmap \"c\" not found".into());
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    sleep(Duration::from_secs(2)).await;
    {
        let mut state = node.fake.state();
        assert!(calls(&state, &["create"]).is_empty());
        let event =
            "FailedMount MountVolume.SetUp failed for volume \"v\" : configmap \"c\" not found";
        assert_eq!(state.events[0], event);
        state.broken_volume = None;
    }
    node.pods.objects_changed(&uid());
    sleep(Duration::from_millis(10)).await;
    assert!(is_ready(&node.fake.state()));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_fails_is_tried_again_with_the_kubelets_pause() {
    let node = Node::start(&Fake::new());
    node.fake.state().broken_network = Some("no addresses left".into());
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    let began = Instant::now();
    node.until("tried again", |state| calls(state, &["run"]).len() == 2)
        .await;
    let pause = began.elapsed().as_secs();
    assert!((10..=15).contains(&pause), "{pause}");
    let event = "FailedCreatePodSandBox Failed to create pod sandbox: failed to setup network for \
        sandbox s0: no addresses left";
    assert_eq!(node.fake.state().events[0], event);
}

/// The words are those of a kubelet node of the lab whose CNI configuration was taken away; it went on with "message:Network
/// plugin returns error: cni plugin not initialized". It is no golden case: all cases have the node's network together.
#[tokio::test(start_paused = true)]
async fn a_node_without_a_network_is_told_of_in_the_known_words() {
    let node = Node::start(&Fake::new());
    node.fake.state().broken_network = Some("no addresses left".into());
    node.fake.state().no_network = Some("there is no network configuration".into());
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    node.until("told", |state| !state.events.is_empty()).await;
    let event = "NetworkNotReady network is not ready: container runtime network not ready: NetworkReady=false \
        reason:NetworkPluginNotReady message:there is no network configuration";
    assert_eq!(node.fake.state().events[0], event);
    node.fake.state().broken_network = None;
    node.until("ready", is_ready).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_has_not_got_keeps_the_pod_pending() {
    let node = Node::start(&Fake::new());
    let mut pod = sample::pod("Always", &[], &["a"]);
    pod.spec.as_mut().expect("a spec").host_users = Some(false);
    node.apply(&pod).await;
    sleep(Duration::from_secs(1)).await;
    let state = node.fake.state();
    assert_eq!(phase(&state), "Pending");
    let event = "FailedCreatePodSandBox Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does \
        not support user namespaces: not supported";
    assert_eq!(state.events[0], event);
}

#[tokio::test(start_paused = true)]
async fn orphans_are_ended_once_the_source_has_spoken() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    node.apply(&sample::pod("Always", &[], &["a"])).await;
    node.until("ready", is_ready).await;
    node.kill().await;
    let node = Node::start(&fake);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fake.state().containers.len(), 1);
    node.send(PodUpdate::Synced).await;
    node.until("clean", |state| state.sandboxes.is_empty())
        .await;
    sleep(Duration::from_secs(1)).await;
    assert_nothing_left(&fake.state());
    assert_eq!(fake.state().terminated, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_past_its_deadline_fails() {
    let node = Node::start(&Fake::new());
    let mut pod = sample::pod("Always", &[], &["a"]);
    pod.spec.as_mut().expect("a spec").active_deadline_seconds = Some(30);
    node.apply(&pod).await;
    node.until("failed", |state| phase(state) == "Failed").await;
    let state = node.fake.state();
    let last = state.statuses.last().expect("a status");
    assert_eq!(last.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(state.containers[0].state, ContainerState::Exited);
}
