//! One look at a pod: the runtime's records, and what the last status knows beyond them.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hanok_runtime::api::{self, ContainerState, PodSandbox, PodView, SandboxState};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use super::spec::{self, Exit, RESTARTING_ALL};

/// The exit code of a container whose end nobody saw.
pub const UNKNOWN_EXIT_CODE: i32 = 255;
/// The exit code of a container whose record is lost.
pub const LOST_EXIT_CODE: i32 = 137;
/// The reason of a container whose record is lost.
pub const LOST_REASON: &str = "ContainerStatusUnknown";

/// The condition that says that all containers are being restarted.
pub const ALL_RESTARTING: &str = "AllContainersRestarting";

/// What the planner and the status builder look at.
#[derive(Debug, Clone, Default)]
pub struct Observation {
    view: PodView,
    lost: BTreeMap<String, Lost>,
    /// Restart counts of next runs, where a run was told that is later than any record.
    told: BTreeMap<String, u32>,
    /// The latest time at which there was a run that was told and has no record.
    ran: BTreeMap<String, Timestamp>,
}

/// A container that the last status knows and the runtime does not: the machine was rebooted, or somebody
/// removed the record.
#[derive(Debug, Clone, PartialEq)]
pub struct Lost {
    /// How it ended, as far as anybody knows.
    pub exit: Exit,
    /// The restart count of its next run.
    pub next: u32,
}

/// Every container status of a pod: init, app, ephemeral.
pub fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    let app = status.container_statuses.iter().flatten();
    let ephemeral = status.ephemeral_container_statuses.iter().flatten();
    init.chain(app).chain(ephemeral)
}

impl Observation {
    /// Joins a look at the runtime with the pod's last status.
    pub fn new(mut view: PodView, last: Option<&PodStatus>) -> Self {
        view.sandboxes
            .sort_by_key(|sandbox| std::cmp::Reverse((sandbox.config.attempt, sandbox.created_at)));
        view.containers
            .sort_by_key(|record| std::cmp::Reverse((record.config.attempt, record.created_at)));
        let all = || last.into_iter().flat_map(statuses);
        let later = |status: &ContainerStatus| {
            let mut records = view.containers.iter();
            let newest = records.find(|record| record.config.name == status.name)?;
            let (told, next) = counts(status);
            let attempt = newest.config.attempt;
            let is_later = told > attempt || (next > attempt && was_made_before(newest, status));
            is_later.then(|| (status.name.clone(), next))
        };
        let told: BTreeMap<_, _> = all().filter_map(later).collect();
        let resetting = last.is_some_and(is_resetting);
        let recorded = |name: &str| {
            let mut records = view.containers.iter();
            records.any(|record| record.config.name == name)
        };
        let lost = all()
            .filter(|status| !recorded(&status.name))
            .filter_map(|status| lost(status, resetting).map(|lost| (status.name.clone(), lost)))
            .collect();
        let ran = all()
            .filter(|status| !recorded(&status.name) || told.contains_key(&status.name))
            .filter_map(|status| latest(status, resetting).map(|time| (status.name.clone(), time)))
            .collect();
        Self {
            view,
            lost,
            told,
            ran,
        }
    }

    /// The pod's newest sandbox.
    pub fn newest_sandbox(&self) -> Option<&PodSandbox> {
        self.view.sandboxes.first()
    }

    /// Every sandbox, newest first.
    pub fn sandboxes(&self) -> &[PodSandbox] {
        &self.view.sandboxes
    }

    /// The newest sandbox if it can run containers.
    pub fn ready_sandbox(&self) -> Option<&PodSandbox> {
        self.newest_sandbox()
            .filter(|sandbox| sandbox.state == SandboxState::Ready)
    }

    /// Every record, newest first.
    pub fn records(&self) -> &[api::Container] {
        &self.view.containers
    }

    /// The records of one container, newest first.
    pub fn records_of<'a, 'n>(
        &'a self,
        name: &'n str,
    ) -> impl Iterator<Item = &'a api::Container> + use<'a, 'n> {
        self.view
            .containers
            .iter()
            .filter(move |record| record.config.name == name)
    }

    /// The newest record of one container, in whichever sandbox.
    pub fn newest(&self, name: &str) -> Option<&api::Container> {
        self.view
            .containers
            .iter()
            .find(|record| record.config.name == name)
    }

    /// The newest record of one container in the newest sandbox.
    pub fn current(&self, name: &str) -> Option<&api::Container> {
        let sandbox = self.newest_sandbox()?;
        self.records_of(name)
            .find(|record| record.sandbox == sandbox.id)
    }

    /// Containers whose process runs, or may run.
    pub fn alive(&self) -> impl Iterator<Item = &api::Container> {
        self.view.containers.iter().filter(|record| {
            matches!(
                record.state,
                ContainerState::Running | ContainerState::Unknown
            )
        })
    }

    /// Whether a process of the pod's containers runs.
    pub fn any_running(&self) -> bool {
        self.view
            .containers
            .iter()
            .any(|record| record.state == ContainerState::Running)
    }

    /// The containers whose end restarts all of the pod's.
    pub fn reset_by(&self, pod: &Pod) -> Vec<&api::Container> {
        let ended = spec::containers(pod).filter_map(|container| {
            container.restart_policy_rules.as_ref()?;
            let record = self.current(&container.name)?;
            let is_over = record.state == ContainerState::Exited;
            let action = spec::rule(container, record.exit_code).filter(|_| is_over)?;
            (action == spec::RuleAction::RestartAll).then_some(record)
        });
        ended.collect()
    }

    /// What is known of a container without a record.
    pub fn lost(&self, name: &str) -> Option<&Lost> {
        self.lost.get(name)
    }

    /// The restart count of the next run, if a run was told that is later than any record.
    pub fn told_later(&self, name: &str) -> Option<u32> {
        self.told.get(name).copied()
    }

    /// Whether the container has run in the newest sandbox, though its record there is lost. One that could not be
    /// started has an end and no beginning. The API's times are whole seconds: a run that was over in the sandbox's first
    /// second does not tell.
    pub fn ran_in_newest_sandbox(&self, name: &str) -> bool {
        let latest = self.ran.get(name);
        latest
            .zip(self.newest_sandbox())
            .is_some_and(|(latest, sandbox)| {
                latest.as_second() > timestamp(sandbox.created_at).as_second()
            })
    }

    /// How the container last ended; none when it never ran, or runs.
    pub fn last_exit(&self, name: &str) -> Option<Exit> {
        match self.newest(name) {
            Some(record) => exit(record),
            None => self.lost(name).map(|lost| lost.exit.clone()),
        }
    }

    /// The restart count of the container's next run.
    pub fn next_attempt(&self, name: &str) -> u32 {
        match (self.newest(name), self.lost(name)) {
            // Nothing of a created container has run: the same attempt is made again.
            (Some(record), _) => {
                let told = self.told.get(name).copied().unwrap_or_default();
                let has_run = record.state != ContainerState::Created;
                let next = record.config.attempt.saturating_add(u32::from(has_run));
                next.max(told)
            }
            (None, Some(lost)) => lost.next,
            (None, None) => 0,
        }
    }
}

/// How an ended record ended.
pub fn exit(record: &api::Container) -> Option<Exit> {
    match record.state {
        ContainerState::Exited => Some(Exit {
            code: record.exit_code,
            reason: record.reason.clone(),
        }),
        ContainerState::Unknown => Some(Exit {
            code: UNKNOWN_EXIT_CODE,
            reason: "Unknown".to_owned(),
        }),
        ContainerState::Created | ContainerState::Running => None,
    }
}

/// A time of the runtime as the API has it.
pub fn timestamp(time: std::time::SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Whether a status says that all containers are being restarted.
pub fn is_resetting(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|found| found.type_ == ALL_RESTARTING && found.status == "True")
}

/// What the last status says of a container without a record; none when it never ran.
fn lost(status: &ContainerStatus, resetting: bool) -> Option<Lost> {
    let state = status.state.as_ref();
    let last = status.last_state.as_ref();
    let terminated = state
        .and_then(|state| state.terminated.as_ref())
        .or_else(|| last.and_then(|last| last.terminated.as_ref()));
    let running = state.is_some_and(|state| state.running.is_some());
    let exit = match terminated {
        None if !running => return None,
        _ if resetting => Exit {
            code: LOST_EXIT_CODE,
            reason: RESTARTING_ALL.to_owned(),
        },
        Some(ended) if !running => Exit {
            code: ended.exit_code,
            reason: ended.reason.clone().unwrap_or_default(),
        },
        _ => Exit {
            code: LOST_EXIT_CODE,
            reason: LOST_REASON.to_owned(),
        },
    };
    let (_, next) = counts(status);
    Some(Lost { exit, next })
}

/// The latest time at which there was the run that a status tells of. What is restarted with everything else waits for
/// the init containers again, and counts for nothing.
fn latest(status: &ContainerStatus, resetting: bool) -> Option<Timestamp> {
    let state = status.state.as_ref();
    if let Some(running) = state.and_then(|state| state.running.as_ref()) {
        return running
            .started_at
            .as_ref()
            .map(|time| time.0)
            .filter(|_| !resetting);
    }
    let last = status.last_state.as_ref();
    let ended = state
        .and_then(|state| state.terminated.as_ref())
        .or_else(|| last.and_then(|last| last.terminated.as_ref()))?;
    let reset = resetting || ended.reason.as_deref() == Some(RESTARTING_ALL);
    let time = ended.finished_at.as_ref().max(ended.started_at.as_ref());
    time.map(|time| time.0).filter(|_| !reset)
}

/// Whether the record is one that was made, never ran and could not be removed, and the status of a run after it.
fn was_made_before(newest: &api::Container, status: &ContainerStatus) -> bool {
    let id = status.container_id.as_deref();
    let id = id.and_then(|id| id.split_once("://"));
    newest.state == ContainerState::Created && id.is_some_and(|(_, id)| id != newest.id.as_str())
}

/// The restart count that the status tells, and that of the container's next run.
fn counts(status: &ContainerStatus) -> (u32, u32) {
    let count = u32::try_from(status.restart_count).unwrap_or(0);
    // A waiting container's count is that of the run it waits for.
    let state = status.state.as_ref();
    let waits = state.is_some_and(|state| state.waiting.is_some());
    (count, count.saturating_add(u32::from(!waits)))
}
