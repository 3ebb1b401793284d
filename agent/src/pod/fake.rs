//! A node of the imagination: runtime, images, volumes, objects and sinks in memory, with one log of calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use hanok_runtime::api::{
    CgroupStats, Container, ContainerConfig, ContainerId, ContainerState, ContainerStats,
    Credentials, DiskUsage, Error, ExecProcess, ExecRequest, ExecSession, Image, ImageService,
    PodSandbox, PodSandboxConfig, PodUid, Resources, Result, RuntimeService, SandboxId,
    SandboxState, SandboxStats, StatsDetail,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodStatus, Secret, Service};
use tempfile::TempDir;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::admit::NodeView;
use super::settings::{Admission, ClassIsHandler, Clock, Deps, Settings};
use super::{Pods, sample};
use crate::sinks::{
    EventKind, EventSink, MountedVolumes, ObjectError, Objects, PodUpdate, StatusSink, Token,
    TokenRequest, VolumeError, Volumes,
};
use crate::timeline::Timeline;

/// What a pull does.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Pull {
    /// It succeeds at once.
    #[default]
    Works,
    /// It never ends.
    Hangs,
    /// It fails.
    Fails,
}

/// Everything there is, and everything that was asked for.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Calls that change something, in order.
    pub(crate) calls: Vec<String>,
    /// `REASON message`, in order.
    pub(crate) events: Vec<String>,
    pub(crate) statuses: Vec<PodStatus>,
    pub(crate) sandboxes: Vec<PodSandbox>,
    pub(crate) containers: Vec<Container>,
    pub(crate) volumes: BTreeSet<PodUid>,
    pub(crate) cgroups: BTreeSet<String>,
    pub(crate) terminated: usize,
    /// What the pull of any image does.
    pub(crate) pull: Pull,
    /// Containers that end by themselves: after how long, with what code.
    pub(crate) runs: BTreeMap<String, (Duration, i32)>,
    /// Containers that do not listen to TERM.
    pub(crate) deaf: BTreeSet<String>,
    /// Volumes that cannot be mounted.
    pub(crate) broken_volume: Option<String>,
    /// Exit code of every exec; none for one that hangs.
    pub(crate) answer: Option<i32>,
    /// What pods are judged by.
    pub(crate) node: NodeView,
    /// What the node turns out to be when somebody looks.
    pub(crate) node_then: Option<NodeView>,
    /// Ends the next look, which fails when the other end is dropped.
    pub(crate) look_ends: Option<oneshot::Receiver<()>>,
    /// Memory that no container can do without.
    pub(crate) memory_in_use: Option<u64>,
    /// The output of commands stays open after their end.
    pub(crate) open_output: bool,
    /// Containers whose program is not there.
    pub(crate) missing: BTreeSet<String>,
    /// Containers that cannot be made.
    pub(crate) refused: BTreeSet<String>,
    /// Bytes that each running container has in its layer.
    pub(crate) written: u64,
    /// So many looks, at one pod or all, that fail.
    pub(crate) failing_lists: u32,
    /// So many stops that fail.
    pub(crate) failing_stops: u32,
    /// Why no pod can have a network.
    pub(crate) no_network: Option<String>,
    /// Why sandboxes cannot be made.
    pub(crate) broken_network: Option<String>,
    next: u32,
}

/// The node's other end.
#[derive(Debug)]
pub(crate) struct Fake {
    me: Weak<Fake>,
    state: Mutex<State>,
    bell: broadcast::Sender<PodUid>,
    clock: Clock,
    dir: TempDir,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            state: Mutex::default(),
            bell: broadcast::channel(64).0,
            clock: Clock::from_now(sample::now()),
            dir: tempfile::tempdir().expect("a directory"),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    pub(crate) fn call(&self, call: String) {
        self.state().calls.push(call);
    }

    fn now(&self) -> SystemTime {
        self.clock.now().into()
    }

    fn ring(&self, uid: &PodUid) {
        // Nobody may be listening.
        let _ = self.bell.send(uid.clone());
    }

    /// Ends a running container.
    pub(crate) fn exit(&self, id: &ContainerId, code: i32) {
        let now = self.now();
        let mut state = self.state();
        let running =
            |record: &&mut Container| record.id == *id && record.state == ContainerState::Running;
        let Some(record) = state.containers.iter_mut().find(running) else {
            return;
        };
        record.state = ContainerState::Exited;
        record.exit_code = code;
        record.finished_at = Some(now);
        record.reason = if code == 0 { "Completed" } else { "Error" }.into();
        let uid = record.pod.clone();
        drop(state);
        self.ring(&uid);
    }

    /// The shim of a running container dies, and the container with it: nobody knows how it ended.
    pub(crate) fn lose_sight_of(&self, name: &str) {
        let mut state = self.state();
        let running = |record: &&mut Container| {
            record.config.name == name && record.state == ContainerState::Running
        };
        let record = state.containers.iter_mut().find(running);
        let record = record.expect("a running container");
        record.state = ContainerState::Unknown;
        let uid = record.pod.clone();
        drop(state);
        self.ring(&uid);
    }

    /// Breaks the newest sandbox, as a killed pause does.
    pub(crate) fn break_sandbox(&self) {
        let mut state = self.state();
        let sandbox = state.sandboxes.last_mut().expect("a sandbox");
        sandbox.state = SandboxState::NotReady;
        let uid = sandbox.config.uid.clone();
        drop(state);
        self.ring(&uid);
    }

    fn deps(self: &Arc<Self>) -> Deps {
        let dir = self.dir.path();
        let mut settings = Settings::new(dir.join("pods"), dir.join("logs"), dir.join("log-links"));
        settings.host_ips = vec!["192.0.2.1".into()];
        settings.dns.cluster_dns = vec!["10.96.0.10".into()];
        Deps {
            runtime: self.clone(),
            images: self.clone(),
            status: self.clone(),
            events: self.clone(),
            objects: self.clone(),
            volumes: self.clone(),
            classes: Arc::new(ClassIsHandler),
            admission: self.clone(),
            timeline: Timeline::default(),
            settings: Arc::new(settings),
            clock: self.clock,
        }
    }
}

impl Admission for Fake {
    fn node(&self) -> NodeView {
        self.state().node.clone()
    }

    fn look(&self) -> Option<BoxFuture<'static, ()>> {
        let mut state = self.state();
        state.node = state.node_then.take()?;
        state.calls.push("look at the node".into());
        let ends = state.look_ends.take();
        let look = async {
            if let Some(ends) = ends {
                ends.await.expect("somebody ends the look");
            }
        };
        Some(look.boxed())
    }
}

/// A pod core that works on a fake.
pub(crate) struct Node {
    pub(crate) fake: Arc<Fake>,
    pub(crate) pods: Pods,
    updates: mpsc::Sender<PodUpdate>,
    task: JoinHandle<()>,
}

impl Node {
    /// An agent that has just started.
    pub(crate) fn start(fake: &Arc<Fake>) -> Self {
        let (updates, receiver) = mpsc::channel(64);
        let (pods, task) = super::start(fake.deps(), receiver);
        Self {
            fake: fake.clone(),
            pods,
            updates,
            task,
        }
    }

    pub(crate) async fn send(&self, update: PodUpdate) {
        self.updates.send(update).await.expect("the pod core runs");
    }

    pub(crate) async fn apply(&self, pod: &Pod) {
        self.send(PodUpdate::Apply(Arc::new(pod.clone()))).await;
    }

    /// The agent dies; the fake lives.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Waits, within ten minutes of paused time, until the condition holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        for _ in 0..6000 {
            if condition(&self.fake.state()) {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("never {what}: {:#?}", self.fake.state());
    }
}

#[async_trait]
impl RuntimeService for Fake {
    async fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Result<PodSandbox> {
        self.call(format!("run sandbox {}", config.attempt));
        let now = self.now();
        let mut state = self.state();
        // Of the sample pod, the attempt is enough of a name.
        let id = match config.uid.as_str() {
            sample::UID => format!("s{}", config.attempt),
            other => format!("s{}-{other}", config.attempt),
        };
        let id = SandboxId(id);
        if let Some(message) = state.broken_network.clone() {
            return Err(Error::Network { id, message });
        }
        let sandbox = PodSandbox {
            id,
            state: SandboxState::Ready,
            created_at: now,
            ips: vec!["10.1.0.5".into()],
            pid: 1,
            config,
        };
        state.sandboxes.push(sandbox.clone());
        Ok(sandbox)
    }

    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(format!("stop sandbox {id}"));
        let ids: Vec<_> = {
            let mut state = self.state();
            for sandbox in state
                .sandboxes
                .iter_mut()
                .filter(|sandbox| sandbox.id == *id)
            {
                sandbox.state = SandboxState::NotReady;
            }
            let inside = state
                .containers
                .iter()
                .filter(|record| record.sandbox == *id);
            inside.map(|record| record.id.clone()).collect()
        };
        for id in ids {
            self.exit(&id, 137);
        }
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(format!("remove sandbox {id}"));
        let mut state = self.state();
        state.sandboxes.retain(|sandbox| sandbox.id != *id);
        state.containers.retain(|record| record.sandbox != *id);
        Ok(())
    }

    async fn stats(&self, pod: Option<&PodUid>, _: StatsDetail) -> Result<Vec<SandboxStats>> {
        let state = self.state();
        let bytes = state.written;
        let running = state.containers.iter().filter(|record| {
            record.state == ContainerState::Running && pod.is_none_or(|pod| record.pod == *pod)
        });
        let containers = running.map(|record| ContainerStats {
            id: record.id.clone(),
            name: record.config.name.clone(),
            started_at: record.started_at,
            at: record.created_at,
            cgroup: CgroupStats::default(),
            rootfs: Some(DiskUsage { bytes, inodes: 1 }),
            logs: None,
        });
        let containers: Vec<_> = containers.collect();
        let sandboxes = state.sandboxes.last().into_iter();
        let of = |sandbox: &PodSandbox| SandboxStats {
            id: sandbox.id.clone(),
            pod: sandbox.config.uid.clone(),
            name: sandbox.config.name.clone(),
            namespace: sandbox.config.namespace.clone(),
            created_at: sandbox.created_at,
            at: sandbox.created_at,
            cgroup: CgroupStats::default(),
            interfaces: Vec::new(),
            containers: containers.clone(),
        };
        Ok(sandboxes.map(of).collect())
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>> {
        let mut state = self.state();
        if let Some(left) = state.failing_lists.checked_sub(1) {
            state.failing_lists = left;
            return Err(Error::Internal("nobody answers".to_owned()));
        }
        Ok(state.sandboxes.clone())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
    ) -> Result<ContainerId> {
        self.call(format!("create {}.{}", config.name, config.attempt));
        let now = self.now();
        let mut state = self.state();
        if state.refused.contains(&config.name) {
            return Err(Error::Create("no command specified".to_owned()));
        }
        state.next += 1;
        let id = ContainerId(format!("{}.{}#{}", config.name, config.attempt, state.next));
        let pod = state.sandboxes.iter().find(|known| known.id == *sandbox);
        let pod = pod
            .map(|sandbox| sandbox.config.uid.clone())
            .ok_or(Error::NotFound {
                kind: "sandbox",
                id: sandbox.0.clone(),
            })?;
        state.containers.push(Container {
            id: id.clone(),
            sandbox: sandbox.clone(),
            pod,
            config,
            state: ContainerState::Created,
            created_at: now,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image_ref: "docker.io/library/i@sha256:aa".into(),
            log_path: "/nowhere/0.log".into(),
            pid: 0,
            identity: None,
        });
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let now = self.now();
        let mut state = self.state();
        let missing = state.missing.clone();
        let Some(record) = state.containers.iter_mut().find(|record| record.id == *id) else {
            return Err(Error::NotFound {
                kind: "container",
                id: id.0.clone(),
            });
        };
        let name = record.config.name.clone();
        if missing.contains(&name) {
            record.state = ContainerState::Exited;
            record.exit_code = 128;
            record.reason = "StartError".to_owned();
            record.finished_at = Some(now);
            let (id, message) = (id.clone(), "no such file or directory".to_owned());
            let code = record.exit_code;
            return Err(Error::Start { id, code, message });
        }
        record.state = ContainerState::Running;
        record.started_at = Some(now);
        let call = format!("start {name}.{}", record.config.attempt);
        state.calls.push(call);
        if let Some((after, code)) = state.runs.get(&name).copied() {
            let (me, id) = (self.me.clone(), id.clone());
            tokio::spawn(async move {
                sleep(after).await;
                if let Some(me) = me.upgrade() {
                    me.exit(&id, code);
                }
            });
        }
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let deaf = {
            let mut state = self.state();
            let record = state.containers.iter().find(|record| record.id == *id);
            let name = record
                .map(|record| record.config.name.clone())
                .unwrap_or_default();
            state
                .calls
                .push(format!("stop {name} {}s", grace.as_secs()));
            if let Some(left) = state.failing_stops.checked_sub(1) {
                state.failing_stops = left;
                return Err(Error::Internal("the shim does not answer".to_owned()));
            }
            state.deaf.contains(&name)
        };
        if deaf {
            sleep(grace).await;
        }
        self.exit(id, if deaf { 137 } else { 143 });
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.state().containers.retain(|record| record.id != *id);
        Ok(())
    }

    async fn list_containers(&self) -> Result<Vec<Container>> {
        Ok(self.state().containers.clone())
    }

    async fn exec(&self, _id: &ContainerId, _request: ExecRequest) -> Result<ExecSession> {
        self.call("exec".to_owned());
        let answer = self.state().answer;
        let open = self.state().open_output;
        let (ours, theirs) = tokio::io::duplex(64);
        Ok(ExecSession {
            stdin: None,
            stdout: match open {
                true => Box::new(theirs),
                false => Box::new(&b"the answer"[..]),
            },
            stderr: None,
            process: Box::new(Process(answer, ours)),
        })
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &Resources,
    ) -> Result<()> {
        let mut state = self.state();
        if let Some(usage) = state.memory_in_use {
            let limit = u64::try_from(resources.memory_limit).unwrap_or(0);
            if limit != 0 && limit < usage {
                return Err(Error::MemoryInUse { usage, limit });
            }
        }
        let (quota, memory) = (resources.cpu_quota, resources.memory_limit);
        let record = state.containers.iter_mut().find(|record| record.id == *id);
        let record = record.ok_or(Error::NotFound {
            kind: "container",
            id: id.0.clone(),
        })?;
        let has = &mut record.config.resources;
        has.cpu_shares = resources.cpu_shares;
        has.cpu_quota = quota;
        has.memory_limit = memory;
        let name = record.config.name.clone();
        state.calls.push(format!("resize {name} {quota} {memory}"));
        drop(state);
        self.ring(&PodUid(sample::UID.to_owned()));
        Ok(())
    }

    async fn update_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        if path.contains("/pod") {
            let (quota, memory) = (resources.cpu_quota, resources.memory_limit);
            self.call(format!("cgroup {quota} {memory}"));
        }
        self.state().cgroups.insert(path.to_owned());
        Ok(())
    }

    async fn remove_cgroup(&self, path: &str) -> Result<()> {
        self.state().cgroups.remove(path);
        Ok(())
    }

    fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.bell.subscribe()
    }

    fn handlers(&self) -> Vec<String> {
        vec![String::new()]
    }

    async fn network_ready(&self) -> std::result::Result<(), String> {
        self.state().no_network.clone().map_or(Ok(()), Err)
    }
}

/// A command that has ended; or hangs, when it has no answer.
struct Process(
    Option<i32>,
    #[expect(dead_code, reason = "holds the output open")] tokio::io::DuplexStream,
);

#[async_trait]
impl ExecProcess for Process {
    async fn wait(&self) -> Result<i32> {
        match self.0 {
            Some(code) => Ok(code),
            None => std::future::pending().await,
        }
    }

    async fn resize(&self, _rows: u16, _cols: u16) -> Result<()> {
        Ok(())
    }

    async fn kill(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl ImageService for Fake {
    async fn pull_image(&self, reference: &str, _credentials: &[Credentials]) -> Result<Image> {
        self.call(format!("pull {reference}"));
        let pull = self.state().pull.clone();
        match pull {
            Pull::Works => Ok(image()),
            Pull::Hangs => std::future::pending().await,
            Pull::Fails => Err(Error::Pull {
                reference: reference.to_owned(),
                message: "no such host".to_owned(),
            }),
        }
    }

    async fn image_status(&self, _reference: &str) -> Result<Option<Image>> {
        Ok(None)
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn remove_image(&self, _reference: &str) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn image() -> Image {
    Image {
        id: "sha256:aa".into(),
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        size: 42,
        user: String::new(),
        stop_signal: String::new(),
        pinned: false,
    }
}

impl StatusSink for Fake {
    fn publish(&self, _pod: &Arc<Pod>, status: PodStatus) {
        self.state().statuses.push(status);
    }

    fn terminated(&self, _pod: &Arc<Pod>) {
        self.call("terminated".to_owned());
        self.state().terminated += 1;
    }
}

impl EventSink for Fake {
    fn pod_event(
        &self,
        _pod: &Pod,
        _container: Option<&str>,
        _kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        self.state().events.push(format!("{reason} {message}"));
    }
}

#[async_trait]
impl Objects for Fake {
    async fn config_map(
        &self,
        _namespace: &str,
        name: &str,
    ) -> std::result::Result<Arc<ConfigMap>, ObjectError> {
        Err(ObjectError::NotFound {
            kind: "configmap",
            name: name.to_owned(),
        })
    }

    async fn secret(
        &self,
        _namespace: &str,
        name: &str,
    ) -> std::result::Result<Arc<Secret>, ObjectError> {
        Err(ObjectError::NotFound {
            kind: "secret",
            name: name.to_owned(),
        })
    }

    async fn token(&self, _request: &TokenRequest) -> std::result::Result<Token, ObjectError> {
        Err(ObjectError::Other("no tokens here".to_owned()))
    }

    async fn services(
        &self,
        _namespace: &str,
    ) -> std::result::Result<Vec<Arc<Service>>, ObjectError> {
        Ok(Vec::new())
    }

    fn register(&self, _pod: &Arc<Pod>) {}

    fn unregister(&self, _uid: &PodUid) {}
}

#[async_trait]
impl Volumes for Fake {
    async fn mount(&self, pod: &Arc<Pod>) -> std::result::Result<MountedVolumes, Vec<VolumeError>> {
        let mut state = self.state();
        state.volumes.insert(super::spec::uid(pod));
        match state.broken_volume.clone() {
            None => Ok(MountedVolumes::new()),
            Some(message) => Err(vec![VolumeError {
                volume: "v".to_owned(),
                message,
            }]),
        }
    }

    async fn unmount(&self, uid: &PodUid) -> std::result::Result<(), Vec<VolumeError>> {
        self.call("unmount".to_owned());
        self.state().volumes.remove(uid);
        Ok(())
    }

    async fn on_disk(&self) -> Vec<PodUid> {
        self.state().volumes.iter().cloned().collect()
    }
}
