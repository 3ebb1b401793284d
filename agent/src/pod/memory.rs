//! Swap, and who dies of want of memory: what a container's cgroup says of memory beside its size. Pure.

use hanok_runtime::api::Resources;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::admit;
use super::resources::{self, QosClass};

/// The node's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryRules {
    /// Bytes of swap that containers share (memorySwap.swapBehavior LimitedSwap); 0 for none (NoSwap).
    pub swap: u64,
    /// Only one process of a container is killed, and not all (singleProcessOOMKill); v2 only.
    pub kill_one: bool,
}

/// Adds the rules to a container's limits.
pub fn add(
    limits: &mut Resources,
    pod: &Pod,
    container: &Container,
    node_memory: u64,
    rules: &MemoryRules,
) {
    let swap = swap(pod, container, node_memory, rules.swap);
    match limits.memory_limit {
        // Without a limit to add to, only v2 can say it.
        0 => {
            let file = "memory.swap.max".to_owned();
            limits.unified.insert(file, swap.to_string());
        }
        limit => limits.memory_swap_limit = limit.saturating_add(swap),
    }
    if !rules.kill_one {
        let file = "memory.oom.group".to_owned();
        limits.unified.insert(file, "1".to_owned());
    }
}

/// Bytes of swap: the container's part of the node's, as its request is of the node's memory.
fn swap(pod: &Pod, container: &Container, node_memory: u64, node_swap: u64) -> i64 {
    if !may_swap(pod, container, node_swap) || node_memory == 0 {
        return 0;
    }
    let (request, _) = resources::memory_of(container);
    let share = i128::from(request) * i128::from(node_swap) / i128::from(node_memory);
    i64::try_from(share).unwrap_or(i64::MAX)
}

/// Whether a container has a part of the node's swap. None have containers of other pods than Burstable ones, of
/// critical pods, and those that ask for all the memory that they may have.
pub fn may_swap(pod: &Pod, container: &Container, node_swap: u64) -> bool {
    let (request, limit) = resources::memory_of(container);
    node_swap != 0
        && resources::qos_class(pod) == QosClass::Burstable
        && !admit::is_critical(pod)
        && request != limit.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn limits(resources: Value, rules: &MemoryRules) -> Resources {
        let pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        }))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let mut limits = resources::container_resources(&pod, container, 4 * GIB);
        add(&mut limits, &pod, container, 4 * GIB, rules);
        limits
    }

    #[test]
    fn nobody_swaps_unless_the_node_says_so() {
        let rules = MemoryRules::default();
        let limited = limits(json!({"limits": {"memory": "1Gi"}}), &rules);
        assert_eq!(limited.memory_swap_limit, limited.memory_limit);
        assert_eq!(limited.unified["memory.oom.group"], "1");
        let free = limits(json!({}), &rules);
        assert_eq!((free.memory_limit, free.memory_swap_limit), (0, 0));
        assert_eq!(free.unified["memory.swap.max"], "0");
    }

    #[test]
    fn critical_pods_do_not_swap() {
        for (priority, swaps) in [(1_999_999_999, true), (2_000_000_000, false)] {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"priority": priority, "containers": [
                {"name": "c", "resources": {"requests": {"memory": "1Gi"}}}]}}))
                .unwrap();
            let container = &pod.spec.as_ref().unwrap().containers[0];
            assert_eq!(may_swap(&pod, container, GIB), swaps, "{priority}");
        }
    }

    #[test]
    fn swap_is_shared_by_request_among_burstable_pods() {
        let rules = MemoryRules {
            swap: GIB,
            kill_one: true,
        };
        let swap = |resources: Value| {
            let limits = limits(resources, &rules);
            assert!(!limits.unified.contains_key("memory.oom.group"));
            match limits.unified.get("memory.swap.max") {
                Some(swap) => swap.parse().unwrap(),
                None => limits.memory_swap_limit - limits.memory_limit,
            }
        };
        for (resources, expected) in [
            (json!({"requests": {"memory": "1Gi"}}), GIB / 4),
            (
                json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "3Gi"}}),
                GIB / 2,
            ),
            (json!({"limits": {"memory": "1Gi"}}), 0),
            (json!({"limits": {"memory": "1Gi", "cpu": "1"}}), 0),
            (json!({"requests": {"cpu": "1"}}), 0),
            (json!({}), 0),
        ] {
            assert_eq!(
                swap(resources.clone()),
                i64::try_from(expected).unwrap(),
                "{resources}"
            );
        }
    }
}
