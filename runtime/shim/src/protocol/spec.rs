//! What the pod, its containers and their processes are to be: resolved, and in an order that is theirs for good, as the
//! encoding has no names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a namespace comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespace {
    /// The shim's own, that is the node's.
    Host,
    /// A fresh one.
    New,
    /// The one that pause holds.
    Pod,
    /// The one at this path (`/run/netns/...`, `/proc/PID/ns/...`).
    Path(String),
}

/// The pod's holder of namespaces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Sandbox id.
    pub id: String,
    /// Absolute path of the pause program on the host.
    pub pause: String,
    /// Network: [`Namespace::Host`] or [`Namespace::Path`].
    pub net: Namespace,
    /// IPC: Host or New.
    pub ipc: Namespace,
    /// UTS: Host or New.
    pub uts: Namespace,
    /// PID of pause itself: New when containers share it, Host otherwise.
    pub pid: Namespace,
    /// Host name set in a new UTS namespace; at most 64 bytes.
    pub hostname: String,
    /// Sysctls written in the new namespaces: name with dots, value.
    pub sysctls: BTreeMap<String, String>,
    /// `cgroup.procs` directories to join: one on v2, one per controller on v1. Must exist.
    pub cgroups: Vec<String>,
    /// `oom_score_adj` of pause; best effort below the shim's own value.
    pub oom_score_adj: i32,
}

/// A container's process, entirely resolved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Container id.
    pub id: String,
    /// Directory of the container's record; the shim writes `exit.json` here (temp file, rename).
    pub state_dir: String,
    /// The root filesystem, mounted in the container's own mount namespace.
    pub rootfs: Rootfs,
    /// Whether `/` is mounted read-only in the end (volumes stay writable).
    pub readonly_rootfs: bool,
    /// Mounts in order, below the root filesystem.
    pub mounts: Vec<Mount>,
    /// Paths hidden by /dev/null (files) or an empty read-only directory.
    pub masked_paths: Vec<String>,
    /// Paths made read-only by a bind mount onto themselves.
    pub readonly_paths: Vec<String>,
    /// Device nodes made in /dev, beside the standard ones.
    pub devices: Vec<Device>,
    /// Network, IPC, UTS, PID, cgroup; the mount namespace is always new.
    pub namespaces: Namespaces,
    /// Host name, when the UTS namespace is new.
    pub hostname: Option<String>,
    /// Sysctls, when the namespaces they live in are new.
    pub sysctls: BTreeMap<String, String>,
    /// What to run.
    pub process: Process,
    /// `cgroup.procs` directories to join: one on v2 (CLONE_INTO_CGROUP), one per controller on v1.
    pub cgroups: Vec<String>,
    /// Where its output goes.
    pub log: Option<Log>,
    /// Keep stdin open for attach; otherwise it is /dev/null.
    pub stdin: bool,
    /// Close stdin after the first attach has ended.
    pub stdin_once: bool,
    /// Give it a terminal.
    pub tty: bool,
}

/// A root filesystem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Rootfs {
    /// overlayfs; the shim mounts it.
    Overlay {
        /// Read-only layers, topmost first. Absolute paths.
        lower: Vec<String>,
        /// Writable layer.
        upper: String,
        /// Work directory on the same filesystem as `upper`.
        work: String,
    },
    /// An existing directory, bind-mounted.
    Dir(String),
}

/// One mount below the root filesystem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path in the container; resolved with the root as a wall and made when missing.
    pub destination: String,
    /// What is mounted there.
    pub source: MountSource,
    /// `MOUNT_ATTR_*` bits to set (RDONLY, NOSUID, NODEV, NOEXEC, ...). IDMAP is for bind mounts, and without effect
    /// when the pod has no user namespace.
    pub attr_set: u64,
    /// `MOUNT_ATTR_*` bits to clear.
    pub attr_clear: u64,
    /// Apply the bits to the whole tree below (recursive read-only).
    pub attr_recursive: bool,
    /// Propagation: 0 for private, or `MS_SLAVE` / `MS_SHARED` / `MS_UNBINDABLE`, always recursive.
    pub propagation: u64,
}

/// The source of a [`Mount`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum MountSource {
    /// A bind mount of a host path (file, directory, socket or device).
    Bind {
        /// Absolute path on the host.
        path: String,
        /// With everything mounted below it.
        recursive: bool,
    },
    /// A new filesystem: `proc`, `sysfs`, `tmpfs`, `devpts`, `mqueue`, ...
    Filesystem {
        /// Filesystem type.
        fstype: String,
        /// fsconfig strings, e.g. ("size", "65536k"); an empty value is a flag.
        options: Vec<(String, String)>,
    },
    /// The container's view of its cgroups, v1 or v2 as the host has it.
    Cgroup,
    /// The pod's shared memory directory: one tmpfs for all containers of this shim, made at its first use
    /// and kept for as long as the shim lives. It belongs to the pod's IPC namespace, so it can be neither a
    /// tmpfs of one container nor, as nothing of a pod is mounted there, a mount in the node's namespace:
    /// the shim holds it (a detached mount, or a mount namespace that has nothing else).
    Shm {
        /// Its size in bytes; the first container's counts.
        size: u64,
    },
    /// A bind mount of something below a directory of the node whose contents are not trusted: a part of a volume.
    /// No link leads out of that directory, whatever is changed in it meanwhile.
    BindBelow {
        /// Absolute path on the host.
        root: String,
        /// Relative path below it.
        path: String,
        /// With everything mounted below it.
        recursive: bool,
    },
    /// A new tmpfs that begins with a copy of what is at its destination.
    CopyUp {
        /// As a filesystem's.
        options: Vec<(String, String)>,
    },
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Absolute path in the container, below /dev.
    pub path: String,
    /// `S_IFCHR`, `S_IFBLK` or `S_IFIFO` with the permission bits.
    pub mode: u32,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Where a container's namespaces come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network.
    pub net: Namespace,
    /// System V IPC and POSIX message queues.
    pub ipc: Namespace,
    /// Host and domain name.
    pub uts: Namespace,
    /// Processes.
    pub pid: Namespace,
    /// Cgroup view: Host or New.
    pub cgroup: Namespace,
}

/// What to execute, and as whom.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Program and arguments; a program without a slash is looked up in the PATH of `env`.
    pub args: Vec<String>,
    /// Environment as `NAME=value`. HOME is added when it is missing.
    pub env: Vec<String>,
    /// Working directory; made when missing, and checked to lie inside the root.
    pub cwd: String,
    /// As whom.
    pub user: User,
    /// Capability sets.
    pub capabilities: Capabilities,
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
    /// A compiled seccomp filter: `struct sock_filter` array in native byte order; empty for none.
    pub seccomp: Vec<u8>,
    /// `SECCOMP_FILTER_FLAG_*` bits for loading it.
    pub seccomp_flags: u32,
    /// Resource limits: `RLIMIT_*` number, soft, hard.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// `oom_score_adj`; best effort below the shim's own value.
    pub oom_score_adj: Option<i32>,
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// AppArmor profile to change to at exec.
    pub apparmor: Option<String>,
    /// SELinux label of the process.
    pub selinux: Option<String>,
}

/// A user and its groups. Names are looked up in the container's own /etc/passwd and /etc/group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// `uid`, `name`, `uid:gid`, `name:group`, ... as an image writes it. Digits are always a number.
    pub spec: String,
    /// Overrides the group of `spec`.
    pub gid: Option<u32>,
    /// Supplementary groups, added to those of the image unless `strict_groups`.
    pub additional_gids: Vec<u32>,
    /// supplementalGroupsPolicy Strict: ignore /etc/group.
    pub strict_groups: bool,
}

/// Capability sets as bit masks (bit n = capability n).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Bounding set.
    pub bounding: u64,
    /// Effective set.
    pub effective: u64,
    /// Permitted set.
    pub permitted: u64,
    /// Inheritable set.
    pub inheritable: u64,
    /// Ambient set.
    pub ambient: u64,
}

/// A CRI log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    /// Absolute path; its directory exists.
    pub path: String,
    /// Rotate when the file would grow beyond this many bytes; 0 for never.
    pub max_size: u64,
    /// How many files to keep, the current one among them.
    pub max_files: u32,
}

/// What [`Request::Run`](super::Request::Run) runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The container.
    pub container: String,
    /// Id of this exec, for Kill; unique in the shim.
    pub exec: String,
    /// Program and arguments.
    pub args: Vec<String>,
}

/// Another process in a running container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The container.
    pub container: String,
    /// Id of this exec, for Kill and Resize; unique in the shim.
    pub exec: String,
    /// What to run. An empty `env` means the container's own; capability sets, user, seccomp and
    /// no_new_privileges are taken from the container when `inherit` is set.
    pub process: Process,
    /// Take user, groups, capabilities, seccomp, rlimits, no_new_privileges, env and cwd of the container's
    /// process, and only `args` of `process`.
    pub inherit: bool,
    /// The frame carries a descriptor for stdin.
    pub stdin: bool,
    /// The frame carries a descriptor for stdout.
    pub stdout: bool,
    /// The frame carries a descriptor for stderr.
    pub stderr: bool,
    /// Give it a terminal; then stdin and stdout descriptors are the far ends, copied by the shim.
    pub tty: bool,
}
