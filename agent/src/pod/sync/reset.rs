//! Takes every container of a pod away, so that all start anew in the sandbox that there is.

use std::sync::Arc;

use hanok_runtime::api;
use k8s_openapi::api::core::v1::Pod;

use crate::pod::settings::Deps;
use crate::pod::stop_order::MINIMUM_GRACE;
use crate::sinks::EventKind;

/// Containers to take away, in order.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    pub(in crate::pod) records: Vec<api::Container>,
}

/// Ends and removes them with the least grace, one after the other: what comes later keeps the reason for what came
/// before. Their logs stay for as long as the pod.
pub(in crate::pod) async fn run(job: Job) -> Result<(), api::Error> {
    for record in &job.records {
        let (name, runtime) = (&record.config.name, &job.deps.runtime);
        if record.state == api::ContainerState::Running {
            // The kubelet's word for just this stop.
            let (kind, reason, message) = (EventKind::Normal, "Killing", "killing");
            job.deps
                .events
                .pod_event(&job.pod, Some(name), kind, reason, message);
            runtime.stop_container(&record.id, MINIMUM_GRACE).await?;
        }
        runtime.remove_container(&record.id).await?;
    }
    Ok(())
}
