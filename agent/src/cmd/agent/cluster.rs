//! The agent of a cluster's node: joins, and keeps the Node, its lease and its certificates.

use std::future::ready;
use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::Node as NodeObject;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::node::{Node, Outside, UPDATES};
use super::notify::{self, Watchdog};
use super::{checks, parts};
use crate::assembly::NodeNetwork;
use crate::certificate::bootstrap::bootstrap;
use crate::certificate::{Kind, renewal};
use crate::client::files::Follower;
use crate::client::{self, ApiServer};
use crate::config::{Cluster, Settings};
use crate::events::ApiEvents;
use crate::lease::{self, Holder};
use crate::mirror::{self, MirroredStatuses, Mirrors};
use crate::node::{self, NodeKeeper, Periods};
use crate::objects::{ApiObjects, ApiRuntimeClasses};
use crate::pod::directory::Pods;
use crate::pod::workers;
use crate::server::ApiReviewer;
use crate::sinks::EventKind;
use crate::source;
use crate::source::static_pods::Gate;
use crate::status_writer::StatusWriter;
use crate::timeline::Timeline;

/// Joins the cluster, and runs the node's pods until the order to stop.
pub(super) async fn run(
    settings: Settings,
    cluster: Cluster,
    timeline: Timeline,
    watchdog: Watchdog,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let kubeconfig = &cluster.kubeconfig;
    if let Some(token) = &cluster.bootstrap_kubeconfig {
        // Somebody may have to approve: not what whoever starts services waits for.
        notify::tell(notify::READY);
        let order = parts::order(&settings, Kind::Client, &[]);
        tokio::select! {
            joined = bootstrap(kubeconfig, token, &order) => joined?,
            () = stop.cancelled() => return Ok(()),
        }
    }
    let all = settings.clone();
    let identity = Arc::new(move || parts::identity(&all));
    let credentials = Follower::new(kubeconfig.clone(), identity).await;
    let server = client::load(kubeconfig, parts::identity(&settings).as_deref()).await?;
    checks::certificate_is_ours(&settings, kubeconfig, &server)?;
    let ips = parts::addresses_towards(&settings, kubeconfig, &server).await?;
    let node = Node::open(settings, ips, timeline, watchdog).await?;
    let agent = Agent::new(node, cluster, server);
    tokio::spawn(credentials.follow(agent.server.clone()));
    agent.run(stop).await
}

/// Everything that the agent is made of.
struct Agent {
    node: Node,
    cluster: Cluster,
    server: ApiServer,
    events: ApiEvents,
    /// Rung when the node's status may have changed.
    node_changed: Arc<Notify>,
}

impl Agent {
    fn new(node: Node, cluster: Cluster, server: ApiServer) -> Self {
        let kubelet = &node.settings.kubelet;
        let (qps, burst) = (kubelet.event_record_qps, kubelet.event_burst);
        let events = ApiEvents::start(&server, &node.settings.node_name, qps, burst);
        Self {
            node,
            cluster,
            server,
            events,
            node_changed: Arc::default(),
        }
    }

    /// Starts every part, and waits for the order to stop or for the kubelet API to fail.
    async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (updates, desired) = mpsc::channel(UPDATES);
        let (changed, changes) = mpsc::unbounded_channel();
        let (node, seen) = watch::channel(None);
        let settings = &self.node.settings;
        let sources = parts::sources(settings)?;
        let statuses = Arc::new(StatusWriter::new(&self.server));
        let mirrors = Mirrors::start(mirror::Parts {
            server: self.server.clone(),
            node: seen.clone(),
            sources: sources.len(),
            statuses: statuses.clone(),
        });
        let statuses = MirroredStatuses {
            mirrors: mirrors.clone(),
            statuses,
        };
        let deps = self.node.deps(Outside {
            status: Arc::new(statuses),
            events: Arc::new(self.events.clone()),
            objects: Arc::new(ApiObjects::new(&self.server, changed)),
            classes: Arc::new(ApiRuntimeClasses::new(&self.server)),
            seen: seen.clone(),
            server: Some(self.server.clone()),
        })?;
        let (pods, owner) = workers::start(deps, desired);
        // The server's own is one more.
        let gate = Gate::new(sources.len() + 1, updates.clone());
        let client = self.server.requests.clone();
        let reviewer = ApiReviewer::new(move || client.clone());
        let api = self.node.bind(pods.clone(), Arc::new(reviewer))?;
        tokio::spawn(ring(changes, pods));
        self.keep_certificates();
        self.keep_node(&seen, node);
        let mut tasks = JoinSet::new();
        for source in sources {
            let mirrors = Some(mirrors.clone());
            tasks.spawn(source.follow(updates.clone(), mirrors, gate.clone()));
        }
        let (api_server, name) = (self.server.clone(), settings.node_name.clone());
        let mut seen = seen;
        tasks.spawn(async move {
            // Pods are judged by the node's labels, which only the server knows.
            if seen.wait_for(Option::is_some).await.is_ok() {
                source::api::watch(&api_server, &name, updates, &mirrors, gate).await;
            }
        });
        tracing::info!(node = settings.node_name, server = %self.server.url, "hanok agent runs");
        self.events
            .node_event(EventKind::Normal, "Starting", "Starting kubelet.");
        self.node.serve(api, tasks, owner, stop).await
    }

    /// Registers the node and keeps its object, and what follows from that.
    fn keep_node(
        &self,
        seen: &watch::Receiver<Option<Arc<NodeObject>>>,
        node: watch::Sender<Option<Arc<NodeObject>>>,
    ) {
        let settings = &self.node.settings;
        if settings.pod_cidrs.is_empty() {
            let network = self.node.assembled.network.clone();
            let changed = self.node_changed.clone();
            tokio::spawn(follow_network(seen.clone(), network, changed));
        }
        tokio::spawn(keep_node(self.keeper(), settings.clone(), seen.clone()));
        let (server, name) = (self.server.clone(), settings.node_name.clone());
        tokio::spawn(async move { node::follow(&server, &name, node).await });
    }

    /// Renews what the cluster signs, as far as it was asked to.
    fn keep_certificates(&self) {
        let (settings, ips) = (&self.node.settings, &self.node.facts.ips);
        let requests = || self.server.requests.clone();
        if settings.kubelet.server_tls_bootstrap {
            // The kubelet API looks at the file by itself.
            let order = parts::order(settings, Kind::Serving, ips);
            tokio::spawn(renewal::keep(requests(), order, None, || ready(())));
        }
        let certified = self.server.certified_node().is_some();
        if settings.kubelet.rotate_certificates && certified {
            let order = parts::order(settings, Kind::Client, &[]);
            let (server, kubeconfig) = (self.server.clone(), self.cluster.kubeconfig.clone());
            let current = order.store.current();
            let renewed = move || {
                let (server, kubeconfig, current) =
                    (server.clone(), kubeconfig.clone(), current.clone());
                async move {
                    if let Err(error) = server.renew(&kubeconfig, Some(&current)).await {
                        tracing::error!(%error, "cannot use the new certificate");
                    }
                }
            };
            let given = self.server.certificate.clone();
            tokio::spawn(renewal::keep(requests(), order, given, renewed));
        }
    }

    fn keeper(&self) -> NodeKeeper {
        NodeKeeper {
            server: self.server.clone(),
            facts: self.node.facts.clone(),
            runtime: self.node.assembled.embedded.runtime.clone(),
            network: self.node.assembled.network.clone(),
            images: self.node.assembled.embedded.images.clone(),
            events: self.events.clone(),
            changed: self.node_changed.clone(),
        }
    }
}

/// Rings pods whose objects have changed.
async fn ring(mut changes: mpsc::UnboundedReceiver<PodUid>, pods: Pods) {
    while let Some(uid) = changes.recv().await {
        pods.objects_changed(&uid);
    }
}

/// Gives the network the Node's podCIDRs, unless the operator has given some.
async fn follow_network(
    mut seen: watch::Receiver<Option<Arc<NodeObject>>>,
    network: NodeNetwork,
    changed: Arc<Notify>,
) {
    let mut known = Vec::new();
    while seen.changed().await.is_ok() {
        let node = seen.borrow_and_update().clone();
        let found = node.map(|node| node::pod_cidrs(&node)).unwrap_or_default();
        if found.is_empty() || found == known {
            continue;
        }
        if let Err(error) = network.set_pod_cidrs(&found) {
            tracing::error!("cannot use the node's podCIDR {found:?}: {error:#}");
        }
        known = found;
        changed.notify_one();
    }
}

/// Registers the node, then keeps its lease and its status; anew when its object is deleted.
async fn keep_node(
    keeper: NodeKeeper,
    settings: Settings,
    mut seen: watch::Receiver<Option<Arc<NodeObject>>>,
) {
    let kubelet = &settings.kubelet;
    let periods = Periods {
        update: kubelet.node_status_update_frequency,
        report: kubelet.node_status_report_frequency,
    };
    loop {
        let node = keeper.register(kubelet.register_node).await;
        let holder = Holder {
            node_name: settings.node_name.clone(),
            node_uid: node.metadata.uid.clone().unwrap_or_default(),
            seconds: kubelet.node_lease_duration_seconds,
        };
        // The watch may be a moment behind the registration.
        if seen.wait_for(Option::is_some).await.is_err() {
            return;
        }
        tokio::select! {
            () = lease::keep(&keeper.server, &holder) => {}
            () = keeper.keep_status(&mut seen, periods) => {
                tracing::warn!(node = settings.node_name, "the node's object is gone, registering anew");
            }
        }
    }
}
