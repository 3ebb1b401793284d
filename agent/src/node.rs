//! This node as the cluster sees it: its object, its status, its podCIDR.
//!
//! ```text
//! register ─► the Node exists ─► lease (its owner)
//!     watch of our own Node ─┬► podCIDRs ─► the pod network
//!                            └► what somebody else has changed in its status
//!     status: computed every 10 s and when something rings, sent when it says something new and every 5 min
//! ```

pub mod machine;
mod register;
pub mod status;
pub mod sub_ids;
pub mod view;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hanok_runtime::api::{ImageService, RuntimeService};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::assembly::NodeNetwork;
use crate::back_off::BackOff;
use crate::client::{ApiServer, message};
use crate::events::ApiEvents;
use crate::sinks::EventKind;
use status::{Facts, Observed};

/// How soon a node that is not ready looks again.
const NOT_READY: Duration = Duration::from_millis(500);
/// Waits between tries of a status that could not be sent, and how many there are before the next regular one.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// See [`RETRY`].
const TRIES: u32 = 5;
/// A request without an answer is given up.
const REQUEST: Duration = Duration::from_secs(10);

/// How often what happens.
#[derive(Debug, Clone, Copy)]
pub struct Periods {
    /// The status is computed.
    pub update: Duration,
    /// It is sent though nothing has changed.
    pub report: Duration,
}

/// Keeps the Node object.
#[derive(Clone)]
pub struct NodeKeeper {
    /// The API server.
    pub server: ApiServer,
    /// What does not change.
    pub facts: Arc<Facts>,
    /// Tells whether there is a pod network.
    pub runtime: Arc<dyn RuntimeService>,
    /// The pod network: looked at before the runtime is asked.
    pub network: NodeNetwork,
    /// Tells which images there are.
    pub images: Arc<dyn ImageService>,
    /// Takes events about the node.
    pub events: ApiEvents,
    /// Rung when the status may have changed.
    pub changed: Arc<Notify>,
}

impl std::fmt::Debug for NodeKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeKeeper")
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

impl NodeKeeper {
    fn api(&self) -> Api<Node> {
        Api::all(self.server.requests.clone())
    }

    async fn observe(&self) -> Observed {
        let images = match self.images.list_images().await {
            Ok(images) => images,
            Err(error) => {
                tracing::warn!(%error, "cannot list images for the node's status");
                Vec::new()
            }
        };
        Observed {
            network: self.network_ready().await,
            images,
            at: Timestamp::now(),
        }
    }

    /// Whether pods can get a network, or why not.
    async fn network_ready(&self) -> Result<(), String> {
        if let Err(error) = self.network.look() {
            return Err(format!("{error:#}"));
        }
        match self.network.waits_for() {
            Some(why) => Err(why),
            None => self.runtime.network_ready().await,
        }
    }

    /// Registers the node; returns its object once it exists.
    pub async fn register(&self, create: bool) -> Node {
        let status = status::status(&self.facts, &self.observe().await, None);
        register::register(&self.api(), &self.facts, &status, create).await
    }

    /// Keeps the status until the Node is deleted. `seen` is the server's copy: what somebody else has changed in it
    /// (the cluster marks nodes that it has not heard of for a while) is set right.
    pub async fn keep_status(
        &self,
        seen: &mut watch::Receiver<Option<Arc<Node>>>,
        periods: Periods,
    ) {
        let mut known = status_of(seen);
        let mut sent_at: Option<Instant> = None;
        self.tell_reboot(known.as_ref());
        loop {
            let now = status::status(&self.facts, &self.observe().await, known.as_ref());
            let told = known
                .as_ref()
                .is_some_and(|known| status::tells(known, &now));
            let due = sent_at.is_none_or(|at| at.elapsed() >= periods.report);
            if (!told || due) && self.send(&now, known.as_ref()).await {
                self.tell_transitions(&now, known.as_ref());
                sent_at = Some(Instant::now());
                known = Some(now.clone());
            }
            let wait = if is_ready(&now) {
                periods.update
            } else {
                NOT_READY.min(periods.update)
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.changed.notified() => {}
                changed = seen.changed() => match (changed, status_of(seen)) {
                    (Ok(()), Some(status)) => known = Some(status),
                    _ => return,
                },
            }
        }
    }

    /// Sends one status; gives whether the server has it.
    async fn send(&self, now: &NodeStatus, before: Option<&NodeStatus>) -> bool {
        let mut back_off = BackOff::new(RETRY.0, RETRY.1);
        let patch = Patch::Strategic(status::status_patch(now, before));
        let (api, params) = (self.api(), PatchParams::default());
        for _ in 0..TRIES {
            let request = api.patch_status(&self.facts.name, &params, &patch);
            let why = match tokio::time::timeout(REQUEST, request).await {
                Ok(Ok(_)) => return true,
                Ok(Err(error)) => message(&error),
                Err(_) => "no answer".to_owned(),
            };
            tracing::debug!("cannot send the node's status, trying again: {why}");
            back_off.wait().await;
        }
        tracing::warn!("cannot send the node's status");
        false
    }

    /// Tells of another boot than the one that the server knows.
    fn tell_reboot(&self, known: Option<&NodeStatus>) {
        let old = known
            .and_then(|status| status.node_info.as_ref())
            .map(|info| info.boot_id.as_str());
        let now = self.facts.machine.boot_id.as_str();
        if old.is_some_and(|old| !old.is_empty() && old != now) {
            let message = format!("Node {} has been rebooted, boot id: {now}", self.facts.name);
            self.events
                .node_event(EventKind::Warning, "Rebooted", &message);
        }
    }

    /// Tells when the node becomes ready, or ceases to be.
    fn tell_transitions(&self, now: &NodeStatus, before: Option<&NodeStatus>) {
        let (ready, was) = (is_ready(now), before.is_some_and(is_ready));
        if ready == was {
            return;
        }
        let reason = if ready { "NodeReady" } else { "NodeNotReady" };
        let message = format!("Node {} status is now: {reason}", self.facts.name);
        self.events.node_event(EventKind::Normal, reason, &message);
    }
}

fn is_ready(status: &NodeStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The status in the server's copy; none while there is no object.
fn status_of(seen: &watch::Receiver<Option<Arc<Node>>>) -> Option<NodeStatus> {
    let node = seen.borrow().clone();
    node.map(|node| node.status.clone().unwrap_or_default())
}

/// Follows our own Node object, and no other. None while there is none.
pub async fn follow(server: &ApiServer, name: &str, seen: watch::Sender<Option<Arc<Node>>>) {
    let api: Api<Node> = Api::all(server.watches.clone());
    let mut nodes = watcher::watch_object(api, name).boxed();
    let mut back_off = BackOff::new(Duration::from_millis(100), Duration::from_secs(10));
    loop {
        let node = tokio::select! {
            node = nodes.next() => node,
            () = seen.closed() => return,
        };
        match node {
            Some(Ok(node)) => {
                back_off.reset();
                seen.send_replace(node.map(Arc::new));
            }
            Some(Err(_)) => back_off.wait().await,
            None => return,
        }
    }
}

/// `spec.podCIDRs`, or the older single field.
pub fn pod_cidrs(node: &Node) -> Vec<IpNet> {
    let Some(spec) = &node.spec else {
        return Vec::new();
    };
    let many = spec.pod_cidrs.iter().flatten();
    let all = many.chain(spec.pod_cidr.iter().filter(|_| spec.pod_cidrs.is_none()));
    all.filter_map(|cidr| cidr.parse().ok()).collect()
}

#[cfg(test)]
#[path = "node/tests.rs"]
mod tests;
