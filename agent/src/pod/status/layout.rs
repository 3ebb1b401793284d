//! The form that a status has at last: the order of its containers, and how much they may say.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

use crate::pod::observation;

/// Bytes that the termination messages of all containers of a pod may have together, as the kubelet has it.
const MOST_SAID: usize = 12 << 10;

/// Puts containers into the order of their names, init containers aside, whose order means something, and leaves each
/// its share of the messages.
pub(super) fn lay_out(status: &mut PodStatus) {
    for list in [
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        let list = list.as_deref_mut().unwrap_or_default();
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let share = MOST_SAID / observation::statuses(status).count().max(1);
    for list in [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        for container in list.iter_mut().flatten() {
            shorten(container, share);
        }
    }
}

/// Cuts what a container has said.
fn shorten(container: &mut ContainerStatus, most: usize) {
    let states: [&mut Option<ContainerState>; 2] =
        [&mut container.state, &mut container.last_state];
    let ends = states.into_iter().flatten();
    let messages = ends.filter_map(|state| state.terminated.as_mut()?.message.as_mut());
    for message in messages {
        message.truncate(message.floor_char_boundary(most));
    }
}
