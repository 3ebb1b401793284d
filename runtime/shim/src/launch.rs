//! What `hanok oci` and the launcher of a container say to each other.
//!
//! The launcher is `hanok-shim oci FD DIR`: a process that lives for one `create` or `exec`. DIR exists, and is for what
//! all containers share. Over the stream
//! socket FD it takes one [`Order`], or none, and answers with [`Message`]s, each a frame. The container's process is
//! born as a child of the *caller*, so that whoever called `hanok oci` can become its parent and reap it, as
//! with any OCI runtime. Nothing of it stays behind but that process.
//!
//! A created container waits at a unix socket (`start.sock` in its state directory): whoever connects to it
//! starts it, and then reads a [`Message::Failed`], or the end of file that a successful execve causes.

use serde::{Deserialize, Serialize};

use crate::hook::Hook;
use crate::protocol::{ContainerSpec, FailureKind, Namespace, Process};

/// State and start time (clock ticks since the boot) in the text of `/proc/PID/stat`, proc_pid_stat(5).
pub fn parse_stat(text: &str) -> Option<(char, u64)> {
    // The second field is the program's name in brackets, with anything in it.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// An order to a launcher; the first frame on its socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Makes a container's process, up to the point where [`Message::Ready`] says that it waits to be
    /// started. The frame carries the listening socket at which it waits.
    Create(Box<CreateOrder>),
    /// Runs another process in a container.
    Exec(Box<ExecOrder>),
}

/// A container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateOrder {
    /// The container. Its log and stdin are not used: the process gets the launcher's own standard streams,
    /// or a terminal.
    pub container: ContainerSpec,
    /// Where its mounts live: [`Namespace::New`] for a namespace of its own with the root filesystem as its
    /// root; otherwise the mounts stay in a namespace that others use too, and it is only chrooted.
    pub mount_namespace: Namespace,
    /// Its user namespace, none for the caller's.
    pub users: Option<UserMaps>,
    /// Propagation of `/` in the end: `MS_*` bits, with `MS_REC` for all below it; 0 for what it is.
    pub root_propagation: u64,
    /// NIS domain name, when the UTS namespace is new.
    pub domainname: Option<String>,
    /// Execution domain of personality(2).
    pub personality: Option<u32>,
    /// Whether the cgroups, of v1, are not there yet: one byte says that they are, and the process waits for it where it
    /// needs them.
    pub cgroups_later: bool,
    /// Whether to send [`Message::Prepared`] before the root is entered, and wait for a byte.
    pub announce_prepared: bool,
    /// Run in the container's namespaces before its root is entered.
    pub create_hooks: Vec<Hook>,
    /// Run in the container just before its program.
    pub start_hooks: Vec<Hook>,
    /// How many descriptors from 3 on the process keeps.
    pub preserved_fds: u32,
    /// SELinux label for every file of what is mounted; not of its root filesystem, which exists.
    pub mount_label: Option<String>,
}

/// How a user namespace maps ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMaps {
    /// Content of `uid_map`.
    pub uids: String,
    /// Content of `gid_map`.
    pub gids: String,
    /// What user and group 0 are outside.
    pub root: (u32, u32),
}

/// A process beside a container's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecOrder {
    /// The container's process.
    pub init: i32,
    /// Its start time in clock ticks (field 22 of `/proc/PID/stat`).
    pub init_started: u64,
    /// Whether the container is only chrooted, see [`CreateOrder::mount_namespace`].
    pub chrooted: bool,
    /// What user and group 0 of its user namespace are outside; none without one.
    pub users: Option<(u32, u32)>,
    /// What to run.
    pub process: Process,
    /// `cgroup.procs` directories to join.
    pub cgroups: Vec<String>,
    /// Give it a terminal.
    pub tty: bool,
    /// How many descriptors from 3 on the process keeps.
    pub preserved_fds: u32,
}

/// What a launcher tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// There is a process, a child of the caller. Comes twice when the first makes another in its user namespace and
    /// ends.
    Cloned {
        /// Its process id, in the launcher's PID namespace.
        pid: i32,
    },
    /// The frame carries the master side of its terminal.
    Terminal,
    /// Namespaces and mounts are there; it waits for one byte before it enters its root.
    Prepared,
    /// Create: it waits to be started. Exec: its program runs.
    Ready,
    /// It failed; the process has ended or will at once.
    Failed {
        /// Which kind of failure.
        kind: FailureKind,
        /// What failed, for a person.
        message: String,
    },
}
