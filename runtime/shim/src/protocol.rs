//! What the runtime and a shim say to each other.
//!
//! One versioned enum in each direction, postcard-encoded behind a little-endian `u32` length, over a
//! stream socket: a unix socket on the host, vsock or virtio-serial into a guest. File descriptors
//! travel beside the first byte of a frame (`SCM_RIGHTS`) and only on a unix socket.
//!
//! The shim takes orders that are already resolved: numbers instead of option strings, compiled
//! seccomp programs, absolute paths. It knows nothing of images, pods or the OCI documents.
//!
//! A connection carries one request at a time and its reply, except after [`Request::Subscribe`], when
//! it carries only [`Event`]s, and after [`Request::Exec`], whose final [`Reply::ExecExited`] follows
//! the [`Reply::Started`] on the same connection; then that is free for the next request. Closing an
//! exec's connection does not kill it; [`Request::Kill`] with its exec id does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this protocol; the shim refuses a [`Request::Hello`] with a later one. The second has [`Request::Run`] and
/// [`Request::StartAhead`].
pub const VERSION: u32 = 2;

/// The first version, which a shim that an earlier release has started may speak.
pub const FIRST_VERSION: u32 = 1;

/// Longest frame that either side accepts, in bytes.
pub const MAX_FRAME: usize = 4 << 20;

/// An order to the shim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// First request of a connection. Reply: [`Reply::Ok`].
    Hello {
        /// The version whose requests the caller may send.
        version: u32,
    },
    /// Starts the pause process, which holds the pod's namespaces. Once per shim. Reply: [`Reply::Started`].
    StartSandbox(SandboxSpec),
    /// Makes the container's process, up to and including `execve`. Reply: [`Reply::Started`] after a
    /// successful exec, [`Reply::Failed`] otherwise (then nothing of the container is left).
    StartContainer(Box<ContainerSpec>),
    /// Runs another process in a container. Frame carries the stdio descriptors that [`ExecSpec`] names.
    /// Replies: [`Reply::Started`], later [`Reply::ExecExited`]; or [`Reply::Failed`].
    Exec(Box<ExecSpec>),
    /// Sends a signal to a container's init, to an exec, or (with `all`) to every process of the container.
    /// Reply: [`Reply::Ok`], also when the process is gone already.
    Kill {
        /// Container or exec id.
        id: String,
        /// Signal number, 1..=64.
        signal: i32,
        /// Signal every process in the container's cgroup and not only its init.
        all: bool,
    },
    /// Changes the window size of a terminal. Reply: [`Reply::Ok`].
    Resize {
        /// Container or exec id.
        id: String,
        /// Rows of text.
        rows: u16,
        /// Columns of text.
        cols: u16,
    },
    /// What the shim holds. Reply: [`Reply::State`].
    State,
    /// Closes and opens a container's log file again, after somebody renamed it. Reply: [`Reply::Ok`].
    ReopenLog {
        /// Container id.
        container: String,
    },
    /// Passes descriptors that get a container's output and feed its stdin while they are open. The frame
    /// carries stdin (if `stdin`), stdout and stderr, in this order. Reply: [`Reply::Ok`].
    Attach {
        /// Container id.
        container: String,
        /// Whether the first descriptor is to feed the container's stdin.
        stdin: bool,
    },
    /// Forgets an exited container and its exit record. Reply: [`Reply::Ok`].
    Delete {
        /// Container id.
        container: String,
    },
    /// Turns the connection into a stream of [`Event`]s, from now on.  Reply: [`Reply::Ok`], then events.
    Subscribe,
    /// Kills what is left, the pause process last, and ends the shim. Reply: [`Reply::Ok`], then end of file.
    Shutdown,
    /// Makes the pod's user namespace. Before [`Request::StartSandbox`], at most once. From then on pause and every
    /// container and exec of this shim run in it, it owns their other namespaces, and layers and bind mounts that
    /// ask for `MOUNT_ATTR_IDMAP` are shown through its mapping. Reply: [`Reply::Ok`].
    MakeUserNamespace(UserNamespace),
    /// [`Request::StartContainer`], with a SELinux label for every file of what is mounted for the container: its root
    /// filesystem, tmpfs, devpts, mqueue, and /dev/shm.
    StartLabelled {
        /// The container.
        spec: Box<ContainerSpec>,
        /// The label.
        label: String,
    },
    /// Runs a program in a running container as its own process runs, for a caller that has no use for the news that it
    /// has started. The frame carries stdout and stderr. Replies, one for each: [`Reply::ExecExited`] when it has ended,
    /// or [`Reply::Failed`].
    Run(Box<RunSpec>),
    /// [`Request::StartContainer`], or with a label [`Request::StartLabelled`], while the caller still makes the cgroups:
    /// v1's, which no process is born in. The frame carries the read end of a pipe. A byte in it says that they are
    /// there, its end that they never will be; until then the container's process waits where it needs them.
    StartAhead {
        /// The container.
        spec: Box<ContainerSpec>,
        /// The label.
        label: Option<String>,
    },
}

/// A pod's user namespace: users and groups from 0 on are those from `host_id` on outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNamespace {
    /// What 0 inside is outside.
    pub host_id: u32,
    /// How many ids there are.
    pub length: u32,
    /// Where the pod's network namespace, which the user namespace is to own, is pinned: a path that does not exist
    /// yet. Pod namespaces that [`SandboxSpec`] calls New come from here as well.
    pub netns: String,
}

/// The shim's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Ok,
    /// A process runs.
    Started {
        /// Its process id in the shim's PID namespace.
        pid: i32,
    },
    /// An exec'd process has ended.
    ExecExited {
        /// 0..=255; 128 + n after signal n.
        code: i32,
    },
    /// Answer to [`Request::State`].
    State(ShimState),
    /// The request failed; nothing of it is left behind.
    Failed {
        /// Which kind of failure, for the caller to act on.
        kind: FailureKind,
        /// What failed, with path and reason, for a person to read.
        message: String,
    },
}

/// Kinds of failure that a caller tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// Unknown container or exec id.
    NotFound,
    /// The id is taken, or the sandbox is started already.
    Exists,
    /// The program does not exist in the root filesystem (`ENOENT` of execve or of the search in PATH).
    CommandNotFound,
    /// The program cannot be executed (`EACCES`, `ENOEXEC`, ...).
    CommandNotExecutable,
    /// The request itself is wrong (version, value out of range, unsafe path).
    Invalid,
    /// A system call failed; the message names it.
    System,
}

/// Something happened. Doorbells: the records on disk and [`Request::State`] carry the truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A container's init ended; its exit record is already on disk.
    ContainerExited {
        /// Which and how.
        exit: Exit,
    },
    /// The pause process ended: the sandbox is gone.
    SandboxExited,
}

/// A container's end. Also the content of `exit.json` in the container's directory (as JSON).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Container id.
    pub container: String,
    /// 0..=255; 128 + n after signal n.
    pub code: i32,
    /// The signal that ended it, 0 for none.
    pub signal: i32,
    /// Whether the kernel's OOM killer struck in the container's cgroup.
    pub oom_killed: bool,
    /// When, in nanoseconds since the epoch (wall clock).
    pub finished_at_ns: i64,
}

/// What a shim holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ShimState {
    /// Process id of pause; 0 before [`Request::StartSandbox`] and after its end.
    pub pause_pid: i32,
    /// Every container that was started and not deleted.
    pub containers: Vec<ContainerState>,
}

/// One container in [`ShimState`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerState {
    /// Container id.
    pub id: String,
    /// Process id of its init; stays after the end.
    pub pid: i32,
    /// Set once it has ended.
    pub exit: Option<Exit>,
}

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

/// What [`Request::Run`] runs.
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
