//! A watch on the pods of a namespace that says when each became ready and when each was gone.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use tokio::sync::mpsc;

use crate::cluster::{is_ready, name, phase};

/// How long a pod may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a watch event says about a pod, and when it came.
#[derive(Debug)]
struct Seen {
    name: String,
    ready: bool,
    failed: bool,
    gone: bool,
    at: Instant,
}

/// The pods of one namespace, as the API server tells of them.
#[derive(Debug)]
pub(super) struct PodWatch {
    events: mpsc::UnboundedReceiver<Seen>,
    ready: HashMap<String, Instant>,
    gone: HashMap<String, Instant>,
}

impl PodWatch {
    /// Begins to watch.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(super) async fn start(client: &Client, namespace: &str) -> Result<Self> {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let list = pods.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let (send, events) = mpsc::unbounded_channel();
        let (started, on_started) = tokio::sync::oneshot::channel();
        tokio::spawn(follow(pods, version, send, started));
        on_started.await.context("the watch did not start")?;
        Ok(Self {
            events,
            ready: HashMap::new(),
            gone: HashMap::new(),
        })
    }

    /// When the pod became ready.
    ///
    /// # Errors
    /// When it fails or takes too long.
    pub(super) async fn ready(&mut self, pod: &str) -> Result<Instant> {
        while !self.ready.contains_key(pod) {
            self.next(pod).await?;
        }
        self.ready.get(pod).copied().context("no time")
    }

    /// When the pod's object was removed.
    ///
    /// # Errors
    /// When it takes too long.
    pub(super) async fn gone(&mut self, pod: &str) -> Result<Instant> {
        while !self.gone.contains_key(pod) {
            self.next(pod).await?;
        }
        self.gone.get(pod).copied().context("no time")
    }

    async fn next(&mut self, awaited: &str) -> Result<()> {
        let seen = tokio::time::timeout(PATIENCE, self.events.recv()).await;
        let seen = seen
            .with_context(|| format!("waiting for {awaited}"))?
            .context("the watch has ended")?;
        if seen.failed {
            bail!("pod {} failed", seen.name);
        }
        if seen.gone {
            self.gone.insert(seen.name, seen.at);
        } else if seen.ready {
            self.ready.entry(seen.name).or_insert(seen.at);
        }
        Ok(())
    }
}

/// Watches until nobody listens; a watch that the server ends is taken up where it was.
async fn follow(
    pods: Api<Pod>,
    mut version: String,
    send: mpsc::UnboundedSender<Seen>,
    started: tokio::sync::oneshot::Sender<()>,
) {
    let mut started = Some(started);
    while let Ok(stream) = pods.watch(&WatchParams::default(), &version).await {
        if let Some(started) = started.take() {
            started.send(()).ok();
        }
        let mut stream = std::pin::pin!(stream);
        while let Some(Ok(event)) = stream.next().await {
            let at = Instant::now();
            let (pod, gone) = match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                WatchEvent::Deleted(pod) => (pod, true),
                _ => continue,
            };
            version = pod.metadata.resource_version.clone().unwrap_or_default();
            let seen = Seen {
                name: name(&pod).to_owned(),
                ready: is_ready(&pod),
                failed: phase(&pod) == "Failed" && pod.metadata.deletion_timestamp.is_none(),
                gone,
                at,
            };
            if send.send(seen).is_err() {
                return;
            }
        }
    }
}
