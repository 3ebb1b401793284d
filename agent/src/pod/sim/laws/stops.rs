//! The laws at the calls that end a container.

use std::time::Duration;

use hanok_runtime::api::{ContainerId, ContainerState};

use super::Book;
use crate::pod::sim::world::World;
use crate::pod::spec::{self, ContainerKind};

impl World {
    /// A container is told to end.
    pub(in crate::pod::sim) fn before_stop(&mut self, id: &ContainerId, grace: Duration) {
        let grace = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.say(format_args!("stop {id} {grace}"));
        let record = self.machine.record(id);
        let seen = record.filter(|record| record.state != ContainerState::Unknown);
        if let Some(record) = seen.cloned()
            && let Some(book) = self.laws.books.get_mut(&record.pod)
            && let Some(run) = book.runs.get_mut(&record.config.name)
        {
            run.stopped |= run.id == *id;
        }
        let Some(process) = self.machine.processes.get(id).cloned() else {
            return;
        };
        let Some(book) = self.laws.books.get(&process.uid) else {
            return;
        };
        let name = &process.name;
        match book.ending {
            Some(ending) if ending.told < self.now => {
                let early = self.stops_too_early(book, &process.name);
                if let Some(other) = early {
                    self.broken(format_args!("sidecar {name} is stopped before {other}"));
                }
            }
            Some(_) => {}
            None => self.has_a_reason_to_stop(id),
        }
    }

    /// Who is to end before this sidecar and lives.
    fn stops_too_early(&self, book: &Book, name: &str) -> Option<String> {
        let ends =
            |ending: &super::Ending| !book.rough && !book.gone && self.now + 50 < ending.until;
        book.ending.filter(ends)?;
        // A pod that was ending by itself when its deletion came has the time that it had before.
        let own_grace = spec::grace_period(&book.pod).as_millis();
        let since = self.ended_by_itself(book);
        if since.is_some_and(|since| u128::from(self.now + 50 - since) >= own_grace) {
            return None;
        }
        let init = spec::init_containers(&book.pod);
        let position = init.iter().position(|container| {
            container.name == *name && spec::init_kind(container) == ContainerKind::Sidecar
        })?;
        let uid = spec::uid(&book.pod);
        // What was in a broken sandbox, or in one that has lost its network, has been told to end all at once.
        self.machine
            .ready_sandbox(&uid)
            .filter(|sandbox| !sandbox.ips.is_empty())?;
        // What was being restarted when the deletion came has been told to end before.
        let mut me = self
            .machine
            .living(&uid)
            .filter(|(_, process)| process.name == *name);
        if me.any(|(_, process)| process.failed_probe || process.failed_hook || process.changed) {
            return None;
        }
        let later = init[position + 1..].iter();
        let later = later.filter(|later| spec::init_kind(later) == ContainerKind::Sidecar);
        let later = later.map(|container| &container.name);
        let apps = spec::app_containers(&book.pod)
            .iter()
            .map(|container| &container.name);
        later
            .chain(apps)
            .find(|other| self.machine.lives(&uid, other))
            .cloned()
    }

    /// When the last app container ended, if none lives, or the init container that has kept them from ever starting.
    fn ended_by_itself(&self, book: &Book) -> Option<u64> {
        let uid = spec::uid(&book.pod);
        let failed = spec::init_containers(&book.pod).iter().find_map(|init| {
            let run = book.runs.get(&init.name)?;
            let was_done = || {
                let mut places = book.inside.values();
                places.any(|inside| inside.completed.contains(&init.name))
            };
            run.ended
                .filter(|_| spec::init_kind(init) == ContainerKind::Init && !was_done())
        });
        if failed.is_some() {
            return failed;
        }
        let apps = spec::app_containers(&book.pod).iter();
        let ends = apps.map(|app| {
            let run = book.runs.get(&app.name)?;
            run.ended.filter(|_| !self.machine.lives(&uid, &app.name))
        });
        ends.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// A container of a pod that is to run is stopped only for cause.
    fn has_a_reason_to_stop(&mut self, id: &ContainerId) {
        let Some(record) = self.machine.record(id).cloned() else {
            return;
        };
        let Some(process) = self.machine.processes.get(id) else {
            return;
        };
        let (uid, name) = (&record.pod, &record.config.name);
        let Some(book) = self.laws.books.get(uid) else {
            return;
        };
        let container = spec::find_container(&book.pod, name);
        let is_app = container.is_some_and(|(kind, _)| kind == ContainerKind::App);
        let in_use = self
            .machine
            .ready_sandbox(uid)
            .is_some_and(|sandbox| sandbox.id == record.sandbox && !sandbox.ips.is_empty());
        let apps_run = spec::app_containers(&book.pod)
            .iter()
            .any(|app| self.machine.lives(uid, &app.name));
        let limited =
            spec::spec(&book.pod).is_some_and(|spec| spec.active_deadline_seconds.is_some());
        let unknown = record.state == ContainerState::Unknown;
        let cause = [
            process.changed,
            process.failed_probe,
            process.failed_hook,
            !in_use,
            unknown,
            limited,
            book.is_over(),
            book.preempted,
            self.resets(uid),
            !is_app && !apps_run,
        ];
        if !cause.contains(&true) {
            self.broken(format_args!("{id} is stopped without cause"));
        }
    }
}
