//! Stops one container: preStop ► TERM ► KILL, within one budget.

use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::chain;
use crate::pod::hooks;
use crate::pod::settings::Deps;
use crate::pod::stop_order::MINIMUM_GRACE;
use crate::sinks::EventKind;

/// A container to stop.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    /// Its specification, if the pod still has it.
    pub(in crate::pod) container: Option<Container>,
    pub(in crate::pod) id: ContainerId,
    pub(in crate::pod) name: String,
    pub(in crate::pod) pod_ip: String,
    /// From now to KILL.
    pub(in crate::pod) grace: Duration,
    /// What the Killing event says; none for no event.
    pub(in crate::pod) message: Option<String>,
}

/// Stops it. The budget runs from the beginning, so a slow hook shortens what comes after it.
pub(in crate::pod) async fn stop(job: Job) -> Result<(), api::Error> {
    let began = Instant::now();
    if let Some(message) = &job.message {
        let name = Some(job.name.as_str());
        job.deps
            .events
            .pod_event(&job.pod, name, EventKind::Normal, "Killing", message);
    }
    pre_stop(&job).await;
    let left = job.grace.saturating_sub(began.elapsed()).max(MINIMUM_GRACE);
    job.deps.runtime.stop_container(&job.id, left).await
}

/// Runs the preStop hook for as long as the budget lasts.
async fn pre_stop(job: &Job) {
    let Some(container) = job.container.as_ref().filter(|_| !job.grace.is_zero()) else {
        return;
    };
    let lifecycle = container.lifecycle.as_ref();
    let Some(handler) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else {
        return;
    };
    let hook = hooks::run(&*job.deps.runtime, handler, container, &job.id, &job.pod_ip);
    let cause = match timeout(job.grace, hook).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => chain(&error),
        Err(_) => "it did not end within the grace period".to_owned(),
    };
    warn!(container = %job.name, error = cause, "preStop hook failed");
    let kind = EventKind::Warning;
    job.deps.event(
        &job.pod,
        container,
        kind,
        "FailedPreStopHook",
        "PreStopHook failed",
    );
}
