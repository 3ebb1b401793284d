//! Init containers and sidecars: one after the other, and sidecars kept running.

use hanok_runtime::api::ContainerState;
use k8s_openapi::api::core::v1::Container;

use super::super::observation;
use super::super::spec::{self, ContainerKind};
use super::{Inputs, PodActions, Verdict, carry_out, judge, start};

/// How far the init phase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// An init container has to end, or a sidecar to start, before anything else.
    Busy,
    /// An init container has failed for good.
    Failed,
    /// App containers may run.
    Done,
}

/// Plans the steps of the init phase; keeps sidecars running in it and after it.
pub(super) fn plan(inputs: &Inputs<'_>, actions: &mut PodActions) -> Progress {
    let containers = spec::init_containers(inputs.pod);
    let is_over = spec::app_containers(inputs.pod).iter().any(|container| {
        let name = &container.name;
        let seen = inputs.seen;
        // What is started has waited for its turn.
        let begins = inputs.starting.contains(name);
        begins || seen.current(name).is_some() || seen.ran_in_newest_sandbox(name)
    });
    if is_over {
        keep_sidecars(inputs, containers, actions);
        return Progress::Done;
    }
    let furthest = containers.iter().rposition(|container| {
        let has_record = inputs.seen.current(&container.name).is_some();
        has_record || inputs.starting.contains(&container.name)
    });
    let Some(furthest) = furthest else {
        let Some(first) = containers.first() else {
            return Progress::Done;
        };
        start(inputs, first, actions);
        return Progress::Busy;
    };
    keep_sidecars(inputs, &containers[..furthest], actions);
    match step(inputs, &containers[furthest], actions) {
        Progress::Done => {}
        other => return other,
    }
    match containers.get(furthest + 1) {
        Some(next) => {
            start(inputs, next, actions);
            Progress::Busy
        }
        None => Progress::Done,
    }
}

/// Restarts sidecars that have ended and replaces those that changed.
fn keep_sidecars(inputs: &Inputs<'_>, containers: &[Container], actions: &mut PodActions) {
    let sidecars = containers
        .iter()
        .filter(|container| spec::init_kind(container) == ContainerKind::Sidecar);
    for container in sidecars {
        let verdict = judge(inputs, ContainerKind::Sidecar, container);
        carry_out(inputs, container, verdict, actions);
    }
}

/// The init container that the phase has come to.
fn step(inputs: &Inputs<'_>, container: &Container, actions: &mut PodActions) -> Progress {
    if inputs.starting.contains(&container.name) {
        return Progress::Busy;
    }
    let Some(record) = inputs.seen.current(&container.name) else {
        return Progress::Busy;
    };
    let kind = spec::init_kind(container);
    if kind == ContainerKind::Sidecar {
        let verdict = judge(inputs, kind, container);
        carry_out(inputs, container, verdict, actions);
        let started = verdict == Verdict::Keep
            && record.state == ContainerState::Running
            && inputs.probes.started(container, &record.id);
        return if started {
            Progress::Done
        } else {
            Progress::Busy
        };
    }
    let exit = observation::exit(record).filter(|_| record.state == ContainerState::Exited);
    match exit {
        Some(exit) if !spec::init_failed(&exit) => Progress::Done,
        Some(exit) if !spec::should_restart(inputs.pod, kind, container, &exit) => Progress::Failed,
        _ => {
            let verdict = judge(inputs, kind, container);
            carry_out(inputs, container, verdict, actions);
            Progress::Busy
        }
    }
}
