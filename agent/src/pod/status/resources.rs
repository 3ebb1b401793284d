//! Requests and limits in a status: what is promised, and what is in force.

use std::collections::BTreeMap;

use hanok_runtime::api::{self, ContainerState};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Inputs, status_of};
use crate::pod::{resize, spec};

/// Fills in a container's status. A container that runs with other limits than those promised shows the last ones
/// that it was known to run with.
pub(super) fn report(
    status: &mut ContainerStatus,
    container: &Container,
    record: Option<&api::Container>,
    inputs: &Inputs<'_>,
) {
    let promised = container.resources.clone().unwrap_or_default();
    status.allocated_resources = promised.requests.clone().and_then(some);
    let behind = record
        .filter(|record| record.state == ContainerState::Running)
        .is_some_and(|record| resize::change(inputs.pod, container, record).is_some());
    let old = status_of(inputs.last, &container.name)
        .filter(|old| behind && old.container_id == status.container_id)
        .and_then(|old| old.resources.clone());
    let in_force = old.unwrap_or(ResourceRequirements {
        claims: None,
        ..promised
    });
    status.resources = Some(ResourceRequirements {
        limits: in_force.limits.and_then(some),
        requests: in_force.requests.and_then(some),
        ..in_force
    });
}

/// Fills in the pod's own resources, if it has any.
pub(super) fn report_pod(status: &mut PodStatus, inputs: &Inputs<'_>) {
    let own = spec::spec(inputs.pod).and_then(|spec| spec.resources.clone());
    let own = own.filter(|own| own.limits.is_some() || own.requests.is_some());
    status.allocated_resources = own.as_ref().and_then(|own| own.requests.clone());
    status.resources = own.map(|own| ResourceRequirements {
        claims: None,
        ..own
    });
}

fn some(quantities: BTreeMap<String, Quantity>) -> Option<BTreeMap<String, Quantity>> {
    (!quantities.is_empty()).then_some(quantities)
}
