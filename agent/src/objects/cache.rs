//! Objects by name, each watched by itself for as long as a registered pod refers to it.
//!
//! A node may read only objects that its own pods refer to, one by one: so there is a GET and a watch with a
//! single-name selector for each, and never a list of a kind. The GET starts when the pod is registered, so that the
//! object is here when the pod's volumes ask for it. An immutable object is not watched.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hanok_runtime::api::PodUid;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::follow;
use crate::client::{ApiServer, Failure, failure, message};
use crate::sinks::ObjectError;

/// A kind of object that pods refer to by name.
pub(super) trait Referable:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// As messages name it.
    const KIND: &'static str;
    /// Whether its contents can never change.
    fn immutable(&self) -> bool;
}

impl Referable for ConfigMap {
    const KIND: &'static str = "configmap";
    fn immutable(&self) -> bool {
        self.immutable.unwrap_or(false)
    }
}

impl Referable for Secret {
    const KIND: &'static str = "secret";
    fn immutable(&self) -> bool {
        self.immutable.unwrap_or(false)
    }
}

/// What is known of an object.
#[derive(Debug, Clone)]
pub(super) enum Known<K> {
    /// It was asked for and has not been answered yet.
    Nothing,
    /// It exists, in this form.
    Present(Arc<K>),
    /// It does not exist.
    Absent,
    /// The server could not be asked, or refused; it is being asked again.
    Failed(String),
}

/// Rings the pods that refer to an object.
pub type Changed = tokio::sync::mpsc::UnboundedSender<PodUid>;

/// The cache of one kind.
#[derive(Debug)]
pub(super) struct Cache<K> {
    server: ApiServer,
    changed: Changed,
    entries: Mutex<HashMap<(String, String), Entry<K>>>,
}

/// One object: who refers to it, what is known of it, and the task that finds out. The task ends with the entry.
#[derive(Debug)]
struct Entry<K> {
    pods: BTreeSet<PodUid>,
    known: watch::Sender<Known<K>>,
    task: AbortHandle,
}

impl<K> Drop for Entry<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K: Referable> Cache<K> {
    pub(super) fn new(server: ApiServer, changed: Changed) -> Self {
        Self {
            server,
            changed,
            entries: Mutex::default(),
        }
    }

    /// Makes `pod` refer to exactly these objects of `namespace`; what nobody refers to any more is forgotten. An
    /// object that nobody has referred to yet is asked for after `first_wait`.
    pub(super) fn set(
        self: &Arc<Self>,
        pod: &PodUid,
        namespace: &str,
        names: &BTreeSet<String>,
        first_wait: Duration,
    ) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let key = (namespace.to_owned(), name.clone());
            let entry = entries
                .entry(key)
                .or_insert_with(|| self.start(namespace, name, first_wait));
            entry.pods.insert(pod.clone());
        }
        entries.retain(|(home, name), entry| {
            if home != namespace || !names.contains(name) {
                entry.pods.remove(pod);
            }
            !entry.pods.is_empty()
        });
    }

    /// How many objects are followed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Starts to follow an object.
    fn start(self: &Arc<Self>, namespace: &str, name: &str, first_wait: Duration) -> Entry<K> {
        let (known, _) = watch::channel(Known::Nothing);
        let requests = Api::namespaced(self.server.requests.clone(), namespace);
        let watches = Api::namespaced(self.server.watches.clone(), namespace);
        let key = (namespace.to_owned(), name.to_owned());
        let (cache, publish) = (Arc::downgrade(self), known.clone());
        let publish = move |now| {
            // The first answer is awaited by who asked; later ones are news.
            let news = !matches!(publish.send_replace(now), Known::Nothing);
            if let Some(cache) = cache.upgrade().filter(|_| news) {
                cache.ring(&key);
            }
        };
        let name = name.to_owned();
        let task = tokio::spawn(async move {
            tokio::time::sleep(first_wait).await;
            follow::follow(requests, watches, name, publish).await;
        });
        Entry {
            pods: BTreeSet::new(),
            known,
            task: task.abort_handle(),
        }
    }

    /// Rings every pod that refers to the object.
    fn ring(&self, key: &(String, String)) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for pod in entries.get(key).iter().flat_map(|entry| &entry.pods) {
            // Nobody listens any more when the agent ends.
            let _ = self.changed.send(pod.clone());
        }
    }

    /// The object, as soon as anything is known of it. One that no registered pod refers to is fetched for this call.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        let receiver = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let key = (namespace.to_owned(), name.to_owned());
            entries.get(&key).map(|entry| entry.known.subscribe())
        };
        let Some(mut receiver) = receiver else {
            return self.fetch(namespace, name).await;
        };
        let answered = receiver
            .wait_for(|known| !matches!(known, Known::Nothing))
            .await;
        let known = answered.map(|known| known.clone());
        match known {
            Ok(Known::Present(object)) => Ok(object),
            Ok(Known::Absent) => Err(not_found::<K>(name)),
            Ok(Known::Failed(message)) => Err(ObjectError::Other(message)),
            // The last pod that referred to it has just gone.
            Ok(Known::Nothing) | Err(_) => self.fetch(namespace, name).await,
        }
    }

    /// A single GET.
    async fn fetch(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        let api: Api<K> = Api::namespaced(self.server.requests.clone(), namespace);
        match api.get(name).await {
            Ok(object) => Ok(Arc::new(object)),
            Err(error) if failure(&error) == Failure::NotFound => Err(not_found::<K>(name)),
            Err(error) => Err(ObjectError::Other(message(&error))),
        }
    }
}

fn not_found<K: Referable>(name: &str) -> ObjectError {
    ObjectError::NotFound {
        kind: K::KIND,
        name: name.to_owned(),
    }
}
