//! The pods of this node as others may see them: each worker writes its own entry, anybody reads, or follows what changes.

pub mod follow;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::spec;
use super::worker::Existence;
use crate::sinks::{PodDirectory, PodEntry};
use follow::Followed;

/// The owner of the set turns to its work at least once a minute, and never waits for anybody long.
const LATE: Duration = Duration::from_secs(150);

/// One pod.
#[derive(Debug)]
struct Entry {
    shown: PodEntry,
    bell: Arc<Notify>,
    stale: bool,
    over: bool,
    /// The status is the worker's own, and not what the pod came with.
    own_status: bool,
    /// Somebody wants or wanted it here; else the runtime had it, and it goes.
    has_object: bool,
    /// The news of its latest change.
    revision: u64,
}

/// What there is to follow: a doorbell, from which nobody learns what has changed.
#[derive(Debug, Clone, Copy, Default)]
pub struct News {
    /// Grows with every change of a pod.
    revision: u64,
    /// Every source has told what it knew at its start.
    pub synced: bool,
}

/// The pods of this node, and the bells of their workers. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    entries: Arc<RwLock<BTreeMap<PodUid, Entry>>>,
    /// Rung when a pod's containers have all ended for good.
    over: Arc<Notify>,
    /// When the owner of the set has last turned to its work.
    turned: Arc<Mutex<Option<Instant>>>,
    news: Arc<watch::Sender<News>>,
    /// Pods that have no worker yet, as they came. Locked after `entries`.
    waiting: Arc<RwLock<BTreeMap<PodUid, Followed>>>,
}

impl Pods {
    /// Whether the owner of the set does its work; else what is wrong.
    pub fn health(&self) -> Result<(), String> {
        let turned = *self.turned.lock().unwrap_or_else(PoisonError::into_inner);
        match turned.map(|turned| turned.elapsed()) {
            Some(ago) if ago > LATE => Err(format!(
                "the owner of the pods was last at work {} s ago",
                ago.as_secs()
            )),
            _ => Ok(()),
        }
    }

    /// The owner of the set is at work.
    pub(crate) fn owner_turns(&self) {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Something that the pod depends on may have changed: its worker looks.
    pub fn ring(&self, uid: &PodUid) {
        if let Some(entry) = self.read().get(uid) {
            entry.bell.notify_one();
        }
    }

    /// An object that the pod refers to has changed: its worker brings volumes up to date, and tries again at
    /// once what failed before.
    pub fn objects_changed(&self, uid: &PodUid) {
        if let Some(entry) = self.write().get_mut(uid) {
            entry.stale = true;
            entry.bell.notify_one();
        }
    }

    /// Every worker looks.
    pub fn ring_all(&self) {
        for entry in self.read().values() {
            entry.bell.notify_one();
        }
    }

    /// Whether nothing of the pod runs any more, nor will.
    pub(super) fn is_over(&self, uid: &PodUid) -> bool {
        self.read().get(uid).is_some_and(|entry| entry.over)
    }

    /// Waits until some pod is over. For the owner of the set alone.
    pub(super) async fn one_is_over(&self) {
        self.over.notified().await;
    }

    /// Every source has told what it knew at its start.
    pub(crate) fn set_synced(&self) {
        self.news.send_modify(|news| news.synced = true);
    }

    /// These pods wait for others to end. For the owner of the set alone.
    pub(super) fn set_waiting<'a>(&self, pods: impl Iterator<Item = &'a Arc<Pod>>) {
        let pods: BTreeMap<PodUid, &Arc<Pod>> = pods.map(|pod| (spec::uid(pod), pod)).collect();
        let mut waiting = self.write_waiting();
        let before = waiting.len();
        waiting.retain(|uid, _| pods.contains_key(uid));
        if waiting.len() < before {
            self.revise();
        }
        for (uid, pod) in pods {
            if waiting
                .get(&uid)
                .is_some_and(|told| Arc::ptr_eq(&told.pod, pod))
            {
                continue;
            }
            let followed = Followed {
                pod: pod.clone(),
                status: pod.status.clone().unwrap_or_default(),
                own_status: false,
                revision: self.revise(),
            };
            waiting.insert(uid, followed);
        }
    }

    /// The next revision. Asked for while the entries are locked, so that whoever is rung finds the change.
    fn revise(&self) -> u64 {
        self.news.send_modify(|news| news.revision += 1);
        self.news.borrow().revision
    }

    /// Adds a pod; its worker writes through the slot.
    pub(in crate::pod) fn add(&self, pod: Arc<Pod>, bell: Arc<Notify>, exists: Existence) -> Slot {
        let uid = spec::uid(&pod);
        let status = pod.status.clone().unwrap_or_default();
        let shown = PodEntry { pod, status };
        let mut entries = self.write();
        let entry = Entry {
            shown,
            bell,
            stale: false,
            over: false,
            own_status: false,
            has_object: exists != Existence::Orphan,
            revision: self.revise(),
        };
        entries.insert(uid.clone(), entry);
        drop(entries);
        Slot {
            pods: self.clone(),
            uid,
        }
    }

    // A panic elsewhere leaves the map whole: every change is one insertion, removal or assignment.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<PodUid, Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_waiting(&self) -> RwLockReadGuard<'_, BTreeMap<PodUid, Followed>> {
        self.waiting.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_waiting(&self) -> RwLockWriteGuard<'_, BTreeMap<PodUid, Followed>> {
        self.waiting.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<PodUid, Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodDirectory for Pods {
    fn pod_by_name(&self, namespace: &str, name: &str) -> Option<PodEntry> {
        let entries = self.read();
        let named = entries.values().map(|entry| &entry.shown).filter(|shown| {
            spec::namespace(&shown.pod) == namespace && spec::name(&shown.pod) == name
        });
        // Two of one name: the older one is on its way out.
        named
            .max_by_key(|shown| shown.pod.metadata.creation_timestamp.clone())
            .cloned()
    }

    fn pods(&self) -> Vec<PodEntry> {
        self.read()
            .values()
            .map(|entry| entry.shown.clone())
            .collect()
    }

    fn active(&self) -> Vec<Arc<Pod>> {
        let entries = self.read();
        let active = entries.values().filter(|entry| !entry.over);
        active.map(|entry| entry.shown.pod.clone()).collect()
    }
}

/// A worker's own entry; it goes with the worker.
#[derive(Debug)]
pub(super) struct Slot {
    pods: Pods,
    uid: PodUid,
}

impl Slot {
    /// Shows the pod's newest form.
    pub(super) fn set_pod(&self, pod: Arc<Pod>) {
        if let Some(entry) = self.pods.write().get_mut(&self.uid) {
            entry.shown.pod = pod;
            entry.revision = self.pods.revise();
        }
    }

    /// Whether objects have changed since the last call.
    pub(super) fn take_stale(&self) -> bool {
        let mut entries = self.pods.write();
        let entry = entries.get_mut(&self.uid);
        entry.is_some_and(|entry| std::mem::take(&mut entry.stale))
    }

    /// Nothing of the pod runs any more, nor will: what it asked for is free.
    pub(super) fn set_over(&self) {
        if let Some(entry) = self.pods.write().get_mut(&self.uid) {
            entry.over = true;
        }
        self.pods.over.notify_one();
    }

    /// The worker stands by a status that nobody needs to be told: what the pod came with, or what others added to it.
    pub(super) fn confirm_status(&self, status: &PodStatus) {
        let is_shown = |entry: &Entry| entry.own_status && entry.shown.status == *status;
        if !self.pods.read().get(&self.uid).is_some_and(is_shown) {
            self.set_status(status.clone());
        }
    }

    /// Shows the pod's newest status.
    pub(super) fn set_status(&self, status: PodStatus) {
        if let Some(entry) = self.pods.write().get_mut(&self.uid) {
            entry.shown.status = status;
            entry.own_status = true;
            entry.revision = self.pods.revise();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut entries = self.pods.write();
        entries.remove(&self.uid);
        self.pods.revise();
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Pods without workers, for tests of those who look at them.

    use super::*;

    /// A pod that is entered; it goes when this does.
    pub(crate) struct Entered(Slot);

    impl Entered {
        pub(crate) fn set_pod(&self, pod: Arc<Pod>) {
            self.0.set_pod(pod);
        }

        pub(crate) fn set_status(&self, status: PodStatus) {
            self.0.set_status(status);
        }

        pub(crate) fn confirm_status(&self, status: &PodStatus) {
            self.0.confirm_status(status);
        }

        pub(crate) fn set_over(&self) {
            self.0.set_over();
        }
    }

    pub(crate) fn enter(pods: &Pods, pod: Pod) -> Entered {
        Entered(pods.add(Arc::new(pod), Arc::default(), Existence::Object))
    }

    /// These pods wait for others.
    pub(crate) fn set_waiting(pods: &Pods, waiting: &[Arc<Pod>]) {
        pods.set_waiting(waiting.iter());
    }

    pub(crate) fn enter_orphan(pods: &Pods, pod: Pod) -> Entered {
        Entered(pods.add(Arc::new(pod), Arc::default(), Existence::Orphan))
    }
}
