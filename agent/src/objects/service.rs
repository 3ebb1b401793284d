//! The cluster's Services, for environment variables: one watch for all of them, begun when first asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::{OnceCell, watch};

use crate::client::ApiServer;
use crate::sinks::ObjectError;

/// How long a pod waits for the first list before it tries again.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// Services by namespace and name; none until they were listed once.
type Known = Option<BTreeMap<String, BTreeMap<String, Arc<Service>>>>;

/// The watched Services.
#[derive(Debug)]
pub(super) struct Services {
    server: ApiServer,
    known: OnceCell<watch::Receiver<Known>>,
}

impl Services {
    pub(super) fn new(server: ApiServer) -> Self {
        Self {
            server,
            known: OnceCell::new(),
        }
    }

    /// Begins to watch, if nobody has yet.
    pub(super) async fn start(&self) -> watch::Receiver<Known> {
        let receiver = self.known.get_or_init(|| async {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(run(self.server.watches.clone(), sender));
            receiver
        });
        receiver.await.clone()
    }

    /// The Services of a namespace, and the API server's own.
    pub(super) async fn of(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectError> {
        let mut receiver = self.start().await;
        let listed = receiver.wait_for(Option::is_some);
        let Ok(Ok(known)) = tokio::time::timeout(FIRST_LIST, listed).await else {
            let message = "services have not yet been read at least once, cannot construct envvars";
            return Err(ObjectError::Other(message.into()));
        };
        let mut found = Vec::new();
        for (home, services) in known.iter().flatten() {
            if home == namespace {
                found.extend(services.values().cloned());
            } else if home == "default" {
                found.extend(services.get("kubernetes").cloned());
            }
        }
        Ok(found)
    }
}

/// Keeps `known` up to date for as long as anybody holds the other end.
async fn run(client: kube::Client, known: watch::Sender<Known>) {
    let config = watcher::Config::default().any_semantic();
    let mut events = watcher(Api::<Service>::all(client), config)
        .default_backoff()
        .boxed();
    let mut listing = BTreeMap::new();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = known.closed() => return,
        };
        match event {
            Some(Ok(watcher::Event::Init)) => listing = BTreeMap::new(),
            Some(Ok(watcher::Event::InitApply(service))) => insert(&mut listing, service),
            Some(Ok(watcher::Event::InitDone)) => {
                known.send_replace(Some(std::mem::take(&mut listing)));
            }
            Some(Ok(watcher::Event::Apply(service))) => known.send_modify(|known| {
                insert(known.get_or_insert_default(), service);
            }),
            Some(Ok(watcher::Event::Delete(service))) => known.send_modify(|known| {
                let (namespace, name) = key(&service);
                if let Some(services) = known.as_mut().and_then(|known| known.get_mut(&namespace)) {
                    services.remove(&name);
                }
            }),
            Some(Err(error)) => tracing::debug!(%error, "watch of services failed, trying again"),
            None => return,
        }
    }
}

fn insert(map: &mut BTreeMap<String, BTreeMap<String, Arc<Service>>>, mut service: Service) {
    // Nothing but the name, address and ports is ever read.
    service.metadata.managed_fields = None;
    service.metadata.annotations = None;
    let (namespace, name) = key(&service);
    map.entry(namespace)
        .or_default()
        .insert(name, Arc::new(service));
}

fn key(service: &Service) -> (String, String) {
    let meta = &service.metadata;
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}
