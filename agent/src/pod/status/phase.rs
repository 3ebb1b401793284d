//! The pod's phase.

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod};

use super::container::Statuses;
use super::{Ending, Inputs};
use crate::pod::spec::{self, ContainerKind, Exit};

/// Works out the phase. A terminal one is final, and is not said while anything still runs or is to be started.
pub(super) fn phase(inputs: &Inputs<'_>, statuses: &Statuses) -> &'static str {
    let last = inputs.last.and_then(|last| last.phase.as_deref());
    match last {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    let phase = match inputs.facts.failure {
        Some(_) => "Failed",
        None => by_containers(&Containers::of(inputs, statuses)),
    };
    let facts = inputs.facts;
    let busy = inputs.seen.any_running() || !facts.starting.is_empty() || facts.to_start;
    let ended = inputs.facts.ending == Ending::Ended;
    match phase {
        "Succeeded" | "Failed" if busy && last == Some("Running") => "Running",
        "Succeeded" | "Failed" if busy => "Pending",
        "Pending" | "Running" if ended && !busy => "Failed",
        phase => phase,
    }
}

/// What the containers say of the phase.
struct Containers<'a> {
    pod: &'a Pod,
    init: &'a [ContainerStatus],
    app: &'a [ContainerStatus],
    /// None of them is started again, whatever its policy.
    ends: bool,
    /// An app container has been made in the newest sandbox.
    has_begun: bool,
}

impl<'a> Containers<'a> {
    fn of(inputs: &Inputs<'a>, statuses: &'a Statuses) -> Self {
        let mut apps = spec::app_containers(inputs.pod).iter();
        let seen = inputs.seen;
        Self {
            pod: inputs.pod,
            init: &statuses.init,
            app: &statuses.app,
            // Of static pods too, which a kubelet only means to do: what has ended for good says so.
            ends: inputs.facts.ending != Ending::No,
            has_begun: apps.any(|app| {
                seen.current(&app.name).is_some() || seen.ran_in_newest_sandbox(&app.name)
            }),
        }
    }

    /// Whether the policy starts the container again after this end.
    fn restarts(
        &self,
        kind: ContainerKind,
        container: &Container,
        end: &ContainerStateTerminated,
    ) -> bool {
        spec::should_restart(self.pod, kind, container, &exit(end))
    }
}

/// The end as rules see it.
fn exit(end: &ContainerStateTerminated) -> Exit {
    Exit {
        code: end.exit_code,
        reason: end.reason.clone().unwrap_or_default(),
    }
}

/// The phase that the containers' states add up to. It goes back to Pending when init containers run again, as in a new
/// sandbox.
fn by_containers(all: &Containers<'_>) -> &'static str {
    let (mut waiting, mut running) = (false, false);
    for (container, status) in spec::init_containers(all.pod).iter().zip(all.init) {
        let state = status.state.as_ref();
        let runs = state.is_some_and(|state| state.running.is_some());
        match (spec::init_kind(container), end(status)) {
            // One that has run before, and does not now, counts for nothing.
            (ContainerKind::Sidecar, Some(_)) => {}
            (ContainerKind::Sidecar, None) => {
                running |= runs;
                waiting |= match runs {
                    true => status.started != Some(true) && !all.has_begun,
                    // Nobody waits for one that is not started any more.
                    false => !all.ends,
                };
            }
            (_, None) => waiting = true,
            (kind, Some(end)) => {
                if spec::init_failed(&exit(end)) && !all.restarts(kind, container, end) {
                    return "Failed";
                }
            }
        }
    }
    let (mut succeeded, mut failed, mut restarting) = (0, 0, 0);
    for (container, status) in spec::app_containers(all.pod).iter().zip(all.app) {
        let state = status.state.as_ref();
        if state.is_some_and(|state| state.running.is_some()) {
            running = true;
            continue;
        }
        let Some(end) = end(status) else {
            waiting = true;
            continue;
        };
        let is_waiting = state.is_some_and(|state| state.waiting.is_some());
        let restarts = is_waiting || all.restarts(ContainerKind::App, container, end);
        match end.exit_code {
            _ if restarts && !all.ends => restarting += 1,
            0 => succeeded += 1,
            _ => failed += 1,
        }
    }
    match () {
        () if waiting => "Pending",
        () if running || restarting > 0 => "Running",
        () if failed > 0 => "Failed",
        () if succeeded > 0 => "Succeeded",
        () => "Pending",
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

#[cfg(test)]
mod tests;
