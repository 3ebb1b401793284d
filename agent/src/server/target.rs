//! From the names in a request's path to a pod and a container, with the kubelet's words when there is none.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hanok_runtime::api::{Container, ContainerState, PodUid, SandboxId, SandboxState};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

use super::route::App;
use crate::sinks::PodEntry;

/// The names in the path of a request to a pod.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PodPath {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    #[serde(default)]
    pub(super) container: String,
}

/// An answer other than success: status and text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: StatusCode,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.code, self.message).into_response()
    }
}

/// The pod's UID.
pub(super) fn pod_uid(pod: &Pod) -> PodUid {
    PodUid(pod.metadata.uid.clone().unwrap_or_default())
}

/// Whether the pod's specification names this container, of whatever kind.
pub(super) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.containers
        .iter()
        .any(|container| container.name == name)
        || spec
            .init_containers
            .iter()
            .flatten()
            .any(|container| container.name == name)
        || spec
            .ephemeral_containers
            .iter()
            .flatten()
            .any(|container| container.name == name)
}

/// The pod that a stream is asked for.
pub(super) fn find_pod(app: &App, path: &PodPath) -> Result<PodEntry, Refusal> {
    let entry = app
        .deps
        .pods
        .pod_by_name(&path.namespace, &path.pod)
        .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "pod does not exist"))?;
    match &path.uid {
        Some(uid) if entry.pod.metadata.uid.as_ref() != Some(uid) => {
            Err(Refusal::new(StatusCode::NOT_FOUND, "pod not found"))
        }
        _ => Ok(entry),
    }
}

/// The running container that a stream is asked for.
pub(super) async fn find_running(app: &App, path: &PodPath) -> Result<Container, Refusal> {
    let entry = find_pod(app, path)?;
    let view = app
        .deps
        .runtime
        .pod_view(&pod_uid(&entry.pod))
        .await
        .map_err(|error| Refusal::internal(error.to_string()))?;
    view.containers
        .into_iter()
        .find(|container| {
            container.config.name == path.container && container.state == ContainerState::Running
        })
        .ok_or_else(|| Refusal::internal(format!("container not found ({:?})", path.container)))
}

/// The ready sandbox of the pod that ports are to be forwarded to.
pub(super) async fn find_sandbox(app: &App, path: &PodPath) -> Result<SandboxId, Refusal> {
    let entry = find_pod(app, path)?;
    let view = app
        .deps
        .runtime
        .pod_view(&pod_uid(&entry.pod))
        .await
        .map_err(|error| Refusal::internal(error.to_string()))?;
    view.sandboxes
        .into_iter()
        .find(|sandbox| sandbox.state == SandboxState::Ready)
        .map(|sandbox| sandbox.id)
        .ok_or_else(|| {
            Refusal::internal(format!(
                "pod not found ({:?})",
                format!("{}_{}", path.pod, path.namespace)
            ))
        })
}
