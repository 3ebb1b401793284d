//! The operations of one worker that run beside its loop, at most one for each key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, pending};

use hanok_runtime::api::{self, ContainerId};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::pod::storage::Usage;
use crate::pod::sync::start::StartError;
use crate::sinks::{MountedVolumes, VolumeError};

/// What an operation works on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The pod's sandbox.
    Sandbox,
    /// The pod's volumes.
    Volumes,
    /// All containers, to be started anew.
    Reset,
    /// The limits of the pod and of what runs.
    Resize,
    /// What the pod has written to the disk.
    Storage,
    /// The start of a container, by name.
    Start(String),
    /// The end of a container.
    Stop(ContainerId),
    /// What is left of the pod.
    Clean,
}

/// How an operation ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Sandbox(Result<(), String>),
    Volumes(Result<MountedVolumes, Vec<VolumeError>>),
    Start(Result<(), StartError>),
    Stop(Result<(), api::Error>),
    Reset(Result<(), api::Error>),
    Resize(Result<(), String>),
    Clean(Result<(), Vec<String>>),
    /// None when it was called off.
    Storage(Option<Usage>),
    /// It panicked or was aborted.
    Lost,
}

/// The operations under way.
#[derive(Debug, Default)]
pub(super) struct Operations {
    tasks: JoinSet<Outcome>,
    keys: HashMap<Id, Key>,
    handles: BTreeMap<Key, AbortHandle>,
    /// Cancels the starts of containers.
    starts: CancellationToken,
}

impl Operations {
    /// Runs an operation, in the current span. There must be none under this key.
    pub(super) fn spawn(&mut self, key: Key, work: impl Future<Output = Outcome> + Send + 'static) {
        let handle = self.tasks.spawn(work.in_current_span());
        self.keys.insert(handle.id(), key.clone());
        self.handles.insert(key, handle);
    }

    /// Whether one runs.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.handles.contains_key(key)
    }

    /// Whether any runs but stops.
    pub(super) fn any_but_stops(&self) -> bool {
        self.handles.keys().any(|key| !matches!(key, Key::Stop(_)))
    }

    /// Whether any runs.
    pub(super) fn any(&self) -> bool {
        !self.handles.is_empty()
    }

    /// Containers that are being started.
    pub(super) fn starting(&self) -> BTreeSet<String> {
        let names = self.handles.keys().filter_map(|key| match key {
            Key::Start(name) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    /// Cancels starts, now and from now on.
    pub(super) fn starts(&self) -> CancellationToken {
        self.starts.clone()
    }

    /// Cancels the starts under way; later ones may go on.
    pub(super) fn cancel_starts(&mut self) {
        std::mem::take(&mut self.starts).cancel();
    }

    /// Abandons the stops under way, so that they can be begun again with less time.
    pub(super) fn abandon_stops(&mut self) {
        self.handles.retain(|key, handle| {
            let stop = matches!(key, Key::Stop(_));
            if stop {
                handle.abort();
                self.keys.remove(&handle.id());
            }
            !stop
        });
    }

    /// The next operation that ends; never, when there is none.
    pub(super) async fn next(&mut self) -> (Option<Key>, Outcome) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.take(ended),
            None => pending().await,
        }
    }

    /// An operation that has ended already.
    pub(super) fn try_next(&mut self) -> Option<(Option<Key>, Outcome)> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.take(ended))
    }

    fn take(&mut self, ended: Result<(Id, Outcome), JoinError>) -> (Option<Key>, Outcome) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, outcome),
            Err(error) => (error.id(), Outcome::Lost),
        };
        let key = self.keys.remove(&id);
        if let Some(key) = &key {
            self.handles.remove(key);
        }
        (key, outcome)
    }
}
