//! A node of the imagination: runtime, images, volumes, objects and sinks in memory, with one log of calls.

mod runtime;
mod sinks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::BoxFuture;
use hanok_runtime::api::{
    Container, ContainerId, ContainerState, PodSandbox, PodUid, SandboxState,
};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tempfile::TempDir;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::admit::NodeView;
use super::settings::{Admission, ClassIsHandler, Clock, Deps, Settings};
use super::{Pods, sample};
use crate::sinks::PodUpdate;
use crate::timeline::Timeline;
pub(crate) use sinks::image;

/// What a pull does.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Pull {
    /// It succeeds at once.
    #[default]
    Works,
    /// It ends with [`State::pull_ends`], if at all.
    Hangs,
    /// It succeeds at once, and unpacking never ends.
    UnpackHangs,
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
    /// Ends the next pull that hangs; it succeeds.
    pub(crate) pull_ends: Option<oneshot::Receiver<()>>,
    /// Why nobody can look for an image.
    pub(crate) broken_store: Option<String>,
    /// Containers that end by themselves: after how long, with what code.
    pub(crate) runs: BTreeMap<String, (Duration, i32)>,
    /// Containers that end with 0 at TERM.
    pub(crate) polite: BTreeSet<String>,
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
    /// No look at all pods comes to an end.
    pub(crate) hanging_lists: bool,
    /// So many stops that fail.
    pub(crate) failing_stops: u32,
    /// Why no pod can have a network.
    pub(crate) no_network: Option<String>,
    /// Why sandboxes cannot be made.
    pub(crate) broken_network: Option<String>,
    /// A network that does not come to an end with anything, and is given up when nobody waits for it.
    pub(crate) slow_network: bool,
    next: u32,
}

/// The node's other end.
#[derive(Debug)]
pub(crate) struct Fake {
    me: Weak<Fake>,
    state: Mutex<State>,
    bell: broadcast::Sender<PodUid>,
    clock: Clock,
    clock_set: &'static AtomicI64,
    dir: TempDir,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        let (clock, clock_set) = Clock::from_now(sample::now()).settable();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            state: Mutex::default(),
            bell: broadcast::channel(64).0,
            clock,
            clock_set,
            dir: tempfile::tempdir().expect("a directory"),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    /// Somebody sets the machine's clock by so many seconds.
    pub(crate) fn set_clock(&self, seconds: i64) {
        self.clock_set.fetch_add(seconds, Ordering::Relaxed);
    }

    pub(crate) fn call(&self, call: String) {
        self.state().calls.push(call);
    }

    /// Where `pods`, `logs` and `log-links` are.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
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
