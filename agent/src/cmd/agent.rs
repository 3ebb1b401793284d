//! `hanok agent`: joins a cluster as a node and runs its pods until it is told to stop; pods run on without it.
//!
//! Puts everything together and starts it; decides nothing about pods itself.

mod checks;
mod parts;

use std::future::ready;
use std::sync::Arc;

use anyhow::Context;
use hanok_runtime::api::{PodUid, RuntimeService};
use k8s_openapi::api::core::v1::Node;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::assembly::{Assembled, NodeNetwork};
use crate::certificate::bootstrap::bootstrap;
use crate::certificate::{Kind, renewal};
use crate::client::{self, ApiServer};
use crate::config::{self, Machine, Settings};
use crate::embedded;
use crate::events::ApiEvents;
use crate::flags::Flags;
use crate::lease::{self, Holder};
use crate::mirror::{self, MirroredStatuses, Mirrors};
use crate::node::status::Facts;
use crate::node::view::ClusterNode;
use crate::node::{self, NodeKeeper, Periods, machine};
use crate::objects::{ApiObjects, ApiRuntimeClasses};
use crate::pod::settings::{Clock, Deps};
use crate::pod::workers;
use crate::sinks::{EventKind, StatusSink};
use crate::source::static_pods::Gate;
use crate::status_writer::StatusWriter;
use crate::timeline::Timeline;
use crate::volume::PodVolumes;
use crate::{logging, server, source};

/// Updates of pods that may wait for the owner of the set.
const UPDATES: usize = 256;

/// Options of `hanok agent`.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command: returns after a signal, or with what keeps the agent from starting.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let timeline = Timeline::default();
    logging::start(options.flags.verbosity.unwrap_or(0), &timeline);
    // From now on a signal ends the agent in order.
    let stop = stop_at_signal()?;
    let settings = config::load(&options.flags, &this_machine()?)?;
    if !settings.without_effect.is_empty() {
        tracing::warn!(
            "given and without effect: {}",
            settings.without_effect.join(", ")
        );
    }
    checks::check(&settings)?;
    let client = parts::order(&settings, Kind::Client, &[]);
    if let Some(token) = &settings.bootstrap_kubeconfig {
        tokio::select! {
            joined = bootstrap(&settings.kubeconfig, token, &client) => joined?,
            () = stop.cancelled() => return Ok(()),
        }
    }
    let server = client::load(&settings.kubeconfig, parts::identity(&settings).as_deref()).await?;
    checks::certificate_is_ours(&settings, &server)?;
    let mut facts = parts::facts(&settings, &server).await?;
    // What belongs to no pod of this agent is removed from them.
    let _claimed = [
        embedded::claim(&settings.paths.root_dir).context("--root-dir")?,
        embedded::claim(&settings.paths.pod_logs_dir).context("--pod-log-dir")?,
    ];
    let assembled = parts::machinery(&settings)
        .open(&settings.pod_cidrs)
        .await?;
    facts.user_namespaces = match assembled.embedded.runtime.user_namespaces().await {
        Ok(()) => true,
        Err(why) => {
            tracing::warn!("pods with hostUsers: false cannot run here: {why}");
            false
        }
    };
    Agent::new(settings, server, facts, assembled, timeline)
        .run(stop)
        .await
}

/// Ends with the first TERM or INT.
fn stop_at_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut term = signal(SignalKind::terminate()).context("cannot wait for signals")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        token.cancel();
    });
    Ok(stop)
}

fn this_machine() -> anyhow::Result<Machine> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let program_dir = program
        .parent()
        .map(std::path::Path::to_owned)
        .unwrap_or_default();
    Ok(Machine {
        hostname: machine::hostname(),
        program_dir,
    })
}

/// Everything that the agent is made of.
struct Agent {
    settings: Settings,
    server: ApiServer,
    facts: Arc<Facts>,
    assembled: Assembled,
    timeline: Timeline,
    events: ApiEvents,
    /// Rung when the node's status may have changed.
    node_changed: Arc<Notify>,
}

impl Agent {
    fn new(
        settings: Settings,
        server: ApiServer,
        mut facts: Facts,
        assembled: Assembled,
        timeline: Timeline,
    ) -> Self {
        let (qps, burst) = (
            settings.kubelet.event_record_qps,
            settings.kubelet.event_burst,
        );
        let events = ApiEvents::start(&server, &settings.node_name, qps, burst);
        facts.handlers = assembled.embedded.runtime.handlers();
        Self {
            settings,
            server,
            facts: Arc::new(facts),
            assembled,
            timeline,
            events,
            node_changed: Arc::default(),
        }
    }

    /// Starts every part, and waits for the order to stop or for the kubelet API to fail.
    async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let (updates, desired) = mpsc::channel(UPDATES);
        let (changed, changes) = mpsc::unbounded_channel();
        let objects = Arc::new(ApiObjects::new(&self.server, changed));
        let (node, seen) = watch::channel(None);
        let sources = parts::sources(&self.settings)?;
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
        let deps = self.deps(objects, Arc::new(statuses), seen.clone())?;
        let (pods, owner) = workers::start(deps, desired);
        // The server's own is one more.
        let gate = Gate::new(sources.len() + 1, updates.clone());
        let api = server::Server::bind(
            server::ServerConfig::from_settings(&self.settings, &self.facts.ips),
            parts::server_deps(&self.settings, &self.server, &self.assembled, pods.clone()),
        )?;
        tokio::spawn(ring(changes, pods));
        self.keep_certificates();
        if self.settings.pod_cidrs.is_empty() {
            let (network, changed) = (self.assembled.network.clone(), self.node_changed.clone());
            tokio::spawn(follow_network(seen.clone(), network, changed));
        }
        tokio::spawn(keep_node(
            self.keeper(),
            self.settings.clone(),
            seen.clone(),
        ));
        let (api_server, name) = (self.server.clone(), self.settings.node_name.clone());
        tokio::spawn(async move { node::follow(&api_server, &name, node).await });
        let (api_server, name) = (self.server.clone(), self.settings.node_name.clone());
        let mut tasks = JoinSet::new();
        for source in sources {
            tasks.spawn(source.follow(updates.clone(), mirrors.clone(), gate.clone()));
        }
        let mut seen = seen;
        tasks.spawn(async move {
            // Pods are judged by the node's labels, which only the server knows.
            if seen.wait_for(Option::is_some).await.is_ok() {
                source::api::watch(&api_server, &name, updates, &mirrors, gate).await;
            }
        });
        tracing::info!(node = self.settings.node_name, server = %self.server.url, "hanok agent runs");
        self.events
            .node_event(EventKind::Normal, "Starting", "Starting kubelet.");
        let served = api.run(stop.clone()).await;
        // Closing the sources ends the workers, and with them nothing of the pods.
        tasks.shutdown().await;
        if let Err(error) = owner.await {
            tracing::warn!(%error, "the owner of the pods failed");
        }
        tracing::info!("hanok agent ends, pods run on");
        Ok(served?)
    }

    /// Everybody that pod workers talk to.
    fn deps(
        &self,
        objects: Arc<ApiObjects>,
        status: Arc<dyn StatusSink>,
        seen: watch::Receiver<Option<Arc<Node>>>,
    ) -> anyhow::Result<Deps> {
        let root = &self.settings.paths.root_dir;
        let volumes = PodVolumes::new(root, objects.clone(), parts::node_facts(&self.facts));
        Ok(Deps {
            runtime: self.assembled.embedded.runtime.clone(),
            images: self.assembled.embedded.images.clone(),
            status,
            events: Arc::new(self.events.clone()),
            objects,
            volumes: Arc::new(volumes),
            classes: Arc::new(ApiRuntimeClasses::new(&self.server)),
            admission: Arc::new(ClusterNode {
                facts: self.facts.clone(),
                seen,
                unsafe_sysctls: self.settings.kubelet.allowed_unsafe_sysctls.clone(),
            }),
            timeline: self.timeline.clone(),
            settings: Arc::new(parts::pod_settings(&self.settings, &self.facts)?),
            clock: Clock::wall(),
        })
    }

    /// Renews what the cluster signs, as far as it was asked to.
    fn keep_certificates(&self) {
        let (settings, ips) = (&self.settings, &self.facts.ips);
        let requests = || self.server.requests.clone();
        if settings.kubelet.server_tls_bootstrap {
            // The kubelet API looks at the file by itself.
            let order = parts::order(settings, Kind::Serving, ips);
            tokio::spawn(renewal::keep(requests(), order, None, || ready(())));
        }
        let certified = self.server.certified_node().is_some();
        if settings.kubelet.rotate_certificates && certified {
            let order = parts::order(settings, Kind::Client, &[]);
            let (server, kubeconfig) = (self.server.clone(), settings.kubeconfig.clone());
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
            facts: self.facts.clone(),
            runtime: self.assembled.embedded.runtime.clone(),
            network: self.assembled.network.clone(),
            images: self.assembled.embedded.images.clone(),
            events: self.events.clone(),
            changed: self.node_changed.clone(),
        }
    }
}

/// Rings pods whose objects have changed.
async fn ring(mut changes: mpsc::UnboundedReceiver<PodUid>, pods: crate::pod::directory::Pods) {
    while let Some(uid) = changes.recv().await {
        pods.objects_changed(&uid);
    }
}

/// Gives the network the Node's podCIDRs, unless the operator has given some.
async fn follow_network(
    mut seen: watch::Receiver<Option<Arc<Node>>>,
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
    mut seen: watch::Receiver<Option<Arc<Node>>>,
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
