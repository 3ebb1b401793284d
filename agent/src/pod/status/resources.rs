//! Requests and limits in a status: what is promised, and what is in force.

use std::collections::BTreeMap;

use hanok_runtime::api::{self, ContainerState};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{Inputs, status_of};
use crate::pod::{resize, resources as quality, spec};
use crate::quantity::Amount;

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

/// Fills in what the pod as a whole is promised and what of it is in force: its own resources, or else those of its
/// containers taken together. Of a pod that runs its cgroup knows CPU and memory only.
pub(super) fn report_pod(status: &mut PodStatus, inputs: &Inputs<'_>) {
    let pod = inputs.pod;
    status.allocated_resources = some(all(pod, quality::pod_request));
    let in_force = with_in_force(pod, status);
    let running = status.phase.as_deref() == Some("Running");
    let (requests, limits) = match running {
        false => (all(pod, quality::pod_request), all(pod, quality::any_limit)),
        true => {
            let of_cgroup = |name: &String| {
                let own = spec::spec(pod).and_then(|spec| spec.resources.as_ref());
                let own = own.into_iter().flat_map(|own| [&own.requests, &own.limits]);
                let mut own = own.flatten().flat_map(BTreeMap::keys);
                matches!(name.as_str(), "cpu" | "memory") || own.any(|own| own == name)
            };
            let mut requests = all(&in_force, quality::pod_request);
            let mut limits = all(&in_force, quality::pod_limit);
            requests.retain(|name, _| of_cgroup(name));
            limits.retain(|name, _| of_cgroup(name));
            (requests, limits)
        }
    };
    status.resources = Some(ResourceRequirements {
        claims: None,
        limits: some(limits),
        requests: some(requests),
    });
}

/// The total of every resource that the pod names, written as its parts are.
fn all(pod: &Pod, total: impl Fn(&Pod, &str) -> Option<Amount>) -> BTreeMap<String, Quantity> {
    let Some(spec) = spec::spec(pod) else {
        return BTreeMap::new();
    };
    let parts = spec::containers(pod).filter_map(|container| container.resources.as_ref());
    let parts = parts.chain(&spec.resources);
    let parts = parts.flat_map(|own| [&own.requests, &own.limits]);
    let mut totals = BTreeMap::new();
    for (name, part) in parts.chain([&spec.overhead]).flatten().flatten() {
        let written = |total: Amount| Quantity(total.like(part));
        if !totals.contains_key(name)
            && let Some(total) = total(pod, name).map(written)
        {
            totals.insert(name.clone(), total);
        }
    }
    totals
}

/// The pod whose containers have what is in force.
fn with_in_force(pod: &Pod, status: &PodStatus) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = pod.spec.as_mut() {
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            let known = status_of(Some(status), &container.name);
            if let Some(known) = known.and_then(|known| known.resources.clone()) {
                container.resources = Some(known);
            }
        }
    }
    pod
}

fn some(quantities: BTreeMap<String, Quantity>) -> Option<BTreeMap<String, Quantity>> {
    (!quantities.is_empty()).then_some(quantities)
}
