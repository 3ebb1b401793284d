//! The Pods API: this node's pods with their newest statuses, listed, got and watched by programs on this machine without
//! the API server; gRPC on a unix socket, `k8s.io/kubelet/pkg/apis/pods/v1alpha1`, KEP-4188.
//!
//! A pod travels as Kubernetes' own protobuf ([`encode`]). Static pods are there under their own UIDs, their mirrors are
//! not. A pod is in the list, and a watch knows it, until nothing of it is left here and its object is gone: one that has
//! finished stays, where a kubelet's watch already calls it deleted. One that must wait for another to end, of its name or in
//! its room, is there as it came.

mod encode;
mod messages;
mod watcher;

use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware;
use axum::routing::post;
use futures::stream;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::PodStatus;
use tonic::Status;
use tower::service_fn;

use crate::local_grpc::{Gate, admit, grpc, in_time, unary};
use crate::pod::directory::Pods;
use crate::pod::directory::follow::Followed;
use messages::{
    GetPodRequest, GetPodResponse, ListPodsRequest, ListPodsResponse, WatchPodsEvent,
    WatchPodsRequest,
};
use watcher::Watcher;

/// Calls at once: the answers hold every pod until they have been taken.
const CALLS: usize = 16;
/// Watches at once: each holds events until they have been taken, no more than hyper lets lie (400 KiB) and one.
const WATCHES: usize = 32;

/// Where the socket is below the root directory.
pub fn socket(root_dir: &Path) -> PathBuf {
    root_dir.join("pods-api/pods-api.sock")
}

/// What the socket serves.
pub(crate) fn routes(pods: Pods) -> Router {
    let calls = Gate::of_calls(CALLS);
    let watches = Gate::of_streams(WATCHES);
    let calls = Router::new()
        .route("/v1alpha1.Pods/ListPods", post(list))
        .route("/v1alpha1.Pods/GetPod", post(get))
        .layer(middleware::from_fn_with_state(calls, admit));
    let watches = Router::new()
        .route("/v1alpha1.Pods/WatchPods", post(watch))
        .layer(middleware::from_fn_with_state(watches, admit));
    calls.merge(watches).with_state(pods)
}

async fn list(State(pods): State<Pods>, request: Request) -> Response<Body> {
    unary(request, |_: ListPodsRequest| {
        ready(&pods)?;
        let mut listed = Vec::new();
        let mut last = None;
        while let Some((uid, found)) = pods.after(last.as_ref()) {
            listed.push(bytes(found)?);
            last = Some(uid);
        }
        Ok(ListPodsResponse { pods: listed })
    })
    .await
}

async fn get(State(pods): State<Pods>, request: Request) -> Response<Body> {
    unary(request, |wanted: GetPodRequest| {
        ready(&pods)?;
        let uid = PodUid(wanted.pod_uid);
        let Some(found) = pods.of_uid(&uid) else {
            return Err(Status::not_found(format!("pod with UID {uid} not found")));
        };
        Ok(GetPodResponse { pod: bytes(found)? })
    })
    .await
}

async fn watch(State(pods): State<Pods>, request: Request) -> Response<Body> {
    let service = service_fn(|_: tonic::Request<WatchPodsRequest>| {
        let watcher = ready(&pods).map(|()| Watcher::new(pods.clone()));
        let events = watcher.map(|watcher| {
            let events = stream::try_unfold(watcher, async |mut watcher: Watcher| {
                let event = watcher.next().await?;
                Ok::<_, Status>(Some((event, watcher)))
            });
            tonic::Response::new(Box::pin(events))
        });
        std::future::ready(events)
    });
    in_time(grpc::<WatchPodsRequest, WatchPodsEvent>().server_streaming(service, request)).await
}

/// Whether there is something to tell already.
fn ready(pods: &Pods) -> Result<(), Status> {
    match pods.news().borrow().synced {
        true => Ok(()),
        // In a kubelet's words.
        false => Err(Status::failed_precondition("Kubelet is initializing")),
    }
}

/// The pod as it is shown. A pod of which something would be lost is shown to nobody.
fn bytes(found: Followed) -> Result<Vec<u8>, Status> {
    let status = effective(found.status, found.own_status);
    encode::pod(&found.pod, &status)
        .map_err(|error| Status::internal(format!("failed to marshal pod: {error}")))
}

/// What to tell of a pod's status. As long as the node has none of its own, nobody may take the pod for ready.
fn effective(mut status: PodStatus, own: bool) -> PodStatus {
    if own {
        return status;
    }
    if status.phase.as_deref().unwrap_or_default().is_empty() {
        status.phase = Some("Pending".to_owned());
    }
    let mut conditions = status.conditions.iter_mut().flatten();
    if let Some(ready) = conditions.find(|one| one.type_ == "Ready" && one.status == "True") {
        ready.status = "False".to_owned();
        ready.reason = Some("ContainersNotReady".to_owned());
        ready.message = Some("Kubelet is initializing pod containers".to_owned());
    }
    status
}

#[cfg(test)]
mod tests;
