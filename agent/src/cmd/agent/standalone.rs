//! The agent of a standalone node: static pods without an API server, and so without a Node, mirrors and objects.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::node::{Node, Outside, UPDATES};
use super::notify::Watchdog;
use super::parts;
use crate::alone::{LogEvents, NoReviewer, NoStatuses};
use crate::assembly::NodeNetwork;
use crate::config::Settings;
use crate::objects::manifest::ManifestObjects;
use crate::pod::settings::ClassIsHandler;
use crate::pod::workers;
use crate::source::static_pods::Gate;
use crate::timeline::Timeline;

/// Runs the node's static pods until the order to stop.
pub(super) async fn run(
    settings: Settings,
    timeline: Timeline,
    watchdog: Watchdog,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let ips = parts::own_addresses(&settings);
    let node = Node::open(settings, ips, timeline, watchdog).await?;
    let sources = parts::sources(&node.settings)?;
    let (updates, desired) = mpsc::channel(UPDATES);
    // Nobody ever sends: pods are judged by what the agent itself knows of the node.
    let (_, seen) = watch::channel(None);
    let deps = node.deps(Outside {
        status: Arc::new(NoStatuses),
        events: Arc::new(LogEvents),
        objects: Arc::new(ManifestObjects::default()),
        classes: Arc::new(ClassIsHandler),
        seen,
        server: None,
    })?;
    let (pods, owner) = workers::start(deps, desired);
    let api = node.bind(pods, Arc::new(NoReviewer))?;
    let gate = Gate::new(sources.len(), updates.clone());
    let mut tasks = JoinSet::new();
    for source in sources {
        tasks.spawn(source.follow(updates.clone(), None, gate.clone()));
    }
    // The owner of the pods ends when the sources have.
    drop((updates, gate));
    let period = node.settings.kubelet.node_status_update_frequency;
    tasks.spawn(look_at_network(node.assembled.network.clone(), period));
    tracing::info!(
        node = node.settings.node_name,
        "hanok agent runs, standalone: there is no --kubeconfig, so static pods are all there is"
    );
    node.serve(api, tasks, owner, stop).await
}

/// Network add-ons may come and go. What pods wait for is told once.
async fn look_at_network(network: NodeNetwork, period: Duration) {
    let mut told = None;
    loop {
        let trouble = match network.look() {
            Ok(()) => network
                .waits_for()
                .map(|why| format!("{why}: give one by --pod-cidr (podCIDR)")),
            Err(error) => Some(format!("{error:#}")),
        };
        if told != trouble {
            if let Some(trouble) = &trouble {
                tracing::warn!("only pods with hostNetwork can run: {trouble}");
            }
            told = trouble;
        }
        tokio::time::sleep(period).await;
    }
}
