//! A container's cgroup, made while the rest of the container is: on v1 that is a hundred system calls, and a start would
//! wait for them.
//!
//! Whoever starts or removes the container takes the result first, so that nothing is made behind their backs. One that
//! failed is no failure of the container: the start tries again, and says why.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;

use crate::api::Resources;
use crate::cgroup::{DeviceRule, Prepared};
use crate::service::{Core, chain};

/// What is made, or was made and not taken.
#[derive(Debug, Default)]
pub(super) struct Ahead(Mutex<Option<Making>>);

#[derive(Debug)]
struct Making {
    resources: Resources,
    task: JoinHandle<Option<Prepared>>,
}

impl Ahead {
    /// Begins.
    pub(super) fn begin(
        &self,
        core: &Arc<Core>,
        cgroup: String,
        resources: Resources,
        devices: Vec<DeviceRule>,
    ) {
        let (cgroups, wanted) = (core.cgroups.clone(), resources.clone());
        let task = tokio::task::spawn_blocking(move || {
            match cgroups.prepare_ahead(&cgroup, &wanted, &devices) {
                Ok(prepared) => prepared,
                Err(error) => {
                    let error = chain(&error);
                    tracing::debug!(cgroup, error, "cgroup cannot be made before the start");
                    None
                }
            }
        });
        *self.lock() = Some(Making { resources, task });
    }

    /// What was made with these limits; nothing is being made any more.
    pub(super) async fn take(&self, resources: &Resources) -> Option<Prepared> {
        let making = self.lock().take()?;
        let prepared = making.task.await.ok()?;
        prepared.filter(|_| making.resources == *resources)
    }

    /// Nothing is being made any more.
    pub(super) async fn settle(&self) {
        let making = self.lock().take();
        if let Some(making) = making {
            let _ = making.task.await;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Making>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
