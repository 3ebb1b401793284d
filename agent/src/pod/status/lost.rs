//! The status of a container without a record: nobody has made it yet, or its record is lost.

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus};

use super::container::{default_waiting, is_initialized, terminated_state, waiting};
use super::{Ending, Inputs, status_of};
use crate::pod::observation::{LOST_EXIT_CODE, LOST_REASON};
use crate::pod::spec::{self, ContainerKind, Exit};

/// The status of a container that the runtime does not know.
pub(super) fn status(
    inputs: &Inputs<'_>,
    kind: ContainerKind,
    container: &Container,
    base: ContainerStatus,
) -> ContainerStatus {
    let reason = inputs.facts.waiting.get(&container.name).cloned();
    let reason = reason.unwrap_or_else(|| default_waiting(inputs));
    let old = status_of(inputs.last, &container.name);
    let Some((old, ended)) = old.and_then(|old| lost_end(inputs, old).map(|ended| (old, ended)))
    else {
        if kind == ContainerKind::Init && is_initialized(inputs) {
            return ContainerStatus {
                state: Some(terminated_state(init_presumed_done())),
                ..base
            };
        }
        return ContainerStatus {
            state: Some(waiting(reason)),
            ..base
        };
    };
    let kept = ContainerStatus {
        image: old.image.clone(),
        image_id: old.image_id.clone(),
        container_id: old.container_id.clone(),
        restart_count: old.restart_count,
        ..base
    };
    let was_running = old
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some());
    let waited = old
        .state
        .as_ref()
        .is_some_and(|state| state.waiting.is_some());
    let resets = ended.reason.as_deref() == Some(spec::RESTARTING_ALL);
    if kind == ContainerKind::Init && was_running && is_initialized(inputs) && !resets {
        return ContainerStatus {
            state: Some(terminated_state(init_presumed_done())),
            ..kept
        };
    }
    let exit = Exit {
        code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
    };
    let restarts = inputs.facts.ending == Ending::No
        && spec::should_restart(inputs.pod, kind, container, &exit);
    if restarts {
        let restart_count = old.restart_count.saturating_add(i32::from(!waited));
        let last_state = Some(terminated_state(ended));
        return ContainerStatus {
            state: Some(waiting(reason)),
            last_state,
            restart_count,
            ..kept
        };
    }
    let last_state = old.last_state.clone();
    let message = match was_running && !resets {
        true => Some("The container could not be located when the pod was terminated".to_owned()),
        false => ended.message.clone(),
    };
    // A kubelet counts a restart here, though there is none.
    let ended = ContainerStateTerminated { message, ..ended };
    ContainerStatus {
        state: Some(terminated_state(ended)),
        last_state,
        ..kept
    }
}

/// How a container without a record ended, by the last status.
fn lost_end(inputs: &Inputs<'_>, old: &ContainerStatus) -> Option<ContainerStateTerminated> {
    let has_run = old.container_id.is_some();
    if has_run && inputs.facts.ending == Ending::No && inputs.has_reset() {
        return Some(ContainerStateTerminated {
            exit_code: LOST_EXIT_CODE,
            reason: Some(spec::RESTARTING_ALL.to_owned()),
            message: Some(spec::RESTARTING_ALL_MESSAGE.to_owned()),
            container_id: old.container_id.clone(),
            ..ContainerStateTerminated::default()
        });
    }
    end_of_state(old).or_else(|| {
        let last = old.last_state.as_ref();
        last.and_then(|last| last.terminated.clone())
    })
}

/// How the run that the last status shows has ended; none when it shows none.
pub(super) fn end_of_state(old: &ContainerStatus) -> Option<ContainerStateTerminated> {
    let state = old.state.as_ref();
    if let Some(ended) = state.and_then(|state| state.terminated.clone()) {
        return Some(ended);
    }
    let running = state.and_then(|state| state.running.as_ref());
    running.map(|running| {
        // The kubelet's words, whether the pod was deleted or not.
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        ContainerStateTerminated {
            exit_code: LOST_EXIT_CODE,
            reason: Some(LOST_REASON.to_owned()),
            message: Some(message.to_owned()),
            container_id: old.container_id.clone(),
            // By it, later looks know that init containers are done.
            started_at: running.started_at.clone(),
            ..ContainerStateTerminated::default()
        }
    })
}

/// The end of an init container that must have been, since what comes after it has started.
fn init_presumed_done() -> ContainerStateTerminated {
    let message = "Unable to get init container status from container runtime and pod has been \
                   initialized, treat it as exited normally";
    ContainerStateTerminated {
        reason: Some("Completed".to_owned()),
        message: Some(message.to_owned()),
        exit_code: 0,
        ..ContainerStateTerminated::default()
    }
}
