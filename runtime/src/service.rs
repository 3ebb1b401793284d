//! The runtime: [`RuntimeService`] over images, network, shims and cgroups.
//!
//! [`Runtime`] checks and dispatches; what a call does is in [`crate::sandbox`] and [`crate::container`],
//! one verb a file. Every call that changes something runs in a task of its own: a caller that goes away
//! half-way leaves a finished thing, not a torn one. Truth is in three places: what was asked for in the
//! records, what runs in the shims, what ended in the exit records; memory only mirrors them.

mod core;
mod open;
pub(crate) mod record;
mod registry;
mod users;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::api::{
    CgroupStats, Connection, Container, ContainerConfig, ContainerId, Error, ExecRequest,
    ExecSession, OomEvent, PodSandbox, PodSandboxConfig, PodUid, PodView, Resources, Result,
    RuntimeService, SandboxId, SandboxStats, StatsDetail,
};
use crate::cgroup::{Cgroups, DriverKind, Warmth};
use crate::container;
use crate::container::rootfs::RootfsSource;
use crate::lsm::app_armor::AppArmor;
use crate::lsm::selinux::Selinux;
use crate::oom::OomWatcher;
use crate::sandbox::network::PodNetwork;
use crate::sandbox::pause::PauseController;
use crate::sandbox::{SandboxController, run, teardown};
use crate::seccomp::Filters;
use crate::stats;
use crate::stats::disk::DiskCache;

pub(crate) use self::core::{Core, Host, Layout, child_cgroup};
use registry::Registry;
use users::UserSupport;

/// Rings that a slow listener may lag behind before it is told that it missed some.
const DOORBELL_BACKLOG: usize = 1024;

/// Where things are and what the runtime is made of.
#[derive(Debug, Clone)]
pub struct RuntimeConfig {
    /// Records, sockets: dies with the boot. `/run/hanok`.
    pub run_dir: PathBuf,
    /// Durable state: volumes of images. `/var/lib/hanok`.
    pub root: PathBuf,
    /// The shim program.
    pub shim: PathBuf,
    /// The pause program.
    pub pause: PathBuf,
    /// Who makes our cgroups.
    pub cgroup_driver: DriverKind,
    /// Root of our cgroups, see [`Cgroups::open`].
    pub cgroup_root: String,
    /// Directory of Localhost seccomp profiles.
    pub seccomp_root: PathBuf,
    /// Handlers beside "" and "runc", each with the controller of its sandboxes.
    pub handlers: BTreeMap<String, Arc<dyn SandboxController>>,
}

/// The runtime of this node.
#[derive(Debug)]
pub struct Runtime {
    core: Arc<Core>,
}

impl Runtime {
    /// Opens the runtime: adopts what runs, undoes what was left half-made, takes back what has no record.
    pub async fn open(
        config: RuntimeConfig,
        images: Arc<dyn RootfsSource>,
        network: Arc<dyn PodNetwork>,
    ) -> Result<Self> {
        let internal = |what: &str, error: &(dyn std::error::Error + 'static)| {
            Error::Internal(format!("{what}: {}", chain(error)))
        };
        let cgroups = Cgroups::open(config.cgroup_driver, &config.cgroup_root, &config.shim)
            .await
            .map_err(|error| internal("cannot use cgroups", &error))?;
        let layout = Layout {
            run_dir: config.run_dir,
            root: config.root,
        };
        for dir in [layout.sandboxes(), layout.all_volumes()] {
            record::create_private_dir(&dir)
                .map_err(|error| internal(&format!("cannot create {}", dir.display()), &error))?;
        }
        let host = open::host().map_err(|error| internal("cannot read /proc", &error))?;
        let users = UserSupport::new(config.shim.clone(), layout.root.clone());
        let pause: Arc<dyn SandboxController> =
            Arc::new(PauseController::new(config.shim, config.pause));
        let mut controllers = config.handlers;
        for handler in ["", "runc"] {
            controllers.insert(handler.to_owned(), pause.clone());
        }
        let core = Arc::new(Core {
            layout,
            warmth: Arc::new(Warmth::new(&cgroups)),
            cgroups: Arc::new(cgroups),
            filters: Filters::new(config.seccomp_root),
            network,
            images,
            registry: Registry::default(),
            disk: DiskCache::default(),
            oom: OomWatcher::default(),
            stopped: CancellationToken::new(),
            host,
            app_armor: AppArmor::look(),
            selinux: Selinux::look(),
            users,
            controllers,
            doorbell: broadcast::channel(DOORBELL_BACKLOG).0,
        });
        open::compile_default_filter(&core);
        open::load_default_profile(&core);
        let runtime = Runtime { core };
        open::adopt(&runtime.core)
            .await
            .map_err(|error| internal("cannot take over what runs", &error))?;
        Ok(runtime)
    }

    /// Runs work to its end, also when the caller goes away.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let span = tracing::Span::current();
        let task = tokio::spawn(tracing::Instrument::instrument(work, span));
        task.await
            .unwrap_or_else(|error| Err(Error::Internal(format!("runtime task: {error}"))))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // What runs goes on; the next runtime adopts it.
        self.core.stopped.cancel();
    }
}

#[async_trait]
impl RuntimeService for Runtime {
    async fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Result<PodSandbox> {
        self.run_pod_sandbox_until(config, CancellationToken::new())
            .await
    }

    async fn run_pod_sandbox_until(
        &self,
        config: PodSandboxConfig,
        given_up: CancellationToken,
    ) -> Result<PodSandbox> {
        let core = self.core.clone();
        self.detached(async move { run::run(&core, config, &given_up).await })
            .await
    }

    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (core, id) = (self.core.clone(), id.clone());
        self.detached(async move { teardown::stop(&core, &id).await })
            .await
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        let (core, id) = (self.core.clone(), id.clone());
        self.detached(async move { teardown::remove(&core, &id).await })
            .await
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>> {
        Ok(newest_first(
            self.core
                .registry
                .sandboxes()
                .iter()
                .map(|sandbox| self.core.view(sandbox)),
        ))
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
    ) -> Result<ContainerId> {
        let (core, sandbox) = (self.core.clone(), sandbox.clone());
        self.detached(async move { container::create::create(&core, &sandbox, config).await })
            .await
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let (core, id) = (self.core.clone(), id.clone());
        self.detached(async move { container::start::start(&core, &id).await })
            .await
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let (core, id) = (self.core.clone(), id.clone());
        self.detached(async move { container::stop::stop(&core, &id, grace).await })
            .await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let (core, id) = (self.core.clone(), id.clone());
        self.detached(async move { container::remove::remove(&core, &id).await })
            .await
    }

    async fn list_containers(&self) -> Result<Vec<Container>> {
        Ok(newest_first(
            self.core
                .registry
                .containers()
                .iter()
                .map(|container| container.view()),
        ))
    }

    async fn pod_view(&self, pod: &PodUid) -> Result<PodView> {
        let (sandboxes, containers) = self.core.registry.pod(pod);
        let seen = sandboxes.iter().map(|sandbox| self.core.view(sandbox));
        Ok(PodView {
            sandboxes: newest_first(seen),
            containers: newest_first(containers.iter().map(|container| container.view())),
        })
    }

    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecSession> {
        container::exec::exec(&self.core, id, request).await
    }

    async fn attach(&self, id: &ContainerId, stdin: bool) -> Result<ExecSession> {
        container::exec::attach(&self.core, id, stdin).await
    }

    async fn connect(&self, id: &SandboxId, port: u16) -> Result<Box<dyn Connection>> {
        crate::sandbox::connect::connect(&self.core, id, port).await
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &Resources,
    ) -> Result<()> {
        let (core, id, change) = (self.core.clone(), id.clone(), resources.clone());
        self.detached(async move { container::update::update(&core, &id, change).await })
            .await
    }

    async fn update_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        if self.core.cgroups.exists(path) {
            let change =
                container::update::change_cgroup(&self.core, path.to_owned(), resources.clone());
            change.await?.keep();
            return Ok(());
        }
        let updated = self.core.cgroups.update(path, resources).await;
        // A pod's cgroup is made a moment before the pod. Not earlier: the grace period holds the lock that
        // making a directory needs.
        self.core.warmth.want();
        updated.map_err(|error| Error::Internal(format!("cannot update cgroup: {}", chain(&error))))
    }

    async fn remove_cgroup(&self, path: &str) -> Result<()> {
        let removed = self.core.cgroups.remove(path).await;
        removed.map_err(|error| Error::Internal(format!("cannot remove cgroup: {}", chain(&error))))
    }

    async fn stats(&self, pod: Option<&PodUid>, detail: StatsDetail) -> Result<Vec<SandboxStats>> {
        stats::list(&self.core, pod, detail).await
    }

    async fn cgroup_stats(&self, path: &str) -> Result<CgroupStats> {
        stats::cgroup(&self.core, path.to_owned()).await
    }

    fn oom_events(&self) -> broadcast::Receiver<OomEvent> {
        self.core.oom.subscribe()
    }

    fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.core.doorbell.subscribe()
    }

    fn handlers(&self) -> Vec<String> {
        self.core.handlers()
    }

    async fn user_namespaces(&self) -> std::result::Result<(), String> {
        self.core.users.look().await
    }

    async fn network_ready(&self) -> std::result::Result<(), String> {
        self.core
            .network
            .ready()
            .await
            .map_err(|error| chain(&error))
    }
}

/// Things that were made at some time.
trait Made {
    fn created_at(&self) -> std::time::SystemTime;
}

impl Made for PodSandbox {
    fn created_at(&self) -> std::time::SystemTime {
        self.created_at
    }
}

impl Made for Container {
    fn created_at(&self) -> std::time::SystemTime {
        self.created_at
    }
}

fn newest_first<T: Made>(found: impl Iterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = found.collect();
    list.sort_by_key(|one| std::cmp::Reverse(one.created_at()));
    list
}

/// An error with its causes, outermost first.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // A string takes everything.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Whether a name is one of our ids: 64 hexadecimal digits.
pub(crate) fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name of a directory entry, as text.
pub(crate) fn file_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(|name| name.to_str())
}
