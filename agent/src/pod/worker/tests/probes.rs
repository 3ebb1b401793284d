//! Probes: what they hold back, and what they restart.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{calls, is_ready};
use crate::pod::fake::{Fake, Node};
use crate::pod::sample;

/// A pod `a` with these probes.
fn pod(probes: serde_json::Value) -> k8s_openapi::api::core::v1::Pod {
    let mut container = serde_json::json!({"name": "a", "image": "i:1"});
    let fields = probes.as_object().expect("a map").clone();
    container.as_object_mut().expect("a map").extend(fields);
    sample::from(serde_json::json!({"restartPolicy": "Always", "containers": [container]}))
}

const EXEC: &str = "test";

#[tokio::test(start_paused = true)]
async fn a_pod_is_ready_when_its_probe_passes_and_not_before() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(1);
    let probe =
        serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 2, "failureThreshold": 2});
    node.apply(&pod(serde_json::json!({"readinessProbe": probe})))
        .await;
    sleep(Duration::from_secs(20)).await;
    assert!(!is_ready(&node.fake.state()));
    let unhealthy = "Unhealthy Readiness probe failed: the answer";
    assert!(
        node.fake
            .state()
            .events
            .iter()
            .any(|event| event == unhealthy)
    );
    node.fake.state().answer = Some(0);
    let passes = Instant::now();
    node.until("ready", is_ready).await;
    assert!(passes.elapsed() <= Duration::from_secs(3));
    node.fake.state().answer = Some(1);
    let fails = Instant::now();
    node.until("not ready", |state| !is_ready(state)).await;
    assert!(fails.elapsed() >= Duration::from_secs(2));
    assert_eq!(calls(&node.fake.state(), &["start"]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_up_yet_is_ready_once_it_is_and_is_not_restarted_for_it() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(1);
    let probe = |thresholds| {
        serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 60,
            "failureThreshold": thresholds})
    };
    let probes = serde_json::json!({"readinessProbe": probe(3), "livenessProbe": probe(1)});
    node.apply(&pod(probes)).await;
    node.until("running", |state| calls(state, &["start"]).len() == 1)
        .await;
    sleep(Duration::from_millis(300)).await;
    assert!(!is_ready(&node.fake.state()));
    node.fake.state().answer = Some(0);
    let is_up = Instant::now();
    node.until("ready", is_ready).await;
    assert!(is_up.elapsed() <= Duration::from_millis(400));
    sleep(Duration::from_secs(10)).await;
    let state = node.fake.state();
    let unhealthy = |event: &&String| event.starts_with("Unhealthy");
    assert_eq!(state.events.iter().find(unhealthy), None);
    assert_eq!(calls(&state, &["start", "stop"]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_up_once_has_failed_however_soon() {
    let node = Node::start(&Fake::new());
    // The second probe comes when the clock is at a quarter of a second, here less than one second after the start.
    sleep(Duration::from_millis(60)).await;
    node.fake.state().answer = Some(0);
    let probe =
        serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 1, "successThreshold": 2});
    node.apply(&pod(serde_json::json!({"readinessProbe": probe})))
        .await;
    for (asked, then) in [(1, 1), (2, 0)] {
        node.until("asked", |state| calls(state, &["exec"]).len() == asked)
            .await;
        node.fake.state().answer = Some(then);
    }
    node.until("ready", is_ready).await;
    let state = node.fake.state();
    assert_eq!(calls(&state, &["exec"]).len(), 4);
    let unhealthy = |event: &&String| event.starts_with("Unhealthy");
    assert_eq!(state.events.iter().filter(unhealthy).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_still_down_after_a_second_has_failed() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(1);
    let probe = serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 60, "failureThreshold": 1});
    node.apply(&pod(serde_json::json!({"livenessProbe": probe})))
        .await;
    let began = Instant::now();
    node.until("stopped", |state| calls(state, &["stop"]).len() == 1)
        .await;
    let took = began.elapsed();
    assert!(
        (Duration::from_secs(1)..Duration::from_secs(3)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_probe_slower_than_its_timeout_has_failed() {
    let node = Node::start(&Fake::new());
    let probe = serde_json::json!({"exec": {"command": [EXEC]}, "timeoutSeconds": 2, "periodSeconds": 3,
        "failureThreshold": 3, "terminationGracePeriodSeconds": 7});
    node.apply(&pod(serde_json::json!({"livenessProbe": probe})))
        .await;
    node.until("restarted", |state| calls(state, &["start"]).len() == 2)
        .await;
    let state = node.fake.state();
    assert_eq!(calls(&state, &["stop"]), ["stop a 7s"]);
    let killing = "Killing Container a failed liveness probe, will be restarted";
    assert!(state.events.iter().any(|event| event == killing));
    let failed = "Unhealthy Liveness probe failed: command timed out: \"test\" timed out after 2s";
    assert_eq!(
        state.events.iter().filter(|event| *event == failed).count(),
        3
    );
}

#[tokio::test(start_paused = true)]
async fn the_second_run_of_a_sidecar_is_probed_and_lets_the_app_start() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    node.fake
        .state()
        .runs
        .insert("s".into(), (Duration::from_secs(1), 1));
    let mut pod = sample::pod("Never", &["s:sidecar"], &["a"]);
    let probe = serde_json::json!({"exec": {"command": [EXEC]}, "initialDelaySeconds": 10});
    let spec = pod.spec.as_mut().expect("a spec");
    spec.init_containers.as_mut().expect("init containers")[0].startup_probe =
        serde_json::from_value(probe).expect("a probe");
    node.apply(&pod).await;
    node.until("run again", |state| calls(state, &["start s"]).len() == 1)
        .await;
    node.fake.state().runs.clear();
    node.until("app started", |state| {
        !calls(state, &["start a"]).is_empty()
    })
    .await;
    assert_eq!(calls(&node.fake.state(), &["start s"]).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_agent_believes_the_last_status_until_it_has_probed() {
    let fake = Fake::new();
    let node = Node::start(&fake);
    fake.state().answer = Some(0);
    let probe = serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 30});
    let mut pod = pod(serde_json::json!({"readinessProbe": probe.clone(), "startupProbe": probe}));
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    sleep(Duration::from_secs(300)).await;
    node.kill().await;
    pod.status = fake.state().statuses.last().cloned();
    let before = fake.state().statuses.len();
    let node = Node::start(&fake);
    node.apply(&pod).await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(fake.state().statuses.len(), before);
    assert_eq!(calls(&fake.state(), &["start"]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_asked_as_soon_as_the_startup_probe_has_passed() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(1);
    let startup = serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 1, "failureThreshold": 600});
    let readiness = serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 50});
    node.apply(&pod(
        serde_json::json!({"startupProbe": startup, "readinessProbe": readiness}),
    ))
    .await;
    sleep(Duration::from_secs(200)).await;
    node.fake.state().answer = Some(0);
    let passes = Instant::now();
    node.until("ready", is_ready).await;
    assert!(passes.elapsed() <= Duration::from_millis(1200));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_is_asked_whether_it_is_ready_and_not_whether_it_lives() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    node.fake.state().deaf.insert("a".into());
    let probe =
        serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 1, "failureThreshold": 1});
    let pod = pod(serde_json::json!({"livenessProbe": probe, "readinessProbe": probe}));
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&super::deleted(&pod, 30)).await;
    sleep(Duration::from_secs(2)).await;
    assert!(is_ready(&node.fake.state()));
    node.fake.state().answer = Some(1);
    node.until("not ready", |state| !is_ready(state)).await;
    node.until("terminated", |state| state.terminated > 0).await;
    let state = node.fake.state();
    assert!(!state.events.iter().any(|event| event.contains("Liveness")));
    assert_eq!(calls(&state, &["stop a"]), ["stop a 30s"]);
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_is_asked_whether_it_lives_while_the_apps_end() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    node.fake.state().deaf.insert("a".into());
    let mut pod = sample::pod("Always", &["s:sidecar"], &["a"]);
    let probe =
        serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 1, "failureThreshold": 1});
    let spec = pod.spec.as_mut().expect("a spec");
    spec.init_containers.as_mut().expect("init containers")[0].liveness_probe =
        serde_json::from_value(probe).expect("a probe");
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.apply(&super::deleted(&pod, 30)).await;
    sleep(Duration::from_secs(2)).await;
    node.fake.state().answer = Some(1);
    node.until("terminated", |state| state.terminated > 0).await;
    let state = node.fake.state();
    let unhealthy = "Unhealthy Liveness probe failed: the answer";
    assert!(state.events.iter().any(|event| event == unhealthy));
    assert_eq!(calls(&state, &["start"]).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_asked_changes_nothing_and_says_so() {
    let node = Node::start(&Fake::new());
    let probe =
        serde_json::json!({"httpGet": {"port": "no"}, "periodSeconds": 1, "failureThreshold": 1});
    node.apply(&pod(serde_json::json!({"livenessProbe": probe})))
        .await;
    node.until("ready", is_ready).await;
    sleep(Duration::from_secs(30)).await;
    let state = node.fake.state();
    assert_eq!(calls(&state, &["start"]).len(), 1);
    let errored = "Unhealthy Liveness probe errored and resulted in unknown state: \
                   port \"no\" not found";
    assert!(
        state.events.iter().any(|event| event == errored),
        "{:?}",
        state.events
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_post_start_hook_has_ended() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    let container = serde_json::json!({"readinessProbe": {"exec": {"command": [EXEC]}},
        "lifecycle": {"postStart": {"sleep": {"seconds": 20}}}});
    node.apply(&pod(container)).await;
    node.until("started", |state| !calls(state, &["start"]).is_empty())
        .await;
    sleep(Duration::from_secs(19)).await;
    assert!(calls(&node.fake.state(), &["exec"]).is_empty());
    node.until("ready", is_ready).await;
}

/// Answers two requests: a redirect to a path of its own, and from there one to somebody else's host.
async fn redirect_away(listener: tokio::net::TcpListener) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for location in ["/away", "http://elsewhere.example/healthz"] {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let _ = stream.read(&mut [0; 1024]).await.expect("a request");
        let answer = format!(
            "HTTP/1.1 302 Found\r\nlocation: {location}\r\nconnection: close\r\ncontent-length: 4\r\n\r\naway"
        );
        stream.write_all(answer.as_bytes()).await.expect("answered");
    }
}

#[tokio::test]
async fn a_redirect_to_another_host_passes_with_a_warning() {
    let node = Node::start(&Fake::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = tokio::spawn(redirect_away(listener));
    let probe = serde_json::json!({"httpGet": {"host": "127.0.0.1", "port": port}});
    node.apply(&pod(serde_json::json!({"readinessProbe": probe})))
        .await;
    node.until("ready", is_ready).await;
    let warned =
        "ProbeWarning Readiness probe warning: Probe terminated redirects, Response body: away";
    let events = node.fake.state().events.clone();
    assert!(events.iter().any(|event| event == warned), "{events:#?}");
    server.await.expect("both were asked for");
}

#[tokio::test(start_paused = true)]
async fn what_a_probe_has_ended_begins_anew_though_it_ended_well() {
    let node = Node::start(&Fake::new());
    node.fake.state().answer = Some(0);
    node.fake.state().polite.insert("a".into());
    let probe =
        serde_json::json!({"exec": {"command": [EXEC]}, "periodSeconds": 1, "failureThreshold": 1});
    let pod = sample::from(serde_json::json!({
        "restartPolicy": "OnFailure",
        "containers": [{"name": "a", "image": "i:1", "livenessProbe": probe}],
    }));
    node.apply(&pod).await;
    node.until("ready", is_ready).await;
    node.fake.state().answer = Some(1);
    // The second restart waits for its back-off.
    node.until("restarted", |state| calls(state, &["start a"]).len() >= 3)
        .await;
    let state = node.fake.state();
    let phases: Vec<_> = state
        .statuses
        .iter()
        .filter_map(|status| status.phase.as_deref())
        .collect();
    assert!(!phases.contains(&"Succeeded"), "{phases:?}");
}
