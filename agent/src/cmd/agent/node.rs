//! The machine's part of an agent, the same in a cluster and alone: the runtime, its surroundings, and the kubelet API.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use hanok_runtime::api::RuntimeService;
use k8s_openapi::api::core::v1::Node as NodeObject;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::notify::{self, Watchdog};
use super::parts;
use crate::assembly::Assembled;
use crate::client::ApiServer;
use crate::config::Settings;
use crate::embedded;
use crate::local_grpc;
use crate::node::status::Facts;
use crate::node::view::{Basis, ClusterNode};
use crate::pod::directory::Pods;
use crate::pod::settings::{Clock, Deps, RuntimeClasses};
use crate::pod_resources;
use crate::pods_api;
use crate::server::{Reviewer, Server, ServerConfig};
use crate::sinks::{EventSink, Objects, StatusSink};
use crate::timeline::Timeline;
use crate::volume::PodVolumes;

/// Updates of pods that may wait for the owner of the set.
pub(super) const UPDATES: usize = 256;

/// A node whose runtime is open.
pub(super) struct Node {
    pub(super) settings: Settings,
    pub(super) facts: Arc<Facts>,
    pub(super) assembled: Assembled,
    timeline: Timeline,
    watchdog: Watchdog,
    /// What belongs to no pod of this agent is removed from the directories that these lock.
    _claimed: [File; 2],
}

/// What the node serves.
pub(super) struct Apis {
    kubelet: Server,
    /// For programs on this machine; without those whose sockets cannot be made.
    local: Vec<(UnixListener, Router)>,
}

/// Whom the pod workers talk to beyond the machine.
pub(super) struct Outside {
    pub(super) status: Arc<dyn StatusSink>,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) objects: Arc<dyn Objects>,
    pub(super) classes: Arc<dyn RuntimeClasses>,
    /// The server's copy of the Node; none as long as there is none.
    pub(super) seen: watch::Receiver<Option<Arc<NodeObject>>>,
    /// The API server, to ask for it; none without a cluster.
    pub(super) server: Option<ApiServer>,
}

impl Node {
    /// Opens the runtime, which adopts what runs.
    pub(super) async fn open(
        settings: Settings,
        ips: Vec<IpAddr>,
        timeline: Timeline,
        watchdog: Watchdog,
    ) -> anyhow::Result<Self> {
        let mut facts = parts::facts(&settings, ips);
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
        facts.handlers = assembled.embedded.runtime.handlers();
        Ok(Self {
            settings,
            facts: Arc::new(facts),
            assembled,
            timeline,
            watchdog,
            _claimed,
        })
    }

    /// Everybody that pod workers talk to.
    pub(super) fn deps(&self, outside: Outside) -> anyhow::Result<Deps> {
        let root = &self.settings.paths.root_dir;
        let node = parts::node_facts(&self.facts);
        let volumes = PodVolumes::new(root, outside.objects.clone(), node);
        Ok(Deps {
            runtime: self.assembled.embedded.runtime.clone(),
            images: self.assembled.embedded.images.clone(),
            status: outside.status,
            events: outside.events,
            objects: outside.objects,
            volumes: Arc::new(volumes),
            classes: outside.classes,
            admission: Arc::new(ClusterNode::new(Basis {
                facts: self.facts.clone(),
                seen: outside.seen,
                server: outside.server,
                unsafe_sysctls: self.settings.kubelet.allowed_unsafe_sysctls.clone(),
                listens: self.server_config().listens().collect(),
            })),
            timeline: self.timeline.clone(),
            settings: Arc::new(parts::pod_settings(&self.settings, &self.facts)?),
            clock: Clock::wall(),
        })
    }

    /// The node's APIs; they listen and do not serve yet.
    pub(super) fn bind(&self, pods: Pods, reviewer: Arc<dyn Reviewer>) -> anyhow::Result<Apis> {
        self.watchdog.look_at(pods.clone());
        let deps = parts::server_deps(&self.settings, &self.assembled, pods.clone(), reviewer);
        let kubelet = Server::bind(self.server_config(), deps)?;
        let root = &self.settings.paths.root_dir;
        let local = [
            (pods_api::socket(root), pods_api::routes(pods.clone())),
            (
                pod_resources::socket(root),
                pod_resources::routes(Arc::new(pods)),
            ),
        ];
        let local = local.into_iter().filter_map(bind_local).collect();
        Ok(Apis { kubelet, local })
    }

    fn server_config(&self) -> ServerConfig {
        ServerConfig::from_settings(&self.settings, &self.facts.ips)
    }

    /// Serves until the order to stop, then ends the sources of pods and their owner; the pods run on.
    pub(super) async fn serve(
        self,
        apis: Apis,
        mut sources: JoinSet<()>,
        owner: JoinHandle<()>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        notify::tell(notify::READY);
        let done = stop.child_token();
        for (listener, routes) in apis.local {
            tokio::spawn(local_grpc::serve(listener, routes, done.clone()));
        }
        let served = apis.kubelet.run(stop).await;
        done.cancel();
        notify::tell(notify::STOPPING);
        // Closing the sources ends the workers, and with them nothing of the pods.
        sources.shutdown().await;
        if let Err(error) = owner.await {
            tracing::warn!(%error, "the owner of the pods failed");
        }
        tracing::info!("hanok agent ends, pods run on");
        Ok(served?)
    }
}

/// A node is one without the APIs for programs on its machine too.
fn bind_local((socket, routes): (PathBuf, Router)) -> Option<(UnixListener, Router)> {
    match local_grpc::bind(&socket) {
        Ok(listener) => Some((listener, routes)),
        Err(error) => {
            let socket = socket.display();
            tracing::warn!(%error, %socket, "an API for this machine is not served");
            None
        }
    }
}
