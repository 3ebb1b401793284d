//! Sandboxes: the pods' environments, and the two seams that they are made through.
//!
//! ```text
//!   run:       intent ► netns ► CNI ADD ► create ► start ► Ready        (with a user namespace: create goes first,
//!                                                                        and makes the netns in it)
//!   teardown:  stop ◄ cgroup ◄ CNI DEL ◄ netns          the same for a failure at any step, for a crash
//!                                                       at any moment, and for the end of the pod
//! ```
//! The record is on disk before the first side effect, and it alone is what [`teardown`] works from.

pub(crate) mod connect;
pub(crate) mod events;
pub mod network;
pub mod pause;
pub(crate) mod run;
pub(crate) mod strays;
mod sysctls;
pub(crate) mod teardown;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::api::{
    NamespaceMode, PodSandbox, PodSandboxConfig, SandboxId, SandboxState, UserNamespace,
};
use crate::shim_client::{Events, Shim};

/// A sandbox as it is written to `sandbox.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// What it is made from.
    pub config: PodSandboxConfig,
    /// When it was made.
    pub created_at: SystemTime,
    /// Where its network namespace is (to be) pinned; none on the node's network.
    pub netns: Option<PathBuf>,
    /// How far it is.
    pub stage: Stage,
    /// Addresses from the CNI result.
    pub ips: Vec<String>,
    /// Holder of the namespaces, once started.
    pub pid: i32,
    /// The SELinux level of its containers.
    #[serde(default)]
    pub selinux_level: Option<String>,
}

/// How far a sandbox is. What runs is not written here: it is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Being made: after a crash it is undone.
    Making,
    /// Made: after a crash it is adopted.
    Made,
    /// Stopped: nothing of it runs any more, its records remain until it is removed.
    Stopped,
}

impl SandboxRecord {
    /// Whether it has a network of its own.
    pub fn has_network(&self) -> bool {
        self.config.network != NamespaceMode::Node
    }
}

/// What a controller needs to know of a sandbox.
#[derive(Debug, Clone)]
pub struct SandboxPlan {
    /// The record.
    pub record: SandboxRecord,
    /// The sandbox's directory.
    pub dir: PathBuf,
    /// Directories of the cgroup that the holder joins at its birth.
    pub cgroups: Vec<PathBuf>,
}

/// A running sandbox: its holder and the way to speak to it.
#[derive(Debug)]
pub struct Holder {
    /// Process id of the holder of the namespaces.
    pub pid: i32,
    /// The shim.
    pub shim: Arc<Shim>,
    /// Its events since before `pid` was asked for.
    pub events: Events,
}

/// Why a controller failed.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A file or a process could not be made.
    #[error("cannot {verb} {path}")]
    Io {
        /// "create", "start", ...
        verb: &'static str,
        /// What.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The shim failed.
    #[error("cannot {verb} the sandbox")]
    Shim {
        /// "start", "stop", "reach".
        verb: &'static str,
        /// Why.
        #[source]
        source: crate::shim_client::ShimError,
    },
}

/// Who makes sandboxes of one kind: pause processes, virtual machines, an external runtime. Each runtime
/// handler names one.
#[async_trait]
pub trait SandboxController: std::fmt::Debug + Send + Sync {
    /// Makes what needs no process: files in the sandbox's directory.
    async fn create(&self, plan: &SandboxPlan) -> Result<(), ControllerError>;
    /// Makes the pod's user namespace, and in it the network namespace, pinned where the record says. Before `start`,
    /// for sandboxes that have one.
    async fn make_user_namespace(
        &self,
        plan: &SandboxPlan,
        users: UserNamespace,
    ) -> Result<(), ControllerError>;
    /// Starts it. Called once.
    async fn start(&self, plan: &SandboxPlan) -> Result<Holder, ControllerError>;
    /// The holder, if it runs: how a new agent finds what an old one started.
    async fn status(&self, plan: &SandboxPlan) -> Result<Option<Holder>, ControllerError>;
    /// Ends every process of it. Success when nothing runs, also when nothing ever did.
    async fn stop(&self, plan: &SandboxPlan) -> Result<(), ControllerError>;
    /// Removes what `create` and `start` left outside of the sandbox's directory. After `stop`.
    async fn remove(&self, plan: &SandboxPlan) -> Result<(), ControllerError>;
}

/// A sandbox in memory.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) dir: PathBuf,
    pub(crate) controller: Arc<dyn SandboxController>,
    /// One operation at a time. Held across waits; the others are not.
    pub(crate) gate: tokio::sync::Mutex<()>,
    record: Mutex<SandboxRecord>,
    shim: Mutex<Option<Arc<Shim>>>,
}

impl Sandbox {
    pub(crate) fn new(
        record: SandboxRecord,
        dir: PathBuf,
        controller: Arc<dyn SandboxController>,
    ) -> Self {
        Sandbox {
            id: record.id.clone(),
            dir,
            controller,
            gate: tokio::sync::Mutex::default(),
            record: Mutex::new(record),
            shim: Mutex::default(),
        }
    }

    pub(crate) fn record(&self) -> SandboxRecord {
        self.record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn with_record<T>(&self, read: impl FnOnce(&mut SandboxRecord) -> T) -> T {
        read(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The shim, while it lives.
    pub(crate) fn shim(&self) -> Option<Arc<Shim>> {
        self.shim
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_shim(&self, shim: Option<Arc<Shim>>) {
        *self.shim.lock().unwrap_or_else(PoisonError::into_inner) = shim;
    }

    /// As list and status give it.
    pub(crate) fn view(&self) -> PodSandbox {
        let record = self.record();
        let ready = record.stage == Stage::Made && record.pid != 0 && self.shim().is_some();
        PodSandbox {
            id: record.id,
            config: record.config,
            state: if ready {
                SandboxState::Ready
            } else {
                SandboxState::NotReady
            },
            created_at: record.created_at,
            ips: record.ips,
            pid: record.pid,
        }
    }
}

/// Files of a sandbox's directory.
pub(crate) fn record_file(dir: &Path) -> PathBuf {
    dir.join("sandbox.json")
}

pub(crate) fn hostname_file(dir: &Path) -> PathBuf {
    dir.join("hostname")
}
