//! In-place resize. Pure: what is promised, what is wished for, and what of it is in force.
//!
//! ```text
//! wish (spec) ─► promise (Allocation, kept on disk by the owner of the set) ─► in force (the runtime's records)
//! ```
//! Everybody but the owner of the set sees a pod with the resources that the node has promised it. What is in force
//! is read from the records, so that a new agent goes on where one died.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use hanok_runtime::api::{self, Resources};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::{labels, memory, resources, spec};
use crate::quantity::Amount;

/// The condition of a resize that the node has not taken on.
pub const PENDING: &str = "PodResizePending";
/// The condition of a resize that is not in force yet.
pub const IN_PROGRESS: &str = "PodResizeInProgress";
/// Reason of a resize that may be later.
pub const DEFERRED: &str = "Deferred";
/// Reason of a resize that can never be.
pub const INFEASIBLE: &str = "Infeasible";
/// What may be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// What the node has promised a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// The pod's own resources, if it has any.
    pod: Option<ResourceRequirements>,
    /// Those of init and app containers, by name.
    containers: BTreeMap<String, ResourceRequirements>,
}

/// Whether the pod asks for more CPU or memory than it has been promised.
pub fn is_more(wish: &Pod, promised: &Pod) -> bool {
    let (asked, had) = (
        resources::pod_requests(wish),
        resources::pod_requests(promised),
    );
    RESIZABLE
        .iter()
        .any(|name| asked.get(*name) > had.get(*name))
}

/// Whether the wish would change how much a container may swap, and its policy does not restart it.
pub fn touches_swap(wish: &Pod, promised: &Pod, node_swap: u64) -> bool {
    spec::containers(wish).any(|container| {
        let Some((_, before)) = spec::find_container(promised, &container.name) else {
            return false;
        };
        let mut policies = before.resize_policy.iter().flatten();
        let policy = policies.find(|policy| policy.resource_name == "memory");
        let restarts = policy.is_some_and(|policy| policy.restart_policy == "RestartContainer");
        let (asks, asked) = (
            resources::memory_of(container).0,
            resources::memory_of(&before).0,
        );
        let may_swap = || {
            memory::may_swap(wish, container, node_swap)
                || memory::may_swap(promised, &before, node_swap)
        };
        asks != asked && !restarts && may_swap()
    })
}

/// Why a resize is not taken on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// `Deferred` when it may be later, `Infeasible` when it can never be.
    pub reason: &'static str,
    /// The word for it in the event: what the node is out of, when it is deferred.
    pub event: String,
    /// The cause.
    pub message: String,
}

impl Allocation {
    /// All that the pod wishes for.
    pub fn of(pod: &Pod) -> Self {
        let containers = spec::containers(pod).filter_map(|container| {
            let resources = container.resources.clone()?;
            Some((container.name.clone(), resources))
        });
        Self {
            pod: spec::spec(pod).and_then(|spec| spec.resources.clone()),
            containers: containers.collect(),
        }
    }

    /// Whether there is nothing that could be resized.
    pub fn is_empty(&self) -> bool {
        let all = self.pod.iter().chain(self.containers.values());
        all.flat_map(|resources| [&resources.limits, &resources.requests])
            .flatten()
            .all(BTreeMap::is_empty)
    }

    /// Whether the pod wishes for just this, however it writes it.
    pub fn covers(&self, pod: &Pod) -> bool {
        let wish = Self::of(pod);
        let own = amounts(self.pod.as_ref()) == amounts(wish.pod.as_ref());
        own && spec::containers(pod).all(|container| {
            let promised = self.containers.get(&container.name);
            amounts(promised) == amounts(container.resources.as_ref())
        })
    }

    /// The pod with what it has been promised in place of what it wishes for.
    pub fn apply(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        let Some(spec) = pod.spec.as_mut() else {
            return pod;
        };
        put(&mut spec.resources, self.pod.as_ref());
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            put(
                &mut container.resources,
                self.containers.get(&container.name),
            );
        }
        pod
    }
}

/// Puts the promised amounts of what can be resized in place of those that are there.
fn put(resources: &mut Option<ResourceRequirements>, promised: Option<&ResourceRequirements>) {
    if amounts(resources.as_ref()) == amounts(promised) {
        return;
    }
    let mut wished = resources.take().unwrap_or_default();
    let nothing = ResourceRequirements::default();
    let promised = promised.unwrap_or(&nothing);
    for (to, from) in [
        (&mut wished.limits, &promised.limits),
        (&mut wished.requests, &promised.requests),
    ] {
        let mut all = to.take().unwrap_or_default();
        all.retain(|name, _| !RESIZABLE.contains(&name.as_str()));
        let kept = from.iter().flatten();
        all.extend(
            kept.filter(|(name, _)| RESIZABLE.contains(&name.as_str()))
                .map(|(name, quantity)| (name.clone(), quantity.clone())),
        );
        *to = (!all.is_empty()).then_some(all);
    }
    *resources = Some(wished);
}

/// Limits and requests of what can be resized, as numbers.
fn amounts(resources: Option<&ResourceRequirements>) -> [Vec<Option<Amount>>; 2] {
    let of = |quantities: Option<&BTreeMap<String, Quantity>>| {
        let amount = |name: &&str| Amount::try_from(quantities?.get(*name)?).ok();
        RESIZABLE.iter().map(amount).collect()
    };
    [
        of(resources.and_then(|resources| resources.limits.as_ref())),
        of(resources.and_then(|resources| resources.requests.as_ref())),
    ]
}

/// Limits of a running container that are not those of its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// CPU shares or quota.
    pub cpu: bool,
    /// The memory limit.
    pub memory: bool,
}

impl Change {
    /// Whether the container has to be restarted for it.
    pub fn needs_restart(self, container: &Container) -> bool {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|policy| {
            let changed = match policy.resource_name.as_str() {
                "cpu" => self.cpu,
                "memory" => self.memory,
                _ => false,
            };
            changed && policy.restart_policy == "RestartContainer"
        })
    }
}

/// What is to change of a running container; none when everything is in force.
pub fn change(pod: &Pod, container: &Container, record: &api::Container) -> Option<Change> {
    let (wanted, has) = (
        resources::resizable(pod, container),
        &record.config.resources,
    );
    let change = Change {
        cpu: wanted.cpu_shares != has.cpu_shares || wanted.cpu_quota != has.cpu_quota.max(0),
        memory: wanted.memory_limit != has.memory_limit.max(0) || asks_otherwise(container, record),
    };
    (change.cpu || change.memory).then_some(change)
}

/// The memory that the container asks for, in bytes, if a change of it is to restart it. Nothing in a cgroup shows it.
pub fn memory_request(container: &Container) -> Option<i64> {
    let change = Change {
        cpu: false,
        memory: true,
    };
    if !change.needs_restart(container) {
        return None;
    }
    let requests = container.resources.as_ref()?.requests.as_ref();
    let asked = requests.and_then(|requests| requests.get("memory"));
    let asked = asked.and_then(|asked| Amount::try_from(asked).ok());
    Some(asked.map_or(0, |asked| asked.to_units()))
}

/// Whether the container was made when it asked for other memory.
fn asks_otherwise(container: &Container, record: &api::Container) -> bool {
    let made_with = record.config.annotations.get(labels::MEMORY_REQUEST);
    let asks = memory_request(container).map(|bytes| bytes.to_string());
    made_with.is_some() && asks.is_some() && made_with != asks.as_ref()
}

/// The limits to give to a container that runs. A limit that is to go has to be named: none would leave it as it is.
pub fn wanted(pod: &Pod, container: &Container, record: &api::Container) -> Resources {
    let (wanted, has) = (
        resources::resizable(pod, container),
        &record.config.resources,
    );
    let named = |wanted: i64, has: i64| match (wanted, has > 0) {
        (0, true) => -1,
        _ => wanted,
    };
    Resources {
        cpu_quota: named(wanted.cpu_quota, has.cpu_quota),
        memory_limit: named(wanted.memory_limit, has.memory_limit),
        ..wanted
    }
}

/// The lesser limits of two: what a container may have whichever of them its pod's cgroup has.
pub fn least(has: &Resources, wanted: &Resources) -> Resources {
    let lesser = |a: i64, b: i64| match (a > 0, b > 0) {
        (true, true) => a.min(b),
        (true, false) => a,
        _ => b,
    };
    Resources {
        cpu_quota: lesser(has.cpu_quota, wanted.cpu_quota),
        memory_limit: lesser(has.memory_limit, wanted.memory_limit),
        ..wanted.clone()
    }
}

/// What an event says of a resize: `WHAT: {"containers":[...],"generation":2}`.
pub fn message(what: &str, pod: &Pod, generation: i64, error: Option<&str>) -> String {
    #[derive(Serialize)]
    struct One<'a> {
        name: &'a str,
        resources: ResourceRequirements,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Whole<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        resources: Option<ResourceRequirements>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<One<'a>>,
        containers: Vec<One<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    }
    fn all(containers: &[Container]) -> Vec<One<'_>> {
        let mut all = Vec::with_capacity(containers.len());
        for container in containers {
            all.push(One {
                name: &container.name,
                resources: container.resources.clone().unwrap_or_default(),
            });
        }
        all
    }
    let whole = Whole {
        resources: spec::spec(pod).and_then(|spec| spec.resources.clone()),
        init_containers: all(spec::init_containers(pod)),
        containers: all(spec::app_containers(pod)),
        generation,
        error,
    };
    let details = serde_json::to_string(&whole).unwrap_or_default();
    format!("Pod resize {what}: {details}")
}
