//! The runtime of this node, put together from its parts: images, pod network, sandboxes and containers.
//!
//! For `hanok agent` and `hanok run` alike; nothing here knows of an API server.

mod network;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use hanok_cni::Options;
use hanok_runtime::image::{Images, ImagesConfig};
use hanok_runtime::sandbox::network::CniNetwork;
use hanok_runtime::service::{Runtime, RuntimeConfig};
use ipnet::IpNet;

pub use network::NodeNetwork;

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Machinery {
    /// What outlives a reboot.
    pub state_dir: PathBuf,
    /// What dies with it.
    pub run_dir: PathBuf,
    /// Pinned network namespaces.
    pub netns_dir: PathBuf,
    /// CNI configuration; the built-in network is used while there is none.
    pub cni_conf_dir: PathBuf,
    /// CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// Bridge of the built-in network.
    pub bridge: String,
    /// Destinations that see pods' own addresses.
    pub non_masquerade_cidrs: Vec<IpNet>,
    /// Root of the pods' cgroups.
    pub cgroup_root: String,
    /// Directory of Localhost seccomp profiles.
    pub seccomp_root: PathBuf,
    /// The shim's program.
    pub shim: PathBuf,
    /// The pause program.
    pub pause: PathBuf,
    /// Registries' hosts.toml files; none for the default.
    pub registry_config: Option<PathBuf>,
    /// Registries that are asked over plain HTTP.
    pub plain_http_registries: Vec<String>,
}

/// A runtime that is ready for pods.
#[derive(Debug)]
pub struct Assembled {
    /// Sandboxes and containers.
    pub runtime: Arc<Runtime>,
    /// Images.
    pub images: Images,
    /// The pod network, which needs to be told its addresses.
    pub network: NodeNetwork,
    /// Keeps a second agent out of the same directories.
    _lock: File,
}

impl Machinery {
    /// Opens everything, adopting what runs. `pod_cidrs` may come later, by [`NodeNetwork::set_pod_cidrs`].
    pub async fn open(self, pod_cidrs: &[IpNet]) -> anyhow::Result<Assembled> {
        for (flag, program) in [("--shim-path", &self.shim), ("--pause-path", &self.pause)] {
            if !program.is_file() {
                bail!(
                    "{}: no such program: give its place by {flag}",
                    program.display()
                );
            }
        }
        let lock = lock(&self.run_dir)?;
        let mut config = ImagesConfig::new(&self.state_dir);
        if let Some(dir) = self.registry_config {
            config.registries.certs_dir = Some(dir);
        }
        config.registries.plain_http = self.plain_http_registries;
        let images = tokio::task::spawn_blocking(move || Images::open(config)).await?;
        let images = images.with_context(|| {
            format!(
                "cannot open the image store in {}",
                self.state_dir.display()
            )
        })?;
        let options = Options {
            bin_dirs: vec![self.cni_bin_dir],
            cache_dir: self.run_dir.join("cni/results"),
            ipam_dir: self.run_dir.join("ipam"),
            ..Options::default()
        };
        let cni = Arc::new(CniNetwork::new(self.netns_dir, options));
        let network = NodeNetwork::new(
            cni.clone(),
            self.cni_conf_dir,
            self.bridge,
            self.non_masquerade_cidrs,
        );
        network.set_pod_cidrs(pod_cidrs)?;
        let runtime = RuntimeConfig {
            run_dir: self.run_dir,
            root: self.state_dir,
            shim: self.shim,
            pause: self.pause,
            cgroup_root: self.cgroup_root,
            seccomp_root: self.seccomp_root,
            handlers: std::collections::BTreeMap::new(),
        };
        let runtime = Runtime::open(runtime, Arc::new(images.clone()), cni).await?;
        Ok(Assembled {
            runtime: Arc::new(runtime),
            images,
            network,
            _lock: lock,
        })
    }
}

/// Two agents in one directory would take each other's pods for orphans.
fn lock(run_dir: &Path) -> anyhow::Result<File> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(run_dir)
        .with_context(|| format!("cannot make {}", run_dir.display()))?;
    let path = run_dir.join("agent.lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => bail!(
            "{}: another hanok works in this directory: stop it, or give this one a --run-dir of its own",
            path.display()
        ),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_kept_out_of_the_same_directory() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        let first = lock(&run_dir).unwrap();
        let refused = lock(&run_dir).unwrap_err().to_string();
        assert!(
            refused.contains("another hanok works in this directory"),
            "{refused}"
        );
        drop(first);
        lock(&run_dir).unwrap();
    }
}
