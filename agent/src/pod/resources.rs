//! Quality of service and what requests and limits become in cgroups. Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use hanok_runtime::api::Resources;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::spec;
use crate::quantity::Amount;

/// The cgroup of all pods, below the runtime's cgroup root.
pub const ROOT_CGROUP: &str = "kubepods";
/// The CFS period, microseconds.
const CPU_PERIOD: u64 = 100_000;
/// The least CFS quota that the kernel takes, microseconds.
const MIN_QUOTA: i64 = 1_000;
/// Bounds of cpu.shares.
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
/// oom_score_adj of Guaranteed and node-critical pods.
const GUARANTEED_OOM_SCORE: i32 = -997;
/// oom_score_adj of BestEffort pods.
const BEST_EFFORT_OOM_SCORE: i32 = 1000;
/// Priority from which a pod is critical to its node.
const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Quality of service class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosClass {
    /// Every container has limits on CPU and memory, equal to its requests.
    Guaranteed,
    /// Some request or limit.
    Burstable,
    /// None.
    BestEffort,
}

impl QosClass {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }

    /// The cgroup of the class.
    pub fn cgroup(self) -> String {
        match self {
            Self::Guaranteed => ROOT_CGROUP.to_owned(),
            Self::Burstable => format!("{ROOT_CGROUP}/burstable"),
            Self::BestEffort => format!("{ROOT_CGROUP}/besteffort"),
        }
    }
}

/// The pod's class. Pod-level requests and limits decide when there are any.
pub fn qos_class(pod: &Pod) -> QosClass {
    let pod_level = spec::spec(pod).and_then(|spec| spec.resources.as_ref());
    if let Some(resources) = pod_level.filter(|resources| declares_any(resources)) {
        return class_of(&[Some(resources)]);
    }
    let all: Vec<_> = spec::containers(pod)
        .map(|container| container.resources.as_ref())
        .collect();
    class_of(&all)
}

/// Whether there is a request or limit of CPU or memory.
fn declares_any(resources: &ResourceRequirements) -> bool {
    ["cpu", "memory"].iter().any(|resource| {
        limit(Some(resources), resource).is_some() || request(Some(resources), resource).is_some()
    })
}

/// The class of these requirements taken together.
fn class_of(all: &[Option<&ResourceRequirements>]) -> QosClass {
    if !all
        .iter()
        .flatten()
        .any(|resources| declares_any(resources))
    {
        return QosClass::BestEffort;
    }
    let full = |resources: &Option<&ResourceRequirements>| {
        ["cpu", "memory"].iter().all(|resource| {
            let limit = limit(*resources, resource);
            limit.is_some() && request(*resources, resource) == limit
        })
    };
    match all.iter().all(full) {
        true => QosClass::Guaranteed,
        false => QosClass::Burstable,
    }
}

/// The pod's cgroup, below the runtime's cgroup root.
pub fn pod_cgroup(pod: &Pod) -> String {
    format!("{}/pod{}", qos_class(pod).cgroup(), spec::uid(pod))
}

/// The limits on the pod's cgroup.
pub fn pod_resources(pod: &Pod, pids_limit: i64) -> Resources {
    let class = qos_class(pod);
    let cpu_request = pod_request(pod, "cpu").map_or(0, Amount::to_millis);
    let base = Resources {
        cpu_shares: shares(cpu_request),
        pids_limit,
        ..Resources::default()
    };
    if class == QosClass::BestEffort {
        return base;
    }
    let quota = pod_limit(pod, "cpu").map(|limit| quota(limit.to_millis()));
    Resources {
        cpu_quota: quota.unwrap_or(0),
        cpu_period: quota.map_or(0, |_| CPU_PERIOD),
        memory_limit: pod_limit(pod, "memory").map_or(0, Amount::to_units),
        ..base
    }
}

/// Limits of one container.
pub fn container_resources(pod: &Pod, container: &Container, node_memory: u64) -> Resources {
    Resources {
        oom_score_adj: oom_score(pod, container, node_memory),
        hugepages: hugepages(container.resources.as_ref()),
        ..resizable(pod, container)
    }
}

/// Those of a container's limits that can change while it runs.
pub fn resizable(pod: &Pod, container: &Container) -> Resources {
    let own = container.resources.as_ref();
    let pod_level = spec::spec(pod).and_then(|spec| spec.resources.as_ref());
    let limited = |resource| limit(own, resource).or_else(|| limit(pod_level, resource));
    let cpu_request = request(own, "cpu").map_or(0, Amount::to_millis);
    let quota = limited("cpu").map(|limit| quota(limit.to_millis()));
    Resources {
        cpu_shares: shares(cpu_request),
        cpu_quota: quota.unwrap_or(0),
        cpu_period: quota.map_or(0, |_| CPU_PERIOD),
        memory_limit: limited("memory").map_or(0, Amount::to_units),
        ..Resources::default()
    }
}

/// Shares of the cgroup of burstable pods: the sum of their requests.
pub fn burstable_shares<'a>(pods: impl Iterator<Item = &'a Pod>) -> u64 {
    let burstable = pods.filter(|pod| qos_class(pod) == QosClass::Burstable);
    let millis = burstable
        .filter_map(|pod| pod_request(pod, "cpu"))
        .map(Amount::to_millis);
    shares(millis.fold(0, i64::saturating_add))
}

/// Whether the node is not itself without the pod.
pub fn is_node_critical(pod: &Pod) -> bool {
    let priority = spec::spec(pod).and_then(|spec| spec.priority);
    priority.is_some_and(|priority| priority >= NODE_CRITICAL_PRIORITY)
}

/// A container's own request (0 for none) and limit of memory, bytes.
pub fn memory_of(container: &Container) -> (i64, Option<i64>) {
    let own = container.resources.as_ref();
    let request = request(own, "memory").map_or(0, Amount::to_units);
    (request, limit(own, "memory").map(Amount::to_units))
}

/// oom_score_adj: the less of its request a pod may be using, the earlier it dies.
fn oom_score(pod: &Pod, container: &Container, node_memory: u64) -> i32 {
    match qos_class(pod) {
        _ if is_node_critical(pod) => GUARANTEED_OOM_SCORE,
        QosClass::Guaranteed => GUARANTEED_OOM_SCORE,
        QosClass::BestEffort => BEST_EFFORT_OOM_SCORE,
        QosClass::Burstable => {
            let own = burstable_oom_score(container, node_memory);
            let is_sidecar = spec::init_containers(pod).iter().any(|init| {
                init.name == container.name && spec::init_kind(init) == spec::ContainerKind::Sidecar
            });
            let apps = spec::app_containers(pod).iter();
            let smallest = apps.map(|app| burstable_oom_score(app, node_memory)).min();
            smallest
                .filter(|_| is_sidecar)
                .map_or(own, |smallest| own.min(smallest))
        }
    }
}

/// `1000 - 1000 * request / memory of the node`, within 3..=999.
fn burstable_oom_score(container: &Container, node_memory: u64) -> i32 {
    let requested = request(container.resources.as_ref(), "memory").map_or(0, Amount::to_units);
    let share = i128::from(requested) * 1000 / i128::from(node_memory.max(1));
    i32::try_from((1000 - share).clamp(3, 999)).unwrap_or(999)
}

/// Requests of the pod: its own, or those of its containers with its overhead. Init containers run before
/// the others, so the larger of the two counts; sidecars run beside everything.
fn pod_request(pod: &Pod, resource: &str) -> Option<Amount> {
    let pod_level = spec::spec(pod).and_then(|spec| spec.resources.as_ref());
    let total = match request(pod_level, resource) {
        Some(own) => Some(own),
        None => sum(pod, |container| {
            request(container.resources.as_ref(), resource)
        }),
    };
    with_overhead(pod, resource, total)
}

/// Everything that the pod asks of its node, by resource name: what [`pod_request`] says of each, and its overhead
/// also where nothing else is asked for. This is what nodes and schedulers keep account of.
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
    let total =
        |name: &str| pod_request(pod, name).or_else(|| amount(spec.overhead.as_ref(), name));
    names
        .into_iter()
        .filter_map(|name| Some((name.clone(), total(name)?)))
        .collect()
}

/// What all containers together may write to the node's disk, if any of them has a limit.
pub fn storage_limit(pod: &Pod) -> Option<Amount> {
    let resource = "ephemeral-storage";
    let total = sum(pod, |container| {
        limit(container.resources.as_ref(), resource)
    });
    with_overhead(pod, resource, total)
}

/// Limits of the pod: its own, or those of its containers when every one has one.
fn pod_limit(pod: &Pod, resource: &str) -> Option<Amount> {
    let pod_level = spec::spec(pod).and_then(|spec| spec.resources.as_ref());
    let mut containers = spec::containers(pod);
    let total = match limit(pod_level, resource) {
        Some(own) => Some(own),
        None if containers
            .all(|container| limit(container.resources.as_ref(), resource).is_some()) =>
        {
            sum(pod, |container| {
                limit(container.resources.as_ref(), resource)
            })
        }
        None => None,
    };
    with_overhead(pod, resource, total)
}

/// Adds the RuntimeClass's overhead to a total that there is.
fn with_overhead(pod: &Pod, resource: &str, total: Option<Amount>) -> Option<Amount> {
    let overhead = spec::spec(pod).and_then(|spec| amount(spec.overhead.as_ref(), resource));
    total.map(|total| overhead.map_or(total, |overhead| total.plus(overhead)))
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
        if spec::init_kind(container) == spec::ContainerKind::Sidecar {
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

/// The request; a limit without a request is one too.
fn request(resources: Option<&ResourceRequirements>, resource: &str) -> Option<Amount> {
    let own = amount(
        resources.and_then(|resources| resources.requests.as_ref()),
        resource,
    );
    own.or_else(|| limit(resources, resource))
}

/// The limit.
fn limit(resources: Option<&ResourceRequirements>, resource: &str) -> Option<Amount> {
    amount(
        resources.and_then(|resources| resources.limits.as_ref()),
        resource,
    )
}

/// One quantity that is not zero. One that does not parse is none; its source has refused the pod.
fn amount(quantities: Option<&BTreeMap<String, Quantity>>, resource: &str) -> Option<Amount> {
    let quantity = quantities?.get(resource)?;
    Amount::try_from(quantity)
        .ok()
        .filter(|amount| !amount.is_zero())
}

/// Limits on huge pages by page size, as the kernel writes the size.
fn hugepages(resources: Option<&ResourceRequirements>) -> BTreeMap<String, u64> {
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    limits
        .into_iter()
        .flatten()
        .filter_map(|(name, quantity)| {
            let size = Amount::parse(name.strip_prefix("hugepages-")?)
                .ok()?
                .to_units();
            let bytes = u64::try_from(Amount::try_from(quantity).ok()?.to_units()).ok()?;
            Some((page_size(u64::try_from(size).ok()?)?, bytes))
        })
        .collect()
}

/// `2MB`, `1GB`, `64KB`.
fn page_size(bytes: u64) -> Option<String> {
    let units = [(1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    let (unit, name) = units
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))?;
    Some(format!("{}{name}", bytes / unit))
}

/// cpu.shares of so many thousandths of a CPU.
fn shares(millis: i64) -> u64 {
    let shares = i128::from(millis) * 1024 / 1000;
    let bounded = shares.clamp(i128::from(*SHARES.start()), i128::from(*SHARES.end()));
    u64::try_from(bounded).unwrap_or(2)
}

/// CFS quota of so many thousandths of a CPU.
fn quota(millis: i64) -> i64 {
    let quota = i128::from(millis) * i128::from(CPU_PERIOD) / 1000;
    i64::try_from(quota).unwrap_or(i64::MAX).max(MIN_QUOTA)
}
