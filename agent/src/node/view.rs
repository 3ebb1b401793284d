//! The node as pods are judged by: what the server says of labels and taints, and what this machine has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use hanok_runtime::lsm::app_armor;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::sync::watch;

use super::status::{self, Facts};
use crate::client::{self, ApiServer};
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
    /// Where to ask for it; none without a cluster.
    pub server: Option<ApiServer>,
    /// What was answered last. The watch may be behind it.
    pub answered: Answered,
    /// `allowedUnsafeSysctls`.
    pub unsafe_sysctls: Vec<String>,
    /// Where the agent listens.
    pub listens: Vec<SocketAddr>,
}

/// The Node as it was when it was asked for.
pub type Answered = Arc<Mutex<Option<Arc<Node>>>>;

impl Admission for ClusterNode {
    fn node(&self) -> NodeView {
        let seen = self.seen.borrow().clone();
        let answered = self.answered.lock();
        let answered = answered.unwrap_or_else(PoisonError::into_inner).clone();
        let node = newer(seen, answered);
        NodeView {
            placement: Some(placement(&self.facts, node.as_deref())),
            unsafe_sysctls: self.unsafe_sysctls.clone(),
            app_armor: app_armor::is_enabled(),
            features: status::declared_features(),
            listens: self.listens.clone(),
        }
    }

    fn look(&self) -> Option<BoxFuture<'static, ()>> {
        let nodes: Api<Node> = Api::all(self.server.as_ref()?.requests.clone());
        let (name, answered) = (self.facts.name.clone(), self.answered.clone());
        let look = async move {
            match nodes.get(&name).await {
                Ok(node) => {
                    let mut answered = answered.lock().unwrap_or_else(PoisonError::into_inner);
                    *answered = newer(answered.take(), Some(Arc::new(node)));
                }
                Err(error) => {
                    let error = client::message(&error);
                    tracing::warn!(error, "cannot ask for the node that a pod was bound to");
                }
            }
        };
        Some(look.boxed())
    }
}

/// The newer of two copies: versions of one object are numbers that grow. One that has been made anew has a higher one too.
fn newer(a: Option<Arc<Node>>, b: Option<Arc<Node>>) -> Option<Arc<Node>> {
    let version = |node: &Option<Arc<Node>>| -> Option<u64> {
        let version = node.as_ref()?.metadata.resource_version.as_ref()?;
        version.parse().ok()
    };
    match version(&b) > version(&a) {
        true => b,
        false => a,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newer_copy_of_the_node_counts() {
        let node = |version: &str| {
            let meta = json!({"name": "n1", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": meta}))
                .ok()
                .map(Arc::new)
        };
        let version =
            |node: Option<Arc<Node>>| node.and_then(|node| node.metadata.resource_version.clone());
        let table = [
            (node("9"), node("10"), Some("10")),
            (node("10"), node("9"), Some("10")),
            (node("9"), None, Some("9")),
            (None, node("9"), Some("9")),
            (node("of another kind"), None, Some("of another kind")),
            (None, None, None),
        ];
        for (a, b, want) in table {
            assert_eq!(version(newer(a, b)).as_deref(), want);
        }
    }
}
