//! What a pod asks of its node, and what it may have at most: its own numbers, or those of its containers. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{COUNTED, amount, limit, request, requested};
use crate::pod::spec;
use crate::quantity::Amount;

/// The pod's own requests and limits, if there are any of what a pod can have: CPU, memory and huge pages.
pub(super) fn pod_level(pod: &Pod) -> Option<&ResourceRequirements> {
    let own = spec::spec(pod).and_then(|spec| spec.resources.as_ref())?;
    let mut names = [&own.requests, &own.limits]
        .into_iter()
        .flatten()
        .flat_map(BTreeMap::keys);
    names
        .any(|name| COUNTED.contains(&name.as_str()) || is_huge(name))
        .then_some(own)
}

/// The pod's own request. Where only its limit is written down, its containers' requests count, if there are any, and
/// else the limit; huge pages cannot be had beyond a limit, so it is the request.
pub(super) fn pod_level_request(pod: &Pod, resource: &str) -> Option<Amount> {
    let own = pod_level(pod)?;
    if let Some(said) = requested(Some(own), resource) {
        return Some(said).filter(|said| !said.is_zero());
    }
    own.limits.as_ref()?;
    let of_containers = || containers_request(pod, resource);
    match is_huge(resource) {
        true => limit(Some(own), resource).or_else(of_containers),
        false => of_containers().or_else(|| limit(Some(own), resource)),
    }
}

/// Requests of all containers.
pub(super) fn containers_request(pod: &Pod, resource: &str) -> Option<Amount> {
    sum(pod, |container| {
        request(container.resources.as_ref(), resource)
    })
}

/// Requests of the pod: its own, or those of its containers, with its overhead. Init containers run before the others,
/// so the larger of the two counts; sidecars run beside everything.
pub fn pod_request(pod: &Pod, resource: &str) -> Option<Amount> {
    let asked = pod_level_request(pod, resource).or_else(|| containers_request(pod, resource));
    with_overhead(pod, resource, asked)
}

/// Everything that the pod asks of its node, by resource name. This is what nodes and schedulers keep account of.
pub fn pod_requests(pod: &Pod) -> BTreeMap<String, Amount> {
    let Some(spec) = spec::spec(pod) else {
        return BTreeMap::new();
    };
    let asked = spec::containers(pod)
        .filter_map(|container| container.resources.as_ref())
        .chain(&spec.resources)
        .flat_map(|resources| [&resources.requests, &resources.limits])
        .chain([&spec.overhead]);
    let names: BTreeSet<&String> = asked.flatten().flat_map(BTreeMap::keys).collect();
    let total = |name: &String| Some((name.clone(), pod_request(pod, name)?));
    names.into_iter().filter_map(total).collect()
}

/// What others have to leave to a pod: all that it asks for, and of CPU and memory also what its status says that it
/// has been promised or still has, as long as a resize to less is not in force.
pub fn held_requests(pod: &Pod) -> BTreeMap<String, Amount> {
    let mut requests = pod_requests(pod);
    for resource in COUNTED {
        if let Some(held) = held(pod, resource) {
            let asked = requests.entry(resource.to_owned()).or_default();
            *asked = (*asked).max(held);
        }
    }
    requests
}

/// The larger of what a status says of promises and of what is in force, with the overhead.
fn held(pod: &Pod, resource: &str) -> Option<Amount> {
    let status = pod.status.as_ref()?;
    let in_force = status.resources.as_ref();
    let in_force = in_force.and_then(|resources| resources.requests.as_ref());
    let (promised, has) = match (status.allocated_resources.as_ref(), in_force) {
        // The overhead is in both.
        (Some(promised), Some(in_force)) if pod_level(pod).is_some() => {
            return amount(Some(promised), resource).max(amount(Some(in_force), resource));
        }
        // The pod has a request of its own, whatever its containers have.
        _ if pod_level_request(pod, resource).is_some() => return None,
        _ => {
            let promised = |container: &Container| {
                said(pod, container, resource, |status| {
                    status.allocated_resources.as_ref()
                })
            };
            let has = |container: &Container| {
                said(pod, container, resource, |status| {
                    let resources = status.resources.as_ref();
                    let requests = resources.and_then(|resources| resources.requests.as_ref());
                    requests.or(status.allocated_resources.as_ref())
                })
            };
            (sum(pod, promised), sum(pod, has))
        }
    };
    with_overhead(pod, resource, promised.max(has))
}

/// What a container's status says of its request, or, where it says nothing, the request.
fn said(
    pod: &Pod,
    container: &Container,
    resource: &str,
    of: impl Fn(&ContainerStatus) -> Option<&BTreeMap<String, Quantity>>,
) -> Option<Amount> {
    let status = pod.status.as_ref()?;
    let all = [&status.container_statuses, &status.init_container_statuses];
    let mut all = all.into_iter().flatten().flatten();
    let own = all.find(|status| status.name == container.name);
    match own.and_then(of) {
        Some(said) => amount(Some(said), resource),
        None => request(container.resources.as_ref(), resource),
    }
}

/// What all containers together may write to the node's disk, if any of them has a limit.
pub fn storage_limit(pod: &Pod) -> Option<Amount> {
    any_limit(pod, "ephemeral-storage")
}

/// Limits of the pod: its own, or those of its containers that have one; with its overhead.
pub fn any_limit(pod: &Pod, resource: &str) -> Option<Amount> {
    let of = |container: &Container| limit(container.resources.as_ref(), resource);
    let total = limit(pod_level(pod), resource).or_else(|| sum(pod, of))?;
    with_overhead(pod, resource, Some(total))
}

/// Limits of the pod: its own, or those of its containers when every one has one; with its overhead.
pub fn pod_limit(pod: &Pod, resource: &str) -> Option<Amount> {
    let of = |container: &Container| limit(container.resources.as_ref(), resource);
    let mut containers = spec::containers(pod);
    let total = match limit(pod_level(pod), resource) {
        Some(own) => own,
        None if containers.all(|container| of(container).is_some()) => sum(pod, of)?,
        None => return None,
    };
    with_overhead(pod, resource, Some(total))
}

/// Adds the RuntimeClass's overhead.
fn with_overhead(pod: &Pod, resource: &str, total: Option<Amount>) -> Option<Amount> {
    let overhead = spec::spec(pod).and_then(|spec| amount(spec.overhead.as_ref(), resource));
    match (total, overhead) {
        (Some(total), Some(overhead)) => Some(total.plus(overhead)),
        (total, overhead) => total.or(overhead),
    }
}

/// What the pod needs at its largest moment.
fn sum(pod: &Pod, of: impl Fn(&Container) -> Option<Amount>) -> Option<Amount> {
    let mut sidecars = Amount::default();
    let mut largest_init = Amount::default();
    let mut any = false;
    for container in spec::init_containers(pod) {
        let Some(amount) = of(container) else {
            continue;
        };
        any = true;
        if is_sidecar(container) {
            sidecars = sidecars.plus(amount);
            largest_init = largest_init.max(sidecars);
        } else {
            largest_init = largest_init.max(sidecars.plus(amount));
        }
    }
    let apps = spec::app_containers(pod).iter().filter_map(of);
    let running = apps.fold(sidecars, |total, amount| {
        any = true;
        total.plus(amount)
    });
    any.then(|| running.max(largest_init))
}

/// Whether an init container runs beside everything.
pub(super) fn is_sidecar(container: &Container) -> bool {
    spec::init_kind(container) == spec::ContainerKind::Sidecar
}

fn is_huge(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}
