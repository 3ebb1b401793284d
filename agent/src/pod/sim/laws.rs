//! The laws of a pod's life, and the book that is kept of every pod to check them: at each call of the runtime
//! ([`calls`], [`resets`]), at each status ([`statuses`]), and after each step.

mod calls;
mod flight;
mod resets;
pub(super) mod statuses;
mod stops;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hanok_runtime::api::{Container, ContainerId, PodUid, Resources, SandboxId};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

pub(super) use flight::Flight;

use super::machine::Process;
use super::world::World;
use crate::pod::spec;
use crate::sinks::PodUpdate;

/// Between the end of a grace period and the last process: the least that everything gets, twice, since a process
/// may be told a moment before the end; and what a turn takes.
const AFTER_GRACE: u64 = 4500;

/// What is known of all pods.
#[derive(Debug, Default)]
pub(super) struct Laws {
    pub(super) books: BTreeMap<PodUid, Book>,
    /// This agent has not been told yet what runs, and waits.
    pub(super) blind: bool,
    /// Laws that have been broken.
    pub(super) broken: Vec<String>,
}

/// The end of a pod, as it was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    /// When the agent was told.
    pub(super) told: u64,
    /// When the grace period is over.
    pub(super) until: u64,
}

/// One run of a container that has ended, or that runs.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) id: ContainerId,
    pub(super) image: String,
    pub(super) resources: Resources,
    pub(super) began: u64,
    pub(super) ended: Option<u64>,
    /// How many runs before it count for the back-off.
    pub(super) streak: u32,
    /// The agent has stopped it.
    pub(super) stopped: bool,
    /// The run before it, as long as there is a record of it, and its end.
    pub(super) before: Option<(ContainerId, u64)>,
}

impl Run {
    /// Whether the next run is of the same back-off.
    pub(super) fn is_like(&self, record: &Container) -> bool {
        self.image == record.config.image_reference && self.resources == record.config.resources
    }

    /// How long the next run waits after the end of this one.
    pub(super) fn pause(&self) -> u64 {
        let pause = match self.streak {
            0 => 0,
            streak => (10_000_u64 << (streak - 1).min(8)).min(300_000),
        };
        let spent = match (&self.before, self.ended) {
            (None, _) => true,
            // One whose end nobody saw counts from its beginning.
            (Some((_, before)), Some(ended)) => ended.max(self.began) >= before + pause,
            (Some(_), None) => false,
        };
        if self.stopped && spent { 0 } else { pause }
    }
}

/// What happened in one sandbox.
#[derive(Debug, Clone, Default)]
pub(super) struct Inside {
    /// Init containers that have ended well.
    pub(super) completed: BTreeSet<String>,
    /// Sidecars that have started, and have passed their startup probe.
    pub(super) begun: BTreeSet<String>,
    /// An app container has been started.
    pub(super) apps: bool,
    /// Containers whose postStart hook has run once.
    pub(super) hooked: BTreeSet<String>,
    /// Init containers whose record was lost: they may run again.
    pub(super) lost: BTreeSet<String>,
}

/// What is known of one pod.
#[derive(Debug, Clone)]
pub(super) struct Book {
    /// As the agent was told last.
    pub(super) pod: Arc<Pod>,
    pub(super) ending: Option<Ending>,
    /// Its object is gone, as far as the agent was told.
    pub(super) gone: bool,
    /// It came back under its UID after it was gone.
    pub(super) reborn: Option<Arc<Pod>>,
    /// The runtime failed since the end began.
    pub(super) rough: bool,
    /// How long calls have taken since the end began, with what was left of those under way.
    pub(super) delay: u64,
    /// When the calls under way are over.
    pub(super) busy: u64,
    pub(super) flights: BTreeSet<String>,
    pub(super) inside: BTreeMap<SandboxId, Inside>,
    /// The newest run of each container.
    pub(super) runs: BTreeMap<String, Run>,
    /// The highest number that a run of each container had.
    pub(super) attempts: BTreeMap<String, u32>,
    /// Runs whose postStart hook is under way.
    pub(super) hooks: BTreeSet<ContainerId>,
    /// The last status of this agent, or the one that it was given.
    pub(super) last: Option<PodStatus>,
    /// This agent has published one.
    pub(super) published: bool,
    /// Exit codes by container id, as they were told.
    pub(super) codes: BTreeMap<String, i32>,
    /// The agent has said that nothing is left.
    pub(super) terminated: bool,
    /// The agent has said that another pod takes its place.
    pub(super) preempted: bool,
}

impl Book {
    pub(super) fn new(pod: Arc<Pod>) -> Self {
        let last = pod.status.clone().filter(|status| status.phase.is_some());
        Self {
            pod,
            ending: None,
            gone: false,
            reborn: None,
            rough: false,
            delay: 0,
            busy: 0,
            flights: BTreeSet::new(),
            inside: BTreeMap::new(),
            runs: BTreeMap::new(),
            attempts: BTreeMap::new(),
            hooks: BTreeSet::new(),
            last,
            published: false,
            codes: BTreeMap::new(),
            terminated: false,
            preempted: false,
        }
    }

    /// The pod is to end within so many milliseconds.
    fn end_within(&mut self, now: u64, grace: u64) {
        let until = now + grace;
        match &mut self.ending {
            Some(ending) => ending.until = ending.until.min(until),
            None => {
                self.ending = Some(Ending { told: now, until });
                (self.rough, self.delay) = (false, self.busy.saturating_sub(now));
            }
        }
    }

    /// There is no record of those runs any more.
    pub(super) fn forget(&mut self, gone: impl Fn(&ContainerId) -> bool) {
        for run in self.runs.values_mut() {
            run.before.take_if(|(id, _)| gone(id));
        }
    }

    /// Its last phase is one that it never leaves.
    pub(super) fn is_over(&self) -> bool {
        let phase = self.last.as_ref().and_then(|last| last.phase.as_deref());
        phase.is_some_and(spec::is_terminal_phase)
    }
}

impl Laws {
    pub(super) fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.books.get(uid).map(|book| book.pod.clone())
    }

    /// A call for the pod takes so long.
    pub(super) fn delayed(&mut self, uid: &PodUid, now: u64, wait: u64) {
        if let Some(book) = self.books.get_mut(uid) {
            book.delay += wait;
            book.busy = book.busy.max(now + wait);
        }
    }

    /// A call for the pod failed: times are not checked any more.
    pub(super) fn fault(&mut self, uid: &PodUid) {
        if let Some(book) = self.books.get_mut(uid) {
            book.rough = true;
        }
    }

    /// A new agent knows nothing but what it is told.
    pub(super) fn new_agent(&mut self) {
        self.blind = true;
        for book in self.books.values_mut() {
            // A manifest that was put back while its pod ended: records and logs may be removed already, and then nothing
            // is left that tells of its runs.
            if book.gone && spec::is_static(&book.pod) {
                book.attempts.clear();
                book.runs.clear();
            }
            (book.ending, book.gone, book.reborn) = (None, false, None);
            (book.rough, book.delay) = (false, 0);
            (book.published, book.terminated, book.preempted) = (false, false, false);
            book.flights.clear();
            book.hooks.clear();
            book.last = None;
            book.codes.clear();
        }
    }

    /// The agent hears what runs, and from now on what it is told.
    pub(super) fn agent_sees(&mut self, now: u64) {
        if !std::mem::take(&mut self.blind) {
            return;
        }
        let endings = self
            .books
            .values_mut()
            .filter_map(|book| book.ending.as_mut());
        for ending in endings {
            ending.until += now - ending.told;
            ending.told = now;
        }
    }

    /// The agent is told.
    pub(super) fn told(&mut self, update: &PodUpdate, now: u64) {
        match update {
            PodUpdate::Synced => {}
            PodUpdate::Gone(uid) => {
                if let Some(book) = self.books.get_mut(uid) {
                    book.gone = true;
                    book.reborn = None;
                    // A static pod has no other way to be ended in order.
                    let grace = match spec::is_static(&book.pod) {
                        true => u64::try_from(spec::grace_period(&book.pod).as_millis()),
                        false => Ok(2000),
                    };
                    book.end_within(now, grace.unwrap_or_default());
                }
            }
            PodUpdate::Apply(pod) => {
                let book = self
                    .books
                    .entry(spec::uid(pod))
                    .or_insert_with(|| Book::new(pod.clone()));
                if book.gone {
                    book.reborn = Some(pod.clone());
                    return;
                }
                book.pod = pod.clone();
                if book.last.is_none() {
                    book.last = pod.status.clone().filter(|status| status.phase.is_some());
                }
                if let Some(grace) = spec::deletion_grace(pod) {
                    book.end_within(now, grace.as_secs() * 1000);
                }
            }
        }
    }
}

impl World {
    /// A law is broken.
    pub(super) fn broken(&mut self, law: std::fmt::Arguments<'_>) {
        let text = law.to_string();
        self.say(format_args!("  BROKEN {text}"));
        self.laws.broken.push(text);
    }

    /// A call begins that must be the only one of its kind for the pod.
    pub(super) fn take_off(&mut self, uid: &PodUid, what: &str) {
        let Some(book) = self.laws.books.get_mut(uid) else {
            return;
        };
        if !book.flights.insert(what.to_owned()) {
            self.broken(format_args!("two at once for {uid}: {what}"));
        }
    }

    /// A process has been started.
    pub(super) fn process_started(&mut self, record: &Container) {
        let now = self.now;
        let name = record.config.name.clone();
        let Some(book) = self.laws.books.get_mut(&record.pod) else {
            return;
        };
        let before = book.runs.get(&name);
        let same = before.is_some_and(|run| run.is_like(record));
        let streak = before.filter(|_| same).map_or(0, |run| {
            run.streak + u32::from(!run.stopped || run.before.is_some())
        });
        let before = before.and_then(|run| Some((run.id.clone(), run.ended?)));
        let highest = book.attempts.entry(name.clone()).or_default();
        *highest = (*highest).max(record.config.attempt);
        let inside = book.inside.entry(record.sandbox.clone()).or_default();
        match spec::find_container(&book.pod, &name) {
            Some((spec::ContainerKind::App, _)) => inside.apps = true,
            Some((spec::ContainerKind::Sidecar, container))
                if container.startup_probe.is_none() =>
            {
                inside.begun.insert(name.clone());
            }
            _ => {}
        }
        let image = record.config.image_reference.clone();
        book.runs.insert(
            name,
            Run {
                id: record.id.clone(),
                image,
                resources: record.config.resources.clone(),
                began: now,
                ended: None,
                streak,
                stopped: false,
                before,
            },
        );
    }

    /// A process has ended.
    pub(super) fn process_ended(
        &mut self,
        id: &ContainerId,
        process: &Process,
        code: i32,
        reason: &str,
    ) {
        let now = self.now;
        let Some(book) = self.laws.books.get_mut(&process.uid) else {
            return;
        };
        if let Some(run) = book.runs.get_mut(&process.name).filter(|run| run.id == *id) {
            run.ended = Some(now);
            if now - run.began > 590_000 {
                run.streak = 0;
            }
        }
        let is_init = spec::init_containers(&book.pod)
            .iter()
            .any(|container| container.name == process.name);
        if is_init && code == 0 && reason != "OOMKilled" {
            let inside = book.inside.entry(process.sandbox.clone()).or_default();
            inside.completed.insert(process.name.clone());
        }
    }

    /// A record is lost: what was known by it is forgotten.
    pub(super) fn record_lost(&mut self, record: &Container) {
        let name = &record.config.name;
        let Some(book) = self.laws.books.get_mut(&record.pod) else {
            return;
        };
        book.forget(|id| *id == record.id);
        if book.runs.get(name).is_some_and(|run| run.id == record.id) {
            book.runs.remove(name);
        }
        book.inside
            .entry(record.sandbox.clone())
            .or_default()
            .lost
            .insert(name.clone());
    }

    /// What must hold after every step.
    pub(super) fn after_step(&mut self) {
        let now = self.now;
        let mut late = Vec::new();
        for (uid, book) in &self.laws.books {
            let Some(ending) = book.ending.filter(|_| !book.rough) else {
                continue;
            };
            if now > ending.until + AFTER_GRACE + book.delay
                && self.machine.living(uid).next().is_some()
            {
                late.push(uid.clone());
            }
        }
        for uid in late {
            self.laws.fault(&uid);
            self.broken(format_args!("{uid} lives longer than its grace period"));
        }
    }
}
