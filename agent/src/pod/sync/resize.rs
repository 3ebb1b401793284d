//! Changes the limits of a pod and of its running containers.
//!
//! A pod's cgroup must hold those of its containers at every moment: what shrinks in them shrinks first, then the pod
//! gets its limits, then the others grow. So the order is right whatever the pod had before.

use std::sync::Arc;

use hanok_runtime::api::{ContainerId, Error, Resources};
use k8s_openapi::api::core::v1::Pod;

use crate::pod::settings::Deps;
use crate::pod::{resize, resources};
use hanok_runtime::service::chain;

/// A container whose limits change.
#[derive(Debug, Clone)]
pub(in crate::pod) struct One {
    pub(in crate::pod) id: ContainerId,
    pub(in crate::pod) name: String,
    pub(in crate::pod) has: Resources,
    pub(in crate::pod) wanted: Resources,
}

/// A pod to resize.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    /// The pod's cgroup.
    pub(in crate::pod) cgroup: String,
    pub(in crate::pod) containers: Vec<One>,
}

/// Resizes it. The error is what the user reads.
pub(in crate::pod) async fn run(job: Job) -> Result<(), String> {
    let runtime = &job.deps.runtime;
    for one in &job.containers {
        let least = resize::least(&one.has, &one.wanted);
        let changed = runtime.update_container_resources(&one.id, &least).await;
        changed.map_err(|error| one.failed(&error))?;
    }
    let limits = resources::pod_resources(&job.pod, job.deps.settings.pod_pids_limit);
    let changed = runtime.update_cgroup(&job.cgroup, &limits).await;
    changed.map_err(|error| match error {
        Error::MemoryInUse { usage, limit } => format!(
            "cannot decrease memory limits: attempting to set pod memory limit ({limit}) below \
             current usage ({usage})"
        ),
        other => chain(&other),
    })?;
    for one in &job.containers {
        if resize::least(&one.has, &one.wanted) != one.wanted {
            let changed = runtime
                .update_container_resources(&one.id, &one.wanted)
                .await;
            changed.map_err(|error| one.failed(&error))?;
        }
    }
    Ok(())
}

impl One {
    fn failed(&self, error: &Error) -> String {
        let name = &self.name;
        match error {
            Error::MemoryInUse { usage, limit } => format!(
                "cannot decrease memory limits: attempting to set container \"{name}\" memory \
                 limit ({limit}) below current usage ({usage})"
            ),
            other => format!("cannot resize container \"{name}\": {}", chain(other)),
        }
    }
}
