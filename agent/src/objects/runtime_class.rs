//! RuntimeClasses: which handler a class stands for. One watch, begun when a pod first names a class.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::{OnceCell, watch};

use crate::client::ApiServer;
use crate::pod::settings::RuntimeClasses;

/// How long a pod waits for the first list before it tries again.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// Handlers by class; none until they were listed once.
type Known = Option<BTreeMap<String, String>>;

/// RuntimeClasses by way of the API server.
#[derive(Debug)]
pub struct ApiRuntimeClasses {
    server: ApiServer,
    known: OnceCell<watch::Receiver<Known>>,
}

impl ApiRuntimeClasses {
    /// Nothing is asked until somebody asks.
    pub fn new(server: &ApiServer) -> Self {
        Self {
            server: server.clone(),
            known: OnceCell::new(),
        }
    }
}

#[async_trait]
impl RuntimeClasses for ApiRuntimeClasses {
    async fn handler(&self, class: &str) -> Result<String, String> {
        let known = self.known.get_or_init(|| async {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(run(self.server.watches.clone(), sender));
            receiver
        });
        let mut known = known.await.clone();
        let listed = known.wait_for(Option::is_some);
        let Ok(Ok(known)) = tokio::time::timeout(FIRST_LIST, listed).await else {
            return Err("runtime classes have not yet been read at least once".to_owned());
        };
        let handler = known.as_ref().and_then(|known| known.get(class)).cloned();
        handler.ok_or_else(|| format!("RuntimeClass \"{class}\" not found"))
    }
}

/// Keeps `known` up to date for as long as anybody holds the other end.
async fn run(client: kube::Client, known: watch::Sender<Known>) {
    let api: Api<RuntimeClass> = Api::all(client);
    let mut events = watcher(api, watcher::Config::default())
        .default_backoff()
        .boxed();
    let mut listing = BTreeMap::new();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = known.closed() => return,
        };
        let entry = |class: RuntimeClass| (class.metadata.name.unwrap_or_default(), class.handler);
        match event {
            Some(Ok(watcher::Event::Init)) => listing = BTreeMap::new(),
            Some(Ok(watcher::Event::InitApply(class))) => listing.extend([entry(class)]),
            Some(Ok(watcher::Event::InitDone)) => {
                known.send_replace(Some(std::mem::take(&mut listing)));
            }
            Some(Ok(watcher::Event::Apply(class))) => known.send_modify(|known| {
                known.get_or_insert_default().extend([entry(class)]);
            }),
            Some(Ok(watcher::Event::Delete(class))) => known.send_modify(|known| {
                known.get_or_insert_default().remove(&entry(class).0);
            }),
            Some(Err(error)) => {
                tracing::debug!(%error, "watch of runtime classes failed, trying again")
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake::{Answer, Fake};
    use serde_json::json;

    #[tokio::test]
    async fn a_class_stands_for_its_handler_and_an_unknown_one_is_named() {
        let (_fake, server) = Fake::start(|seen| {
            if seen.query.contains("watch=true") {
                return Some(Answer::Open(Vec::new()));
            }
            let class = json!({"metadata": {"name": "fast"}, "handler": "runc"});
            Some(Answer::Object(
                json!({"kind": "RuntimeClassList", "apiVersion": "node.k8s.io/v1",
                "metadata": {"resourceVersion": "1"}, "items": [class]}),
            ))
        })
        .await;
        let classes = ApiRuntimeClasses::new(&server);
        assert_eq!(classes.handler("fast").await.as_deref(), Ok("runc"));
        assert_eq!(
            classes.handler("slow").await.unwrap_err(),
            "RuntimeClass \"slow\" not found"
        );
    }
}
