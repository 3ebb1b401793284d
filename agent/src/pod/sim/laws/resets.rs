//! The laws of a restart of all containers: what it takes away begins anew, in order.

use std::collections::BTreeSet;

use hanok_runtime::api::{ContainerId, ContainerState, PodUid};

use crate::pod::sim::world::World;
use crate::pod::spec::{self, RuleAction};

impl World {
    /// Whether a container has ended in a way that restarts all of the pod's.
    pub(super) fn resets(&self, uid: &PodUid) -> bool {
        let Some(book) = self.laws.books.get(uid) else {
            return false;
        };
        let mut records = self.machine.records.iter();
        records.any(|record| {
            let is_over = record.pod == *uid && record.state == ContainerState::Exited;
            let mut all = spec::containers(&book.pod);
            let of = all.find(|container| is_over && container.name == record.config.name);
            let action = of.and_then(|container| spec::rule(container, record.exit_code));
            action == Some(RuleAction::RestartAll)
        })
    }

    /// A record is removed: when that is for a restart of all, nothing is left of the container's progress.
    pub(super) fn removed_for_reset(&mut self, id: &ContainerId) {
        let Some(record) = self.machine.record(id).cloned() else {
            return;
        };
        if !self.resets(&record.pod) {
            return;
        }
        let Some(book) = self.laws.books.get_mut(&record.pod) else {
            return;
        };
        let name = &record.config.name;
        book.runs.remove(name);
        let inside = book.inside.entry(record.sandbox.clone()).or_default();
        inside.completed.remove(name);
        inside.begun.remove(name);
        inside.hooked.remove(name);
        let is_app = |name: &str| {
            let mut apps = spec::app_containers(&book.pod).iter();
            apps.any(|app| app.name == name)
        };
        let mut others = self.machine.records.iter();
        inside.apps &= others.any(|other| {
            other.sandbox == record.sandbox && other.id != *id && is_app(&other.config.name)
        });
    }

    /// A new agent knows nothing but what it is told, and what there is.
    pub(in crate::pod::sim) fn new_agent(&mut self) {
        let records = self.machine.records.iter();
        let there: BTreeSet<(&PodUid, &str)> = records
            .map(|record| (&record.pod, record.config.name.as_str()))
            .collect();
        for (uid, book) in &mut self.laws.books {
            // Nobody keeps the status of a manifest: what a restart of all has taken away is forgotten.
            if spec::is_static(&book.pod) && spec::may_restart_all(&book.pod) {
                let is_there = |name: &str| there.contains(&(uid, name));
                book.attempts.retain(|name, _| is_there(name));
            }
        }
        // What it finds running has begun: nothing tells of hooks.
        for process in self.machine.processes.values() {
            if let Some(book) = self.laws.books.get_mut(&process.uid) {
                let inside = book.inside.entry(process.sandbox.clone()).or_default();
                inside.hooked.insert(process.name.clone());
            }
        }
        self.laws.new_agent();
    }
}
