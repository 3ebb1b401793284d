//! What pods have been promised, and who wishes for more.
//!
//! The owner of the set promises, one pod after the other, so that no two pods are promised the same room. A promise is
//! on disk before anybody acts on it: a new agent must not take a wish for a promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::Pod;
use tracing::{info, warn};

use super::Workers;
use crate::pod::admit;
use crate::pod::resize::{self, Allocation, Pending};
use crate::pod::spec;
use crate::sinks::EventKind;

/// Promises, in memory and on disk.
#[derive(Debug)]
pub(super) struct Promises {
    dir: PathBuf,
    known: BTreeMap<PodUid, Allocation>,
    wishes: BTreeMap<PodUid, Wish>,
}

/// A pod as somebody wishes it, and why it is not so.
#[derive(Debug)]
struct Wish {
    pod: Arc<Pod>,
    told: Option<(&'static str, i64)>,
}

/// A pod as it is to run.
#[derive(Debug)]
pub(super) struct Promised {
    pub(super) pod: Arc<Pod>,
    /// Why it is not what somebody wishes for, and for which generation.
    pub(super) pending: Option<(Pending, i64)>,
}

impl Promises {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            known: BTreeMap::new(),
            wishes: BTreeMap::new(),
        }
    }

    fn file(&self, uid: &PodUid) -> PathBuf {
        self.dir.join(format!("{uid}.json"))
    }

    /// What the pod has been promised, by this agent or by one before.
    fn get(&mut self, uid: &PodUid) -> Option<Allocation> {
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
        if !self.synced {
            // Not all are known yet whose room it is.
            let wish = Wish {
                pod: pod.clone(),
                told: None,
            };
            self.promises.wishes.insert(uid, wish);
            return Promised {
                pod: Arc::new(promised.apply(&pod)),
                pending: None,
            };
        }
        let node = self.deps.admission.node();
        let Err(pending) = admit::resize(&pod, &node, &self.admitted(&uid)) else {
            info!(%uid, pod = spec::name(&pod), "the pod is promised other resources");
            self.promises.set(&uid, &pod);
            return Promised { pod, pending: None };
        };
        let generation = pod.metadata.generation.unwrap_or_default();
        let seen = Arc::new(promised.apply(&pod));
        self.tell(&uid, &pod, &pending, generation);
        Promised {
            pod: seen,
            pending: Some((pending, generation)),
        }
    }

    /// Says once of a wish why it is not granted.
    fn tell(&mut self, uid: &PodUid, pod: &Arc<Pod>, pending: &Pending, generation: i64) {
        let told = Some((pending.reason, generation));
        let before = self.promises.wishes.insert(
            uid.clone(),
            Wish {
                pod: pod.clone(),
                told,
            },
        );
        if before.is_some_and(|before| before.told == told) {
            return;
        }
        let cause = Some(pending.message.as_str());
        let message = resize::message(&pending.event, pod, generation, cause);
        let reason = format!("Resize{}", pending.reason);
        self.deps
            .pod_event(pod, EventKind::Warning, &reason, &message);
    }

    /// Tries again what could not be promised, the most important pods first.
    pub(super) fn try_wishes(&mut self) {
        let mut wishes: Vec<Arc<Pod>> = self
            .promises
            .wishes
            .values()
            .filter(|wish| {
                wish.told
                    .is_none_or(|(reason, _)| reason == resize::DEFERRED)
            })
            .map(|wish| wish.pod.clone())
            .collect();
        let priority = |pod: &Arc<Pod>| spec::spec(pod).and_then(|spec| spec.priority);
        wishes.sort_by_key(|pod| std::cmp::Reverse(priority(pod).unwrap_or_default()));
        for pod in wishes {
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
