use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use serde_json::json;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use super::messages::EventType::{self, Added, Deleted, InitialSyncComplete, Modified};
use super::*;
use crate::local_grpc::testing::Served;
use crate::pod::directory::testing::{enter, enter_orphan, set_waiting};

const WATCH: &str = "/v1alpha1.Pods/WatchPods";
const LIST: &str = "/v1alpha1.Pods/ListPods";
const GET: &str = "/v1alpha1.Pods/GetPod";

/// The little of a pod that these tests look at.
#[derive(Clone, PartialEq, Message)]
struct Told {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, optional, tag = "3")]
    status: Option<Status_>,
}

#[derive(Clone, PartialEq, Message)]
struct Meta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct Status_ {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Message)]
struct Condition {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(string, tag = "5")]
    reason: String,
}

/// UID, and phase where there is one.
fn line(bytes: &[u8]) -> String {
    let told = Told::decode(bytes).unwrap();
    let metadata = told.metadata.unwrap();
    assert_eq!(metadata.namespace, "shop");
    assert_eq!(metadata.name, format!("pod-{}", metadata.uid));
    let phase = told.status.unwrap_or_default().phase;
    format!("{} {phase}", metadata.uid)
}

fn pod(uid: &str) -> k8s_openapi::api::core::v1::Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "shop", "uid": uid},
        "spec": {"containers": [{"name": "a"}]},
    }))
    .unwrap()
}

fn phase(phase: &str) -> PodStatus {
    PodStatus {
        phase: Some(phase.into()),
        ..PodStatus::default()
    }
}

fn synced() -> Pods {
    let pods = Pods::default();
    pods.set_synced();
    pods
}

fn served(pods: &Pods) -> Served {
    Served::start(socket, routes(pods.clone()))
}

async fn list(served: &Served) -> Result<Vec<String>, Status> {
    let listed: ListPodsResponse = served.call(LIST, ListPodsRequest {}).await?;
    Ok(listed.pods.iter().map(|pod| line(pod)).collect())
}

async fn get(served: &Served, uid: &str) -> Result<String, Status> {
    let pod_uid = uid.to_owned();
    let got: GetPodResponse = served.call(GET, GetPodRequest { pod_uid }).await?;
    Ok(line(&got.pod))
}

async fn watch(served: &Served) -> Result<Streaming<WatchPodsEvent>, Status> {
    served.events(WATCH, WatchPodsRequest {}).await
}

/// The next event of a watch.
async fn next(events: &mut Streaming<WatchPodsEvent>) -> (EventType, String) {
    let next = timeout(Duration::from_secs(10), events.message()).await;
    let event = next.expect("an event comes").unwrap().unwrap();
    let kind = event.r#type();
    match kind {
        InitialSyncComplete => (kind, String::new()),
        _ => (kind, line(&event.pod)),
    }
}

fn told(kind: EventType, line: &str) -> (EventType, String) {
    (kind, line.to_owned())
}

#[tokio::test]
async fn pods_are_listed_by_uid_and_got_with_their_newest_status() {
    let pods = synced();
    let served = served(&pods);
    assert_eq!(list(&served).await.unwrap(), [""; 0]);
    let b = enter(&pods, pod("b"));
    let a = enter(&pods, pod("a"));
    // Without a status of its own a pod is on its way.
    assert_eq!(list(&served).await.unwrap(), ["a Pending", "b Pending"]);
    b.set_status(phase("Succeeded"));
    b.set_over();
    assert_eq!(list(&served).await.unwrap(), ["a Pending", "b Succeeded"]);
    assert_eq!(get(&served, "b").await.unwrap(), "b Succeeded");
    drop(a);
    for uid in ["a", ""] {
        let refused = get(&served, uid).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        assert_eq!(refused.message(), format!("pod with UID {uid} not found"));
    }
}

#[tokio::test]
async fn nobody_is_told_anything_before_every_source_has_been_heard() {
    let pods = Pods::default();
    let served = served(&pods);
    let _a = enter(&pods, pod("a"));
    let refusals = [
        list(&served).await.map(drop),
        get(&served, "a").await.map(drop),
        watch(&served).await.map(drop),
    ];
    for refused in refusals {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert_eq!(refused.message(), "Kubelet is initializing");
    }
    pods.set_synced();
    assert_eq!(list(&served).await.unwrap(), ["a Pending"]);
}

#[tokio::test]
async fn a_pod_is_not_ready_before_the_node_has_looked_itself() {
    let pods = synced();
    let served = served(&pods);
    let status = json!({"phase": "Running", "conditions": [
        {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"},
    ]});
    let status: PodStatus = serde_json::from_value(status).unwrap();
    let mut before = pod("a");
    before.status = Some(status.clone());
    let a = enter(&pods, before);
    let ready = async || {
        let pod_uid = "a".to_owned();
        let got: GetPodResponse = served.call(GET, GetPodRequest { pod_uid }).await.unwrap();
        let told = Told::decode(got.pod.as_slice()).unwrap().status.unwrap();
        assert_eq!(told.phase, "Running");
        let of = |kind| told.conditions.iter().find(|one| one.kind == kind).unwrap();
        assert_eq!(of("Initialized").status, "True");
        (of("Ready").status.clone(), of("Ready").reason.clone())
    };
    assert_eq!(ready().await, ("False".into(), "ContainersNotReady".into()));
    let revision = |pods: &Pods| pods.of_uid(&PodUid("a".into())).unwrap().revision;
    a.confirm_status(&status);
    assert_eq!(ready().await, ("True".into(), String::new()));
    // To stand by it again is no change.
    let before = revision(&pods);
    a.confirm_status(&status);
    assert_eq!(revision(&pods), before);
}

#[tokio::test]
async fn a_watch_tells_what_there_is_and_then_what_changes() {
    let pods = synced();
    let served = served(&pods);
    let b = enter(&pods, pod("b"));
    let _a = enter(&pods, pod("a"));
    let mut events = watch(&served).await.unwrap();
    assert_eq!(next(&mut events).await, told(Added, "a Pending"));
    assert_eq!(next(&mut events).await, told(Added, "b Pending"));
    assert_eq!(next(&mut events).await, told(InitialSyncComplete, ""));
    b.set_status(phase("Running"));
    assert_eq!(next(&mut events).await, told(Modified, "b Running"));
    let c = enter(&pods, pod("c"));
    assert_eq!(next(&mut events).await, told(Added, "c Pending"));
    c.set_pod(Arc::new(pod("c")));
    assert_eq!(next(&mut events).await, told(Modified, "c Pending"));
    drop(b);
    assert_eq!(next(&mut events).await, told(Deleted, "b "));
    // What comes again is new.
    let _b = enter(&pods, pod("b"));
    assert_eq!(next(&mut events).await, told(Added, "b Pending"));
}

#[tokio::test]
async fn what_only_the_runtime_knows_is_no_pod_of_this_api() {
    let pods = synced();
    let served = served(&pods);
    let orphan = enter_orphan(&pods, pod("a"));
    assert_eq!(list(&served).await.unwrap(), [""; 0]);
    assert_eq!(get(&served, "a").await.unwrap_err().code(), Code::NotFound);
    let mut events = watch(&served).await.unwrap();
    assert_eq!(next(&mut events).await, told(InitialSyncComplete, ""));
    drop(orphan);
    let _b = enter(&pods, pod("b"));
    assert_eq!(next(&mut events).await, told(Added, "b Pending"));
}

#[tokio::test]
async fn a_pod_that_waits_for_others_is_there_as_it_came() {
    let pods = synced();
    let served = served(&pods);
    let b = enter(&pods, pod("b"));
    let [a, c] = ["a", "c"].map(|uid| Arc::new(pod(uid)));
    let mut events = watch(&served).await.unwrap();
    assert_eq!(next(&mut events).await, told(Added, "b Pending"));
    assert_eq!(next(&mut events).await, told(InitialSyncComplete, ""));
    set_waiting(&pods, &[a.clone(), c.clone()]);
    assert_eq!(next(&mut events).await, told(Added, "a Pending"));
    assert_eq!(next(&mut events).await, told(Added, "c Pending"));
    let all = ["a Pending", "b Pending", "c Pending"];
    assert_eq!(list(&served).await.unwrap(), all);
    assert_eq!(get(&served, "c").await.unwrap(), "c Pending");
    // That it waits still is no news.
    set_waiting(&pods, &[a.clone(), c.clone()]);
    b.set_status(phase("Running"));
    assert_eq!(next(&mut events).await, told(Modified, "b Running"));
    // It is its turn: its worker has an entry before it waits no more.
    let running = enter(&pods, pod("a"));
    running.set_status(phase("Running"));
    set_waiting(&pods, &[c]);
    assert_eq!(next(&mut events).await, told(Modified, "a Running"));
    assert_eq!(
        list(&served).await.unwrap(),
        ["a Running", "b Running", "c Pending"]
    );
    set_waiting(&pods, &[]);
    assert_eq!(next(&mut events).await, told(Deleted, "c "));
    assert_eq!(get(&served, "c").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_slow_watcher_misses_what_was_and_not_what_is() {
    let pods = synced();
    let mut watcher = Watcher::new(pods.clone());
    let mut look = async || {
        let event = watcher.next().await.unwrap();
        let kind = event.r#type();
        let pod = match kind {
            InitialSyncComplete => String::new(),
            _ => line(&event.pod),
        };
        (kind, pod)
    };
    let a = enter(&pods, pod("a"));
    let b = enter(&pods, pod("b"));
    assert_eq!(look().await, told(Added, "a Pending"));
    // It goes before it was told, and comes to be before the mark.
    drop(b);
    let _c = enter(&pods, pod("c"));
    assert_eq!(look().await, told(Added, "c Pending"));
    assert_eq!(look().await, told(InitialSyncComplete, ""));
    let _b = enter(&pods, pod("b"));
    for _ in 0..1000 {
        a.set_status(phase("Running"));
    }
    drop(a);
    // The pod that is gone goes first, and nothing is told of what it was meanwhile.
    assert_eq!(look().await, told(Deleted, "a "));
    assert_eq!(look().await, told(Added, "b Pending"));
    let quiet = timeout(Duration::from_millis(50), look()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

#[tokio::test]
async fn a_pod_that_changes_all_the_time_does_not_hide_the_others() {
    let pods = synced();
    let mut watcher = Watcher::new(pods.clone());
    let (a, b) = (enter(&pods, pod("a")), enter(&pods, pod("b")));
    for _ in 0..3 {
        watcher.next().await.unwrap();
    }
    b.set_status(phase("Running"));
    let mut lines = Vec::new();
    for _ in 0..3 {
        a.set_status(phase("Running"));
        lines.push(line(&watcher.next().await.unwrap().pod));
    }
    assert_eq!(lines, ["b Running", "a Running", "a Running"]);
}

#[tokio::test]
async fn watches_are_counted_until_their_clients_go() {
    let pods = synced();
    let served = served(&pods);
    let mut watches = Vec::new();
    // As fast as can be: the rate is that of the other calls.
    for _ in 0..WATCHES {
        let mut events = watch(&served).await.unwrap();
        assert_eq!(next(&mut events).await, told(InitialSyncComplete, ""));
        watches.push(events);
    }
    let refused = watch(&served).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "too many calls at once");
    // Lists are counted by themselves.
    assert_eq!(list(&served).await.unwrap(), [""; 0]);
    watches.pop();
    let again = async {
        loop {
            match watch(&served).await {
                Ok(events) => return events,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let mut again = timeout(Duration::from_secs(60), again).await.unwrap();
    assert_eq!(next(&mut again).await, told(InitialSyncComplete, ""));
}
