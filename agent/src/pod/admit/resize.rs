//! Whether a pod may have more than it has.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::{NodeView, Unmet, fit};
use crate::pod::resize::{DEFERRED, INFEASIBLE, Pending};

/// Judges a wish beside the pods that have been admitted and are not over, in the kubelet's words. What the node never
/// has is infeasible; what others have is deferred.
pub fn resize(pod: &Pod, node: &NodeView, others: &[Arc<Pod>]) -> Result<(), Pending> {
    let Some(placement) = &node.placement else {
        return Ok(());
    };
    for name in ["memory", "cpu"] {
        let requested = fit::request_of(pod, name);
        let capacity = fit::capacity_of(placement, name);
        if requested > capacity {
            let message = format!(
                "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
            );
            return Err(Pending {
                reason: INFEASIBLE,
                event: INFEASIBLE.to_owned(),
                message,
            });
        }
    }
    let mut unmet = fit::lacking(pod, placement, others).into_iter();
    let of_resize = |unmet: &Unmet| matches!(unmet, Unmet::Resource { name, .. } if name == "cpu" || name == "memory");
    match unmet.find(of_resize) {
        None => Ok(()),
        Some(unmet) => {
            let failure = unmet.failure();
            Err(Pending {
                reason: DEFERRED,
                event: failure.reason,
                message: failure.message,
            })
        }
    }
}
