//! The flags of `hanok agent`: the kubelet's own names, and hanok's for what the kubelet leaves to a runtime.
//!
//! Only the command line's shape; what a flag means together with the configuration file is said in
//! [`crate::config`]. A flag that is given goes before the file.

mod shown;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

/// Everything that `hanok agent` takes.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Flags {
    /// How to reach the API server, and as whom
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// KubeletConfiguration file (kubelet.config.k8s.io/v1beta1)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory of further KubeletConfiguration files (*.conf), merged in the order of their names
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
    /// kubeconfig with a bootstrap token, for a node that has no certificate yet
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    /// About the Node object.
    pub node: NodeFlags,
    #[command(flatten)]
    #[serde(flatten)]
    /// Directories.
    pub paths: PathFlags,
    #[command(flatten)]
    #[serde(flatten)]
    /// The kubelet API.
    pub serving: ServingFlags,
    #[command(flatten)]
    #[serde(flatten)]
    /// Pods and their surroundings.
    pub pods: PodFlags,
    #[command(flatten)]
    #[serde(flatten)]
    /// Accepted for the sake of scripts and units written for the kubelet.
    pub ignored: IgnoredFlags,
    /// Log verbosity: 0 to 3 are info, 4 and 5 debug, more is trace (RUST_LOG goes before it)
    #[serde(rename = "v")]
    #[arg(long = "v", short = 'v', value_name = "LEVEL")]
    pub verbosity: Option<u8>,
}

/// About the Node object.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeFlags {
    /// Name of the Node; default is the host name
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// The node's address, or one of each family joined by a comma; default is the one that reaches the API server
    #[arg(long, value_name = "IP[,IP]")]
    pub node_ip: Option<String>,
    /// Labels of the Node
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub node_labels: Option<String>,
    /// Taints of a new Node
    #[arg(long, value_name = "KEY=VALUE:EFFECT,...")]
    pub register_with_taints: Option<String>,
    /// Whether to create the Node object
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub register_node: Option<bool>,
    /// providerID of a new Node
    #[arg(long, value_name = "ID")]
    pub provider_id: Option<String>,
    /// Most pods on the node
    #[arg(long, value_name = "N")]
    pub max_pods: Option<u32>,
    /// Resources kept for Kubernetes' programs
    #[arg(long, value_name = "cpu=100m,...")]
    pub kube_reserved: Option<String>,
    /// Resources kept for the system
    #[arg(long, value_name = "cpu=100m,...")]
    pub system_reserved: Option<String>,
}

/// Directories and files.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PathFlags {
    /// Pods' volumes; default is the state directory
    #[arg(long, value_name = "DIR")]
    pub root_dir: Option<PathBuf>,
    /// Certificates; default is ROOT_DIR/pki
    #[arg(long, value_name = "DIR")]
    pub cert_dir: Option<PathBuf>,
    /// What outlives a reboot: images, snapshots [default: /var/lib/hanok]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// What dies with it: sandboxes, containers, leases [default: /run/hanok]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Pinned network namespaces [default: /run/netns]
    #[arg(long, value_name = "DIR")]
    pub netns_dir: Option<PathBuf>,
    /// Pods' logs [default: /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub pod_log_dir: Option<PathBuf>,
    /// Links to logs by container [default: /var/log/containers]
    #[arg(long, value_name = "DIR")]
    pub containers_log_dir: Option<PathBuf>,
    /// CNI configuration [default: /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// CNI plugins [default: /opt/cni/bin]
    #[arg(long, value_name = "DIR")]
    pub cni_bin_dir: Option<PathBuf>,
    /// The shim's program; default lies beside this one
    #[arg(long, value_name = "FILE")]
    pub shim_path: Option<PathBuf>,
    /// The pause program; default lies beside this one
    #[arg(long, value_name = "FILE")]
    pub pause_path: Option<PathBuf>,
    /// Registries: HOST/hosts.toml with mirrors and certificates [default: /etc/containerd/certs.d]
    #[arg(long, value_name = "DIR")]
    pub registry_config: Option<PathBuf>,
    /// Registries that are asked over plain HTTP
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',')]
    pub plain_http_registry: Vec<String>,
}

/// The kubelet API.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServingFlags {
    /// Address of the kubelet API
    #[arg(long, value_name = "IP")]
    pub address: Option<String>,
    /// Port of the kubelet API
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Address of /healthz
    #[arg(long, value_name = "IP")]
    pub healthz_bind_address: Option<String>,
    /// Port of /healthz; 0 for none
    #[arg(long, value_name = "PORT")]
    pub healthz_port: Option<u16>,
    /// Serving certificate (PEM); default is self-signed in the certificate directory
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<String>,
    /// Key of the serving certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<String>,
    /// Suites that TLS 1.2 is taken with, by the kubelet's names; default is all that are safe
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Oldest TLS that is taken: VersionTLS12 or VersionTLS13 (VersionTLS10 and VersionTLS11 count as VersionTLS12)
    #[arg(long, value_name = "VERSION")]
    pub tls_min_version: Option<String>,
    /// Whether to renew the client certificate before it expires
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub rotate_certificates: Option<bool>,
    /// Whether to ask the cluster for the serving certificate, and to renew it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub rotate_server_certificates: Option<bool>,
    /// CA of client certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<String>,
    /// Whether callers without credentials become system:anonymous
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// Whether bearer tokens are asked of the API server
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub authentication_token_webhook: Option<bool>,
    /// Webhook or AlwaysAllow
    #[arg(long, value_name = "MODE")]
    pub authorization_mode: Option<String>,
    /// Must be 0: hanok has no port without authentication
    #[arg(long, value_name = "PORT")]
    pub read_only_port: Option<u16>,
}

/// Pods and their surroundings.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PodFlags {
    /// Directory or file with the manifests of static pods
    #[arg(long, value_name = "PATH")]
    pub pod_manifest_path: Option<String>,
    /// Where manifests of static pods are fetched from
    #[arg(long, value_name = "URL")]
    pub manifest_url: Option<String>,
    /// Headers of the request for them
    #[arg(long, value_name = "NAME:VALUE,...")]
    pub manifest_url_header: Option<String>,
    /// Sysctls that pods may set beyond the safe ones; patterns end in *
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// DNS servers of the cluster
    #[arg(long, value_name = "IP,...")]
    pub cluster_dns: Option<String>,
    /// DNS domain of the cluster
    #[arg(long, value_name = "DOMAIN")]
    pub cluster_domain: Option<String>,
    /// resolv.conf of pods with the node's DNS
    #[arg(long, value_name = "FILE")]
    pub resolv_conf: Option<String>,
    /// Cgroup below which pods live
    #[arg(long, value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// cgroupfs or systemd
    #[arg(long, value_name = "NAME")]
    pub cgroup_driver: Option<String>,
    /// Whether to refuse to start with swap on
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub fail_swap_on: Option<bool>,
    /// Addresses of pods; default is the Node's podCIDR
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub pod_cidr: Option<String>,
    /// Networks that see pods' own addresses though they are not on this node: those of other nodes' pods
    #[arg(long, value_name = "CIDR,...")]
    pub non_masquerade_cidr: Option<String>,
    /// Bridge of the built-in pod network [default: hanok0]
    #[arg(long, value_name = "NAME")]
    pub bridge_name: Option<String>,
}

/// Flags without effect: accepted, and named in a warning when they are given.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct IgnoredFlags {
    #[arg(long, hide = true)]
    /// The runtime is built in.
    pub container_runtime_endpoint: Option<String>,
    #[arg(long, hide = true)]
    /// The runtime is built in.
    pub image_service_endpoint: Option<String>,
    #[arg(long, hide = true)]
    /// The runtime is built in.
    pub container_runtime: Option<String>,
    #[arg(long, hide = true)]
    /// CNI is built in.
    pub network_plugin: Option<String>,
    #[arg(long, hide = true)]
    /// Pause is built in.
    pub pod_infra_container_image: Option<String>,
    #[arg(long, hide = true)]
    /// The runtime is built in.
    pub runtime_cgroups: Option<String>,
    #[arg(long, hide = true)]
    /// The agent stays in the cgroup that it is started in.
    pub kubelet_cgroups: Option<String>,
    #[arg(long, hide = true)]
    /// No feature has a gate.
    pub feature_gates: Option<String>,
    #[arg(long, hide = true)]
    /// Not acted on.
    pub eviction_hard: Option<String>,
    #[arg(long, hide = true)]
    /// Not acted on.
    pub cloud_provider: Option<String>,
    #[arg(long, hide = true)]
    /// Not acted on.
    pub image_credential_provider_config: Option<String>,
    #[arg(long, hide = true)]
    /// Not acted on.
    pub image_credential_provider_bin_dir: Option<String>,
    #[arg(long, hide = true)]
    /// Not acted on.
    pub lock_file: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    /// Not acted on.
    pub exit_on_lock_contention: Option<String>,
    #[arg(long, hide = true)]
    /// Not acted on.
    pub vmodule: Option<String>,
}

impl IgnoredFlags {
    /// The flags that were given.
    pub fn given(&self) -> Vec<&'static str> {
        let all = [
            (
                "--container-runtime-endpoint",
                &self.container_runtime_endpoint,
            ),
            ("--image-service-endpoint", &self.image_service_endpoint),
            ("--container-runtime", &self.container_runtime),
            ("--network-plugin", &self.network_plugin),
            (
                "--pod-infra-container-image",
                &self.pod_infra_container_image,
            ),
            ("--runtime-cgroups", &self.runtime_cgroups),
            ("--kubelet-cgroups", &self.kubelet_cgroups),
            ("--feature-gates", &self.feature_gates),
            ("--eviction-hard", &self.eviction_hard),
            ("--cloud-provider", &self.cloud_provider),
            (
                "--image-credential-provider-config",
                &self.image_credential_provider_config,
            ),
            (
                "--image-credential-provider-bin-dir",
                &self.image_credential_provider_bin_dir,
            ),
            ("--lock-file", &self.lock_file),
            ("--exit-on-lock-contention", &self.exit_on_lock_contention),
            ("--vmodule", &self.vmodule),
        ];
        all.into_iter()
            .filter(|(_, value)| value.is_some())
            .map(|(name, _)| name)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Command, FromArgMatches as _};

    fn parse(args: &[&str]) -> Flags {
        let matches = Flags::augment_args(Command::new("agent")).get_matches_from(args);
        Flags::from_arg_matches(&matches).expect("flags")
    }

    #[test]
    fn every_flag_is_shown_by_its_name() {
        let command = Flags::augment_args(Command::new("agent"));
        let mut names: Vec<_> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long())
            .collect();
        names.sort_unstable();
        let shown = Flags::default().shown();
        assert_eq!(names, shown.keys().collect::<Vec<_>>());
        assert!(shown.values().all(String::is_empty));
    }

    #[test]
    fn values_are_shown_as_they_were_given_and_secrets_are_not() {
        let given = [
            "agent",
            "--config=/etc/config.yaml",
            "--max-pods=7",
            "--register-node",
            "--allowed-unsafe-sysctls=kernel.msg*,net.core.somaxconn",
            "--manifest-url-header=Authorization:Bearer x",
            "-v4",
        ];
        let shown = parse(&given).shown();
        for (name, want) in [
            ("config", "/etc/config.yaml"),
            ("max-pods", "7"),
            ("register-node", "true"),
            ("allowed-unsafe-sysctls", "kernel.msg*,net.core.somaxconn"),
            ("manifest-url-header", "CLASSIFIED"),
            ("v", "4"),
            ("node-ip", ""),
        ] {
            assert_eq!(shown[name], want, "{name}");
        }
    }

    #[test]
    fn an_address_is_shown_without_its_user() {
        for (given, want) in [
            ("https://h/pods?a=b@c", "https://h/pods?a=b@c"),
            ("https://me:p@ss@h:1/pods", "https://CLASSIFIED@h:1/pods"),
            ("http://me@h", "http://CLASSIFIED@h"),
            ("h/pods", "h/pods"),
        ] {
            let shown = parse(&["agent", &format!("--manifest-url={given}")]).shown();
            assert_eq!(shown["manifest-url"], want);
        }
    }
}
