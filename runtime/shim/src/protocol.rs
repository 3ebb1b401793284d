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

mod spec;

use serde::{Deserialize, Serialize};

pub use spec::{
    Capabilities, ContainerSpec, Device, ExecSpec, Log, Mount, MountSource, Namespace, Namespaces,
    Process, Rootfs, RunSpec, SandboxSpec, User,
};

/// Version of this protocol; the shim refuses a [`Request::Hello`] with a later one. The second has [`Request::Run`] and
/// [`Request::StartAhead`].
pub const VERSION: u32 = 2;

/// The first version, which a shim that an earlier release has started may speak.
pub const FIRST_VERSION: u32 = 1;

/// Most that a program's arguments and environment may have together, in bytes, each with a NUL and a pointer: the
/// kernel's most, whatever the limit of the stack. See execve(2).
pub const MAX_STRINGS: usize = 6 << 20;

/// Longest frame that either side accepts, in bytes: all that a program can be given, and what else a container is.
pub const MAX_FRAME: usize = MAX_STRINGS + (2 << 20);

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
