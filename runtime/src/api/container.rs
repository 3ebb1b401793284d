//! Containers: what one is to be, and what one is found to be. Plain data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{ContainerId, NamespaceMode, PodUid, SandboxId};

/// What a container is to be.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ContainerConfig {
    /// Container name in the pod.
    pub name: String,
    /// Restart count: the n of the log file's name.
    pub attempt: u32,
    /// Image id (config digest, `sha256:...`) as [`image_status`](super::ImageService::image_status) gives it.
    pub image: String,
    /// The image as the pod names it, for status.
    pub image_reference: String,
    /// Replaces the image's entrypoint when not empty.
    pub command: Vec<String>,
    /// Replaces the image's cmd when not empty (and, with a `command`, always).
    pub args: Vec<String>,
    /// Working directory; empty for the image's.
    pub working_dir: String,
    /// Environment, in order; it overrides the image's by name.
    pub envs: Vec<(String, String)>,
    /// Volumes and single files.
    pub mounts: Vec<Mount>,
    /// Devices of the host.
    pub devices: Vec<DeviceMapping>,
    /// File below the sandbox's log directory: `NAME/ATTEMPT.log`.
    pub log_path: PathBuf,
    /// Size at which the log is rotated, bytes; 0 for never.
    pub log_max_size: u64,
    /// Log files kept.
    pub log_max_files: u32,
    /// Keep stdin open.
    pub stdin: bool,
    /// Close stdin after the first attach.
    pub stdin_once: bool,
    /// Give it a terminal.
    pub tty: bool,
    /// The signal that asks it to end, as images write it; empty for the image's own. A container that there is
    /// has the one that counts, by its name.
    #[serde(default)]
    pub stop_signal: String,
    /// Limits.
    pub resources: Resources,
    /// Who it runs as, and what it may do.
    pub security: SecurityContext,
    /// Kept with the container.
    pub labels: BTreeMap<String, String>,
    /// Kept with the container.
    pub annotations: BTreeMap<String, String>,
}

/// A bind mount into a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path in the container.
    pub container_path: String,
    /// Absolute path on the host.
    pub host_path: PathBuf,
    /// What of it is mounted: a relative path of something that exists, below which no link leads out. Empty for all.
    #[serde(default)]
    pub sub_path: String,
    /// Read-only.
    pub readonly: bool,
    /// Read-only with everything mounted below.
    pub recursive_readonly: bool,
    /// Mount propagation.
    pub propagation: Propagation,
    /// It is the pod's own and gets the SELinux label of its containers, with all that is in it.
    #[serde(default)]
    pub selinux_relabel: bool,
}

/// Mount propagation between host and container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// None.
    #[default]
    Private,
    /// Later mounts of the host show in the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// A device of the host in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMapping {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: PathBuf,
    /// Of "rwm".
    pub permissions: String,
}

/// Limits of a container, or of a pod's cgroup.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// cpu.shares, 2..=262144; 0 leaves it alone. Converted to a weight on v2.
    pub cpu_shares: u64,
    /// CFS quota in microseconds a period; 0 for none.
    pub cpu_quota: i64,
    /// CFS period in microseconds; 0 for the kernel's 100,000.
    pub cpu_period: u64,
    /// Memory limit in bytes; 0 for none.
    pub memory_limit: i64,
    /// Memory and swap together, bytes; 0 leaves it alone.
    pub memory_swap_limit: i64,
    /// Most processes; 0 for no limit.
    pub pids_limit: i64,
    /// oom_score_adj of the processes.
    pub oom_score_adj: i32,
    /// Huge page limits: page size ("2MB") and bytes.
    pub hugepages: BTreeMap<String, u64>,
    /// CPUs; empty leaves it alone.
    pub cpuset_cpus: String,
    /// v2 files set literally, e.g. "memory.high".
    pub unified: BTreeMap<String, String>,
}

/// Who a container runs as and what it may do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SecurityContext {
    /// All capabilities, all devices, nothing masked.
    pub privileged: bool,
    /// Overrides the image's user.
    pub run_as_user: Option<u32>,
    /// Overrides the image's group.
    pub run_as_group: Option<u32>,
    /// Supplementary groups (supplementalGroups, fsGroup).
    pub supplemental_groups: Vec<u32>,
    /// supplementalGroupsPolicy Strict.
    pub strict_groups: bool,
    /// Capability names to add, with or without CAP_; "ALL".
    pub add_capabilities: Vec<String>,
    /// Capability names to drop; "ALL".
    pub drop_capabilities: Vec<String>,
    /// Read-only root filesystem.
    pub readonly_rootfs: bool,
    /// Set no_new_privs.
    pub no_new_privs: bool,
    /// seccomp.
    pub seccomp: SeccompProfile,
    /// AppArmor profile; when nothing is said, the default one where there is AppArmor.
    #[serde(default)]
    pub app_armor: Option<AppArmorProfile>,
    /// Parts of the SELinux label.
    #[serde(default)]
    pub selinux_options: Option<SelinuxOptions>,
    /// procMount: Unmasked.
    pub proc_unmasked: bool,
    /// PID namespace when it differs from the sandbox's (ephemeral target).
    pub pid: Option<NamespaceMode>,
}

/// Which seccomp filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeccompProfile {
    /// The runtime's default filter.
    #[default]
    RuntimeDefault,
    /// None.
    Unconfined,
    /// An OCI profile in a file; absolute path.
    Localhost(PathBuf),
}

/// Parts of a SELinux label; what is empty is as for every container of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelinuxOptions {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub type_: String,
    /// Level with its categories; without one, the sandbox's own.
    pub level: String,
}

/// Which AppArmor profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppArmorProfile {
    /// The runtime's default profile; none for a privileged container.
    RuntimeDefault,
    /// None.
    Unconfined,
    /// One that the administrator has loaded, by its name.
    Localhost(String),
}

/// Where a container is in its life (CRI ContainerState).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// Made and not started; nothing of it runs.
    Created,
    /// Its process runs.
    Running,
    /// Its process has ended, or could not be started.
    Exited,
    /// Nobody knows: its shim is gone and left no exit record.
    Unknown,
}

/// A container as list and status give it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// Its pod.
    pub pod: PodUid,
    /// What it was made from, without the environment's values.
    pub config: ContainerConfig,
    /// Observed now, not remembered.
    pub state: ContainerState,
    /// When it was made.
    pub created_at: SystemTime,
    /// When its process was started.
    pub started_at: Option<SystemTime>,
    /// When its process ended.
    pub finished_at: Option<SystemTime>,
    /// Exit code; meaningful once Exited.
    pub exit_code: i32,
    /// CRI reason: Completed, Error, OOMKilled, StartError, ContainerStatusUnknown.
    pub reason: String,
    /// Details, e.g. of a StartError.
    pub message: String,
    /// Digested image reference, `repository@sha256:...`; or the image id when there is none.
    pub image_ref: String,
    /// Full path of the log file.
    pub log_path: PathBuf,
    /// Process id of its init; 0 unless Running.
    pub pid: i32,
    /// Who its first process was when it began; none before that, or when nobody saw it.
    pub identity: Option<Identity>,
}

/// User and groups of a process, as the container sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}
