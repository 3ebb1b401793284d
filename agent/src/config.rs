//! What the agent is told: flags over drop-ins over the configuration file over defaults, checked once at the start.
//!
//! [`load`] reads; [`resolve()`] decides, purely. Nothing else in the agent looks at flags or files of configuration.

pub mod decode;
pub mod kubelet;
mod managers;
mod resolve;
mod standalone;
pub mod text;
mod tls;
mod without_effect;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hanok_runtime::cgroup::DriverKind;
use ipnet::IpNet;

use crate::flags::Flags;
use crate::quantity::Amount;
use kubelet::KubeletConfiguration;
pub use resolve::resolve;
pub use tls::Tls12;

/// A configuration that cannot be used: one line that names the place and the value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("{path}: cannot read it")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file that is no configuration.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A field with a wrong name or value.
    #[error("{path}: field {field}: {message}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field's path.
        field: String,
        /// What is wrong with it, and what would be right.
        message: String,
    },
    /// A value that cannot be used, wherever it was given.
    #[error("{name}: {value:?}: {message}")]
    Value {
        /// The flag, and the field that it overrides.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it, and what would be right.
        message: String,
    },
}

/// Everything that the agent is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The configuration file's fields, with flags laid over them.
    pub kubelet: KubeletConfiguration,
    /// Name of the Node.
    pub node_name: String,
    /// The node's addresses, primary first; an unspecified one (`0.0.0.0`, `::`) asks for detection in its family.
    pub node_ips: Vec<IpAddr>,
    /// Labels beside the standard ones.
    pub node_labels: BTreeMap<String, String>,
    /// The cluster that the node belongs to; none for a standalone node, which runs static pods and nothing else.
    pub cluster: Option<Cluster>,
    /// Directories.
    pub paths: Paths,
    /// Which handshakes the kubelet API takes.
    pub tls12: Tls12,
    /// Who makes cgroups.
    pub cgroup_driver: DriverKind,
    /// Bridge of the built-in pod network.
    pub bridge_name: String,
    /// Pod addresses by order of the operator; empty to take the Node's.
    pub pod_cidrs: Vec<IpNet>,
    /// Destinations that see pods' own addresses.
    pub non_masquerade_cidrs: Vec<IpNet>,
    /// Registries that are asked over plain HTTP.
    pub plain_http_registries: Vec<String>,
    /// Size at which a container's log is rotated, bytes; 0 for never.
    pub log_max_size: u64,
    /// What is taken off the capacity.
    pub reserved: BTreeMap<String, Amount>,
    /// Fields and flags that were given and have no effect.
    pub without_effect: Vec<String>,
    /// Every flag with the value that was given, as it may be shown; empty without one.
    pub flags: BTreeMap<String, String>,
}

/// How a node reaches the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Where it is, and who the node is.
    pub kubeconfig: PathBuf,
    /// How to get that while there is none.
    pub bootstrap_kubeconfig: Option<PathBuf>,
}

/// Directories and programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Paths {
    /// Pods' volumes are below it.
    pub root_dir: PathBuf,
    /// Certificates.
    pub cert_dir: PathBuf,
    /// What outlives a reboot.
    pub state_dir: PathBuf,
    /// What dies with it.
    pub run_dir: PathBuf,
    /// Pinned network namespaces.
    pub netns_dir: PathBuf,
    /// Pods' logs.
    pub pod_logs_dir: PathBuf,
    /// Links to logs by container.
    pub containers_log_dir: PathBuf,
    /// CNI configuration.
    pub cni_conf_dir: PathBuf,
    /// CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// The shim.
    pub shim: PathBuf,
    /// Pause.
    pub pause: PathBuf,
    /// Registries' hosts.toml files; none for the default.
    pub registry_config: Option<PathBuf>,
}

/// What the machine contributes to defaults.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its host name.
    pub hostname: String,
    /// The directory of the running program: shim and pause lie there.
    pub program_dir: PathBuf,
}

/// Reads the files that the flags name and decides.
pub fn load(flags: &Flags, machine: &Machine) -> Result<Settings, ConfigError> {
    let mut files = Vec::new();
    for path in flags
        .config
        .iter()
        .cloned()
        .chain(drop_ins(flags.config_dir.as_deref())?)
    {
        let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        files.push((path, text));
    }
    let decoded = decode::decode(&files)?;
    resolve::check_files(&files, &decoded.config)?;
    resolve(flags, decoded, machine)
}

/// `*.conf` in the drop-in directory, sorted by name.
fn drop_ins(dir: Option<&Path>) -> Result<Vec<PathBuf>, ConfigError> {
    let Some(dir) = dir else {
        return Ok(Vec::new());
    };
    let failed = |source| ConfigError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "conf")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
