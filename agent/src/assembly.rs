//! The runtime of a node of a cluster: the one in this process, with the network that the node has at the moment.
//!
//! Nothing here knows of an API server.

mod network;

use std::path::PathBuf;

use hanok_cni::Options;
use hanok_runtime::registry::RegistryConfig;
use ipnet::IpNet;

use crate::embedded::{self, Embedded, Places};

pub use network::NodeNetwork;

/// What a node's runtime is put together from.
#[derive(Debug, Clone)]
pub struct Machinery {
    /// Where the runtime works.
    pub places: Places,
    /// CNI configuration; the built-in network is used while there is none.
    pub cni_conf_dir: PathBuf,
    /// CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// Bridge of the built-in network.
    pub bridge: String,
    /// Destinations that see pods' own addresses.
    pub non_masquerade_cidrs: Vec<IpNet>,
    /// Registries' hosts.toml files; none for the default.
    pub registry_config: Option<PathBuf>,
    /// Registries that are asked over plain HTTP.
    pub plain_http_registries: Vec<String>,
}

/// A runtime that is ready for pods.
#[derive(Debug)]
pub struct Assembled {
    /// Images, sandboxes and containers.
    pub embedded: Embedded,
    /// The pod network, which needs to be told its addresses.
    pub network: NodeNetwork,
}

impl Machinery {
    /// Opens everything, adopting what runs. `pod_cidrs` may come later, by [`NodeNetwork::set_pod_cidrs`].
    pub async fn open(self, pod_cidrs: &[IpNet]) -> anyhow::Result<Assembled> {
        let mut registries = RegistryConfig {
            plain_http: self.plain_http_registries,
            ..RegistryConfig::default()
        };
        if let Some(dir) = self.registry_config {
            registries.certs_dir = Some(dir);
        }
        let options = Options {
            bin_dirs: vec![self.cni_bin_dir],
            cache_dir: self.places.run_dir.join("cni/results"),
            ipam_dir: self.places.run_dir.join("ipam"),
            ..Options::default()
        };
        let embedded = embedded::open(self.places, registries, options).await?;
        let network = NodeNetwork::new(
            embedded.network.clone(),
            self.cni_conf_dir,
            self.bridge,
            self.non_masquerade_cidrs,
        );
        network.set_pod_cidrs(pod_cidrs)?;
        Ok(Assembled { embedded, network })
    }
}
