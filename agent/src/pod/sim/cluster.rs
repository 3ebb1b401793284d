//! The API server of a simulation, with the node's connection to it: objects, their deletion in all its forms, a watch
//! that may be late, break and tell things twice, and requests that fail or only seem to.

mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::mpsc;

use super::ground::wants_restart;
use super::world::{Due, World};
use crate::pod::spec;
use crate::sinks::PodUpdate;

/// Objects, and what the node has been told of them.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    /// Pods of the API server, as they are.
    pub(super) objects: BTreeMap<PodUid, Pod>,
    /// Pods of the manifest directory.
    pub(super) manifests: BTreeMap<PodUid, Pod>,
    version: u64,
    pub(super) watch: Watch,
    slots: BTreeMap<PodUid, Slot>,
    /// Pods that the agent has deleted: nothing more is sent for them.
    deleted: BTreeSet<PodUid>,
}

/// The agent's watch.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sender: Option<mpsc::Sender<PodUpdate>>,
    pub(super) connected: bool,
    /// The agent knows that it has been told everything.
    synced: bool,
    /// What has come in, and when it may be handed over.
    queue: VecDeque<(u64, PodUpdate)>,
    /// UID and version of what was told.
    told: BTreeMap<PodUid, String>,
    /// Pods that this agent has been told of.
    heard: BTreeSet<PodUid>,
}

/// What the agent is about to send for a pod: as its status writer keeps it.
#[derive(Debug)]
struct Slot {
    pod: Arc<Pod>,
    next: Option<PodStatus>,
    sent: Option<PodStatus>,
    terminated: bool,
    busy: bool,
}

impl Slot {
    fn has_work(&self) -> bool {
        self.next.is_some() || (self.terminated && self.pod.metadata.deletion_timestamp.is_some())
    }
}

impl World {
    /// A new agent connects: it is told everything, and then that this was everything.
    pub(super) fn connect(&mut self, sender: mpsc::Sender<PodUpdate>) {
        self.cluster.slots.clear();
        self.cluster.deleted.clear();
        self.registered.clear();
        self.cluster.watch = Watch {
            sender: Some(sender),
            ..Watch::default()
        };
        for pod in self.cluster.manifests.values().cloned().collect::<Vec<_>>() {
            self.hand(PodUpdate::Apply(Arc::new(pod)));
        }
        self.list();
    }

    /// The watch breaks; nothing is told until the next list.
    pub(super) fn break_watch(&mut self) {
        let watch = &mut self.cluster.watch;
        watch.connected = false;
        for (_, update) in std::mem::take(&mut watch.queue) {
            match &update {
                PodUpdate::Apply(pod) if !spec::is_static(pod) => {
                    // Not told after all: the next list does it.
                    watch.told.insert(spec::uid(pod), String::new());
                }
                PodUpdate::Gone(uid) if !uid.0.starts_with('m') => {
                    watch.told.insert(uid.clone(), String::new());
                }
                PodUpdate::Synced => {}
                _ => watch.queue.push_back((self.now, update)),
            }
        }
    }

    /// Everything is listed: what is new is told, and what is missing is told to be gone.
    pub(super) fn list(&mut self) {
        self.break_watch();
        if self.is_cut_off() {
            return;
        }
        self.cluster.watch.connected = true;
        for pod in self.cluster.objects.values().cloned().collect::<Vec<_>>() {
            self.tell(&pod);
        }
        let told: Vec<_> = self.cluster.watch.told.keys().cloned().collect();
        for uid in told {
            if !self.cluster.objects.contains_key(&uid) {
                self.cluster.watch.told.remove(&uid);
                self.hand(PodUpdate::Gone(uid));
            }
        }
        if !self.cluster.watch.synced {
            self.hand(PodUpdate::Synced);
        }
    }

    /// Tells of a pod's newest form.
    fn tell(&mut self, pod: &Pod) {
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        let told = self
            .cluster
            .watch
            .told
            .insert(spec::uid(pod), version.clone());
        let again = self.chance.percent(3);
        if told.as_ref() != Some(&version) || again {
            self.hand(PodUpdate::Apply(Arc::new(pod.clone())));
        }
    }

    /// Hands an update to the agent, in order, after a while.
    fn hand(&mut self, update: PodUpdate) {
        let slow = self.weather.slow;
        let wait = match self.chance.percent(slow) {
            true => self.chance.between(1, 3000),
            false => 0,
        };
        let last = self.cluster.watch.queue.back().map_or(0, |(at, _)| *at);
        let at = last.max(self.now + wait);
        self.cluster.watch.queue.push_back((at, update));
        let (agent, after) = (self.agent, at - self.now);
        self.later(after, Due::Deliver(agent));
    }

    /// Hands over what has come in.
    pub(super) fn deliver(&mut self) {
        loop {
            let watch = &mut self.cluster.watch;
            let Some((at, update)) = watch.queue.front().cloned() else {
                return;
            };
            let Some(sender) = watch.sender.clone().filter(|_| at <= self.now) else {
                return;
            };
            if sender.try_send(update.clone()).is_err() {
                let agent = self.agent;
                return self.later(1, Due::Deliver(agent));
            }
            self.cluster.watch.queue.pop_front();
            match &update {
                PodUpdate::Apply(pod) => {
                    let grace = spec::deletion_grace(pod).map(|grace| grace.as_secs());
                    let (uid, generation) = (spec::uid(pod), pod.metadata.generation);
                    self.say(format_args!("told {uid} {generation:?} deletion {grace:?}"));
                }
                PodUpdate::Gone(uid) => self.say(format_args!("told {uid} is gone")),
                PodUpdate::Synced => {
                    self.cluster.watch.synced = true;
                    self.say(format_args!("told synced"));
                    self.orphans_end(|_| true);
                }
            }
            if let PodUpdate::Apply(pod) = &update {
                self.forget_old_life(&spec::uid(pod));
            }
            let now = self.now;
            self.laws.told(&update, now);
            if let PodUpdate::Apply(pod) = &update {
                self.cluster.watch.heard.insert(spec::uid(pod));
                let name = pod.metadata.name.clone();
                self.orphans_end(|orphan| orphan.metadata.name == name);
                self.mark_changed(pod);
            }
        }
    }

    /// A manifest that was gone for a while begins anew: nothing tells the agent of its old life.
    fn forget_old_life(&mut self, uid: &PodUid) {
        // It may have been removed again meanwhile.
        let is_manifest = uid.0.starts_with('m');
        let book = self.laws.books.get(uid);
        let over = book.is_some_and(|book| !book.published || book.terminated);
        if is_manifest && over && self.left_of(uid).is_empty() {
            self.laws.books.remove(uid);
        }
    }

    /// Pods of an earlier agent that this one has not been told of may be ended.
    fn orphans_end(&mut self, which: impl Fn(&Pod) -> bool) {
        let heard = &self.cluster.watch.heard;
        let known = |uid: &PodUid| heard.contains(uid);
        let orphans = self
            .laws
            .books
            .iter()
            .filter(|(uid, book)| !known(uid) && which(&book.pod));
        let orphans: Vec<_> = orphans.map(|(uid, _)| uid.clone()).collect();
        for uid in orphans {
            self.laws.told(&PodUpdate::Gone(uid), self.now);
        }
    }

    /// Takes note of processes whose definition is another one now.
    fn mark_changed(&mut self, pod: &Pod) {
        let uid = spec::uid(pod);
        let machine = &mut self.machine;
        for record in machine.records.iter().filter(|record| record.pod == uid) {
            let Some((_, container)) = spec::find_container(pod, &record.config.name) else {
                continue;
            };
            let same = container.image.as_deref() == Some(&record.config.image_reference);
            let same = same && !wants_restart(pod, &container, record);
            if let Some(process) = machine.processes.get_mut(&record.id).filter(|_| !same) {
                process.changed = true;
            }
        }
    }

    /// Changes an object, as a client does; every change is told to the watch.
    pub(super) fn change(&mut self, uid: &PodUid, change: impl FnOnce(&mut Pod)) {
        self.cluster.version += 1;
        let version = self.cluster.version.to_string();
        let Some(pod) = self.cluster.objects.get_mut(uid) else {
            return;
        };
        change(pod);
        pod.metadata.resource_version = Some(version);
        let pod = pod.clone();
        if self.cluster.watch.connected {
            self.tell(&pod);
        }
    }

    /// A client makes a pod.
    pub(super) fn create(&mut self, pod: Pod) {
        let uid = spec::uid(&pod);
        self.cluster.objects.insert(uid.clone(), pod);
        self.change(&uid, |_| {});
    }

    /// A client deletes a pod with so many seconds of grace.
    pub(super) fn delete(&mut self, uid: &PodUid, grace: i64) {
        let now = Time(self.timestamp());
        let Some(pod) = self.cluster.objects.get(uid) else {
            return;
        };
        let has_finalizers = pod
            .metadata
            .finalizers
            .as_ref()
            .is_some_and(|list| !list.is_empty());
        if grace == 0 && !has_finalizers {
            return self.vanish(uid);
        }
        if pod
            .metadata
            .deletion_grace_period_seconds
            .is_some_and(|left| left <= grace)
        {
            return;
        }
        self.change(uid, |pod| {
            let meta = &mut pod.metadata;
            let left = meta.deletion_grace_period_seconds.unwrap_or(i64::MAX);
            meta.deletion_timestamp.get_or_insert(now);
            meta.deletion_grace_period_seconds = Some(left.min(grace));
        });
    }

    /// An object is there no more.
    pub(super) fn vanish(&mut self, uid: &PodUid) {
        self.cluster.objects.remove(uid);
        if self.cluster.watch.connected && self.cluster.watch.told.remove(uid).is_some() {
            self.hand(PodUpdate::Gone(uid.clone()));
        }
    }

    /// A manifest appears in the directory, or changes.
    pub(super) fn put_manifest(&mut self, pod: Pod) {
        self.cluster.manifests.insert(spec::uid(&pod), pod.clone());
        self.hand(PodUpdate::Apply(Arc::new(pod)));
    }

    /// A manifest is removed.
    pub(super) fn remove_manifest(&mut self, uid: &PodUid) {
        if self.cluster.manifests.remove(uid).is_some() {
            self.hand(PodUpdate::Gone(uid.clone()));
        }
    }
}
