//! The PodResources API: which devices, CPUs and memory each pod has for itself, told to monitoring on this machine by gRPC
//! on a unix socket; `k8s.io/kubelet/pkg/apis/podresources/v1` and its elder `v1alpha1`, KEP-606.
//!
//! hanok gives nobody anything for itself yet, so there are pods and containers, and nothing that they own.

mod messages;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware;
use axum::routing::post;
use k8s_openapi::api::core::v1::{Container, Pod};
use tonic::Status;

use crate::local_grpc::{Gate, admit, unary};
use crate::pod::spec;
use crate::sinks::PodDirectory;
use messages::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};

/// Calls at once.
const CALLS: usize = 64;

/// Where the socket is below the root directory.
pub fn socket(root_dir: &Path) -> PathBuf {
    root_dir.join("pod-resources/kubelet.sock")
}

/// What the socket serves.
pub(crate) fn routes(pods: Arc<dyn PodDirectory>) -> Router {
    let gate = Gate::of_calls(CALLS);
    Router::new()
        .route("/v1.PodResourcesLister/List", post(list))
        .route("/v1.PodResourcesLister/Get", post(get))
        .route(
            "/v1.PodResourcesLister/GetAllocatableResources",
            post(allocatable),
        )
        .route("/v1alpha1.PodResourcesLister/List", post(list_elder))
        .layer(middleware::from_fn_with_state(gate, admit))
        .with_state(pods)
}

async fn list(State(pods): State<Arc<dyn PodDirectory>>, request: Request) -> Response<Body> {
    unary(request, |_: ListPodResourcesRequest| {
        let pods = pods.active();
        let pod_resources = pods.iter().map(|pod| resources(pod)).collect();
        Ok(ListPodResourcesResponse { pod_resources })
    })
    .await
}

/// `v1alpha1`: pods that are over too, and of each its apps. Its messages are those of `v1` without the newer fields.
async fn list_elder(State(pods): State<Arc<dyn PodDirectory>>, request: Request) -> Response<Body> {
    unary(request, |_: ListPodResourcesRequest| {
        let pods = pods.pods();
        let pod_resources = pods.iter().map(|entry| {
            let apps = spec::app_containers(&entry.pod);
            told(&entry.pod, apps.iter())
        });
        let pod_resources = pod_resources.collect();
        Ok(ListPodResourcesResponse { pod_resources })
    })
    .await
}

async fn get(State(pods): State<Arc<dyn PodDirectory>>, request: Request) -> Response<Body> {
    unary(request, |wanted: GetPodResourcesRequest| {
        let (namespace, name) = (&wanted.pod_namespace, &wanted.pod_name);
        let pods = pods.active();
        let found = pods
            .iter()
            .find(|pod| spec::namespace(pod) == namespace && spec::name(pod) == name);
        let Some(found) = found else {
            // Of this code at the kubelet too, which makes a plain error of it.
            let message = format!("pod {name} in namespace {namespace} not found");
            return Err(Status::unknown(message));
        };
        let pod_resources = Some(resources(found));
        Ok(GetPodResourcesResponse { pod_resources })
    })
    .await
}

/// What could be given to a pod for itself: nothing.
async fn allocatable(request: Request) -> Response<Body> {
    unary(request, |_: AllocatableResourcesRequest| {
        Ok(AllocatableResourcesResponse::default())
    })
    .await
}

/// A pod with its containers that last: sidecars and apps.
fn resources(pod: &Pod) -> PodResources {
    let is_sidecar = |one: &&Container| one.restart_policy.as_deref() == Some("Always");
    let sidecars = spec::init_containers(pod).iter().filter(is_sidecar);
    told(pod, sidecars.chain(spec::app_containers(pod)))
}

fn told<'a>(pod: &Pod, containers: impl Iterator<Item = &'a Container>) -> PodResources {
    PodResources {
        name: spec::name(pod).to_owned(),
        namespace: spec::namespace(pod).to_owned(),
        containers: containers
            .map(|container| ContainerResources {
                name: container.name.clone(),
                ..ContainerResources::default()
            })
            .collect(),
        ..PodResources::default()
    }
}

#[cfg(test)]
mod tests;
