//! The pod's phase.

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus};

use super::container::{Statuses, is_initialized};
use super::{Ending, Inputs};
use crate::pod::spec::{self, ContainerKind, Exit};

/// Where the init phase stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Init {
    Done,
    Pending,
    Failed,
}

/// Works out the phase. A terminal one is final, and is not said while anything still runs.
pub(super) fn phase(inputs: &Inputs<'_>, statuses: &Statuses) -> &'static str {
    let last = inputs.last.and_then(|last| last.phase.as_deref());
    match last {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let phase = match inputs.facts.failure {
        Some(_) => "Failed",
        None => by_containers(inputs, statuses),
    };
    let busy = inputs.seen.any_running() || !inputs.facts.starting.is_empty();
    let ended = inputs.facts.ending == Ending::Ended;
    match phase {
        "Succeeded" | "Failed" if busy && last == Some("Running") => "Running",
        "Succeeded" | "Failed" if busy => "Pending",
        "Pending" | "Running" if ended && !busy => "Failed",
        phase => phase,
    }
}

/// The phase that the containers' states add up to.
fn by_containers(inputs: &Inputs<'_>, statuses: &Statuses) -> &'static str {
    match init_phase(inputs, statuses) {
        Init::Failed => return "Failed",
        Init::Pending if !is_initialized(inputs) => return "Pending",
        Init::Pending | Init::Done => {}
    }
    let (mut running, mut waiting, mut succeeded, mut failed, mut restarting) = (0, 0, 0, 0, 0);
    for (container, status) in spec::app_containers(inputs.pod).iter().zip(&statuses.app) {
        let state = status.state.as_ref();
        if state.is_some_and(|state| state.running.is_some()) {
            running += 1;
            continue;
        }
        let Some(end) = end(status) else {
            waiting += 1;
            continue;
        };
        let is_waiting = state.is_some_and(|state| state.waiting.is_some());
        let restarts = inputs.facts.ending == Ending::No
            && (is_waiting || restarts(inputs, ContainerKind::App, container, end));
        match end.exit_code {
            _ if restarts => restarting += 1,
            0 => succeeded += 1,
            _ => failed += 1,
        }
    }
    match () {
        () if waiting > 0 => "Pending",
        () if running > 0 || restarting > 0 => "Running",
        () if failed > 0 => "Failed",
        () if succeeded > 0 => "Succeeded",
        () => "Pending",
    }
}

/// Whether init containers are done, and sidecars started.
fn init_phase(inputs: &Inputs<'_>, statuses: &Statuses) -> Init {
    let mut phase = Init::Done;
    for (container, status) in spec::init_containers(inputs.pod).iter().zip(&statuses.init) {
        let kind = spec::init_kind(container);
        let pending = match (kind, end(status)) {
            (ContainerKind::Sidecar, _) => status.started != Some(true),
            (_, Some(end)) if failed(end) => {
                if !restarts(inputs, kind, container, end) {
                    return Init::Failed;
                }
                true
            }
            _ => !status.ready,
        };
        if pending {
            phase = Init::Pending;
        }
    }
    phase
}

/// Whether an init container's end is a failure.
fn failed(end: &ContainerStateTerminated) -> bool {
    spec::init_failed(&exit(end))
}

/// Whether the policy starts the container again after this end.
fn restarts(
    inputs: &Inputs<'_>,
    kind: ContainerKind,
    container: &Container,
    end: &ContainerStateTerminated,
) -> bool {
    spec::should_restart(inputs.pod, kind, container, &exit(end))
}

/// The end as rules see it.
fn exit(end: &ContainerStateTerminated) -> Exit {
    Exit {
        code: end.exit_code,
        reason: end.reason.clone().unwrap_or_default(),
    }
}

/// The newest end of a container that does not run.
fn end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return None;
    }
    let of_state = state.and_then(|state| state.terminated.as_ref());
    of_state.or_else(|| {
        status
            .last_state
            .as_ref()
            .and_then(|last| last.terminated.as_ref())
    })
}
