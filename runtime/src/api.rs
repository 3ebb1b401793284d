//! The runtime as the agent sees it: CRI's words, in process.
//!
//! Two traits, as in CRI: [`RuntimeService`] for sandboxes and containers, [`ImageService`] for images.
//! The real implementation is [`crate::service::Runtime`]; the agent's tests use a fake. Everything here
//! is plain data; nothing calls back up. [`RuntimeService::doorbell`] only rings.

mod container;
mod exec;
mod image;
mod stats;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

pub use container::{
    AppArmorProfile, Container, ContainerConfig, ContainerState, DeviceMapping, Identity, Mount,
    Propagation, Resources, SeccompProfile, SecurityContext, SelinuxOptions,
};
pub use exec::{Connection, ExecProcess, ExecRequest, ExecSession};
pub use image::{Credentials, Image, ImageService};
pub use stats::{
    CgroupStats, ContainerStats, CpuStats, DiskUsage, InterfaceStats, IoStats, MemoryStats,
    OomEvent, Pressure, SandboxStats, Stall, StatsDetail, TrafficStats,
};

/// Defines an identifier newtype over a string.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);
        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// A sandbox: 64 hexadecimal digits.
    SandboxId
}
id! {
    /// A container: 64 hexadecimal digits.
    ContainerId
}
id! {
    /// The pod's UID as the API server (or the manifest's hash) gives it.
    PodUid
}

/// What went wrong, as far as the agent tells cases apart.
#[derive(Debug, thiserror::Error)]
#[expect(
    clippy::error_impl_error,
    reason = "every call here returns it; callers write api::Error"
)]
pub enum Error {
    /// No such sandbox, container or image.
    #[error("{kind} {id:?} not found")]
    NotFound {
        /// "sandbox", "container" or "image".
        kind: &'static str,
        /// What was asked for.
        id: String,
    },
    /// The RuntimeClass handler is not configured.
    #[error("no runtime for handler {handler:?} is configured; handlers are {known:?}")]
    UnknownHandler {
        /// What was asked for.
        handler: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The pod's network could not be made.
    #[error("failed to setup network for sandbox {id}: {message}")]
    Network {
        /// Which sandbox.
        id: SandboxId,
        /// The chain of causes.
        message: String,
    },
    /// The container's configuration cannot be carried out (CreateContainerError).
    #[error("{0}")]
    Create(String),
    /// The container could not be started: exit code 128 and the reason (StartError).
    #[error("failed to start container {id}: {message}")]
    Start {
        /// Which container.
        id: ContainerId,
        /// 128, whatever the cause.
        code: i32,
        /// What failed.
        message: String,
    },
    /// An image reference that does not parse.
    #[error("couldn't parse image name {reference:?}: {message}")]
    InvalidReference {
        /// What was given.
        reference: String,
        /// Why not.
        message: String,
    },
    /// A pull failed; the message names registry, repository and cause.
    #[error("failed to pull and unpack image {reference:?}: {message}")]
    Pull {
        /// What was asked for.
        reference: String,
        /// The chain of causes.
        message: String,
    },
    /// The memory in use does not fit in a new, lower limit. Nothing was changed.
    #[error("cannot lower the memory limit to {limit} bytes: {usage} bytes are in use")]
    MemoryInUse {
        /// Bytes that cannot be reclaimed.
        usage: u64,
        /// The limit that was asked for, bytes.
        limit: u64,
    },
    /// Anything else, with its chain of causes in the text.
    #[error("{0}")]
    Internal(String),
}

/// The result of every call here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A Linux namespace as pods choose it (CRI NamespaceMode).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum NamespaceMode {
    /// Shared by the pod's containers.
    #[default]
    Pod,
    /// One for each container.
    Container,
    /// The node's.
    Node,
    /// That of another container of the pod (ephemeral containers' target).
    Target(ContainerId),
}

/// What a sandbox is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSandboxConfig {
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod UID.
    pub uid: PodUid,
    /// 0 for the pod's first sandbox, +1 for each later one.
    pub attempt: u32,
    /// Host name in the pod.
    pub hostname: String,
    /// Directory of the pod's logs: `/var/log/pods/NS_NAME_UID`.
    pub log_directory: PathBuf,
    /// RuntimeClass handler; "" is the default.
    pub runtime_handler: String,
    /// Network namespace: Pod or Node.
    pub network: NamespaceMode,
    /// PID namespace: Pod, Container or Node.
    pub pid: NamespaceMode,
    /// IPC namespace: Pod or Node.
    pub ipc: NamespaceMode,
    /// The pod's users and groups; none for the node's.
    #[serde(default)]
    pub user_namespace: Option<UserNamespace>,
    /// Pod-level sysctls.
    pub sysctls: BTreeMap<String, String>,
    /// The pod's cgroup, relative to the runtime's cgroup root: `kubepods/burstable/podUID`.
    pub cgroup_parent: String,
    /// Host ports and the like, handed to CNI plugins.
    pub port_mappings: Vec<PortMapping>,
    /// Kept with the sandbox; returned by list and status.
    pub labels: BTreeMap<String, String>,
    /// Kept with the sandbox; returned by list and status.
    pub annotations: BTreeMap<String, String>,
}

/// Users and groups of a pod: those from 0 on are the node's from `host_id` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNamespace {
    /// What 0 in the pod is on the node.
    pub host_id: u32,
    /// How many there are.
    pub length: u32,
}

/// A host port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// "tcp", "udp" or "sctp".
    pub protocol: String,
    /// Port in the pod.
    pub container_port: u16,
    /// Port on the node.
    pub host_port: u16,
    /// Address on the node; empty for all.
    pub host_ip: String,
}

/// Whether a sandbox can run containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxState {
    /// The pause process (or the VM) runs and the network is up.
    Ready,
    /// It does not, for whatever reason.
    NotReady,
}

/// A sandbox as list and status give it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodSandbox {
    /// Its id.
    pub id: SandboxId,
    /// What it was made from.
    pub config: PodSandboxConfig,
    /// Observed now, not remembered.
    pub state: SandboxState,
    /// When it was made.
    pub created_at: SystemTime,
    /// Pod addresses in the order of the CNI result; empty for the node's network.
    pub ips: Vec<String>,
    /// Process id of the holder of namespaces; 0 when there is none.
    pub pid: i32,
}

/// What the runtime has of one pod, observed at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodView {
    /// Newest first.
    pub sandboxes: Vec<PodSandbox>,
    /// Newest first.
    pub containers: Vec<Container>,
}

/// Sandboxes and containers.
#[async_trait]
pub trait RuntimeService: Send + Sync + 'static {
    /// Makes the network, then the sandbox, and starts it. Undoes all of it on failure. Its steps are spans.
    async fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Result<PodSandbox>;
    /// The same. What may take long, a program of a network, is not waited for when `given_up` ends: then all is undone,
    /// and it fails.
    async fn run_pod_sandbox_until(
        &self,
        config: PodSandboxConfig,
        given_up: CancellationToken,
    ) -> Result<PodSandbox> {
        drop(given_up);
        self.run_pod_sandbox(config).await
    }
    /// Kills every process of the sandbox and tears the network down. Safe to repeat; NotFound is success.
    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<()>;
    /// Stops, then removes containers, directories and cgroups. Safe to repeat; NotFound is success.
    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<()>;
    /// Every sandbox, newest first.
    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>>;
    /// Makes a container: record, snapshot directories, specification. No process, no mount.
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
    ) -> Result<ContainerId>;
    /// Starts it. On [`Error::Start`] the container is Exited with that code and reason StartError.
    async fn start_container(&self, id: &ContainerId) -> Result<()>;
    /// Signals TERM (or the image's STOPSIGNAL), waits up to `grace`, then kills. Returns when it is Exited.
    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()>;
    /// Removes an exited or created container and its snapshot (kills a running one first). NotFound is success.
    async fn remove_container(&self, id: &ContainerId) -> Result<()>;
    /// Every container, newest first. Exit codes that fell while the agent was away are in.
    async fn list_containers(&self) -> Result<Vec<Container>>;
    /// What there is of one pod. Pod workers call it at every ring, so it should not look at other pods.
    async fn pod_view(&self, pod: &PodUid) -> Result<PodView> {
        let mut sandboxes = self.list_pod_sandboxes().await?;
        sandboxes.retain(|sandbox| sandbox.config.uid == *pod);
        let mut containers = self.list_containers().await?;
        containers.retain(|container| container.pod == *pod);
        Ok(PodView {
            sandboxes,
            containers,
        })
    }
    /// Runs a command in a running container.
    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecSession>;
    /// Joins the streams of a running container's own process. The session's process is the container's: its wait
    /// ends with the container, its kill does nothing. With a terminal there is no separate error output.
    async fn attach(&self, id: &ContainerId, stdin: bool) -> Result<ExecSession> {
        Err(Error::Internal(format!(
            "cannot attach to container {id} (stdin: {stdin}): not supported"
        )))
    }
    /// Connects to a port inside the sandbox's network namespace: 127.0.0.1, then ::1.
    async fn connect(&self, id: &SandboxId, port: u16) -> Result<Box<dyn Connection>> {
        Err(Error::Internal(format!(
            "cannot connect to port {port} of sandbox {id}: not supported"
        )))
    }
    /// Changes the limits of a running container, all or none; zero and empty values stay as they are. Of a
    /// created one, those that it will start with. The new limits are in its [`Container::config`], also for
    /// an agent that starts later. [`Error::MemoryInUse`] when the memory limit would be below the usage.
    ///
    /// v1 wants a container's CPU quota within its pod's: grow the pod first, shrink it last.
    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &Resources,
    ) -> Result<()> {
        Err(Error::Internal(format!(
            "cannot change container {id} to {resources:?}: not supported"
        )))
    }
    /// Makes or updates a cgroup above the containers: `kubepods`, `kubepods/burstable`, a pod's. An update
    /// changes all limits or none, as [`RuntimeService::update_container_resources`] does.
    async fn update_cgroup(&self, path: &str, resources: &Resources) -> Result<()>;
    /// Removes a cgroup made by [`RuntimeService::update_cgroup`], with what is left below it. Absent is success.
    async fn remove_cgroup(&self, path: &str) -> Result<()>;
    /// What ready sandboxes and their running containers use, of one pod or of all. Read now, except for the disk.
    async fn stats(&self, pod: Option<&PodUid>, detail: StatsDetail) -> Result<Vec<SandboxStats>> {
        let (_, _) = (pod, detail);
        Ok(Vec::new())
    }
    /// What a cgroup made by [`RuntimeService::update_cgroup`] has used with all below it.
    async fn cgroup_stats(&self, path: &str) -> Result<CgroupStats> {
        Err(Error::Internal(format!(
            "cannot read cgroup {path}: not supported"
        )))
    }
    /// Processes of running containers that were killed for want of memory, as it happens.
    fn oom_events(&self) -> broadcast::Receiver<OomEvent> {
        broadcast::channel(1).1
    }
    /// Rings with a pod's UID when something of it may have changed. Carries no truth; may lag or skip.
    fn doorbell(&self) -> broadcast::Receiver<PodUid>;
    /// The handlers there are ("" and "runc" are the same one).
    fn handlers(&self) -> Vec<String>;
    /// Whether pods can have users of their own; the text says why not. Found out once.
    async fn user_namespaces(&self) -> std::result::Result<(), String> {
        Err("not supported".to_owned())
    }
    /// Whether pods can get a network; the text says why not.
    async fn network_ready(&self) -> std::result::Result<(), String>;
}
