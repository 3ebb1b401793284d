//! The node as pods are judged by: what the server says of labels and taints, and what this machine has.

use std::collections::BTreeMap;
use std::sync::Arc;

use hanok_runtime::lsm::app_armor;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use super::status::{self, Facts};
use crate::pod::admit::{NodeView, Placement};
use crate::pod::settings::Admission;
use crate::quantity::Amount;

/// Judges pods by the newest form of the Node object.
#[derive(Debug)]
pub struct ClusterNode {
    /// What does not change.
    pub facts: Arc<Facts>,
    /// The server's copy of the Node; none as long as there is none.
    pub seen: watch::Receiver<Option<Arc<Node>>>,
    /// `allowedUnsafeSysctls`.
    pub unsafe_sysctls: Vec<String>,
}

impl Admission for ClusterNode {
    fn node(&self) -> NodeView {
        let node = self.seen.borrow().clone();
        NodeView {
            placement: Some(placement(&self.facts, node.as_deref())),
            unsafe_sysctls: self.unsafe_sysctls.clone(),
            app_armor: app_armor::is_enabled(),
            features: status::declared_features(),
        }
    }
}

/// The server knows labels, taints and extended resources; all else is this machine's.
fn placement(facts: &Facts, node: Option<&Node>) -> Placement {
    let mut allocatable = facts.allocatable();
    let known = node
        .and_then(|node| node.status.as_ref())
        .and_then(|status| status.allocatable.as_ref());
    for (name, quantity) in known.into_iter().flatten() {
        if let Ok(amount) = Amount::try_from(quantity) {
            allocatable.entry(name.clone()).or_insert(amount);
        }
    }
    let labels: BTreeMap<String, String> = match node {
        Some(node) => node.metadata.labels.clone().unwrap_or_default(),
        None => facts.all_labels(),
    };
    let taints = match node {
        Some(node) => node.spec.as_ref().and_then(|spec| spec.taints.clone()),
        None => Some(facts.taints.clone()),
    };
    Placement {
        name: facts.name.clone(),
        labels,
        taints: taints.unwrap_or_default(),
        allocatable,
    }
}
