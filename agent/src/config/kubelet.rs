//! KubeletConfiguration (kubelet.config.k8s.io/v1beta1): the fields that hanok acts on, and the names of the others.
//!
//! Defaults are the kubelet's, with three exceptions: cgroup v1 is not refused (`failCgroupV1: true` asks for that),
//! seccompDefault is on (`false` turns it off), and the cluster's domain is cluster.local.

mod value;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};
use value::{
    event_burst, go_duration, ids_per_pod, lease_seconds, max_pods, port, positive, taints,
};

/// What the file says, with the kubelet's defaults for what it does not say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct KubeletConfiguration {
    /// `kubelet.config.k8s.io/v1beta1`.
    pub api_version: String,
    /// `KubeletConfiguration`.
    pub kind: String,
    /// Directory of the pods' logs.
    pub pod_logs_dir: String,
    /// Address that the kubelet API listens on.
    pub address: String,
    /// Port of the kubelet API.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// Port without authentication; 0 for none, and hanok has none.
    pub read_only_port: u16,
    /// Serving certificate (PEM).
    pub tls_cert_file: String,
    /// Its key (PEM).
    pub tls_private_key_file: String,
    /// Suites that handshakes of TLS 1.2 are taken with; empty for all.
    pub tls_cipher_suites: Vec<String>,
    /// The oldest TLS that is taken, as in `VersionTLS12`; empty for that one.
    pub tls_min_version: String,
    /// Who is let in.
    pub authentication: Authentication,
    /// What they may do.
    pub authorization: Authorization,
    /// Port of `/healthz`; 0 for none.
    pub healthz_port: u16,
    /// Address of `/healthz`.
    pub healthz_bind_address: String,
    /// Renew the client certificate before it expires.
    pub rotate_certificates: bool,
    /// Ask the cluster for the serving certificate, and renew it.
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// Addresses of the cluster's DNS servers.
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    /// Idle streams are closed after this time.
    #[serde(
        serialize_with = "go_duration",
        deserialize_with = "positive::<_, 14400>"
    )]
    pub streaming_connection_idle_timeout: Duration,
    /// How often the node's status is computed.
    #[serde(serialize_with = "go_duration", deserialize_with = "positive::<_, 10>")]
    pub node_status_update_frequency: Duration,
    /// How often it is sent when it does not change.
    #[serde(
        serialize_with = "go_duration",
        deserialize_with = "positive::<_, 300>"
    )]
    pub node_status_report_frequency: Duration,
    /// Life of the node's lease; it is renewed four times as often.
    #[serde(deserialize_with = "lease_seconds")]
    pub node_lease_duration_seconds: u32,
    /// Events a second; 0 for no limit.
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: u32,
    /// Events at once.
    #[serde(deserialize_with = "event_burst")]
    pub event_burst: u32,
    /// Cgroup below which pods live; empty for the root.
    pub cgroup_root: String,
    /// `cgroupfs`, or `systemd`, which makes slices and scopes where systemd runs and is refused elsewhere.
    pub cgroup_driver: String,
    /// Most pods on the node.
    #[serde(deserialize_with = "max_pods")]
    pub max_pods: u32,
    /// Most pods per CPU; 0 for no such limit.
    pub pods_per_core: u32,
    /// Most processes in a pod; -1 for no limit.
    pub pod_pids_limit: i64,
    /// Back-off of containers that crash.
    pub crash_loop_back_off: CrashLoopBackOff,
    /// The file that pods with the node's DNS get.
    pub resolv_conf: String,
    /// Pod addresses, for a standalone node or instead of those that the API server gives.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    /// Refuse to start with swap on. hanok only warns when it is false.
    pub fail_swap_on: bool,
    /// Refuse to start on cgroup v1.
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    /// Swap of containers.
    pub memory_swap: MemorySwap,
    /// Of a container that is out of memory, kill one process and not all; cgroup v2 only.
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: bool,
    /// Size at which a container's log is rotated.
    pub container_log_max_size: String,
    /// Log files kept for a container.
    pub container_log_max_files: u32,
    /// Taken off the node's capacity: for the system.
    pub system_reserved: BTreeMap<String, String>,
    /// Taken off the node's capacity: for Kubernetes' own programs.
    pub kube_reserved: BTreeMap<String, String>,
    /// Taints of a new Node.
    #[serde(deserialize_with = "taints")]
    pub register_with_taints: Vec<Taint>,
    /// Create the Node object when there is none.
    pub register_node: bool,
    /// `spec.providerID` of a new Node.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// RuntimeDefault for containers that name no seccomp profile.
    pub seccomp_default: bool,
    /// Volumes are attached by the controller.
    pub enable_controller_attach_detach: bool,
    /// Pods that write more to the node's disk than they may are ended.
    pub local_storage_capacity_isolation: bool,
    /// Listen on `port`.
    pub enable_server: bool,
    /// Images named in the node's status; -1 for all.
    pub node_status_max_images: i32,
    /// `exec`, `attach`, `logs` and the like are served.
    pub enable_debugging_handlers: bool,
    /// Sysctls that pods may set beyond the safe ones; patterns end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Directory or file with the manifests of static pods; empty for none.
    pub static_pod_path: String,
    /// How often it is read without anybody having told of a change.
    #[serde(serialize_with = "go_duration", deserialize_with = "positive::<_, 20>")]
    pub file_check_frequency: Duration,
    /// Where manifests of static pods are fetched from; empty for none.
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    /// Headers of the request for them.
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    /// How often they are fetched.
    #[serde(serialize_with = "go_duration", deserialize_with = "positive::<_, 20>")]
    pub http_check_frequency: Duration,
    /// Which CPUs containers get: `none`.
    pub cpu_manager_policy: String,
    /// Which memory they get: `None`.
    pub memory_manager_policy: String,
    /// Whether both are to lie together: `none`.
    pub topology_manager_policy: String,
    /// Of what: `container` or `pod`.
    pub topology_manager_scope: String,
    /// Users and groups of pods with `hostUsers: false`.
    pub user_namespaces: UserNamespaces,
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        Self {
            api_version: super::decode::API_VERSION.into(),
            kind: super::decode::KIND.into(),
            pod_logs_dir: "/var/log/pods".into(),
            address: "0.0.0.0".into(),
            port: 10250,
            read_only_port: 0,
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_min_version: String::new(),
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".into(),
            rotate_certificates: false,
            server_tls_bootstrap: false,
            cluster_domain: "cluster.local".into(),
            cluster_dns: Vec::new(),
            streaming_connection_idle_timeout: Duration::from_secs(4 * 3600),
            node_status_update_frequency: Duration::from_secs(10),
            node_status_report_frequency: Duration::from_secs(300),
            node_lease_duration_seconds: 40,
            event_record_qps: 50,
            event_burst: 100,
            cgroup_root: String::new(),
            cgroup_driver: "cgroupfs".into(),
            max_pods: 110,
            pods_per_core: 0,
            pod_pids_limit: -1,
            crash_loop_back_off: CrashLoopBackOff::default(),
            resolv_conf: "/etc/resolv.conf".into(),
            pod_cidr: String::new(),
            fail_swap_on: true,
            fail_cgroup_v1: false,
            memory_swap: MemorySwap::default(),
            single_process_oom_kill: false,
            container_log_max_size: "10Mi".into(),
            container_log_max_files: 5,
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            register_with_taints: Vec::new(),
            register_node: true,
            provider_id: String::new(),
            seccomp_default: true,
            enable_controller_attach_detach: true,
            local_storage_capacity_isolation: true,
            enable_server: true,
            node_status_max_images: 50,
            enable_debugging_handlers: true,
            allowed_unsafe_sysctls: Vec::new(),
            static_pod_path: String::new(),
            file_check_frequency: Duration::from_secs(20),
            static_pod_url: String::new(),
            static_pod_url_header: BTreeMap::new(),
            http_check_frequency: Duration::from_secs(20),
            cpu_manager_policy: "none".into(),
            memory_manager_policy: "None".into(),
            topology_manager_policy: "none".into(),
            topology_manager_scope: "container".into(),
            user_namespaces: UserNamespaces::default(),
        }
    }
}

/// Users and groups of pods with `hostUsers: false`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct UserNamespaces {
    /// How many ids a pod gets; a multiple of 65536.
    #[serde(deserialize_with = "ids_per_pod")]
    pub ids_per_pod: u32,
}

impl Default for UserNamespaces {
    fn default() -> Self {
        Self {
            ids_per_pod: 65_536,
        }
    }
}

/// Back-off of containers that crash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct CrashLoopBackOff {
    /// The longest back-off, 1 s to 300 s.
    #[serde(
        serialize_with = "go_duration",
        deserialize_with = "positive::<_, 300>"
    )]
    pub max_container_restart_period: Duration,
}

impl Default for CrashLoopBackOff {
    fn default() -> Self {
        Self {
            max_container_restart_period: Duration::from_secs(300),
        }
    }
}

/// Swap of containers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct MemorySwap {
    /// `NoSwap` (as when it is empty), or `LimitedSwap`: a part for containers of Burstable pods.
    pub swap_behavior: String,
}

/// Who is let in to the kubelet API.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Authentication {
    /// Client certificates.
    pub x509: X509Authentication,
    /// Bearer tokens, asked of the API server.
    pub webhook: WebhookAuthentication,
    /// Callers without credentials.
    pub anonymous: AnonymousAuthentication,
}

/// Client certificates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct X509Authentication {
    /// The CA that signs them (PEM); empty for none accepted.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// Bearer tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookAuthentication {
    /// Whether they are accepted.
    pub enabled: bool,
    /// How long an answer is remembered.
    #[serde(
        rename = "cacheTTL",
        serialize_with = "go_duration",
        deserialize_with = "positive::<_, 120>"
    )]
    pub cache_ttl: Duration,
}

impl Default for WebhookAuthentication {
    fn default() -> Self {
        Self {
            enabled: true,
            cache_ttl: Duration::from_secs(120),
        }
    }
}

/// Callers without credentials.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnonymousAuthentication {
    /// Whether they become `system:anonymous` rather than being refused.
    pub enabled: bool,
}

/// What callers of the kubelet API may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Authorization {
    /// `Webhook`, or `AlwaysAllow`.
    pub mode: String,
    /// How the API server is asked.
    pub webhook: WebhookAuthorization,
}

impl Default for Authorization {
    fn default() -> Self {
        Self {
            mode: "Webhook".into(),
            webhook: WebhookAuthorization::default(),
        }
    }
}

/// Remembered answers of SubjectAccessReviews.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookAuthorization {
    /// How long a yes is remembered.
    #[serde(
        rename = "cacheAuthorizedTTL",
        serialize_with = "go_duration",
        deserialize_with = "positive::<_, 300>"
    )]
    pub cache_authorized_ttl: Duration,
    /// How long a no is remembered.
    #[serde(
        rename = "cacheUnauthorizedTTL",
        serialize_with = "go_duration",
        deserialize_with = "positive::<_, 30>"
    )]
    pub cache_unauthorized_ttl: Duration,
}

impl Default for WebhookAuthorization {
    fn default() -> Self {
        Self {
            cache_authorized_ttl: Duration::from_secs(300),
            cache_unauthorized_ttl: Duration::from_secs(30),
        }
    }
}
