//! The OCI runtime command line: bundles (a `config.json` beside a root filesystem) made into containers
//! one by one, without a pod and without a daemon, as runc does it. `hanok oci` is a thin shell around this.
//!
//! A container here goes the same way through the shim's code as a pod's; what is different is who acts.
//! This module resolves a bundle into an order ([`translate`]), makes the cgroups ([`cgroups`]), starts a
//! launcher for the order ([`launcher`]), runs hooks, and keeps a [`record`]. The container's process is a
//! child of the calling process until that ends, then of the next subreaper above. Nothing here is async, and
//! the calling process must have one thread.
//!
//! ```text
//! ROOT/.shared/                 what all containers share: places to mount on, compiled filters; stays
//! ROOT/<id>/                    made first, removed last; its existence reserves the id
//!   config.json                 the specification as it was at creation
//!   state.json                  Record; before the cgroups, until then only the directory reserves the id
//!   process                     the process as the shim takes it (postcard), for exec
//!   start.sock                  where it waits to be started; gone once it was
//! ```

mod bundle;
mod cgroups;
mod console;
mod create;
mod delete;
mod devices;
mod document;
mod events;
mod exec;
mod features;
mod filters;
mod hooks;
mod kill;
mod launcher;
mod list;
mod mounts;
mod namespaces;
mod pause;
mod process;
mod ps;
mod record;
mod resources;
mod run;
mod signals;
mod start;
mod supervise;
mod translate;
mod update;

use std::io;
use std::path::{Path, PathBuf};

use hanok_shim::protocol::FailureKind;

pub use create::CreateOptions;
pub use exec::ExecOptions;
pub use features::features;
pub use record::{Record, Status};
pub use run::RunOptions;

/// What a command could not do. The sources say why.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// No container has this id.
    #[error("container {0:?} does not exist")]
    NotFound(String),
    /// The id is taken.
    #[error("container {0:?} exists already")]
    Exists(String),
    /// The id cannot be one.
    #[error("container id {0:?} is not made of letters, digits and _ + - .")]
    Id(String),
    /// The container is not in a state in which this can be done.
    #[error("cannot {verb} container {id:?}, which is {status}")]
    Status {
        /// What was to be done.
        verb: &'static str,
        /// Its id.
        id: String,
        /// Its state.
        status: Status,
    },
    /// There is nobody to send a signal to. containerd knows it by these first words, which are runc's.
    #[error("container not running: {id:?} is {status}")]
    NotRunning {
        /// Its id.
        id: String,
        /// Its state.
        status: Status,
    },
    /// The bundle's configuration is not valid, or asks for what is not there.
    #[error("config.json: {0}")]
    Config(String),
    /// The document is not JSON.
    #[error("cannot parse {path}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A value in a document has the wrong type, or is missing.
    #[error("cannot take {field} of {path}")]
    Field {
        /// The file.
        path: PathBuf,
        /// Which field, with dots between the names.
        field: String,
        /// Why not, with the value.
        #[source]
        source: serde_json::Error,
    },
    /// A document is longer than any that can be honoured.
    #[error("{0} is longer than {max} bytes", max = document::MAX)]
    TooLong(PathBuf),
    /// An option cannot be honoured.
    #[error("{0}")]
    Option(String),
    /// A system call failed.
    #[error("cannot {verb} {path}")]
    Io {
        /// "read", "create", ...
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The container's process could not be made, or failed before its program.
    #[error("{message}")]
    Process {
        /// Which kind of failure.
        kind: FailureKind,
        /// What failed.
        message: String,
    },
    /// A hook failed.
    #[error(transparent)]
    Hook(#[from] hanok_shim::hook::HookError),
    /// A cgroup could not be made or changed.
    #[error(transparent)]
    Cgroup(#[from] crate::cgroup::CgroupError),
    /// The seccomp profile cannot be compiled.
    #[error(transparent)]
    Seccomp(#[from] crate::seccomp::SeccompError),
}

impl OciError {
    fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { verb, path, source }
    }
}

type Result<T> = std::result::Result<T, OciError>;

/// The containers below one root directory.
#[derive(Debug, Clone)]
pub struct Runtime {
    root: PathBuf,
    shim: PathBuf,
    systemd: bool,
}

impl Runtime {
    /// `root` holds the records, and is made when it is missing; `shim` is the `hanok-shim` program.
    pub fn new(root: PathBuf, shim: PathBuf) -> Self {
        Self {
            root,
            shim,
            systemd: false,
        }
    }

    /// The same, with cgroups that systemd makes.
    pub fn by_systemd(self) -> Self {
        Self {
            systemd: true,
            ..self
        }
    }

    /// The record of a container.
    pub fn state(&self, id: &str) -> Result<Record> {
        Record::load(&self.root, id)
    }
}
