//! Taints that keep pods from running. Those that only keep pods from being scheduled are the scheduler's.

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};

use crate::pod::spec;

/// Whether the pod tolerates every taint with the effect NoExecute.
pub(super) fn tolerated(pod: &Pod, taints: &[Taint]) -> bool {
    let tolerations = spec::spec(pod).and_then(|spec| spec.tolerations.as_deref());
    let tolerations = tolerations.unwrap_or_default();
    taints
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .all(|taint| {
            tolerations
                .iter()
                .any(|toleration| tolerates(toleration, taint))
        })
}

/// Empty keys and effects tolerate all of them.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let wanted = |wanted: &Option<String>, given: &str| {
        wanted
            .as_deref()
            .is_none_or(|wanted| wanted.is_empty() || wanted == given)
    };
    if !wanted(&toleration.effect, &taint.effect) || !wanted(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => {
            let given = taint.value.as_deref().unwrap_or_default();
            toleration.value.as_deref().unwrap_or_default() == given
        }
        _ => false,
    }
}
