//! The node as pods are judged by: what the server says of labels and taints, and what this machine has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hanok_runtime::lsm::app_armor;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::sync::watch;
use tokio::time::timeout;

use super::status::{self, Facts};
use crate::back_off::BackOff;
use crate::client::{ApiServer, Failure, failure, message};
use crate::pod::admit::{NodeView, Placement};
use crate::pod::settings::Admission;
use crate::quantity::Amount;

/// Tries of asking for the node, and the waits between them: as long as a server takes to start again.
const TRIES: u32 = 8;
/// See [`TRIES`].
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A request without an answer is given up.
const REQUEST: Duration = Duration::from_secs(5);

/// The server's copy of the Node as a watch has it; none as long as there is none.
type Watched = watch::Receiver<Option<Arc<Node>>>;

/// What pods are judged by.
#[derive(Debug)]
pub struct Basis {
    /// What does not change.
    pub facts: Arc<Facts>,
    /// The server's copy of the Node; none as long as there is none.
    pub seen: Watched,
    /// Where to ask for it; none without a cluster.
    pub server: Option<ApiServer>,
    /// `allowedUnsafeSysctls`.
    pub unsafe_sysctls: Vec<String>,
    /// Where the agent listens.
    pub listens: Vec<SocketAddr>,
}

/// Judges pods by the newest form of the Node object.
#[derive(Debug)]
pub struct ClusterNode {
    basis: Basis,
    /// What was answered last. The watch may be behind it.
    answered: Arc<Mutex<Option<Answered>>>,
}

/// The Node as it was when it was asked for.
#[derive(Debug)]
struct Answered {
    node: Arc<Node>,
    /// Tells whether the watch has said something since.
    seen: Watched,
}

impl ClusterNode {
    /// Nobody has asked for the Node yet.
    pub fn new(basis: Basis) -> Self {
        Self {
            basis,
            answered: Arc::default(),
        }
    }
}

impl Admission for ClusterNode {
    fn node(&self) -> NodeView {
        let answered = self.answered.lock();
        let answered = answered.unwrap_or_else(PoisonError::into_inner);
        let node = newest(&self.basis.seen, answered.as_ref());
        NodeView {
            placement: Some(placement(&self.basis.facts, node.as_deref())),
            unsafe_sysctls: self.basis.unsafe_sysctls.clone(),
            app_armor: app_armor::is_enabled(),
            features: status::declared_features(),
            listens: self.basis.listens.clone(),
        }
    }

    fn look(&self) -> Option<BoxFuture<'static, ()>> {
        let nodes: Api<Node> = Api::all(self.basis.server.as_ref()?.requests.clone());
        let (name, answered) = (self.basis.facts.name.clone(), self.answered.clone());
        let mut seen = self.basis.seen.clone();
        seen.mark_unchanged();
        let look = async move {
            let Some(node) = ask(&nodes, &name).await else {
                return;
            };
            let node = Arc::new(node);
            let mut last = answered.lock().unwrap_or_else(PoisonError::into_inner);
            let behind = |last: &Answered| version(&last.node) <= version(&node);
            if last.as_ref().is_none_or(behind) {
                *last = Some(Answered { node, seen });
            }
        };
        Some(look.boxed())
    }
}

/// Asks for the node, for a while as long as the server is away or busy: a pod that is refused is refused for good.
async fn ask(nodes: &Api<Node>, name: &str) -> Option<Node> {
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let (error, later) = match timeout(REQUEST, nodes.get(name)).await {
            Ok(Ok(node)) => return Some(node),
            Ok(Err(error)) => (message(&error), failure(&error) == Failure::Later),
            Err(_) => ("no answer in time".to_owned(), true),
        };
        if !later || back_off.failures() + 1 >= TRIES {
            tracing::warn!(error, "cannot ask for the node that a pod was bound to");
            return None;
        }
        back_off.wait().await;
    }
}

/// The newest copy there is; none when the watch has said after the answer that the Node is gone.
fn newest(seen: &Watched, answered: Option<&Answered>) -> Option<Arc<Node>> {
    let seen = seen.borrow().clone();
    let counts = |answered: &&Answered| {
        let silent = answered.seen.has_changed().is_ok_and(|changed| !changed);
        seen.is_some() || silent
    };
    let answered = answered.filter(counts);
    let answered = answered.map(|answered| answered.node.clone());
    newer(seen, answered)
}

/// The newer of two copies: versions of one object are numbers that grow. One that has been made anew has a higher one too.
fn newer(a: Option<Arc<Node>>, b: Option<Arc<Node>>) -> Option<Arc<Node>> {
    let of = |node: &Option<Arc<Node>>| node.as_ref().and_then(|node| version(node));
    match of(&b) > of(&a) {
        true => b,
        false => a,
    }
}

fn version(node: &Node) -> Option<u64> {
    node.metadata.resource_version.as_ref()?.parse().ok()
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
    use crate::client::fake::{Answer, Fake};
    use serde_json::json;

    fn node(version: &str) -> Arc<Node> {
        let meta = json!({"name": "n1", "resourceVersion": version});
        Arc::new(serde_json::from_value(json!({"metadata": meta})).unwrap())
    }

    #[tokio::test]
    async fn the_node_is_asked_for_until_a_busy_server_answers() {
        let mut busy = 3;
        let (fake, server) = Fake::start(move |_| match busy {
            0 => Some(Answer::Object(json!({"metadata": {"name": "n1"}}))),
            _ => {
                busy -= 1;
                Some(Answer::Status(429, "too many requests"))
            }
        })
        .await;
        let found = ask(&Api::all(server.requests), "n1").await.unwrap();
        assert_eq!(found.metadata.name.as_deref(), Some("n1"));
        assert_eq!(fake.seen().len(), 4);
        let (fake, server) = Fake::start(|_| None).await;
        assert!(ask(&Api::all(server.requests), "n1").await.is_none());
        assert_eq!(fake.seen().len(), 1, "it is not there");
    }

    #[test]
    fn an_answer_does_not_outlive_its_node() {
        let (watch, seen) = watch::channel(None);
        let answered = Answered {
            node: node("9"),
            seen: seen.clone(),
        };
        let newest = || newest(&seen, Some(&answered)).and_then(|node| version(&node));
        assert_eq!(newest(), Some(9), "the watch has not begun");
        watch.send_replace(Some(node("8")));
        assert_eq!(newest(), Some(9), "the watch is behind");
        watch.send_replace(None);
        assert_eq!(newest(), None);
        watch.send_replace(Some(node("10")));
        assert_eq!(newest(), Some(10));
    }

    #[test]
    fn the_newer_copy_of_the_node_counts() {
        let node = |version: &str| Some(node(version));
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
