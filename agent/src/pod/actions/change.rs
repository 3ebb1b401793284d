//! What changes of containers that there are: restarts of all, other resources, other definitions.

use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::Container;

use super::super::spec::{self, ContainerKind, RestartPolicy};
use super::super::{labels, resize as rules};
use super::{Inputs, PodActions, StopReason, stop, stop_reason};

/// The records to take away for a restart of all: the app containers in order, then the init containers, each with its
/// newest run first; and whoever caused it at the end, so that an agent that dies in the middle is followed by one that
/// goes on.
pub(super) fn reset(inputs: &Inputs<'_>, sources: &[&api::Container]) -> Vec<ContainerId> {
    let apps = spec::app_containers(inputs.pod).iter();
    let containers = apps.chain(spec::init_containers(inputs.pod));
    let records = containers.flat_map(|container| inputs.seen.records_of(&container.name));
    let is_source = |record: &&api::Container| sources.iter().any(|source| source.id == record.id);
    let (last, first): (Vec<_>, Vec<_>) = records.partition(is_source);
    let all = first.into_iter().chain(last);
    all.map(|record| record.id.clone()).collect()
}

/// Running containers with other limits than the pod has been promised. Those that want to begin anew are stopped.
pub(super) fn resize(inputs: &Inputs<'_>, actions: &mut PodActions) {
    for container in spec::containers(inputs.pod) {
        let running = inputs
            .seen
            .current(&container.name)
            .filter(|record| record.state == ContainerState::Running);
        let Some(record) = running else { continue };
        let kind = spec::init_containers(inputs.pod)
            .iter()
            .find(|init| init.name == container.name)
            .map_or(ContainerKind::App, spec::init_kind);
        if stop_reason(inputs, kind, container, record).is_some() {
            // It is stopped for that, and has its resources from its next run on.
            continue;
        }
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

/// Whether an ended container was stopped so that it begins anew, which it then does however it ended: by a change of
/// its definition or its resources whatever the policy says, by a probe unless that is Never. An agent that has not
/// stopped it itself takes a signal for it; one that ended by itself before the change keeps its end.
pub(super) fn replaced(
    inputs: &Inputs<'_>,
    kind: ContainerKind,
    container: &Container,
    record: &api::Container,
) -> bool {
    let pod = inputs.pod;
    let stopped = inputs.restarted.contains_key(&record.id);
    let changed = || {
        let change = rules::change(pod, container, record);
        of_definition(container, record)
            || change.is_some_and(|change| change.needs_restart(container))
    };
    let restarts = || spec::restart_policy(pod, kind, container) != RestartPolicy::Never;
    stopped && restarts() || (stopped || record.exit_code > 128) && changed()
}
