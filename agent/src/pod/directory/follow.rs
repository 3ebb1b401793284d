//! Following the pods: who follows keeps what it has told, and asks for the next difference whenever it can take one.
//!
//! No queue lies between a worker and who follows: a slow one skips what a pod was meanwhile, and costs nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;

use super::{Entry, News, Pods};

/// A pod as it is now.
#[derive(Debug, Clone)]
pub struct Followed {
    /// Its newest desired form.
    pub pod: Arc<Pod>,
    /// Its newest status.
    pub status: PodStatus,
    /// Whether the node itself has worked the status out; else it is what the pod came with.
    pub own_status: bool,
    /// Which change was its last.
    pub revision: u64,
}

/// What has changed.
#[derive(Debug)]
pub enum Change {
    /// A pod is new, or other than it was.
    Set(PodUid, Box<Followed>),
    /// A pod is gone.
    Gone(PodUid),
}

impl From<&Entry> for Followed {
    fn from(entry: &Entry) -> Self {
        Self {
            pod: entry.shown.pod.clone(),
            status: entry.shown.status.clone(),
            own_status: entry.own_status,
            revision: entry.revision,
        }
    }
}

impl Pods {
    /// Rings whenever something changes.
    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// The pod of that UID.
    pub fn of_uid(&self, uid: &PodUid) -> Option<Followed> {
        let entries = self.read();
        let entry = entries.get(uid).filter(|entry| entry.has_object);
        entry
            .map(Followed::from)
            .or_else(|| self.read_waiting().get(uid).cloned())
    }

    /// The pod whose UID follows on `uid`, or the first.
    pub fn after(&self, uid: Option<&PodUid>) -> Option<(PodUid, Followed)> {
        let begin = uid.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (begin, Bound::Unbounded);
        let entries = self.read();
        let mut rest = entries.range::<PodUid, _>(range);
        let next = rest.find(|(_, entry)| entry.has_object);
        let next = next.map(|(uid, entry)| (uid.clone(), entry.into()));
        let waiting = self.read_waiting();
        let waits = waiting.range::<PodUid, _>(range).next();
        let waits = waits.map(|(uid, followed)| (uid.clone(), followed.clone()));
        // Of one that is in both the worker knows more.
        [next, waits]
            .into_iter()
            .flatten()
            .min_by(|(one, _), (other, _)| one.cmp(other))
    }

    /// What is other than `told`, which has the revision of each pod that was told: first those that are gone, so that a
    /// pod goes before one of its name comes, then the one whose change waits longest.
    pub fn change_since<T>(
        &self,
        told: &BTreeMap<PodUid, T>,
        revision: impl Fn(&T) -> u64,
    ) -> Option<Change> {
        let entries = self.read();
        let waiting = self.read_waiting();
        let is_there = |uid: &PodUid| entries.contains_key(uid) || waiting.contains_key(uid);
        if let Some(uid) = told.keys().find(|uid| !is_there(uid)) {
            return Some(Change::Gone(uid.clone()));
        }
        let known = |uid: &PodUid| told.get(uid).map_or(0, &revision);
        let changed = entries
            .iter()
            .filter(|(uid, entry)| entry.has_object && entry.revision > known(uid));
        let changed = changed.map(|(uid, entry)| (uid, entry.into()));
        let waits = waiting.iter().filter(|(uid, followed)| {
            followed.revision > known(uid)
                && entries.get(*uid).is_none_or(|entry| !entry.has_object)
        });
        let waits = waits.map(|(uid, followed)| (uid, followed.clone()));
        let oldest = changed
            .chain(waits)
            .min_by_key(|(_, followed): &(_, Followed)| followed.revision);
        oldest.map(|(uid, followed)| Change::Set(uid.clone(), Box::new(followed)))
    }
}
