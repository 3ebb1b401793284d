//! One law per test, against a fake API server.

use std::sync::Mutex;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::client::fake::{Answer, Fake, Seen};
use crate::source::manifest::{self, Origin};

/// Statuses by the UID of the object that they were sent to.
#[derive(Debug, Default)]
struct Statuses(Mutex<Vec<(String, String)>>);

impl StatusSink for Statuses {
    fn publish(&self, pod: &Arc<Pod>, status: PodStatus) {
        let phase = status.phase.unwrap_or_default();
        self.0.lock().unwrap().push((spec::uid(pod).0, phase));
    }

    fn terminated(&self, _pod: &Arc<Pod>) {}
}

fn static_pod(image: &str) -> Arc<Pod> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: '{image}'}}]}}\n"
    );
    let mut pods = manifest::pods(&text, "n1", Origin::File("/m/web.yaml")).unwrap();
    Arc::new(pods.remove(0))
}

fn phase(phase: &str) -> PodStatus {
    PodStatus {
        phase: Some(phase.into()),
        ..PodStatus::default()
    }
}

/// An API server that makes, gives and deletes one pod; and the keeper beside it.
struct Rig {
    fake: Arc<Fake>,
    statuses: Arc<Statuses>,
    mirrors: Mirrors,
    sink: MirroredStatuses,
    _node: watch::Sender<Option<Arc<Node>>>,
}

impl Rig {
    async fn start() -> Self {
        let mut made = 0;
        let (fake, server) = Fake::start(move |request: &Seen| match request.method.as_str() {
            "POST" => {
                made += 1;
                let mut pod = request.body.clone();
                pod["metadata"]["uid"] = json!(format!("mirror-{made}"));
                Some(Answer::Object(pod))
            }
            "DELETE" => Some(Answer::Object(
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            )),
            _ => None,
        })
        .await;
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "node-uid"}})).unwrap();
        let (sender, node) = watch::channel(Some(Arc::new(node)));
        let statuses = Arc::new(Statuses::default());
        let mirrors = Mirrors::start(Parts {
            server,
            node,
            sources: 1,
            statuses: statuses.clone(),
        });
        let sink = MirroredStatuses {
            mirrors: mirrors.clone(),
            statuses: statuses.clone(),
        };
        Self {
            fake,
            statuses,
            mirrors,
            sink,
            _node: sender,
        }
    }

    fn wanted(&self, names: &[&str]) {
        let name = |name: &&str| ("default".to_owned(), (*name).to_owned());
        self.mirrors
            .wanted("file", names.iter().map(name).collect());
    }

    /// Waits for so many requests; gives them as `METHOD PATH`.
    async fn requests(&self, count: usize) -> Vec<String> {
        let seen = self.fake.until(|seen| seen.len() >= count).await;
        let text = |seen: &Seen| format!("{} {}", seen.method, seen.path);
        seen.iter().map(text).collect()
    }

    /// Waits until the object has got so many statuses.
    async fn until_status(&self, uid: &str, phase: &str) {
        for _ in 0..1000 {
            let found = self.statuses.0.lock().unwrap().last().cloned();
            if found == Some((uid.to_owned(), phase.to_owned())) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "no {phase} for {uid}: {:?}",
            self.statuses.0.lock().unwrap()
        );
    }
}

/// The mirror of a pod as the watch tells of it.
fn shown(pod: &Pod, uid: &str, more: Value) -> PodUpdate {
    let node = Node {
        metadata: serde_json::from_value(json!({"name": "n1", "uid": "node-uid"})).unwrap(),
        ..Node::default()
    };
    let mut mirror = plan::mirror(pod, &node).expect("a mirror");
    mirror.metadata.uid = Some(uid.into());
    let mut value = serde_json::to_value(&mirror).unwrap();
    for (key, field) in more.as_object().into_iter().flatten() {
        value["metadata"][key] = field.clone();
    }
    PodUpdate::Apply(Arc::new(serde_json::from_value(value).unwrap()))
}

const CREATE: &str = "POST /api/v1/namespaces/default/pods";
const DELETE: &str = "DELETE /api/v1/namespaces/default/pods/web-n1";

#[tokio::test]
async fn a_static_pod_gets_an_object_that_the_node_may_make_and_its_status() {
    let rig = Rig::start().await;
    let pod = static_pod("i:1");
    rig.wanted(&["web-n1"]);
    rig.sink.publish(&pod, phase("Pending"));
    assert_eq!(rig.requests(1).await, [CREATE]);
    rig.until_status("mirror-1", "Pending").await;
    rig.sink.publish(&pod, phase("Running"));
    rig.until_status("mirror-1", "Running").await;
    let body = rig.fake.seen()[0].body.clone();
    let hash = pod.metadata.uid.clone().unwrap();
    assert_eq!(body["metadata"]["annotations"][MIRROR], json!(hash));
    assert_eq!(
        body["metadata"]["annotations"]["kubernetes.io/config.source"],
        "file"
    );
    assert_eq!(
        body["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true}])
    );
    assert_eq!(body["spec"]["nodeName"], "n1");
    assert_eq!(body["metadata"]["uid"], Value::Null);
    assert_eq!(body["status"], Value::Null);
}

#[tokio::test]
async fn an_object_that_somebody_deletes_is_made_again() {
    let rig = Rig::start().await;
    let pod = static_pod("i:1");
    rig.wanted(&["web-n1"]);
    rig.sink.publish(&pod, phase("Running"));
    rig.until_status("mirror-1", "Running").await;
    // Gracefully: it is for us to let it go.
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(rig.mirrors.take(shown(&pod, "mirror-1", deleted)).is_none());
    assert_eq!(rig.requests(3).await, [CREATE, DELETE, CREATE]);
    rig.until_status("mirror-2", "Running").await;
    // By force; and news of the one before, late.
    rig.mirrors.take(PodUpdate::Gone(PodUid("mirror-1".into())));
    rig.mirrors.take(PodUpdate::Gone(PodUid("mirror-2".into())));
    assert_eq!(rig.requests(4).await[3], CREATE);
    rig.until_status("mirror-3", "Running").await;
}

#[tokio::test]
async fn a_changed_manifest_has_its_object_when_the_old_pod_is_gone() {
    let rig = Rig::start().await;
    let (old, new) = (static_pod("i:1"), static_pod("i:2"));
    rig.wanted(&["web-n1"]);
    rig.sink.publish(&old, phase("Running"));
    rig.until_status("mirror-1", "Running").await;
    rig.sink.publish(&old, phase("Succeeded"));
    rig.until_status("mirror-1", "Succeeded").await;
    rig.sink.terminated(&old);
    rig.sink.publish(&new, phase("Pending"));
    assert_eq!(rig.requests(3).await, [CREATE, DELETE, CREATE]);
    rig.until_status("mirror-2", "Pending").await;
}

#[tokio::test]
async fn the_object_goes_with_its_pod_and_not_before_every_source_is_heard() {
    let rig = Rig::start().await;
    let pod = static_pod("i:1");
    rig.mirrors.take(shown(&pod, "mirror-0", json!({})));
    rig.mirrors.take(shown(
        &static_pod("i:9"),
        "other",
        json!({"name": "other-n1"}),
    ));
    // It is there from an earlier agent, and only needs its status.
    rig.sink.publish(&pod, phase("Running"));
    rig.until_status("mirror-0", "Running").await;
    assert!(rig.fake.seen().is_empty());
    rig.wanted(&["web-n1"]);
    assert_eq!(
        rig.requests(1).await,
        ["DELETE /api/v1/namespaces/default/pods/other-n1"]
    );
    rig.wanted(&[]);
    rig.sink.publish(&pod, phase("Succeeded"));
    rig.until_status("mirror-0", "Succeeded").await;
    rig.sink.terminated(&pod);
    assert_eq!(rig.requests(2).await[1], DELETE);
    assert_eq!(rig.fake.seen()[1].body["preconditions"]["uid"], "mirror-0");
}

#[tokio::test]
async fn pods_of_the_api_are_not_ours() {
    let rig = Rig::start().await;
    let mut pod = Pod::clone(&static_pod("i:1"));
    pod.metadata.annotations = None;
    let pod = Arc::new(pod);
    assert!(rig.mirrors.take(PodUpdate::Apply(pod.clone())).is_some());
    rig.sink.publish(&pod, phase("Running"));
    let uid = pod.metadata.uid.clone().unwrap();
    rig.until_status(&uid, "Running").await;
    assert!(rig.fake.seen().is_empty());
}
