//! What changes of containers that there are: restarts of all, other resources, other definitions.

use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::super::{labels, resize as rules, spec};
use super::{Inputs, PodActions, StopReason, stop};

/// The records to take away for a restart of all: the last container first, whoever caused it at the end, so that an
/// agent that dies in the middle is followed by one that goes on.
pub(super) fn reset(inputs: &Inputs<'_>, sources: &[&api::Container]) -> Vec<ContainerId> {
    let mut names: Vec<_> = spec::containers(inputs.pod)
        .map(|container| &container.name)
        .collect();
    names.reverse();
    let is_source = |id: &ContainerId| sources.iter().any(|source| source.id == *id);
    let records = names.iter().flat_map(|name| inputs.seen.records_of(name));
    let others = records
        .map(|record| record.id.clone())
        .filter(|id| !is_source(id));
    let sources = sources.iter().map(|source| source.id.clone());
    others.chain(sources).collect()
}

/// Running containers with other limits than the pod has been promised. Those that want to begin anew are stopped.
pub(super) fn resize(inputs: &Inputs<'_>, actions: &mut PodActions) {
    for container in spec::containers(inputs.pod) {
        let running = inputs
            .seen
            .current(&container.name)
            .filter(|record| record.state == ContainerState::Running);
        let Some(record) = running else { continue };
        match rules::change(inputs.pod, container, record) {
            None => {}
            Some(change) if change.needs_restart(container) => {
                actions.stop.push(stop(record, StopReason::Resize));
            }
            Some(_) => actions.resize.push(record.id.clone()),
        }
    }
}

/// Whether the container's definition is not the one that the record was made from.
pub(super) fn of_definition(container: &Container, record: &api::Container) -> bool {
    let made_from = record.config.annotations.get(labels::HASH);
    made_from.is_some_and(|hash| *hash != labels::container_hash(container))
}

/// Whether an ended container was stopped because its definition or its resources changed: it starts whatever the
/// policy says. One that ended by itself before the change keeps its end.
pub(super) fn replaced(pod: &Pod, container: &Container, record: &api::Container) -> bool {
    let signalled = record.exit_code > 128;
    let resized = || {
        rules::change(pod, container, record).is_some_and(|change| change.needs_restart(container))
    };
    signalled && (of_definition(container, record) || resized())
}
