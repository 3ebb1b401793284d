//! What pods have been promised, and who wishes for more.
//!
//! The owner of the set promises, one pod after the other, so that no two pods are promised the same room. A promise is
//! on disk before anybody acts on it: a new agent must not take a wish for a promise.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::Pod;
use tracing::{info, warn};

use super::Workers;
use crate::pod::admit::{self, Verdict};
use crate::pod::resize::{self, Allocation, Pending};
use crate::pod::resources::{self, QosClass};
use crate::pod::spec;
use crate::sinks::EventKind;

/// Promises, in memory and on disk.
#[derive(Debug)]
pub(super) struct Promises {
    dir: PathBuf,
    known: BTreeMap<PodUid, Allocation>,
    wishes: BTreeMap<PodUid, Wish>,
    /// How many wishes there have been.
    count: u64,
}

/// A pod as somebody wishes it, and why it is not so.
#[derive(Debug)]
struct Wish {
    pod: Arc<Pod>,
    told: Option<(&'static str, i64)>,
    /// Its place among those that are worth as much.
    turn: u64,
}

/// A pod as it is to run.
#[derive(Debug)]
pub(super) struct Promised {
    pub(super) pod: Arc<Pod>,
    /// Why it is not what somebody wishes for, and for which generation.
    pub(super) pending: Option<(Pending, i64)>,
}

/// What becomes of a wish.
enum Wished {
    /// It is promised.
    Granted,
    /// It will be, when somebody has ended or all are known.
    Later,
    /// It is not, for a reason to tell.
    Pending(Pending),
}

impl Promises {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            known: BTreeMap::new(),
            wishes: BTreeMap::new(),
            count: 0,
        }
    }

    fn file(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(format!("{uid}.json"))
    }

    /// What the pod has been promised, by this agent or by one before.
    pub(super) fn get(&mut self, uid: &PodUid) -> Option<Allocation> {
        if let Some(known) = self.known.get(uid) {
            return Some(known.clone());
        }
        let file = self.file(uid);
        let text = fs::read(&file).ok()?;
        match serde_json::from_slice::<Allocation>(&text) {
            Ok(read) => {
                self.known.insert(uid.clone(), read.clone());
                Some(read)
            }
            Err(error) => {
                warn!(file = %file.display(), %error, "cannot read what a pod was promised");
                None
            }
        }
    }

    /// Promises all that the pod wishes for.
    fn set(&mut self, uid: &PodUid, pod: &Pod) {
        let allocation = Allocation::of(pod);
        if !allocation.is_empty()
            && let Err(error) = self.write(uid, &allocation)
        {
            // It holds for as long as this agent lives.
            warn!(%uid, %error, "cannot write down what a pod is promised");
        }
        self.known.insert(uid.clone(), allocation);
        self.wishes.remove(uid);
    }

    /// Takes note of a wish, or of its newest form.
    fn wish(&mut self, uid: &PodUid, pod: &Arc<Pod>) -> &mut Wish {
        let count = &mut self.count;
        let wish = self.wishes.entry(uid.clone()).or_insert_with(|| {
            *count += 1;
            Wish {
                pod: pod.clone(),
                told: told_before(pod),
                turn: *count,
            }
        });
        wish.pod = pod.clone();
        wish
    }

    fn write(&self, uid: &PodUid, allocation: &Allocation) -> io::Result<()> {
        // A UID is a name of its source's choice, and must not lead anywhere.
        if uid.as_str().contains('/') {
            return Err(io::Error::from(io::ErrorKind::InvalidFilename));
        }
        fs::create_dir_all(&self.dir)?;
        let (file, part) = (self.file(uid), self.dir.join(format!("{uid}.part")));
        fs::write(&part, serde_json::to_vec(allocation)?)?;
        fs::rename(part, file)
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.wishes.remove(uid);
        let had = self
            .known
            .remove(uid)
            .is_some_and(|known| !known.is_empty());
        if had && let Err(error) = fs::remove_file(self.file(uid)) {
            warn!(%uid, %error, "cannot remove what a pod was promised");
        }
    }

    /// Removes what was promised to pods that nobody knows.
    pub(super) fn keep(&mut self, known: &BTreeSet<PodUid>) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let uid = name.to_str().and_then(|name| name.strip_suffix(".json"));
            if uid.is_none_or(|uid| !known.contains(&PodUid(uid.to_owned())))
                && let Err(error) = fs::remove_file(entry.path())
            {
                warn!(file = %entry.path().display(), %error, "cannot remove a promise");
            }
        }
    }
}

impl Workers {
    /// The pod as it is to run: what it wishes for, when that can be promised.
    pub(super) fn promise(&mut self, pod: Arc<Pod>) -> Promised {
        let uid = spec::uid(&pod);
        let Some(promised) = self.promises.get(&uid) else {
            self.promises.set(&uid, &pod);
            return Promised { pod, pending: None };
        };
        if promised.covers(&pod) {
            self.promises.wishes.remove(&uid);
            return Promised { pod, pending: None };
        }
        let seen = Arc::new(promised.apply(&pod));
        self.promises.wish(&uid, &pod);
        match self.judge_wish(&pod, &seen) {
            Wished::Granted => {
                info!(%uid, pod = spec::name(&pod), "the pod is promised other resources");
                self.promises.set(&uid, &pod);
                Promised { pod, pending: None }
            }
            Wished::Later => Promised {
                pod: seen,
                pending: None,
            },
            Wished::Pending(pending) => {
                let generation = pod.metadata.generation.unwrap_or_default();
                self.tell(&uid, &pod, &pending, generation);
                Promised {
                    pod: seen,
                    pending: Some((pending, generation)),
                }
            }
        }
    }

    /// Judges a wish. Pods that a critical one takes the place of begin to end.
    fn judge_wish(&self, pod: &Pod, seen: &Pod) -> Wished {
        if self.is_ending(pod) {
            // It has no more use for it, and nobody must make room.
            return Wished::Later;
        }
        if !self.synced {
            // Not all are known yet whose room it is.
            return Wished::Later;
        }
        if resize::touches_swap(pod, seen, self.deps.settings.memory.swap) {
            return Wished::Pending(Pending {
                reason: resize::INFEASIBLE,
                event: resize::INFEASIBLE.to_owned(),
                message: "In-place resize of containers with swap is not supported.".to_owned(),
            });
        }
        let node = self.deps.admission.node();
        match admit::resize(pod, &node, &self.admitted(&spec::uid(pod))) {
            Verdict::Admitted => Wished::Granted,
            Verdict::AfterPreemption(victims) => {
                for victim in victims {
                    self.preempt(&victim, pod);
                }
                Wished::Later
            }
            Verdict::Rejected(failure) => Wished::Pending(Pending {
                reason: resize::DEFERRED,
                event: failure.reason,
                message: failure.message,
            }),
        }
    }

    /// Whether the pod is being deleted or is over.
    fn is_ending(&self, pod: &Pod) -> bool {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        spec::deletion_grace(pod).is_some()
            || phase.is_some_and(spec::is_terminal_phase)
            || self.pods.is_over(&spec::uid(pod))
    }

    /// Says once of a wish why it is not granted.
    fn tell(&mut self, uid: &PodUid, pod: &Arc<Pod>, pending: &Pending, generation: i64) {
        let told = Some((pending.reason, generation));
        let before = std::mem::replace(&mut self.promises.wish(uid, pod).told, told);
        if before == told {
            return;
        }
        let cause = Some(pending.message.as_str());
        let message = resize::message(&pending.event, pod, generation, cause);
        let reason = format!("Resize{}", pending.reason);
        self.deps
            .pod_event(pod, EventKind::Warning, &reason, &message);
    }

    /// Whether a pod that is known wishes for something else than it has been promised. It has to take its turn then.
    pub(super) fn wishes(&mut self, pod: &Arc<Pod>) -> bool {
        let uid = spec::uid(pod);
        let wishes = self
            .promises
            .get(&uid)
            .is_some_and(|promised| !promised.covers(pod));
        if wishes {
            self.promises.wish(&uid, pod);
        }
        wishes
    }

    /// Tries what is wished for and not promised: first what asks for no more than it has, then by priority, Guaranteed
    /// pods before others, and of equals the one that has waited longest.
    pub(super) fn try_wishes(&mut self) {
        let mut wishes: Vec<_> = self
            .promises
            .wishes
            .iter()
            .map(|(uid, wish)| {
                let pod = &wish.pod;
                let promised = self.promises.known.get(uid);
                let more = promised.is_some_and(|had| resize::is_more(pod, &had.apply(pod)));
                let priority = spec::spec(pod).and_then(|spec| spec.priority);
                let lesser = resources::qos_class(pod) != QosClass::Guaranteed;
                let priority = Reverse(priority.unwrap_or_default());
                ((more, priority, lesser, wish.turn), pod.clone())
            })
            .collect();
        wishes.sort_by_key(|(order, _)| *order);
        for (_, pod) in wishes {
            self.hand_over(pod);
        }
    }

    /// Gives the newest form of a pod to its worker.
    pub(super) fn hand_over(&mut self, pod: Arc<Pod>) {
        let uid = spec::uid(&pod);
        let Promised { pod, pending } = self.promise(pod);
        if let Some(handle) = self.workers.get(&uid) {
            handle.desired.send_modify(|desired| {
                desired.pod = pod;
                desired.pending = pending;
            });
        }
    }
}

/// What an agent before has told of a wish: its reason, and the generation of the pod.
fn told_before(pod: &Pod) -> Option<(&'static str, i64)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let told = conditions
        .iter()
        .find(|condition| condition.type_ == resize::PENDING)?;
    let reason = [resize::DEFERRED, resize::INFEASIBLE]
        .into_iter()
        .find(|reason| told.reason.as_deref() == Some(reason))?;
    Some((reason, told.observed_generation?))
}
