use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::UnixStream;
use tonic::Code;

use super::*;
use crate::sinks::PodEntry;

/// A node with a pod that runs and one that is over.
struct Node;

fn pod(name: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "initContainers": [{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}],
            "containers": [{"name": "web"}, {"name": "log"}],
        },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

impl PodDirectory for Node {
    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<PodEntry> {
        let known = namespace == "shop" && ["front", "over"].contains(&name);
        let status = Default::default();
        known.then(|| PodEntry {
            pod: pod(name),
            status,
        })
    }
    fn pods(&self) -> Vec<PodEntry> {
        ["front", "over"]
            .iter()
            .filter_map(|name| self.pod_by_name("shop", name))
            .collect()
    }
    fn active(&self) -> Vec<Arc<Pod>> {
        vec![pod("front")]
    }
}

/// A socket that is served, in a directory that goes with it.
struct Served {
    dir: tempfile::TempDir,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = bind(&socket(dir.path())).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, Arc::new(Node), stop.clone()));
        Self { dir, stop, task }
    }

    /// A call by a client of gRPC, on a connection of its own.
    async fn call<Q, A>(&self, method: &str, message: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let stream = UnixStream::connect(socket(self.dir.path())).await.unwrap();
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let service = service_fn(move |request: http::Request<tonic::body::Body>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let origin = "http://localhost".parse().unwrap();
        let mut client = tonic::client::Grpc::with_origin(service, origin);
        client.ready().await.unwrap();
        let path: PathAndQuery = format!("/v1.PodResourcesLister/{method}").parse().unwrap();
        let request = tonic::Request::new(message);
        let codec = ProstCodec::<Q, A>::default();
        Ok(client.unary(request, path, codec).await?.into_inner())
    }
}

/// The names of the pods and their containers.
fn names(pods: &[PodResources]) -> Vec<(&str, &str, Vec<&str>)> {
    pods.iter()
        .map(|pod| {
            let containers = pod.containers.iter().map(|one| one.name.as_str());
            (
                pod.namespace.as_str(),
                pod.name.as_str(),
                containers.collect(),
            )
        })
        .collect()
}

#[tokio::test]
async fn pods_that_are_not_over_are_told_with_their_lasting_containers() {
    let served = Served::start();
    let listed: ListPodResourcesResponse = served
        .call("List", ListPodResourcesRequest {})
        .await
        .unwrap();
    let front = vec![("shop", "front", vec!["proxy", "web", "log"])];
    assert_eq!(names(&listed.pod_resources), front);
    let wanted = GetPodResourcesRequest {
        pod_name: "front".into(),
        pod_namespace: "shop".into(),
    };
    let got: GetPodResourcesResponse = served.call("Get", wanted.clone()).await.unwrap();
    assert_eq!(got.pod_resources.as_ref(), listed.pod_resources.first());
    let elsewhere = GetPodResourcesRequest {
        pod_namespace: "other".into(),
        ..wanted
    };
    let refused = served
        .call::<_, GetPodResourcesResponse>("Get", elsewhere)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    assert_eq!(refused.message(), "pod front in namespace other not found");
    let all: AllocatableResourcesResponse = served
        .call("GetAllocatableResources", AllocatableResourcesRequest {})
        .await
        .unwrap();
    assert_eq!(all, AllocatableResourcesResponse::default());
    let unknown = served
        .call::<_, AllocatableResourcesResponse>("Watch", AllocatableResourcesRequest {})
        .await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn who_calls_too_often_is_turned_away() {
    let served = Served::start();
    let list = async || {
        let listed = served.call::<_, ListPodResourcesResponse>("List", ListPodResourcesRequest {});
        listed
            .await
            .map(drop)
            .map_err(|status| (status.code(), status.message().to_owned()))
    };
    let refused = Err((Code::ResourceExhausted, "rejected by rate limit".to_owned()));
    // Ten at once, and then a hundred a second.
    for allowed in [10, 1] {
        for _ in 0..allowed {
            assert_eq!(list().await, Ok(()));
        }
        assert_eq!(list().await, refused);
        tokio::time::advance(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_socket_takes_the_place_of_one_before_it_and_is_closed_in_the_end() {
    let served = Served::start();
    let path = socket(served.dir.path());
    let directory = path.parent().unwrap();
    assert_eq!(
        fs::metadata(directory).unwrap().permissions().mode() & 0o777,
        0o750
    );
    let again = bind(&path).unwrap();
    let names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|one| one.file_name())
        .collect();
    assert_eq!(names, ["kubelet.sock"]);
    drop(again);
    served.stop.cancel();
    served.task.await.unwrap();
    assert!(UnixStream::connect(&path).await.is_err());
}
