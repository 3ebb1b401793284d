//! Stops one container, or all of a pod: preStop ► its turn ► TERM ► KILL, within one budget.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::pod::hooks::Hook;
use crate::pod::settings::Deps;
use crate::pod::spec;
use crate::pod::stop_order::{self, MINIMUM_GRACE};
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
    /// From now to KILL, but for the least that is between TERM and KILL.
    pub(in crate::pod) grace: Duration,
    /// What the Killing event says; none for no event.
    pub(in crate::pod) message: Option<String>,
    /// Cancelled when it is its turn to end; none when it need not wait for others.
    pub(in crate::pod) turn: Option<CancellationToken>,
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
    if let Some(turn) = &job.turn {
        let left = job.grace.saturating_sub(began.elapsed());
        // When the budget is spent, nobody waits for anybody.
        let _ = timeout(left, turn.cancelled()).await;
    }
    let left = job.grace.saturating_sub(began.elapsed()).max(MINIMUM_GRACE);
    job.deps.runtime.stop_container(&job.id, left).await
}

/// Stops all of these in the order in which a pod ends. What could not be stopped is passed over.
pub(in crate::pod) async fn stop_all(jobs: Vec<Job>) {
    let Some(pod) = jobs.first().map(|job| job.pod.clone()) else {
        return;
    };
    let names: Vec<String> = jobs.iter().map(|job| job.name.clone()).collect();
    let turns: Vec<CancellationToken> = jobs.iter().map(|_| CancellationToken::new()).collect();
    let mut living: BTreeSet<usize> = (0..jobs.len()).collect();
    let stops = jobs.into_iter().zip(&turns).enumerate();
    let mut stops: FuturesUnordered<_> = stops
        .map(|(index, (job, turn))| async move {
            let turn = Some(turn.clone());
            // Whoever asked has a last means.
            let _ = stop(Job { turn, ..job }).await;
            index
        })
        .collect();
    loop {
        let left = living.iter().map(|index| names[*index].as_str()).collect();
        for index in &living {
            if stop_order::is_due(&pod, &names[*index], &left) {
                turns[*index].cancel();
            }
        }
        let Some(ended) = stops.next().await else {
            return;
        };
        living.remove(&ended);
    }
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
    let hook = Hook {
        pod: &job.pod,
        container,
        id: &job.id,
        pod_ip: &job.pod_ip,
        handler,
    };
    let run = hook.run(&*job.deps.runtime);
    let sleeps = handler.exec.is_none() && handler.http_get.is_none();
    let cause = tokio::select! {
        biased;
        ended = timeout(job.grace, run) => match ended {
            Ok(Ok(told)) => return job.deps.hook_told(&job.pod, told),
            Ok(Err(error)) => hook.message(&error),
            Err(_) => "it did not end within the grace period".to_owned(),
        },
        // A command ends with its container, and a request is of use to whoever gets it. A pause is of use to nobody,
        // though a kubelet sits it out.
        () = ended(job), if sleeps => "container terminated before sleep hook finished".to_owned(),
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

/// Waits until the run does not run any more.
async fn ended(job: &Job) {
    let runtime = &job.deps.runtime;
    let pod = spec::uid(&job.pod);
    let mut bell = runtime.doorbell();
    loop {
        if let Ok(view) = runtime.pod_view(&pod).await {
            let mut records = view.containers.iter();
            let runs = |record: &api::Container| {
                record.id == job.id && record.state == ContainerState::Running
            };
            if !records.any(runs) {
                return;
            }
        }
        loop {
            match bell.recv().await {
                Ok(rung) if rung != pod => {}
                Ok(_) | Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}
