//! Takes every container of a pod away, so that all start anew in the sandbox that there is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId};
use k8s_openapi::api::core::v1::Pod;

use crate::pod::settings::Deps;
use crate::pod::{files, spec};
use crate::sinks::EventKind;

/// Containers to take away, in order.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    pub(in crate::pod) records: Vec<api::Container>,
}

/// Ends and removes them without grace, one after the other: what comes later keeps the reason for what came before.
pub(in crate::pod) async fn run(job: Job) -> Result<(), api::Error> {
    for record in &job.records {
        let (name, runtime) = (&record.config.name, &job.deps.runtime);
        if record.state == api::ContainerState::Running {
            // The kubelet's word for just this stop.
            let (kind, reason, message) = (EventKind::Normal, "Killing", "killing");
            job.deps
                .events
                .pod_event(&job.pod, Some(name), kind, reason, message);
            runtime.stop_container(&record.id, Duration::ZERO).await?;
        }
        runtime.remove_container(&record.id).await?;
        let (log, link) = (record.log_path.clone(), job.log_link(name, &record.id));
        let removed = files::off_the_loop(move || files::remove_run_logs(&log, &link));
        if let Some(Err(error)) = removed.await {
            tracing::warn!(container = %name, %error, "cannot remove the logs of a container");
        }
    }
    Ok(())
}

impl Job {
    fn log_link(&self, name: &str, id: &ContainerId) -> PathBuf {
        let pod = (spec::namespace(&self.pod), spec::name(&self.pod));
        files::log_link(&self.deps.settings.log_links_dir, pod, name, id.as_str())
    }
}
