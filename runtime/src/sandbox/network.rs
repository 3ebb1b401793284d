//! The pod network as the runtime needs it: a namespace that is pinned, and addresses in it.
//!
//! [`CniNetwork`] is the real one, over the CNI runner.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use async_trait::async_trait;
use hanok_cni::{Attachment, Options, PortMapping, Runner, Source, netns};
use tokio_util::sync::CancellationToken;

use crate::api::{PodSandboxConfig, SandboxId};
use crate::service::chain;

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

/// A failure, with its chain of causes in the text. Nobody tells cases apart.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// Pod networks. Everything that removes succeeds when there is nothing to remove.
#[async_trait]
pub trait PodNetwork: std::fmt::Debug + Send + Sync {
    /// A path for a new network namespace. Nothing is made.
    fn new_netns(&self) -> Result<PathBuf, NetworkError>;
    /// Makes a network namespace, with its loopback interface up, and pins it there.
    async fn pin(&self, netns: &Path) -> Result<(), NetworkError>;
    /// Whether a network namespace is pinned there still. Somebody else may have unmounted it.
    fn is_pinned(&self, netns: &Path) -> bool {
        let _ = netns;
        true
    }
    /// Brings the loopback interface up in a network namespace that somebody else has made and pinned.
    async fn complete(&self, netns: &Path) -> Result<(), NetworkError>;
    /// CNI ADD. Returns the addresses without prefix length, in the order of the result.
    async fn add(&self, request: NetworkRequest<'_>) -> Result<Vec<String>, NetworkError>;
    /// The same, which need not go on when `given_up` ends: whatever there is then is undone, and the error says so.
    async fn add_until(
        &self,
        request: NetworkRequest<'_>,
        given_up: &CancellationToken,
    ) -> Result<Vec<String>, NetworkError> {
        let _ = given_up;
        self.add(request).await
    }
    /// CNI DEL, with the result of ADD, which the network keeps itself.
    async fn delete(&self, request: NetworkRequest<'_>) -> Result<(), NetworkError>;
    /// Unpins the namespace.
    async fn unpin(&self, netns: &Path) -> Result<(), NetworkError>;
    /// Takes back what belongs to no sandbox of the list: leases, cached results, pinned namespaces.
    async fn collect(&self, alive: &[SandboxId]) -> Result<(), NetworkError>;
    /// Whether pods can get a network; the error says why not.
    async fn ready(&self) -> Result<(), NetworkError>;
}

/// CNI networks.
#[derive(Debug)]
pub struct CniNetwork {
    netns_dir: PathBuf,
    options: Options,
    runner: RwLock<Runner>,
}

impl CniNetwork {
    /// Networks by these options, with namespaces pinned in `netns_dir`. Nothing is read or made yet.
    pub fn new(netns_dir: PathBuf, options: Options) -> Self {
        let runner = RwLock::new(Runner::new(options.clone()));
        CniNetwork {
            netns_dir,
            options,
            runner,
        }
    }

    /// Takes the network of later ADDs from elsewhere: a node learns its pod CIDR after it has started.
    /// What is attached stays attached, and DEL takes it down as it was made.
    pub fn set_source(&self, source: Source) {
        let options = Options {
            source,
            ..self.options.clone()
        };
        *self.runner.write().unwrap_or_else(PoisonError::into_inner) = Runner::new(options);
    }

    fn runner(&self) -> Runner {
        self.runner
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

fn attachment(request: &NetworkRequest<'_>) -> Attachment {
    let config = request.config;
    let mappings = config
        .port_mappings
        .iter()
        .filter(|mapping| mapping.host_port != 0);
    let mut attachment = Attachment::new(request.sandbox.as_str(), request.netns).with_pod(
        &config.namespace,
        &config.name,
        config.uid.as_str(),
    );
    attachment.port_mappings = mappings
        .map(|mapping| PortMapping {
            protocol: mapping.protocol.clone(),
            container_port: mapping.container_port,
            host_port: mapping.host_port,
            // An address that does not parse is none: the API server has checked it.
            host_ip: mapping.host_ip.parse().ok(),
        })
        .collect();
    attachment
}

fn failed<E: std::error::Error + 'static>(error: E) -> NetworkError {
    NetworkError(chain(&error))
}

#[async_trait]
impl PodNetwork for CniNetwork {
    fn new_netns(&self) -> Result<PathBuf, NetworkError> {
        netns::new_path(&self.netns_dir).map_err(failed)
    }

    async fn pin(&self, netns: &Path) -> Result<(), NetworkError> {
        netns::create(netns).await.map_err(failed)
    }

    fn is_pinned(&self, netns: &Path) -> bool {
        netns::is_pinned(netns)
    }

    async fn complete(&self, netns: &Path) -> Result<(), NetworkError> {
        netns::bring_loopback_up(netns).await.map_err(failed)
    }

    async fn add(&self, request: NetworkRequest<'_>) -> Result<Vec<String>, NetworkError> {
        self.add_until(request, &CancellationToken::new()).await
    }

    async fn add_until(
        &self,
        request: NetworkRequest<'_>,
        given_up: &CancellationToken,
    ) -> Result<Vec<String>, NetworkError> {
        let result = self
            .runner()
            .add_until(&attachment(&request), given_up)
            .await
            .map_err(failed)?;
        Ok(result.pod_ips().iter().map(ToString::to_string).collect())
    }

    async fn delete(&self, request: NetworkRequest<'_>) -> Result<(), NetworkError> {
        self.runner()
            .del(&attachment(&request))
            .await
            .map_err(failed)
    }

    async fn unpin(&self, netns: &Path) -> Result<(), NetworkError> {
        netns::remove(netns).await.map_err(failed)
    }

    async fn collect(&self, alive: &[SandboxId]) -> Result<(), NetworkError> {
        let alive: Vec<String> = alive.iter().map(|id| id.0.clone()).collect();
        let collected = self.runner().garbage_collect(&alive).await;
        if !collected.containers.is_empty() || !collected.addresses.is_empty() {
            tracing::info!(
                containers = ?collected.containers,
                addresses = ?collected.addresses,
                "collected networks of sandboxes that are gone"
            );
        }
        let mut errors: Vec<String> = collected.errors.iter().map(|error| error.chain()).collect();
        // Only what was pinned here: nobody else's is ours to remove.
        let own = |netns: &&PathBuf| netns.parent() == Some(&self.netns_dir);
        for netns in collected.namespaces.iter().filter(own) {
            errors.extend(self.unpin(netns).await.err().map(|error| error.0));
        }
        if errors.is_empty() {
            Ok(())
        } else {
            Err(NetworkError(errors.join("; ")))
        }
    }

    async fn ready(&self) -> Result<(), NetworkError> {
        self.runner().status().await.map_err(failed)
    }
}
