//! What the runtime knows of, in memory. A lock that is held for a lookup and never across a wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::{ContainerId, PodUid, SandboxId};
use crate::container::Container;
use crate::sandbox::Sandbox;

/// Sandboxes and containers by id.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    sandboxes: HashMap<String, Arc<Sandbox>>,
    containers: HashMap<String, Arc<Container>>,
}

impl Registry {
    pub(crate) fn add_sandbox(&self, sandbox: Arc<Sandbox>) {
        self.lock().sandboxes.insert(sandbox.id.0.clone(), sandbox);
    }

    pub(crate) fn drop_sandbox(&self, id: &SandboxId) {
        self.lock().sandboxes.remove(id.as_str());
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        self.lock().sandboxes.get(id.as_str()).cloned()
    }

    pub(crate) fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        self.lock().sandboxes.values().cloned().collect()
    }

    pub(crate) fn add_container(&self, container: Arc<Container>) {
        self.lock()
            .containers
            .insert(container.id.0.clone(), container);
    }

    pub(crate) fn drop_container(&self, id: &ContainerId) {
        self.lock().containers.remove(id.as_str());
    }

    pub(crate) fn container(&self, id: &ContainerId) -> Option<Arc<Container>> {
        self.container_by_id(id.as_str())
    }

    pub(crate) fn container_by_id(&self, id: &str) -> Option<Arc<Container>> {
        self.lock().containers.get(id).cloned()
    }

    pub(crate) fn containers(&self) -> Vec<Arc<Container>> {
        self.lock().containers.values().cloned().collect()
    }

    pub(crate) fn containers_of(&self, sandbox: &SandboxId) -> Vec<Arc<Container>> {
        let known = self.lock();
        known
            .containers
            .values()
            .filter(|one| one.sandbox.id == *sandbox)
            .cloned()
            .collect()
    }

    /// What there is of one pod.
    pub(crate) fn pod(&self, pod: &PodUid) -> (Vec<Arc<Sandbox>>, Vec<Arc<Container>>) {
        let known = self.lock();
        let of_pod = |sandbox: &Sandbox| sandbox.with_record(|record| record.config.uid == *pod);
        (
            known
                .sandboxes
                .values()
                .filter(|one| of_pod(one))
                .cloned()
                .collect(),
            known
                .containers
                .values()
                .filter(|one| one.pod == *pod)
                .cloned()
                .collect(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
