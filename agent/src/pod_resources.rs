//! The PodResources API: which devices, CPUs and memory each pod has for itself, told to monitoring on this machine by gRPC
//! on a unix socket; `k8s.io/kubelet/pkg/apis/podresources/v1`, KEP-606.
//!
//! hanok gives nobody anything for itself yet, so there are pods and containers, and nothing that they own.

mod messages;

use std::fs::{self, DirBuilder};
use std::future::ready;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware::{self, Next};
use axum::routing::post;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::net::UnixListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::bucket::Bucket;
use crate::pod::spec;
use crate::sinks::PodDirectory;
use messages::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};

/// Calls a second, and at once, for all clients together: as a kubelet has it.
const RATE: f64 = 100.0;
const BURST: f64 = 10.0;

/// Where the socket is below the root directory.
pub fn socket(root_dir: &Path) -> PathBuf {
    root_dir.join("pod-resources/kubelet.sock")
}

/// Puts a socket in the place of one that an agent before this one has left. The directory is root's and its group's.
///
/// # Errors
/// When it cannot be made, as where the path is too long for a socket.
pub fn bind(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(directory)?;
    }
    // A client never finds a socket on which nobody listens.
    let own = socket.with_extension("new");
    match fs::remove_file(&own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&own)?;
    fs::rename(&own, socket)?;
    Ok(listener)
}

/// Serves until the order to stop.
pub async fn serve(listener: UnixListener, pods: Arc<dyn PodDirectory>, stop: CancellationToken) {
    let served = axum::serve(listener, router(pods));
    let served = stop.run_until_cancelled(served.into_future()).await;
    if let Some(Err(error)) = served {
        tracing::warn!(%error, "the PodResources API is served no more");
    }
}

fn router(pods: Arc<dyn PodDirectory>) -> Router {
    let bucket = Arc::new(Mutex::new(Bucket::new(BURST, RATE)));
    Router::new()
        .route("/v1.PodResourcesLister/List", post(list))
        .route("/v1.PodResourcesLister/Get", post(get))
        .route(
            "/v1.PodResourcesLister/GetAllocatableResources",
            post(allocatable),
        )
        .layer(middleware::from_fn_with_state(bucket, limit))
        .fallback(async || Status::unimplemented("unknown service or method").into_http::<Body>())
        .with_state(pods)
}

/// Turns away who calls too often.
async fn limit(
    State(bucket): State<Arc<Mutex<Bucket>>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let taken = {
        let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(Instant::now())
    };
    match taken {
        true => next.run(request).await,
        false => Status::resource_exhausted("rejected by rate limit").into_http(),
    }
}

/// Answers a call with what `answer` makes of its message.
async fn unary<Q, A>(request: Request, answer: impl Fn(Q) -> Result<A, Status>) -> Response<Body>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    let service = service_fn(|request: tonic::Request<Q>| {
        ready(answer(request.into_inner()).map(tonic::Response::new))
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default());
    grpc.unary(service, request).await.map(Body::new)
}

async fn list(State(pods): State<Arc<dyn PodDirectory>>, request: Request) -> Response<Body> {
    unary(request, |_: ListPodResourcesRequest| {
        let pods = pods.active();
        let pod_resources = pods.iter().map(|pod| resources(pod)).collect();
        Ok(ListPodResourcesResponse { pod_resources })
    })
    .await
}

async fn get(State(pods): State<Arc<dyn PodDirectory>>, request: Request) -> Response<Body> {
    unary(request, |wanted: GetPodResourcesRequest| {
        let (namespace, name) = (&wanted.pod_namespace, &wanted.pod_name);
        let Some(found) = pods.pod_by_name(namespace, name) else {
            // Of this code at the kubelet too, which makes a plain error of it.
            let message = format!("pod {name} in namespace {namespace} not found");
            return Err(Status::unknown(message));
        };
        let pod_resources = Some(resources(&found.pod));
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
    let spec = pod.spec.as_ref();
    let inits = spec.and_then(|spec| spec.init_containers.as_ref());
    let is_sidecar = |one: &&Container| one.restart_policy.as_deref() == Some("Always");
    let sidecars = inits.into_iter().flatten().filter(is_sidecar);
    let apps = spec.into_iter().flat_map(|spec| &spec.containers);
    PodResources {
        name: spec::name(pod).to_owned(),
        namespace: spec::namespace(pod).to_owned(),
        containers: sidecars
            .chain(apps)
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
