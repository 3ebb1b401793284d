//! Quality of service and what requests and limits become in cgroups. Pure.

mod oom_score;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hanok_runtime::api::Resources;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::spec;
use crate::quantity::Amount;

pub use requests::{any_limit, held_requests, pod_limit, pod_request, pod_requests, storage_limit};

use requests::{pod_level, pod_level_request};

/// The cgroup of all pods, below the runtime's cgroup root.
pub const ROOT_CGROUP: &str = "kubepods";
/// The CFS period, microseconds.
const CPU_PERIOD: u64 = 100_000;
/// The least CFS quota that the kernel takes, microseconds.
const MIN_QUOTA: i64 = 1_000;
/// The resources that a class goes by.
const COUNTED: [&str; 2] = ["cpu", "memory"];
/// Bounds of cpu.shares.
const SHARES: std::ops::RangeInclusive<i64> = 2..=262_144;
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

    /// The class by the API's word.
    fn parse(word: &str) -> Option<Self> {
        let mut all = [Self::Guaranteed, Self::Burstable, Self::BestEffort].into_iter();
        all.find(|class| class.as_str() == word)
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

/// Request and limit of CPU and of memory; none for zero.
type Asked = [(Option<Amount>, Option<Amount>); 2];

/// The pod's class, which the API server says at its creation and never lets anybody change. Pod-level requests and
/// limits decide when there are any.
pub fn qos_class(pod: &Pod) -> QosClass {
    let status = pod.status.as_ref();
    let said = status.and_then(|status| status.qos_class.as_deref());
    if let Some(class) = said.and_then(QosClass::parse) {
        return class;
    }
    if let Some(own) = pod_level(pod) {
        let asked = COUNTED.map(|name| (pod_level_request(pod, name), limit(Some(own), name)));
        return class_of(&[asked]);
    }
    let asked = |container: &Container| {
        let own = container.resources.as_ref();
        COUNTED.map(|name| (request(own, name), limit(own, name)))
    };
    let all: Vec<Asked> = spec::containers(pod).map(asked).collect();
    class_of(&all)
}

/// The class of these taken together.
fn class_of(all: &[Asked]) -> QosClass {
    let mut pairs = all.iter().flatten();
    if pairs.all(|pair| *pair == (None, None)) {
        return QosClass::BestEffort;
    }
    let mut pairs = all.iter().flatten();
    match pairs.all(|(request, limit)| limit.is_some() && request == limit) {
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
    // Who asks for nothing gets the least, and be there a RuntimeClass's overhead.
    let cpu_request = match class {
        QosClass::BestEffort => 0,
        _ => pod_request(pod, "cpu").map_or(0, Amount::to_millis),
    };
    let base = Resources {
        cpu_shares: shares(cpu_request),
        pids_limit,
        hugepages: hugepages(&pod_requests(pod)),
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

/// Limits of one container. Of huge pages it may have what the pod may, unless it says otherwise itself.
pub fn container_resources(pod: &Pod, container: &Container, node_memory: u64) -> Resources {
    let limits = pod_level(pod).into_iter().chain(&container.resources);
    let limits = limits.flat_map(|resources| &resources.limits).flatten();
    let limits = limits.filter_map(|(name, quantity)| {
        let amount = Amount::try_from(quantity).ok()?;
        Some((name.clone(), amount))
    });
    Resources {
        oom_score_adj: oom_score::of(pod, container, node_memory),
        hugepages: hugepages(&limits.collect()),
        ..resizable(pod, container)
    }
}

/// Those of a container's limits that can change while it runs. Who has none of its own has the pod's, and who asks
/// for nothing asks for its limit.
pub fn resizable(pod: &Pod, container: &Container) -> Resources {
    let own = container.resources.as_ref();
    let limited = |resource| limit(own, resource).or_else(|| limit(pod_level(pod), resource));
    let cpu_request = match requested(own, "cpu") {
        Some(said) => said.to_millis(),
        None => limited("cpu").map_or(0, Amount::to_millis),
    };
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

/// The request, if it is not zero; a limit without a request is one too.
fn request(resources: Option<&ResourceRequirements>, resource: &str) -> Option<Amount> {
    match requested(resources, resource) {
        Some(said) => Some(said).filter(|said| !said.is_zero()),
        None => limit(resources, resource),
    }
}

/// The request that is written down, and be it zero.
fn requested(resources: Option<&ResourceRequirements>, resource: &str) -> Option<Amount> {
    let quantity = resources?.requests.as_ref()?.get(resource)?;
    Amount::try_from(quantity).ok()
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
fn hugepages(amounts: &BTreeMap<String, Amount>) -> BTreeMap<String, u64> {
    let limits = amounts.iter().filter_map(|(name, amount)| {
        let size = Amount::parse(name.strip_prefix("hugepages-")?).ok()?;
        let size = page_size(u64::try_from(size.to_units()).ok()?)?;
        Some((size, u64::try_from(amount.to_units()).ok()?))
    });
    limits.collect()
}

/// A size of huge pages as the kernel's files have it: `2MB`, `1GB`, `64KB`.
pub fn page_size(bytes: u64) -> Option<String> {
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
