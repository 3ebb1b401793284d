//! One pod's worker: the only one who acts on the pod and speaks for it.
//!
//! ```text
//! Running ──deleted, gone, finished or failed──► Stopping ──all ended──► Cleaning ──► Finished
//!                                                                           │            │ deleted
//!                                                                           └─► Gone ◄───┘
//! ```
//! A turn of the loop looks at the runtime, plans, starts operations, and publishes the status if it has
//! changed. Operations run beside the loop; each wakes it when it ends. Nothing here polls: between turns the
//! worker waits for a ring, an operation, a timer or a new form of the pod.

mod desired;
mod jitter;
mod operations;
mod outcome;
mod publish;
mod resize;
mod restart;
mod running;
mod stopping;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use hanok_runtime::api::{ContainerId, ContainerState, PodUid, PodView};
use hanok_runtime::stats::disk::DiskCache;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::back_off::PullBackOff;
use super::directory::Slot;
use super::files::{self, termination};
use super::observation::{Observation, UNKNOWN_EXIT_CODE};
use super::probe::ProbeResults;
use super::prober::Prober;
use super::settings::Deps;
use super::status::{self, Ending, Facts};
use super::sync::clean::Extent;
use super::{labels, spec};
use crate::sinks::MountedVolumes;
pub(super) use desired::{Desired, Existence, NodeDecision};
use hanok_runtime::service::chain;
pub(super) use jitter::jittered;
#[cfg(test)]
pub(super) use jitter::seed_jitter;
use operations::{Key, Operations};
use publish::is_ready;
use stopping::Stopping;

/// Time to the next try after an error, as the kubelet has it; half as much again at random.
const RETRY: Duration = Duration::from_secs(10);
/// Time between looks that nothing asked for: a lost ring costs this much at most, half as much again at random.
const RESYNC: Duration = Duration::from_secs(60);

/// How far the pod is.
#[derive(Debug)]
enum Stage {
    /// It is to run.
    Running,
    /// Its containers are being stopped.
    Stopping(Stopping),
    /// They have ended; what they used is being removed.
    Cleaning(Stopping),
    /// It has finished and is cleaned, and waits for its deletion.
    Finished,
    /// Nothing of it is left.
    Gone,
}

/// How long somebody else's words may stand in the place of the node's own: the object may only be behind.
const RECONCILE: Duration = Duration::from_secs(10);

/// A pod's volumes.
#[derive(Debug, Default)]
struct VolumeState {
    mounted: Option<MountedVolumes>,
    failures: u32,
}

/// The last restart of all containers.
#[derive(Debug, Clone, Copy)]
struct Reset {
    at: Instant,
    /// How long the next one waits after it.
    delay: Duration,
}

/// A worker.
pub(super) struct Worker {
    deps: Arc<Deps>,
    uid: PodUid,
    inbox: watch::Receiver<Desired>,
    bell: Arc<Notify>,
    slot: Slot,
    pod: Arc<Pod>,
    exists: Existence,
    decision: Option<NodeDecision>,
    stage: Stage,
    facts: Facts,
    probes: ProbeResults,
    prober: Prober,
    pulls: PullBackOff,
    volumes: VolumeState,
    resets: Option<Reset>,
    /// The pod has been promised other resources than before; its cgroup may have to follow.
    to_resize: bool,
    operations: Operations,
    /// Not before then: operations that failed.
    retries: BTreeMap<Key, Instant>,
    /// Runs whose back-off has been announced.
    announced: BTreeSet<ContainerId>,
    /// When the last of those that are stopped for a restart has to be gone.
    restarts_until: Option<Instant>,
    /// Lets those that are being stopped end when it is their turn.
    turns: BTreeMap<ContainerId, CancellationToken>,
    /// Runs that have been stopped, whatever their record says.
    stopped: BTreeSet<ContainerId>,
    /// Runs that were stopped so that the next one begins, each with the end of the run before it.
    restarted: BTreeMap<ContainerId, Option<SystemTime>>,
    last: Option<PodStatus>,
    /// When the last status is told again, if the object still says another.
    reconcile: Option<Instant>,
    next_resync: Instant,
    wake: Option<Instant>,
    told_ready: bool,
    /// What the clean-up under way takes away.
    cleaning: Option<Extent>,
    /// What is known of volumes whose size is limited.
    disk: Arc<DiskCache>,
}

impl Worker {
    /// A worker that has not looked yet.
    pub(super) fn new(
        deps: Arc<Deps>,
        inbox: watch::Receiver<Desired>,
        bell: Arc<Notify>,
        slot: Slot,
    ) -> Self {
        let Desired {
            pod,
            exists,
            decision,
            pending,
        } = inbox.borrow().clone();
        let uid = spec::uid(&pod);
        let start_time = deps.clock.now();
        let facts = Facts {
            host_ips: deps.settings.host_ips.clone(),
            start_time,
            ..Facts::default()
        };
        let last = pod.status.clone().filter(|status| status.phase.is_some());
        let told_ready = last.as_ref().is_some_and(is_ready);
        let facts = Facts {
            resizing: last.as_ref().and_then(status::resizing),
            resize_pending: pending,
            ..facts
        };
        if !told_ready {
            deps.timeline.begin(&uid);
        }
        Self {
            deps,
            uid,
            inbox,
            bell,
            slot,
            exists,
            decision,
            stage: Stage::Running,
            facts,
            probes: ProbeResults::default(),
            prober: Prober::new(),
            pulls: PullBackOff::default(),
            volumes: VolumeState::default(),
            resets: None,
            to_resize: false,
            operations: Operations::default(),
            retries: BTreeMap::new(),
            announced: BTreeSet::new(),
            restarts_until: None,
            turns: BTreeMap::new(),
            stopped: BTreeSet::new(),
            restarted: BTreeMap::new(),
            told_ready,
            last,
            reconcile: None,
            pod,
            next_resync: Instant::now() + jittered(RESYNC),
            wake: None,
            cleaning: None,
            disk: Arc::default(),
        }
    }

    /// Works until nothing of the pod is left, or nobody wants anything any more.
    pub(super) async fn run(mut self) {
        loop {
            self.turn().await;
            if matches!(self.stage, Stage::Gone) && self.exists != Existence::Object {
                break;
            }
            let timer = self.wake.unwrap_or(self.next_resync).min(self.next_resync);
            // Each of them leads to the same turn; in this order, so that the same world takes the same course.
            tokio::select! {
                biased;
                changed = self.inbox.changed() => if changed.is_err() { return },
                () = self.bell.notified() => {}
                done = self.operations.next() => self.finish(done),
                (id, verdicts) = self.prober.next(|id| self.probes.get(id)) => self.probes.set(id, verdicts),
                () = sleep_until(timer) => {}
            }
            // What has come in meanwhile leads to the same turn.
            self.bell.notified().now_or_never();
            while let Some(done) = self.operations.try_next() {
                self.finish(done);
            }
        }
        self.deps.timeline.forget(&self.uid);
    }

    /// One look, one plan, one status.
    async fn turn(&mut self) {
        self.take_desired();
        self.wake = None;
        let seen = match self.deps.runtime.pod_view(&self.uid).await {
            Ok(view) => Observation::new(self.settled(view), self.last.as_ref()),
            Err(error) => {
                warn!(error = chain(&error), "cannot look at the pod");
                if self.is_deleted() {
                    // Whatever there is, nothing more is to begin.
                    self.operations.starts().cancel();
                }
                self.wake_at(Instant::now() + jittered(RETRY));
                return;
            }
        };
        self.read_messages(&seen).await;
        if self.slot.take_stale() {
            self.retries
                .retain(|key, _| !matches!(key, Key::Start(_) | Key::Volumes));
            if matches!(self.stage, Stage::Running) {
                self.refresh_volumes();
            }
        }
        if Instant::now() >= self.next_resync {
            self.next_resync = Instant::now() + jittered(RESYNC);
            self.resync();
        }
        self.probe(&seen);
        if matches!(self.stage, Stage::Running) {
            self.turn_running(&seen);
        }
        if matches!(self.stage, Stage::Stopping(_)) {
            self.turn_stopping(&seen);
        }
        self.publish(&seen);
        if matches!(self.stage, Stage::Running)
            && let Some(stopping) = self.over()
        {
            // Whatever begins anew just now, as a sandbox that was lost, comes too late.
            self.begin_stopping(stopping);
            self.bell.notify_one();
        }
        if matches!(
            self.stage,
            Stage::Cleaning(_) | Stage::Finished | Stage::Gone
        ) {
            self.turn_cleaning(&seen);
        }
    }

    /// Nothing runs of a container that has been stopped, even when its record cannot tell.
    fn settled(&self, mut view: PodView) -> PodView {
        for record in &mut view.containers {
            if record.state == ContainerState::Unknown && self.stopped.contains(&record.id) {
                record.state = ContainerState::Exited;
                record.exit_code = UNKNOWN_EXIT_CODE;
                record.reason = "Unknown".to_owned();
            }
        }
        view
    }

    /// What is due now and then without anybody asking.
    fn resync(&mut self) {
        match self.stage {
            Stage::Running => self.refresh_volumes(),
            Stage::Gone if self.exists == Existence::Object => {
                self.deps.status.terminated(&self.pod);
            }
            _ => {}
        }
    }

    /// Probes what runs.
    fn probe(&mut self, seen: &Observation) {
        let last = self.last.as_ref();
        let starting = self.operations.starting();
        let known = |id: &str| status::status_of_run(last?, id).cloned();
        for (id, verdicts) in self
            .prober
            .update(&self.deps, &self.pod, seen, &starting, &known)
        {
            self.probes.set(id, verdicts);
        }
        let exists = |id: &ContainerId| seen.records().iter().any(|record| record.id == *id);
        self.probes.retain(exists);
    }

    /// Reads the termination messages of runs that have ended since the last look.
    async fn read_messages(&mut self, seen: &Observation) {
        let known = &mut self.facts.messages;
        known.retain(|id, _| seen.records().iter().any(|record| record.id == *id));
        let ended = seen
            .records()
            .iter()
            .filter(|record| record.state == ContainerState::Exited);
        for record in ended {
            if known.contains_key(&record.id) {
                continue;
            }
            let annotation = |key| record.config.annotations.get(key).cloned();
            let file = annotation(labels::TERMINATION_MESSAGE_FILE);
            let to_logs = record.exit_code != 0
                && annotation(labels::TERMINATION_MESSAGE_POLICY).as_deref()
                    == Some("FallbackToLogsOnError");
            let log = record.log_path.clone();
            let read = move || {
                let message = file.map(|file| termination::read_file(file.as_ref()));
                let message = message.unwrap_or_default();
                if message.is_empty() && to_logs {
                    termination::read_log(&log)
                } else {
                    message
                }
            };
            let message = files::off_the_loop(read).await.unwrap_or_default();
            known.insert(record.id.clone(), message);
        }
    }

    /// Looks again when the clock shows that time, or earlier.
    fn wake_when(&mut self, time: Timestamp) {
        self.wake_at(self.deps.clock.instant(time));
    }

    /// Looks again at that time, or earlier.
    fn wake_at(&mut self, time: Instant) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }

    /// Whether an operation may be tried now; wakes the worker when it may.
    fn is_due(&mut self, key: &Key) -> bool {
        let Some(not_before) = self.retries.get(key).copied() else {
            return true;
        };
        if Instant::now() >= not_before {
            self.retries.remove(key);
            return true;
        }
        self.wake_at(not_before);
        false
    }

    /// Tries the operation again after a while.
    fn retry_later(&mut self, key: Key, delay: Duration) {
        self.retries.insert(key, Instant::now() + delay);
    }

    /// The ending as the status has it.
    fn set_ending(&mut self, ending: Ending) {
        self.facts.ending = ending;
    }
}
