//! Which pods make room for a critical one.

use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodCondition};

use super::{Unmet, fit, is_critical};
use crate::pod::resources::{QosClass, qos_class};
use crate::pod::spec;
use crate::pod::status::Failure;

/// How much of a resource is missing.
type Need = (String, i64);

/// The failure of a pod that made room, with its condition.
pub fn preempted() -> (Failure, PodCondition) {
    let failure = Failure {
        reason: "Preempting".to_owned(),
        message: "Preempted in order to admit critical pod".to_owned(),
    };
    let condition = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
        ..PodCondition::default()
    };
    (failure, condition)
}

/// As few pods as will do, the least important classes first. The error names what cannot be had.
pub(super) fn victims(
    pod: &Pod,
    unmet: &[Unmet],
    others: &[Arc<Pod>],
) -> Result<Vec<PodUid>, String> {
    let needs: Vec<Need> = unmet
        .iter()
        .filter_map(|unmet| match unmet {
            Unmet::Resource {
                name,
                requested,
                used,
                capacity,
            } => Some((name.clone(), requested - (capacity - used))),
            Unmet::Rule { .. } => None,
        })
        .collect();
    let of_class = |class: QosClass| -> Vec<&Pod> {
        let pods = others.iter().map(|other| &**other);
        pods.filter(|other| is_preemptable(pod, other) && qos_class(other) == class)
            .collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let lesser = [best_effort.as_slice(), &burstable].concat();
    let all = [lesser.as_slice(), &guaranteed].concat();
    let unable = without(&needs, &all);
    if !unable.is_empty() {
        return Err(nothing_to_reclaim(&unable));
    }
    // A pod of a better class goes only when all of the lesser ones would not be enough.
    let third = closest(guaranteed, without(&needs, &lesser))?;
    let gone = [best_effort.as_slice(), &third].concat();
    let second = closest(burstable, without(&needs, &gone))?;
    let gone = [second.as_slice(), &third].concat();
    let first = closest(best_effort, without(&needs, &gone))?;
    let victims = first.into_iter().chain(second).chain(third);
    Ok(victims.map(spec::uid).collect())
}

/// Whether one pod may take another's place.
fn is_preemptable(pod: &Pod, other: &Pod) -> bool {
    if is_critical(pod) && !is_critical(other) {
        return true;
    }
    let priority = |pod: &Pod| spec::spec(pod).and_then(|spec| spec.priority);
    priority(pod)
        .zip(priority(other))
        .is_some_and(|(own, other)| own > other)
}

/// Takes, one after the other, the pod that comes closest to what is still missing; of equals, the smaller one.
fn closest(mut pods: Vec<&Pod>, mut needs: Vec<Need>) -> Result<Vec<&Pod>, String> {
    let mut taken = Vec::new();
    while !needs.is_empty() {
        let best = pods.iter().enumerate().min_by(|(_, a), (_, b)| {
            distance(&needs, a)
                .total_cmp(&distance(&needs, b))
                .then_with(|| size(a).cmp(&size(b)))
        });
        let Some((index, _)) = best else {
            return Err(nothing_to_reclaim(&needs));
        };
        let pod = pods.swap_remove(index);
        needs = without(&needs, &[pod]);
        taken.push(pod);
    }
    Ok(taken)
}

/// How far a pod is from giving everything: each resource weighs the same.
fn distance(needs: &[Need], pod: &Pod) -> f64 {
    let shares = needs.iter().map(|(name, need)| {
        let left = need.saturating_sub(fit::request_of(pod, name)).max(0);
        // Shares of a whole: what a float loses of a large number does not matter.
        #[expect(clippy::cast_precision_loss, reason = "only the ratio counts")]
        let share = left as f64 / (*need).max(1) as f64;
        share * share
    });
    shares.sum()
}

fn size(pod: &Pod) -> (i64, i64) {
    (fit::request_of(pod, "memory"), fit::request_of(pod, "cpu"))
}

/// What is still missing when these pods are gone.
fn without(needs: &[Need], pods: &[&Pod]) -> Vec<Need> {
    let left = needs.iter().map(|(name, need)| {
        let freed = pods
            .iter()
            .map(|pod| fit::request_of(pod, name))
            .fold(0, i64::saturating_add);
        (name.clone(), need.saturating_sub(freed))
    });
    left.filter(|(_, need)| *need > 0).collect()
}

fn nothing_to_reclaim(needs: &[Need]) -> String {
    let list: String = needs
        .iter()
        .map(|(name, need)| format!("(res: {name}, q: {need}), "))
        .collect();
    format!("no set of running pods found to reclaim resources: [{list}]")
}
