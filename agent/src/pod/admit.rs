//! Decides whether the node takes a pod. Pure.
//!
//! The rules and their words are the kubelet's, in its order: sysctls, operating system, resources, node affinity,
//! node name, host ports, taints, AppArmor, features of the node. The first that fails is told. A critical pod that
//! only lacks resources is not refused: it names the pods that have to go ([`preempt`]).
//!
//! Nothing here knows which pods have been admitted: the owner of the set of pods ([`super::workers`]) does.

mod affinity;
mod app_armor;
mod features;
mod fit;
mod ports;
mod preempt;
mod sysctls;
mod taints;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, Taint};

use super::spec;
use super::status::Failure;
use crate::quantity::Amount;

pub use preempt::preempted;
pub use sysctls::{SysctlPatternError, check_pattern};

/// Label of a node's operating system.
const OS_LABEL: &str = "kubernetes.io/os";

/// The node as admission sees it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeView {
    /// What a scheduler looks at; none where there is no cluster, and every pod is meant for this node.
    pub placement: Option<Placement>,
    /// Sysctls beyond the safe ones, as names or as patterns that end in `*`.
    pub unsafe_sysctls: Vec<String>,
    /// Whether the kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// Features that the node declares.
    pub features: Vec<String>,
    /// Where the agent itself listens for TCP connections; no host port may lead these into a pod.
    pub listens: Vec<SocketAddr>,
}

/// What a scheduler looks at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// Name of the node.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// What pods can be given, by resource name; extended resources too.
    pub allocatable: BTreeMap<String, Amount>,
}

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may run.
    Admitted,
    /// It may run when these pods are gone.
    AfterPreemption(Vec<PodUid>),
    /// It fails for good. The message is the one of the event; the status has [`rejected`]'s.
    Rejected(Failure),
}

/// Judges a pod beside the pods that have been admitted and are not over.
pub fn admit(pod: &Pod, node: &NodeView, others: &[Arc<Pod>]) -> Verdict {
    verdict(judge(pod, node, others))
}

/// Judges a pod that runs and is to have other resources, beside the others.
pub fn resize(pod: &Pod, node: &NodeView, others: &[Arc<Pod>]) -> Verdict {
    verdict(place(pod, node, others))
}

fn verdict(judged: Result<Vec<PodUid>, Failure>) -> Verdict {
    match judged {
        Ok(victims) if victims.is_empty() => Verdict::Admitted,
        Ok(victims) => Verdict::AfterPreemption(victims),
        Err(failure) => Verdict::Rejected(failure),
    }
}

/// Names of the rules that the node's labels and taints decide.
const NODE_AFFINITY: &str = "NodeAffinity";
const TAINT_TOLERATION: &str = "TaintToleration";

/// Whether the pod might run if the node had other labels or taints.
pub fn is_by_labels_or_taints(failure: &Failure) -> bool {
    [NODE_AFFINITY, TAINT_TOLERATION].contains(&failure.reason.as_str())
}

/// The failure as the pod's status tells it.
pub fn rejected(failure: &Failure) -> Failure {
    Failure {
        reason: failure.reason.clone(),
        message: format!("Pod was rejected: {}", failure.message),
    }
}

/// The pods that have to go first, or why the pod cannot run.
fn judge(pod: &Pod, node: &NodeView, others: &[Arc<Pod>]) -> Result<Vec<PodUid>, Failure> {
    let victims = place(pod, node, others)?;
    app_armor::check(pod, node.app_armor)?;
    features::check(pod, &node.features)?;
    Ok(victims)
}

/// The pods that have to go first, or why there is no place for the pod.
fn place(pod: &Pod, node: &NodeView, others: &[Arc<Pod>]) -> Result<Vec<PodUid>, Failure> {
    sysctls::check(pod, &node.unsafe_sysctls)?;
    operating_system(pod)?;
    let unmet = match &node.placement {
        Some(placement) => predicates(pod, node, placement, others),
        None => ports::conflict(pod, &node.listens, others)
            .into_iter()
            .collect(),
    };
    match unmet.first() {
        None => Ok(Vec::new()),
        Some(_) if is_critical(pod) => make_room(pod, &unmet, others),
        Some(first) => Err(first.failure()),
    }
}

/// What a predicate lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unmet {
    /// There is not enough of a resource; thousandths of CPUs, units of everything else.
    Resource {
        name: String,
        requested: i64,
        used: i64,
        capacity: i64,
    },
    /// A rule of this name does not hold.
    Rule {
        name: &'static str,
        why: Cow<'static, str>,
    },
}

impl Unmet {
    fn failure(&self) -> Failure {
        match self {
            Self::Resource {
                name,
                requested,
                used,
                capacity,
            } => failure(
                &format!("OutOf{name}"),
                format!(
                    "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
                     capacity: {capacity}"
                ),
            ),
            Self::Rule { name, why } => failure(name, format!("Predicate {name} failed: {why}")),
        }
    }
}

/// The rules of the scheduler that hold on the node too; all that do not hold.
fn predicates(
    pod: &Pod,
    node: &NodeView,
    placement: &Placement,
    others: &[Arc<Pod>],
) -> Vec<Unmet> {
    let mut unmet = fit::lacking(pod, placement, others);
    if !affinity::matches(pod, placement) {
        unmet.push(Unmet::Rule {
            name: NODE_AFFINITY,
            why: "node(s) didn't match Pod's node affinity/selector".into(),
        });
    }
    let wanted = spec::spec(pod).and_then(|spec| spec.node_name.as_deref());
    if wanted.is_some_and(|wanted| !wanted.is_empty() && wanted != placement.name) {
        unmet.push(Unmet::Rule {
            name: "NodeName",
            why: "node(s) didn't match the requested node name".into(),
        });
    }
    unmet.extend(ports::conflict(pod, &node.listens, others));
    if !spec::is_static(pod) && !taints::tolerated(pod, &placement.taints) {
        unmet.push(Unmet::Rule {
            name: TAINT_TOLERATION,
            why: "node(s) had taints that the pod didn't tolerate".into(),
        });
    }
    unmet
}

/// The pods that have to go so that a critical pod fits. Where resources are not all that it lacks, room does not help.
fn make_room(pod: &Pod, unmet: &[Unmet], others: &[Arc<Pod>]) -> Result<Vec<PodUid>, Failure> {
    let is_rule = |unmet: &&Unmet| matches!(unmet, Unmet::Rule { .. });
    if let Some(rule) = unmet.iter().find(is_rule) {
        return Err(rule.failure());
    }
    preempt::victims(pod, unmet, others).map_err(|why| {
        failure(
            "UnexpectedAdmissionError",
            format!(
                "Unexpected error while attempting to recover from admission failure: preemption: error finding \
                 a set of pods to preempt: {why}"
            ),
        )
    })
}

/// Whether the pod is one that the node cannot do without.
pub(super) fn is_critical(pod: &Pod) -> bool {
    /// Priority from which a pod is critical to its cluster.
    const SYSTEM_CRITICAL: i32 = 2_000_000_000;
    let priority = spec::spec(pod).and_then(|spec| spec.priority);
    spec::is_static(pod) || priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL)
}

/// This node runs Linux, whatever its labels say.
fn operating_system(pod: &Pod) -> Result<(), Failure> {
    let labels = pod.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|label| label != "linux") {
        let message =
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(failure(
            "PodOSSelectorNodeLabelDoesNotMatch",
            message.to_owned(),
        ));
    }
    let os = spec::spec(pod).and_then(|spec| spec.os.as_ref());
    if os.is_some_and(|os| os.name != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(failure("PodOSNotSupported", message.to_owned()));
    }
    Ok(())
}

fn failure(reason: &str, message: String) -> Failure {
    Failure {
        reason: reason.to_owned(),
        message,
    }
}
