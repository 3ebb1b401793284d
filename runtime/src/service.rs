//! The runtime: [`RuntimeService`] over images, network, shims and cgroups.
//!
//! [`Runtime`] checks and dispatches; what a call does is in [`crate::sandbox`] and [`crate::container`],
//! one verb a file. Every call that changes something runs in a task of its own: a caller that goes away
//! half-way leaves a finished thing, not a torn one. Truth is in three places: what was asked for in the
//! records, what runs in the shims, what ended in the exit records; memory only mirrors them.

mod open;
pub(crate) mod record;
mod registry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::api::{
    Connection, Container, ContainerConfig, ContainerId, Error, ExecRequest, ExecSession,
    NamespaceMode, PodSandbox, PodSandboxConfig, PodUid, PodView, Resources, Result,
    RuntimeService, SandboxId,
};
use crate::cgroup::{self, Cgroups};
use crate::container;
use crate::container::rootfs::RootfsSource;
use crate::sandbox::network::PodNetwork;
use crate::sandbox::pause::PauseController;
use crate::sandbox::{SandboxController, SandboxRecord, run, teardown};
use crate::seccomp::Filters;

use registry::Registry;

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
    /// Root of our cgroups, see [`Cgroups::detect`].
    pub cgroup_root: String,
    /// Directory of Localhost seccomp profiles.
    pub seccomp_root: PathBuf,
    /// Handlers beside "" and "runc", each with the controller of its sandboxes.
    pub handlers: BTreeMap<String, Arc<dyn SandboxController>>,
}

/// The files of the runtime; the drawing is in the crate's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    run_dir: PathBuf,
    root: PathBuf,
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
    pub(crate) cgroups: Cgroups,
    pub(crate) filters: Filters,
    pub(crate) network: Arc<dyn PodNetwork>,
    pub(crate) images: Arc<dyn RootfsSource>,
    pub(crate) registry: Registry,
    /// Cancelled when the runtime is dropped: ends the tasks that follow shims.
    pub(crate) stopped: CancellationToken,
    pub(crate) host: Host,
    controllers: BTreeMap<String, Arc<dyn SandboxController>>,
    doorbell: broadcast::Sender<PodUid>,
}

/// What was found out about the machine when the runtime was opened.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    pub(crate) hostname: String,
    pub(crate) capabilities: u64,
    pub(crate) extra_masked_paths: Vec<String>,
}

impl Core {
    pub(crate) fn controller(&self, handler: &str) -> Result<Arc<dyn SandboxController>> {
        self.controllers
            .get(handler)
            .cloned()
            .ok_or_else(|| Error::UnknownHandler {
                handler: handler.to_owned(),
                known: self.handlers(),
            })
    }

    fn handlers(&self) -> Vec<String> {
        self.controllers.keys().cloned().collect()
    }

    pub(crate) fn ring(&self, pod: &PodUid) {
        // Nobody may be listening.
        let _ = self.doorbell.send(pod.clone());
    }

    /// Host name inside the pod: its own, or the node's for pods in the node's network.
    pub(crate) fn hostname<'a>(&'a self, config: &'a PodSandboxConfig) -> &'a str {
        match config.network {
            NamespaceMode::Node => &self.host.hostname,
            _ => &config.hostname,
        }
    }

    /// Starts the v1 grace period early, beside the network: see [`Cgroups::warm_up`].
    pub(crate) fn warm_up(self: &Arc<Self>) {
        if !self.cgroups.is_v2() {
            let core = self.clone();
            tokio::task::spawn_blocking(move || core.cgroups.warm_up());
        }
    }

    /// Makes the cgroup of a sandbox's holder and returns what it joins at birth. On v2 that is a leaf, as
    /// the pod's cgroup cannot hold processes beside children. On v1 it is the pod's cgroup, and
    /// [`Core::adopt_pause`] puts it there.
    pub(crate) fn sandbox_cgroups(
        &self,
        record: &SandboxRecord,
    ) -> std::result::Result<Vec<PathBuf>, cgroup::CgroupError> {
        let path = holder_cgroup(record);
        if self.cgroups.is_v2() {
            self.cgroups.update(&path, &Resources::default())?;
            return self.cgroups.directories(&path);
        }
        if !record.config.cgroup_parent.is_empty() {
            self.cgroups
                .update(&record.config.cgroup_parent, &Resources::default())?;
        }
        Ok(Vec::new())
    }

    /// Moves the holder into the pod's cgroup on v1, aside: the move waits for the kernel, and nothing waits
    /// for the move.
    pub(crate) fn adopt_pause(self: &Arc<Self>, record: &SandboxRecord, pid: i32) {
        if self.cgroups.is_v2() || pid <= 0 || record.config.cgroup_parent.is_empty() {
            return;
        }
        let (core, parent) = (self.clone(), record.config.cgroup_parent.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = core.cgroups.join(&parent, pid) {
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
        if self.cgroups.is_v2() {
            self.cgroups.remove(&holder_cgroup(record)).await?;
        }
        Ok(())
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
        let cgroups = Cgroups::detect(&config.cgroup_root)
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
        let pause: Arc<dyn SandboxController> =
            Arc::new(PauseController::new(config.shim, config.pause));
        let mut controllers = config.handlers;
        for handler in ["", "runc"] {
            controllers.insert(handler.to_owned(), pause.clone());
        }
        let core = Arc::new(Core {
            layout,
            cgroups,
            filters: Filters::new(config.seccomp_root),
            network,
            images,
            registry: Registry::default(),
            stopped: CancellationToken::new(),
            host,
            controllers,
            doorbell: broadcast::channel(DOORBELL_BACKLOG).0,
        });
        open::compile_default_filter(&core);
        open::adopt(&core).await;
        Ok(Runtime { core })
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
        let core = self.core.clone();
        self.detached(async move { run::run(&core, config).await })
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
                .map(|sandbox| sandbox.view()),
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
        Ok(PodView {
            sandboxes: newest_first(sandboxes.iter().map(|sandbox| sandbox.view())),
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

    async fn update_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        let updated = self.core.cgroups.update(path, resources);
        // A pod's cgroup is made a moment before the pod. Not earlier: the grace period holds the lock that
        // making a directory needs.
        self.core.warm_up();
        updated.map_err(|error| Error::Internal(format!("cannot update cgroup: {}", chain(&error))))
    }

    async fn remove_cgroup(&self, path: &str) -> Result<()> {
        let removed = self.core.cgroups.remove(path).await;
        removed.map_err(|error| Error::Internal(format!("cannot remove cgroup: {}", chain(&error))))
    }

    fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.core.doorbell.subscribe()
    }

    fn handlers(&self) -> Vec<String> {
        self.core.handlers()
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
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
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
