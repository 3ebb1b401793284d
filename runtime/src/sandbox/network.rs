//! The pod network as the runtime needs it: a namespace that is pinned, and addresses in it.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::api::{PodSandboxConfig, SandboxId};

/// What is asked of the network.
#[derive(Debug, Clone, Copy)]
pub struct NetworkRequest<'a> {
    /// For whom.
    pub sandbox: &'a SandboxId,
    /// The pod: name, namespace, uid, host ports.
    pub config: &'a PodSandboxConfig,
    /// Its pinned network namespace; it may be gone already when the network is taken down.
    pub netns: &'a Path,
}

/// What the network gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Addresses without prefix length, in the order of the CNI result.
    pub ips: Vec<String>,
    /// The CNI result, kept in `cni.json` and handed back for DEL.
    pub result: serde_json::Value,
}

/// A failure, with its chain of causes in the text. Nobody tells cases apart.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// Pod networks. Everything that removes succeeds when there is nothing to remove.
#[async_trait]
pub trait PodNetwork: std::fmt::Debug + Send + Sync {
    /// A path for a new network namespace. Nothing is made.
    fn new_netns(&self) -> PathBuf;
    /// Makes a network namespace, with its loopback interface up, and pins it there.
    async fn pin(&self, netns: &Path) -> Result<(), NetworkError>;
    /// CNI ADD on every network.
    async fn add(&self, request: NetworkRequest<'_>) -> Result<Attachment, NetworkError>;
    /// CNI DEL on every network, with the result of ADD when there is one.
    async fn delete(
        &self,
        request: NetworkRequest<'_>,
        result: Option<&serde_json::Value>,
    ) -> Result<(), NetworkError>;
    /// Unpins the namespace.
    async fn unpin(&self, netns: &Path) -> Result<(), NetworkError>;
    /// Takes back what belongs to no sandbox of the list: leases, cached results.
    async fn collect(&self, alive: &[SandboxId]) -> Result<(), NetworkError>;
    /// Whether pods can get a network; the error says why not.
    async fn ready(&self) -> Result<(), NetworkError>;
}
