//! Container statuses: waiting, running, terminated; what came before; ready and started.

use hanok_runtime::api::{self, ContainerState as State};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Ending, Inputs, Waiting, lost, resources, status_of};
use crate::pod::back_off::go_duration;
use crate::pod::observation::{self, UNKNOWN_EXIT_CODE, timestamp};
use crate::pod::spec::{self, ContainerKind};

/// The runtime's name in container ids.
pub(super) const RUNTIME: &str = "hanok";

/// The statuses of all containers, each in its list.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    pub(super) init: Vec<ContainerStatus>,
    pub(super) app: Vec<ContainerStatus>,
    pub(super) ephemeral: Vec<ContainerStatus>,
}

impl Statuses {
    /// Works out every status.
    pub(super) fn build(inputs: &Inputs<'_>) -> Self {
        let pod = inputs.pod;
        let init = spec::init_containers(pod).iter();
        let app = spec::app_containers(pod).iter();
        let ephemeral = spec::ephemeral_containers(pod);
        Self {
            init: init
                .map(|container| status(inputs, spec::init_kind(container), container))
                .collect(),
            app: app
                .map(|container| status(inputs, ContainerKind::App, container))
                .collect(),
            ephemeral: ephemeral
                .iter()
                .map(|container| status(inputs, ContainerKind::Ephemeral, container))
                .collect(),
        }
    }
}

/// Works out one status.
fn status(inputs: &Inputs<'_>, kind: ContainerKind, container: &Container) -> ContainerStatus {
    let mut records = inputs.seen.records_of(&container.name);
    let base = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        volume_mounts: volume_mounts(container),
        ..ContainerStatus::default()
    };
    let mut status = match records.next() {
        Some(newest) => of_record(inputs, kind, container, newest, records.next(), base),
        None => lost::status(inputs, kind, container, base),
    };
    // The record of a later run may be gone; what was told is not taken back.
    let told = status_of(inputs.last, &container.name).map_or(0, |old| old.restart_count);
    status.restart_count = status.restart_count.max(told);
    let state = status.state.as_ref();
    let running = state.is_some_and(|state| state.running.is_some());
    let succeeded = state
        .and_then(|state| state.terminated.as_ref())
        .is_some_and(|ended| ended.exit_code == 0);
    let newest = inputs
        .seen
        .newest(&container.name)
        .map(|record| &record.id)
        .filter(|_| running);
    status.started = match kind {
        ContainerKind::Ephemeral => None,
        ContainerKind::Init => Some(running),
        _ => Some(newest.is_some_and(|id| inputs.probes.started(container, id))),
    };
    if status.container_id.is_some() {
        let record = inputs.seen.newest(&container.name);
        resources::report(&mut status, container, record, inputs);
    }
    status.ready = match kind {
        ContainerKind::Ephemeral => false,
        ContainerKind::Init => succeeded,
        _ => newest.is_some_and(|id| inputs.probes.ready(container, id)),
    };
    status
}

/// The status of a container that the runtime knows.
fn of_record(
    inputs: &Inputs<'_>,
    kind: ContainerKind,
    container: &Container,
    newest: &api::Container,
    previous: Option<&api::Container>,
    base: ContainerStatus,
) -> ContainerStatus {
    let old = status_of(inputs.last, &container.name);
    let ended = terminated(inputs, newest);
    let hook_runs = inputs.facts.starting.contains(&container.name)
        && container
            .lifecycle
            .as_ref()
            .is_some_and(|lifecycle| lifecycle.post_start.is_some());
    let (state, shows_newest) = match (newest.state, ended.as_ref()) {
        (State::Running, _) if !hook_runs => (running(newest), true),
        (State::Running | State::Created, _) => (waiting(default_waiting(inputs)), true),
        (_, Some(ended)) => match restart_waiting(inputs, kind, container, newest) {
            Some(reason) => (waiting(reason), false),
            None => (terminated_state(ended.clone()), true),
        },
        (_, None) => (waiting(default_waiting(inputs)), true),
    };
    // What is about to lose its record counts as the run that follows.
    let resets = kind != ContainerKind::Ephemeral && !shows_newest && inputs.resets();
    let count = match newest.state {
        State::Created => inputs.seen.next_attempt(&container.name),
        _ => newest.config.attempt.saturating_add(u32::from(resets)),
    };
    let later = inputs.seen.told_later(&container.name).zip(old);
    if let Some((next, old)) = later.filter(|_| !shows_newest) {
        // It waits for the run after one that only the last status knows.
        let end = lost::end_of_state(old).map(terminated_state);
        return ContainerStatus {
            image: old.image.clone(),
            image_id: old.image_id.clone(),
            container_id: old.container_id.clone(),
            restart_count: i32::try_from(next).unwrap_or(i32::MAX),
            state: Some(state),
            last_state: end.or_else(|| old.last_state.clone()),
            ..base
        };
    }
    let before = match shows_newest {
        true => previous.and_then(|previous| terminated(inputs, previous)),
        false => ended,
    };
    let before = before.map(terminated_state).or_else(|| {
        let old = old?;
        // The run before has no record any more; the last status knows how it ended, or that it ran.
        let of_another = old.container_id != Some(container_id(newest));
        let end = of_another.then(|| lost::end_of_state(old)).flatten();
        let end = end.map(terminated_state);
        end.or_else(|| old.last_state.clone())
    });
    let signal = Some(newest.config.stop_signal.clone());
    ContainerStatus {
        user: newest.identity.as_ref().map(user),
        stop_signal: signal.filter(|signal| !signal.is_empty()),
        image: newest.config.image_reference.clone(),
        image_id: newest.image_ref.clone(),
        container_id: Some(container_id(newest)),
        restart_count: i32::try_from(count).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: before,
        ..base
    }
}

/// Why an ended container waits for its next run; none when its end is what there is to show.
fn restart_waiting(
    inputs: &Inputs<'_>,
    kind: ContainerKind,
    container: &Container,
    newest: &api::Container,
) -> Option<Waiting> {
    if inputs.facts.ending != Ending::No {
        return None;
    }
    if kind != ContainerKind::Ephemeral && inputs.resets() {
        return Some(default_waiting(inputs));
    }
    let crash_loops = &inputs.facts.crash_loops;
    if let Some(crash_loop) = crash_loops
        .iter()
        .find(|looping| looping.name == container.name)
    {
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(crash_loop.delay),
            container.name,
            spec::display(inputs.pod)
        );
        return Some(Waiting {
            reason: "CrashLoopBackOff".to_owned(),
            message,
        });
    }
    if let Some(waiting) = inputs.facts.waiting.get(&container.name) {
        return Some(waiting.clone());
    }
    // In a new sandbox everything that restarts waits for its turn again.
    let old_sandbox = inputs
        .seen
        .newest_sandbox()
        .is_some_and(|sandbox| sandbox.id != newest.sandbox);
    let restarts = observation::exit(newest)
        .is_some_and(|exit| spec::should_restart(inputs.pod, kind, container, &exit));
    (old_sandbox && restarts).then(|| default_waiting(inputs))
}

/// Whether an app container has ever been started.
pub(super) fn is_initialized(inputs: &Inputs<'_>) -> bool {
    spec::app_containers(inputs.pod).iter().any(|container| {
        let mut records = inputs.seen.records_of(&container.name);
        let old = status_of(inputs.last, &container.name);
        records.any(|record| record.state != State::Created)
            || old.is_some_and(|old| old.container_id.is_some())
    })
}

/// What a container waits for when nothing went wrong.
pub(super) fn default_waiting(inputs: &Inputs<'_>) -> Waiting {
    let has_init = !spec::init_containers(inputs.pod).is_empty();
    let (reason, message) = if inputs.resets() {
        (spec::RESTARTING_ALL, spec::RESTARTING_ALL_MESSAGE)
    } else if has_init {
        ("PodInitializing", "")
    } else {
        ("ContainerCreating", "")
    };
    Waiting {
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

/// Who the first process was when it began.
fn user(identity: &api::Identity) -> ContainerUser {
    let gid = Some(identity.gid).filter(|gid| !identity.groups.contains(gid));
    let groups = gid.into_iter().chain(identity.groups.iter().copied());
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: i64::from(identity.uid),
            gid: i64::from(identity.gid),
            supplemental_groups: super::some(groups.map(i64::from).collect()),
        }),
    }
}

/// `hanok://ID`.
fn container_id(record: &api::Container) -> String {
    format!("{RUNTIME}://{}", record.id)
}

/// A running state.
fn running(record: &api::Container) -> ContainerState {
    let started_at = record.started_at.map(|time| Time(timestamp(time)));
    ContainerState {
        running: Some(ContainerStateRunning { started_at }),
        ..Default::default()
    }
}

/// A waiting state.
pub(super) fn waiting(waiting: Waiting) -> ContainerState {
    let message = Some(waiting.message).filter(|message| !message.is_empty());
    let waiting = ContainerStateWaiting {
        reason: Some(waiting.reason),
        message,
    };
    ContainerState {
        waiting: Some(waiting),
        ..Default::default()
    }
}

/// A terminated state.
pub(super) fn terminated_state(ended: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(ended),
        ..Default::default()
    }
}

/// How a run ended; none while it has not.
fn terminated(inputs: &Inputs<'_>, record: &api::Container) -> Option<ContainerStateTerminated> {
    let unknown = match record.state {
        State::Created | State::Running => return None,
        State::Exited => false,
        State::Unknown => true,
    };
    let read = inputs
        .facts
        .messages
        .get(&record.id)
        .map(String::as_str)
        .unwrap_or_default();
    let both = [record.message.as_str(), read].into_iter();
    let message = both
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    let reason = match record.reason.as_str() {
        "" if unknown => "Unknown",
        "" if record.exit_code == 0 => "Completed",
        "" => "Error",
        reason => reason,
    };
    Some(ContainerStateTerminated {
        exit_code: if unknown {
            UNKNOWN_EXIT_CODE
        } else {
            record.exit_code
        },
        reason: Some(reason.to_owned()),
        message: Some(message).filter(|message| !message.is_empty()),
        started_at: record.started_at.map(|time| Time(timestamp(time))),
        finished_at: record.finished_at.map(|time| Time(timestamp(time))),
        container_id: Some(container_id(record)),
        signal: None,
    })
}

/// The container's mounts of volumes.
fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container
        .volume_mounts
        .as_ref()?
        .iter()
        .map(|mount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: mount.read_only.filter(|read_only| *read_only).map(
                |_| match mount.recursive_read_only.as_deref() {
                    Some("Enabled" | "IfPossible") => "Enabled".to_owned(),
                    _ => "Disabled".to_owned(),
                },
            ),
            ..VolumeMountStatus::default()
        });
    super::some(mounts.collect())
}
