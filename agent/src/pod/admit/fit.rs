//! Whether there is enough of everything that a pod asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{Placement, Unmet};
use crate::pod::resources;
use crate::quantity::Amount;

/// Everything that there is too little of, in the order pods, cpu, memory, ephemeral-storage, the others by name.
pub(super) fn lacking(pod: &Pod, node: &Placement, others: &[Arc<Pod>]) -> Vec<Unmet> {
    let mut lacking = Vec::new();
    let capacity = |name: &str| {
        let amount = node.allocatable.get(name);
        amount.map_or(0, |amount| count(name, *amount))
    };
    let pods = i64::try_from(others.len()).unwrap_or(i64::MAX);
    lacking.extend(too_little("pods", 1, pods, capacity("pods")));
    let requests = counted(resources::pod_requests(pod), Some(node));
    if requests.is_empty() {
        return lacking;
    }
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for other in others {
        for (name, count) in counted(resources::held_requests(other), None) {
            let total = used.entry(name).or_default();
            *total = total.saturating_add(count);
        }
    }
    let first = ["cpu", "memory", "ephemeral-storage"];
    let others = requests
        .keys()
        .map(String::as_str)
        .filter(|name| !first.contains(name));
    for name in first.into_iter().chain(others) {
        let requested = requests.get(name).copied().unwrap_or(0);
        let used = used.get(name).copied().unwrap_or(0);
        lacking.extend(too_little(name, requested, used, capacity(name)));
    }
    lacking
}

/// So much of a resource as a pod counts for; 1 of `pods`.
pub(super) fn request_of(pod: &Pod, resource: &str) -> i64 {
    if resource == "pods" {
        return 1;
    }
    let requests = counted(resources::pod_requests(pod), None);
    requests.get(resource).copied().unwrap_or(0)
}

/// Requests in the numbers that messages have. Extended resources that the node has never heard of are left out: they
/// belong to the cluster and not to a node.
fn counted(requests: BTreeMap<String, Amount>, node: Option<&Placement>) -> BTreeMap<String, i64> {
    let known = |name: &str| {
        !is_extended(name) || node.is_none_or(|node| node.allocatable.contains_key(name))
    };
    requests
        .into_iter()
        .filter(|(name, amount)| is_counted(name) && known(name) && !amount.is_zero())
        .map(|(name, amount)| {
            let count = count(&name, amount);
            (name, count)
        })
        .collect()
}

fn too_little(name: &str, requested: i64, used: i64, capacity: i64) -> Option<Unmet> {
    (requested > 0 && requested > capacity.saturating_sub(used)).then(|| Unmet::Resource {
        name: name.to_owned(),
        requested,
        used,
        capacity,
    })
}

/// Thousandths of CPUs, units of everything else.
fn count(name: &str, amount: Amount) -> i64 {
    match name {
        "cpu" => amount.to_millis(),
        _ => amount.to_units(),
    }
}

/// Whether the resource is one that a node keeps account of: those of Kubernetes, and every one with a domain.
fn is_counted(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
        || name.contains('/')
}

/// Whether the resource is a device's or an administrator's: it has a domain, and not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    let Some((domain, _)) = name.split_once('/') else {
        return false;
    };
    domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io")
}
