//! Where the pod core's output goes and its inputs beside the pods come from.
//!
//! Each trait has an implementation that speaks to the API server, and one for where there is none: `hanok run` and a
//! standalone agent.
//! The pod core ([`crate::pod`]) knows only these.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMap, Pod, PodStatus, Secret, Service,
};

/// One change of the set of desired pods, in order.
#[derive(Debug, Clone)]
pub enum PodUpdate {
    /// The pod is wanted in this form. A deletion timestamp in it asks for its termination.
    Apply(Arc<Pod>),
    /// The object is gone from its source: terminate at once what is left of it.
    Gone(PodUid),
    /// Everything that the source knew at its start has been sent; what the runtime has beyond is orphaned.
    Synced,
}

/// Takes the statuses. One patch per pod per change; never blocks the caller.
pub trait StatusSink: Send + Sync + 'static {
    /// The newest status of a pod; replaces one not yet sent. The sink drops what equals the last one sent.
    fn publish(&self, pod: &Arc<Pod>, status: PodStatus);
    /// Nothing of the pod is left on the node (processes, network, volumes, cgroups): when its object asks for
    /// deletion it can go. Called after the last `publish`; may be called again.
    fn terminated(&self, pod: &Arc<Pod>);
}

/// A pod of this node as the kubelet API shows it.
#[derive(Debug, Clone)]
pub struct PodEntry {
    /// Its newest desired form.
    pub pod: Arc<Pod>,
    /// The newest status that the node has worked out, sent to the API server or not.
    pub status: PodStatus,
}

/// The pods of this node, for the kubelet API. Answers from memory; may be asked at any time from any task.
pub trait PodDirectory: Send + Sync + 'static {
    /// The pod of this name; none when it is not one of this node's.
    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<PodEntry>;
    /// Every pod, terminating ones too, in no order.
    fn pods(&self) -> Vec<PodEntry>;
    /// Of those the ones that have something running, or are to have.
    fn active(&self) -> Vec<Arc<Pod>>;
}

/// Normal or Warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Things go as they should.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Takes events. Never blocks the caller; may aggregate and drop.
pub trait EventSink: Send + Sync + 'static {
    /// Records an event on a pod; `container` gives the field path `spec.containers{NAME}` (or its init or
    /// ephemeral form, as the pod's spec has it).
    fn pod_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: EventKind,
        reason: &str,
        message: &str,
    );
}

/// Why an object could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It does not exist.
    #[error("{kind} \"{name}\" not found")]
    NotFound {
        /// "configmap", "secret" or "serviceaccount".
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The server could not be asked, or refused.
    #[error("{0}")]
    Other(String),
}

/// A request for a service account token.
#[derive(Debug, Clone)]
pub struct TokenRequest {
    /// The pod that it is bound to; its namespace and service account are the subject.
    pub pod: Arc<Pod>,
    /// Audience; empty for the API server's own.
    pub audience: String,
    /// Wanted life in seconds.
    pub expiration_seconds: i64,
}

/// A token and when to ask for the next one.
#[derive(Clone)]
pub struct Token {
    /// The JWT.
    pub token: String,
    /// When it stops to be valid.
    pub expires_at: jiff::Timestamp,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// What a kubelet says where nobody has ClusterTrustBundles.
pub const NO_TRUST_BUNDLES: &str =
    "ClusterTrustBundle projection is not supported in static kubelet mode";

/// Objects that pods refer to. Cached for as long as a registered pod refers to them.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// A ConfigMap.
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError>;
    /// A Secret.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError>;
    /// A token of the pod's service account.
    async fn token(&self, request: &TokenRequest) -> Result<Token, ObjectError>;
    /// The Services of a namespace (and `kubernetes` of `default`), for service environment variables.
    async fn services(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectError>;
    /// The certificates of ClusterTrustBundles, as PEM. Only an API server has any.
    async fn trust_anchors(
        &self,
        _wanted: &ClusterTrustBundleProjection,
    ) -> Result<Vec<u8>, ObjectError> {
        Err(ObjectError::Other(NO_TRUST_BUNDLES.into()))
    }
    /// A pod that may refer to objects is on this node. Rings `changed` when one of them changes.
    fn register(&self, pod: &Arc<Pod>);
    /// The pod is gone.
    fn unregister(&self, uid: &PodUid);
}

/// Where a pod's volumes are on the node, by volume name.
pub type MountedVolumes = BTreeMap<String, PathBuf>;

/// A volume that could not be set up: the text of a FailedMount event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {message}")]
pub struct VolumeError {
    /// The volume's name in the pod.
    pub volume: String,
    /// The cause.
    pub message: String,
}

/// Makes and removes pods' volumes below the root directory.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Sets up every volume of the pod, and refreshes the contents of those that follow an object. Idempotent.
    async fn mount(&self, pod: &Arc<Pod>) -> Result<MountedVolumes, Vec<VolumeError>>;
    /// Removes the pod's directory with everything in it. Absent is success. Returns everything that failed.
    async fn unmount(&self, uid: &PodUid) -> Result<(), Vec<VolumeError>>;
    /// UIDs of pods that have a directory on disk.
    async fn on_disk(&self) -> Vec<PodUid>;
}
