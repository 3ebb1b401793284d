use std::time::Duration;

use serde_json::json;
use tonic::Code;

use super::*;
use crate::local_grpc::testing::Served;
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

fn served() -> Served {
    Served::start(socket, routes(Arc::new(Node)))
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
    let served = served();
    let listed: ListPodResourcesResponse = served
        .call("/v1.PodResourcesLister/List", ListPodResourcesRequest {})
        .await
        .unwrap();
    let front = vec![("shop", "front", vec!["proxy", "web", "log"])];
    assert_eq!(names(&listed.pod_resources), front);
    let wanted = GetPodResourcesRequest {
        pod_name: "front".into(),
        pod_namespace: "shop".into(),
    };
    let got: GetPodResourcesResponse = served
        .call("/v1.PodResourcesLister/Get", wanted.clone())
        .await
        .unwrap();
    assert_eq!(got.pod_resources.as_ref(), listed.pod_resources.first());
    let elsewhere = GetPodResourcesRequest {
        pod_namespace: "other".into(),
        ..wanted
    };
    let refused = served
        .call::<_, GetPodResourcesResponse>("/v1.PodResourcesLister/Get", elsewhere)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    assert_eq!(refused.message(), "pod front in namespace other not found");
    let over = GetPodResourcesRequest {
        pod_name: "over".into(),
        pod_namespace: "shop".into(),
    };
    let refused = served.call::<_, GetPodResourcesResponse>("/v1.PodResourcesLister/Get", over);
    assert_eq!(refused.await.unwrap_err().code(), Code::Unknown);
    let all: AllocatableResourcesResponse = served
        .call(
            "/v1.PodResourcesLister/GetAllocatableResources",
            AllocatableResourcesRequest {},
        )
        .await
        .unwrap();
    assert_eq!(all, AllocatableResourcesResponse::default());
    let unknown = served
        .call::<_, AllocatableResourcesResponse>(
            "/v1.PodResourcesLister/Watch",
            AllocatableResourcesRequest {},
        )
        .await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn the_elder_version_tells_all_pods_with_their_apps() {
    let served = served();
    let listed: ListPodResourcesResponse = served
        .call(
            "/v1alpha1.PodResourcesLister/List",
            ListPodResourcesRequest {},
        )
        .await
        .unwrap();
    let all = ["front", "over"].map(|name| ("shop", name, vec!["web", "log"]));
    assert_eq!(names(&listed.pod_resources), all);
}

#[tokio::test(start_paused = true)]
async fn who_calls_too_often_is_turned_away() {
    let served = served();
    let list = async || {
        let listed = served.call::<_, ListPodResourcesResponse>(
            "/v1.PodResourcesLister/List",
            ListPodResourcesRequest {},
        );
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
