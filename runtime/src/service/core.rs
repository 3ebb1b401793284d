//! What every operation of the runtime works with, and where its files are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::chain;
use super::registry::Registry;
use super::users::UserSupport;
use crate::api::{
    ContainerId, Error, NamespaceMode, PodSandbox, PodSandboxConfig, PodUid, Result, SandboxId,
    SandboxState,
};
use crate::cgroup::{self, Cgroups, Warmth};
use crate::container::rootfs::RootfsSource;
use crate::lsm::app_armor::AppArmor;
use crate::lsm::selinux::{self, Selinux};
use crate::oom::OomWatcher;
use crate::sandbox::network::PodNetwork;
use crate::sandbox::{Sandbox, SandboxController, SandboxRecord};
use crate::seccomp::Filters;
use crate::stats::disk::DiskCache;

/// The files of the runtime; the drawing is in the crate's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(super) run_dir: PathBuf,
    pub(super) root: PathBuf,
}

impl Layout {
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.run_dir.join("sandboxes")
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    pub(crate) fn containers(&self, sandbox: &SandboxId) -> PathBuf {
        self.sandbox(sandbox).join("containers")
    }

    pub(crate) fn all_volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    pub(crate) fn volumes(&self, container: &ContainerId) -> PathBuf {
        self.all_volumes().join(container.as_str())
    }
}

/// What every operation works with.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) layout: Layout,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) warmth: Arc<Warmth>,
    pub(crate) filters: Filters,
    pub(crate) network: Arc<dyn PodNetwork>,
    pub(crate) images: Arc<dyn RootfsSource>,
    pub(crate) registry: Registry,
    /// What the writable layers and logs hold.
    pub(crate) disk: DiskCache,
    pub(crate) oom: OomWatcher,
    /// Cancelled when the runtime is dropped: ends the tasks that follow shims.
    pub(crate) stopped: CancellationToken,
    pub(crate) host: Host,
    pub(crate) app_armor: AppArmor,
    /// None where it is not enabled.
    pub(crate) selinux: Option<Selinux>,
    pub(crate) users: UserSupport,
    pub(super) controllers: BTreeMap<String, Arc<dyn SandboxController>>,
    pub(super) doorbell: broadcast::Sender<PodUid>,
}

/// What was found out about the machine when the runtime was opened.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) hostname: String,
    pub(crate) capabilities: u64,
    pub(crate) extra_masked_paths: Vec<String>,
}

impl Core {
    /// A sandbox as list and status give it. One whose network namespace somebody has unpinned is not ready: its containers
    /// may still use it, and nobody else can get there any more.
    pub(crate) fn view(&self, sandbox: &Sandbox) -> PodSandbox {
        let mut view = sandbox.view();
        if view.state == SandboxState::Ready {
            let netns = sandbox.with_record(|record| record.netns.clone());
            if netns.is_some_and(|netns| !self.network.is_pinned(&netns)) {
                view.state = SandboxState::NotReady;
            }
        }
        view
    }

    pub(crate) fn controller(&self, handler: &str) -> Result<Arc<dyn SandboxController>> {
        self.controllers
            .get(handler)
            .cloned()
            .ok_or_else(|| Error::UnknownHandler {
                handler: handler.to_owned(),
                known: self.handlers(),
            })
    }

    pub(super) fn handlers(&self) -> Vec<String> {
        self.controllers.keys().cloned().collect()
    }

    pub(crate) fn ring(&self, pod: &PodUid) {
        // Nobody may be listening.
        let _ = self.doorbell.send(pod.clone());
    }

    /// A SELinux level that no other sandbox has; none without SELinux.
    pub(crate) fn new_level(&self, id: &SandboxId) -> Option<String> {
        self.selinux.as_ref()?;
        let sandboxes = self.registry.sandboxes();
        let taken = |level: &str| {
            let has = |record: &mut SandboxRecord| record.selinux_level.as_deref() == Some(level);
            sandboxes.iter().any(|sandbox| sandbox.with_record(has))
        };
        Some(selinux::new_level(id.as_str(), taken))
    }

    /// Host name inside the pod: its own, or the node's for pods in the node's network.
    pub(crate) fn hostname<'a>(&'a self, config: &'a PodSandboxConfig) -> &'a str {
        match config.network {
            NamespaceMode::Node => &self.host.hostname,
            _ => &config.hostname,
        }
    }

    /// Where a sandbox's holder is to be born; see [`Cgroups::cradle`].
    pub(crate) async fn sandbox_cgroups(
        &self,
        record: &SandboxRecord,
    ) -> std::result::Result<Vec<PathBuf>, cgroup::CgroupError> {
        let pod = &record.config.cgroup_parent;
        self.cgroups.cradle(pod, &holder_cgroup(record)).await
    }

    /// Moves the holder to its cgroup when it was not born there, aside: the move waits for the kernel or for systemd,
    /// and nothing waits for the move.
    pub(crate) fn adopt_pause(&self, record: &SandboxRecord, pid: i32) {
        if pid <= 0 {
            return;
        }
        let (cgroups, path) = (self.cgroups.clone(), holder_cgroup(record));
        let pod = record.config.cgroup_parent.clone();
        tokio::spawn(async move {
            if let Err(error) = cgroups.adopt(pod, &path, pid).await {
                tracing::debug!(
                    pid,
                    error = chain(&error),
                    "pause stays outside of the pod's cgroup"
                );
            }
        });
    }

    pub(crate) async fn remove_sandbox_cgroup(
        &self,
        record: &SandboxRecord,
    ) -> std::result::Result<(), cgroup::CgroupError> {
        self.cgroups.remove_cradle(&holder_cgroup(record)).await
    }
}

fn holder_cgroup(record: &SandboxRecord) -> String {
    child_cgroup(&record.config.cgroup_parent, record.id.as_str())
}

/// The cgroup of a sandbox's holder or a container in its pod's.
pub(crate) fn child_cgroup(parent: &str, id: &str) -> String {
    if parent.is_empty() {
        id.to_owned()
    } else {
        format!("{parent}/{id}")
    }
}
