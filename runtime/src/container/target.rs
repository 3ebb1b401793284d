//! The container whose PID namespace another one joins: `kubectl debug --target`.

use super::{Container, Phase};
use crate::api::{ContainerId, ContainerState};
use crate::service::Core;

/// Process id of the target of `container`, which is of the same pod and runs. The error says why it is none, in the words
/// of containerd.
pub(super) fn pid_of(
    core: &Core,
    container: &Container,
    target: &ContainerId,
) -> Result<i32, String> {
    let id = target.as_str();
    let found = core.registry.container(target);
    let found = found.filter(|other| other.pod == container.pod);
    let Some(found) = found else {
        let why = format!("invalid target container: container {id:?} does not exist: not found");
        return Err(why);
    };
    if let Phase::Running { pid } = found.phase() {
        return Ok(pid);
    }
    let state = match found.view().state {
        ContainerState::Created => "CREATED",
        ContainerState::Running => "RUNNING",
        ContainerState::Exited => "EXITED",
        ContainerState::Unknown => "UNKNOWN",
    };
    Err(format!(
        "invalid target container: container {id:?} is not running - in state CONTAINER_{state}"
    ))
}
