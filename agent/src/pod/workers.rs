//! The owner of the set of pods: one worker for each UID, and nobody else makes or ends one.
//!
//! A new pod waits while an older one of its name, or an earlier one of its UID, is not entirely gone; it is judged
//! ([`admission`]) when its turn comes.

mod admission;
mod house;
mod resize;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{PodSandbox, PodUid};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{Instrument, error, info_span, warn};

use super::directory::Pods;
use super::settings::Deps;
use super::worker::{Desired, Existence, Worker};
use super::{oom, spec};
use crate::sinks::PodUpdate;
use hanok_runtime::service::chain;
use house::Round;
use resize::{Promised, Promises};

/// Time between rounds of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// Time until whoever could not see what there is looks again: nobody else ends what no pod is wanted for.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Starts the pod core. It ends when `updates` is closed; the pods then go on without it.
pub fn start(deps: Deps, updates: mpsc::Receiver<PodUpdate>) -> (Pods, JoinHandle<()>) {
    let pods = Pods::default();
    // It may be stuck before its first turn.
    pods.owner_turns();
    let allocations = deps.settings.pods_dir.with_file_name("allocations");
    // It ends with the runtime.
    let events = deps.runtime.oom_events();
    tokio::spawn(oom::tell(events, pods.clone(), deps.events.clone()));
    let workers = Workers {
        promises: Promises::new(allocations),
        deps: Arc::new(deps),
        pods: pods.clone(),
        workers: BTreeMap::new(),
        tasks: JoinSet::new(),
        ids: HashMap::new(),
        held: Vec::new(),
        need_room: Vec::new(),
        doubted: Vec::new(),
        looks: JoinSet::new(),
        found: BTreeMap::new(),
        synced: false,
        house: JoinSet::new(),
        house_due: Instant::now() + HOUSEKEEPING,
        cleaning: BTreeSet::new(),
    };
    (pods, tokio::spawn(workers.run(updates)))
}

/// What the owner keeps of a worker.
struct Handle {
    desired: watch::Sender<Desired>,
    bell: Arc<Notify>,
    /// The pod had a terminal phase when it was first seen.
    was_over: bool,
}

/// The owner.
struct Workers {
    deps: Arc<Deps>,
    pods: Pods,
    workers: BTreeMap<PodUid, Handle>,
    tasks: JoinSet<()>,
    ids: HashMap<Id, PodUid>,
    /// Pods that wait for an older one of their name to be gone.
    held: Vec<Arc<Pod>>,
    /// Pods that wait for those to end whose place they take.
    need_room: Vec<Arc<Pod>>,
    /// Pods that would be refused by what is known of the node, while it is asked for anew, with the task that asks.
    doubted: Vec<(Id, Arc<Pod>)>,
    /// Who asks.
    looks: JoinSet<()>,
    /// Sandboxes that the runtime had when the agent started, by their pods, as long as nobody has asked for them.
    found: BTreeMap<PodUid, PodSandbox>,
    promises: Promises,
    synced: bool,
    /// The round of housekeeping under way: nobody waits for it but those that it cleans up after.
    house: JoinSet<Round>,
    /// When the next one is.
    house_due: Instant,
    /// Pods whose remains are being removed; one of that UID has to wait.
    cleaning: BTreeSet<PodUid>,
}

impl Workers {
    async fn run(mut self, mut updates: mpsc::Receiver<PodUpdate>) {
        let mut doorbell = self.deps.runtime.doorbell();
        // Who does not know what has run before would admit too much, and begin a pod beside an older one of its name.
        while let Err(error) = self.find_running().await {
            warn!(error = chain(&error), "cannot list sandboxes");
            sleep(LOOK_AGAIN).await;
            self.pods.owner_turns();
            if updates.is_closed() {
                return;
            }
        }
        house::make_cgroups(&self.deps, self.upper_cgroups()).await;
        loop {
            self.pods.owner_turns();
            self.pods.set_waiting(self.waiting());
            // In this order, so that the same world always takes the same course.
            tokio::select! {
                biased;
                update = updates.recv() => match update {
                    Some(update) => self.update(update),
                    None => return,
                },
                rung = doorbell.recv() => self.rung(rung, &mut doorbell),
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = self.pods.one_is_over() => {
                    self.try_waiting();
                    self.try_wishes();
                }
                Some(looked) = self.looks.join_next_with_id() => self.looked(looked),
                Some(round) = self.house.join_next() => self.house_kept(round),
                () = sleep_until(self.house_due) => self.keep_house(),
            }
        }
    }

    fn update(&mut self, update: PodUpdate) {
        match update {
            PodUpdate::Apply(pod) => self.apply(pod),
            PodUpdate::Gone(uid) => {
                self.held.retain(|pod| spec::uid(pod) != uid);
                self.need_room.retain(|pod| spec::uid(pod) != uid);
                self.doubted.retain(|(_, pod)| spec::uid(pod) != uid);
                if let Some(handle) = self.workers.get(&uid) {
                    handle
                        .desired
                        .send_modify(|desired| desired.exists = Existence::Gone);
                }
            }
            PodUpdate::Synced => {
                self.synced = true;
                self.pods.set_synced();
                self.keep_house();
            }
        }
    }

    /// Hands a pod to its worker, or makes one.
    fn apply(&mut self, pod: Arc<Pod>) {
        let uid = spec::uid(&pod);
        if uid.as_str().is_empty() {
            error!(pod = spec::name(&pod), "pod has no UID and is not run");
            return;
        }
        self.held.retain(|held| spec::uid(held) != uid);
        self.need_room.retain(|waiting| spec::uid(waiting) != uid);
        self.doubted
            .retain(|(_, doubted)| spec::uid(doubted) != uid);
        if let Some(handle) = self.workers.get(&uid)
            && handle.desired.borrow().exists == Existence::Object
        {
            if !self.wishes(&pod) {
                self.hand_over(pod);
            }
            // It may have let go of something.
            self.try_wishes();
            return;
        }
        self.end_namesake(&pod);
        if self.name_is_taken(&pod) {
            self.held.push(pod);
            return;
        }
        self.admit(pod);
    }

    /// Whether another pod of this name, or an earlier one of this UID, is not gone yet.
    fn name_is_taken(&self, pod: &Pod) -> bool {
        if self.cleaning.contains(&spec::uid(pod)) {
            return true;
        }
        let name = |pod: &Pod| (spec::namespace(pod).to_owned(), spec::name(pod).to_owned());
        let wanted = name(pod);
        self.workers
            .values()
            .any(|handle| name(&handle.desired.borrow().pod) == wanted)
    }

    /// Pods without a worker.
    fn waiting(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let waiting = self.held.iter().chain(&self.need_room);
        waiting.chain(self.doubted.iter().map(|(_, pod)| pod))
    }

    /// Something that pods wait for may have come about.
    fn try_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.need_room);
        let held = std::mem::take(&mut self.held);
        for pod in waiting.into_iter().chain(held) {
            self.apply(pod);
        }
    }

    fn spawn(&mut self, mut desired: Desired) {
        if desired.exists == Existence::Object && desired.decision.is_none() {
            let Promised { pod, pending } = self.promise(desired.pod);
            (desired.pod, desired.pending) = (pod, pending);
        }
        let pod = desired.pod.clone();
        let uid = spec::uid(&pod);
        self.found.remove(&uid);
        if desired.exists == Existence::Object {
            self.deps.objects.register(&pod);
        }
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let was_over = phase.is_some_and(spec::is_terminal_phase);
        let bell = Arc::new(Notify::new());
        let slot = self.pods.add(pod.clone(), bell.clone(), desired.exists);
        let (sender, inbox) = watch::channel(desired);
        let worker = Worker::new(self.deps.clone(), inbox, bell.clone(), slot);
        let name = format!("{}/{}", spec::namespace(&pod), spec::name(&pod));
        let span = info_span!("pod.sync", uid = %uid, pod = %name);
        let task = self.tasks.spawn(worker.run().instrument(span));
        self.ids.insert(task.id(), uid.clone());
        self.workers.insert(
            uid,
            Handle {
                desired: sender,
                bell,
                was_over,
            },
        );
    }

    /// A worker has ended: nothing of its pod is left, or it panicked and begins anew.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some(uid) = self.ids.remove(&id) else {
            return;
        };
        let Some(handle) = self.workers.remove(&uid) else {
            return;
        };
        let desired = handle.desired.borrow().clone();
        if let Some(panicked) = panicked {
            error!(%uid, error = %panicked, "pod worker failed and begins anew");
            self.spawn(desired);
            return;
        }
        self.promises.forget(&uid);
        self.try_waiting();
        self.try_wishes();
    }

    fn rung(
        &mut self,
        rung: Result<PodUid, RecvError>,
        doorbell: &mut broadcast::Receiver<PodUid>,
    ) {
        match rung {
            Ok(uid) => {
                if let Some(handle) = self.workers.get(&uid) {
                    handle.bell.notify_one();
                }
            }
            Err(RecvError::Lagged(_)) => self.pods.ring_all(),
            // A runtime that has let go of its end rings no more; take a new receiver.
            Err(RecvError::Closed) => *doorbell = self.deps.runtime.doorbell(),
        }
    }

    fn is_known(&self, uid: &PodUid) -> bool {
        self.workers.contains_key(uid) || self.waiting().any(|pod| spec::uid(pod) == *uid)
    }
}
