//! Runs the probes of one pod's running containers and tells the pod's worker what they say.
//!
//! ```text
//! started ─► initialDelay ─► startup probe until it has passed ─► liveness ∥ readiness, each by its own period
//! ```
//! One task for each run of a container; it ends with the run, or when the run has to be restarted. A task holds one
//! timer for each probe and nothing else between two attempts, and counts from nothing, where a kubelet adds to what it has
//! counted of the run before. When the pod ends, its apps are asked for their readiness only; sidecars, which run on for
//! them, are asked as before.

mod attempt;
mod grpc;
mod subject;
mod ticks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::observation::{Observation, timestamp};
use super::probe::Verdicts;
use super::settings::Deps;
use super::spec;
use subject::{Subject, Verdict};

/// The probes of one pod.
#[derive(Debug)]
pub(super) struct Prober {
    tasks: BTreeMap<ContainerId, AbortHandle>,
    sender: UnboundedSender<(ContainerId, Verdict)>,
    verdicts: UnboundedReceiver<(ContainerId, Verdict)>,
    /// The pod ends: nothing is to be restarted any more.
    ending: CancellationToken,
    /// Nobody has been probed yet: what runs has been started by an agent before this one.
    is_new: bool,
}

impl Prober {
    pub(super) fn new() -> Self {
        let (sender, verdicts) = unbounded_channel();
        Self {
            tasks: BTreeMap::new(),
            sender,
            verdicts,
            ending: CancellationToken::new(),
            is_new: true,
        }
    }

    /// The pod ends: liveness and startup do not matter any more.
    pub(super) fn end(&self) {
        self.ending.cancel();
    }

    /// Probes what runs, and nothing else. Gives the verdicts that runs begin with. What is `starting` runs its
    /// postStart hook, and is not to be asked before.
    pub(super) fn update(
        &mut self,
        deps: &Arc<Deps>,
        pod: &Arc<Pod>,
        seen: &Observation,
        starting: &BTreeSet<String>,
        last: &dyn Fn(&str) -> Option<ContainerStatus>,
    ) -> Vec<(ContainerId, Verdicts)> {
        let mut running: Vec<&api::Container> = seen.records().iter().collect();
        running.retain(|record| record.state == ContainerState::Running);
        self.tasks.retain(|id, task| {
            let runs = running.iter().any(|record| record.id == *id);
            if !runs {
                task.abort();
            }
            runs
        });
        let is_adopted = std::mem::take(&mut self.is_new);
        let mut begun = Vec::new();
        for record in running {
            let name = &record.config.name;
            if self.tasks.contains_key(&record.id) || starting.contains(name) {
                continue;
            }
            let Some(container) = probed(pod, name) else {
                continue;
            };
            // An agent that has just started believes the last one until it knows better.
            let known = last(&record.id.0);
            let verdicts = Verdicts {
                started: known
                    .as_ref()
                    .and_then(|known| known.started)
                    .filter(|started| *started),
                ready: known
                    .as_ref()
                    .map(|known| known.ready)
                    .filter(|ready| *ready),
                alive: None,
            };
            begun.push((record.id.clone(), verdicts));
            let mut apps = spec::app_containers(pod).iter();
            let is_app = apps.any(|app| app.name == *name);
            let subject = Subject {
                deps: deps.clone(),
                pod: pod.clone(),
                container: container.clone(),
                id: record.id.clone(),
                ip: deps.pod_ip(pod, seen),
                started: started_at(deps, record),
                is_adopted,
                verdicts: self.sender.clone(),
                ending: match is_app {
                    true => self.ending.clone(),
                    false => CancellationToken::new(),
                },
            };
            let passed = verdicts.started == Some(true);
            let task = tokio::spawn(subject.run(passed));
            self.tasks.insert(record.id.clone(), task.abort_handle());
        }
        begun
    }

    /// The next change of a verdict, applied to what is known so far.
    pub(super) async fn next(
        &mut self,
        known: impl Fn(&ContainerId) -> Verdicts,
    ) -> (ContainerId, Verdicts) {
        let Some((id, verdict)) = self.verdicts.recv().await else {
            // The sender lives as long as the prober.
            return std::future::pending().await;
        };
        let mut verdicts = known(&id);
        match verdict {
            Verdict::Started(started) => verdicts.started = Some(started),
            Verdict::Ready(ready) => verdicts.ready = Some(ready),
            Verdict::Alive(alive) => verdicts.alive = Some(alive),
        }
        (id, verdicts)
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        for task in self.tasks.values() {
            task.abort();
        }
    }
}

/// The container of that name, if it has a probe.
fn probed<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    spec::containers(pod)
        .find(|container| container.name == name)
        .filter(|container| {
            container.startup_probe.is_some()
                || container.liveness_probe.is_some()
                || container.readiness_probe.is_some()
        })
}

/// When the run began, on tokio's clock.
fn started_at(deps: &Deps, record: &api::Container) -> Instant {
    let started = record.started_at.unwrap_or(record.created_at);
    let ago = deps.clock.now().duration_since(timestamp(started));
    let now = Instant::now();
    now.checked_sub(Duration::try_from(ago).unwrap_or_default())
        .unwrap_or(now)
}
