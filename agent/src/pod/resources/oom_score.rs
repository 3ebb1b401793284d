//! oom_score_adj: the less of its request a container may be using, the earlier it dies. Pure.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::requests::{containers_request, is_sidecar, pod_level, pod_level_request};
use super::{QosClass, is_node_critical, qos_class, request, requested};
use crate::pod::spec;
use crate::quantity::Amount;

/// That of Guaranteed and node-critical pods.
const GUARANTEED: i32 = -997;
/// That of BestEffort pods.
const BEST_EFFORT: i32 = 1000;

/// The score of a container on a node with so many bytes of memory.
pub(super) fn of(pod: &Pod, container: &Container, node_memory: u64) -> i32 {
    match qos_class(pod) {
        _ if is_node_critical(pod) => GUARANTEED,
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => {
            let share = share(pod);
            let score = |container: &Container| {
                let own = request(container.resources.as_ref(), "memory");
                let bytes = own.map_or(0, Amount::to_units).saturating_add(share);
                burstable(bytes, node_memory)
            };
            let own = score(container);
            let init = spec::init_containers(pod).iter();
            let mut sidecars = init.filter(|init| is_sidecar(init));
            // A sidecar outlives at least one of the containers that it serves.
            match sidecars.any(|sidecar| sidecar.name == container.name) {
                true => spec::app_containers(pod)
                    .iter()
                    .map(score)
                    .max()
                    .map_or(own, |apps| own.min(apps)),
                false => own,
            }
        }
    }
}

/// `1000 - 1000 * request / memory of the node`, within 3..=999.
fn burstable(requested: i64, node_memory: u64) -> i32 {
    let share = i128::from(requested) * 1000 / i128::from(node_memory.max(1));
    i32::try_from((1000 - share).clamp(3, 999)).unwrap_or(999)
}

/// Bytes that each container has of what the pod asks for beyond its containers.
fn share(pod: &Pod) -> i64 {
    let Some(own) = pod_level(pod) else { return 0 };
    if requested(Some(own), "memory").is_none() && own.limits.is_none() {
        return 0;
    }
    let bytes = |amount: Option<Amount>| amount.map_or(0, Amount::to_units);
    let whole = bytes(pod_level_request(pod, "memory"));
    let rest = whole.saturating_sub(bytes(containers_request(pod, "memory")));
    let count = i64::try_from(spec::containers(pod).count()).unwrap_or(i64::MAX);
    rest.max(0) / count.max(1)
}
