//! A watch: every pod that there is, a mark, and then what changes.
//!
//! It remembers what it has told and looks for the next difference when its client can take one, so that a slow client
//! misses what a pod was in between and never what it is.

use std::collections::BTreeMap;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::watch::Receiver;
use tonic::Status;

use super::messages::{EventType, WatchPodsEvent};
use super::{bytes, encode};
use crate::pod::directory::follow::{Change, Followed};
use crate::pod::directory::{News, Pods};
use crate::pod::spec;

/// A watch of one client.
#[derive(Debug)]
pub(super) struct Watcher {
    pods: Pods,
    news: Receiver<News>,
    stage: Stage,
    told: BTreeMap<PodUid, Told>,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// Pods up to this one have been told, in the order of their UIDs.
    Listing(Option<PodUid>),
    /// All have been told.
    Following,
}

/// What was told of a pod, as far as its end needs it.
#[derive(Debug)]
struct Told {
    revision: u64,
    namespace: String,
    name: String,
}

impl Watcher {
    /// A watch that has told nothing.
    pub(super) fn new(pods: Pods) -> Self {
        Self {
            news: pods.news(),
            pods,
            stage: Stage::Listing(None),
            told: BTreeMap::new(),
        }
    }

    /// The next event.
    ///
    /// # Errors
    /// When a pod cannot be told; this ends the watch.
    pub(super) async fn next(&mut self) -> Result<WatchPodsEvent, Status> {
        if let Stage::Listing(last) = &self.stage {
            let Some((uid, found)) = self.pods.after(last.as_ref()) else {
                self.stage = Stage::Following;
                return Ok(event(EventType::InitialSyncComplete, Vec::new()));
            };
            self.stage = Stage::Listing(Some(uid.clone()));
            return self.set(uid, found);
        }
        loop {
            self.news.mark_unchanged();
            match self.pods.change_since(&self.told, |told| told.revision) {
                Some(Change::Set(uid, found)) => return self.set(uid, *found),
                Some(Change::Gone(uid)) => return self.gone(uid),
                None => {}
            }
            // `self.pods` holds the other end.
            if self.news.changed().await.is_err() {
                return Err(Status::unavailable("there are no more news"));
            }
        }
    }

    fn set(&mut self, uid: PodUid, found: Followed) -> Result<WatchPodsEvent, Status> {
        let told = Told {
            revision: found.revision,
            namespace: spec::namespace(&found.pod).to_owned(),
            name: spec::name(&found.pod).to_owned(),
        };
        let kind = match self.told.insert(uid, told) {
            None => EventType::Added,
            Some(_) => EventType::Modified,
        };
        Ok(event(kind, bytes(found)?))
    }

    fn gone(&mut self, uid: PodUid) -> Result<WatchPodsEvent, Status> {
        let told = self.told.remove(&uid);
        let (namespace, name) = told.map_or_else(Default::default, |told| {
            (Some(told.namespace), Some(told.name))
        });
        let pod = Pod {
            metadata: ObjectMeta {
                namespace,
                name,
                uid: Some(uid.0),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        let pod = encode::pod(&pod, &PodStatus::default())
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(event(EventType::Deleted, pod))
    }
}

fn event(kind: EventType, pod: Vec<u8>) -> WatchPodsEvent {
    WatchPodsEvent {
        r#type: kind.into(),
        pod,
    }
}
