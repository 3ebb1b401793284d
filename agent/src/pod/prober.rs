//! Runs the probes of one pod's running containers and tells the pod's worker what they say.
//!
//! ```text
//! started ─► initialDelay ─► startup probe until it has passed ─► liveness ∥ readiness, each by its own period
//! ```
//! One task for each run of a container; it ends with the run, or when the run has to be restarted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::hooks::{self, HookError};
use super::observation::{Observation, timestamp};
use super::probe::Verdicts;
use super::settings::Deps;
use super::spec;
use super::sync::chain;
use crate::sinks::EventKind;

/// As the API's documentation has it.
const USER_AGENT: &str = "kube-probe/1.37";

/// One probe's answer, as it changes a container's verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Started(bool),
    Ready(bool),
    Alive(bool),
}

/// The probes of one pod.
#[derive(Debug)]
pub(super) struct Prober {
    tasks: HashMap<ContainerId, AbortHandle>,
    sender: UnboundedSender<(ContainerId, Verdict)>,
    verdicts: UnboundedReceiver<(ContainerId, Verdict)>,
}

impl Prober {
    pub(super) fn new() -> Self {
        let (sender, verdicts) = unbounded_channel();
        Self {
            tasks: HashMap::new(),
            sender,
            verdicts,
        }
    }

    /// Probes what runs, and nothing else. Gives the verdicts that runs begin with.
    pub(super) fn update(
        &mut self,
        deps: &Arc<Deps>,
        pod: &Arc<Pod>,
        seen: &Observation,
        last: &dyn Fn(&str) -> Option<ContainerStatus>,
    ) -> Vec<(ContainerId, Verdicts)> {
        let running = |id: &ContainerId| {
            let mut records = seen.records().iter();
            records.any(|record| record.id == *id && record.state == ContainerState::Running)
        };
        self.tasks.retain(|id, task| {
            let runs = running(id);
            if !runs {
                task.abort();
            }
            runs
        });
        let mut begun = Vec::new();
        for record in seen
            .records()
            .iter()
            .filter(|record| record.state == ContainerState::Running)
        {
            if self.tasks.contains_key(&record.id) {
                continue;
            }
            let Some((_, container)) = spec::find_container(pod, &record.config.name) else {
                continue;
            };
            let probes = [
                &container.startup_probe,
                &container.liveness_probe,
                &container.readiness_probe,
            ];
            if probes.iter().all(|probe| probe.is_none()) {
                continue;
            }
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
            let subject = Subject {
                deps: deps.clone(),
                pod: pod.clone(),
                container,
                id: record.id.clone(),
                ip: pod_ip(deps, pod, seen),
                started: started_at(deps, record),
                verdicts: self.sender.clone(),
            };
            let passed = verdicts.started == Some(true);
            self.tasks.insert(
                record.id.clone(),
                tokio::spawn(subject.run(passed)).abort_handle(),
            );
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

/// The address that probes connect to.
fn pod_ip(deps: &Deps, pod: &Pod, seen: &Observation) -> String {
    let ips = match spec::host_network(pod) {
        true => deps.settings.host_ips.as_slice(),
        false => seen
            .newest_sandbox()
            .map(|sandbox| sandbox.ips.as_slice())
            .unwrap_or_default(),
    };
    ips.first().cloned().unwrap_or_default()
}

/// When the run began, on tokio's clock.
fn started_at(deps: &Deps, record: &api::Container) -> Instant {
    let started = record.started_at.unwrap_or(record.created_at);
    let ago = deps.clock.now().duration_since(timestamp(started));
    let now = Instant::now();
    now.checked_sub(Duration::try_from(ago).unwrap_or_default())
        .unwrap_or(now)
}

/// A run of a container that is probed.
struct Subject {
    deps: Arc<Deps>,
    pod: Arc<Pod>,
    container: Container,
    id: ContainerId,
    ip: String,
    started: Instant,
    verdicts: UnboundedSender<(ContainerId, Verdict)>,
}

impl Subject {
    async fn run(self, already_started: bool) {
        if let Some(probe) = &self.container.startup_probe
            && !already_started
            && !self.settle(probe, "Startup", Verdict::Started).await
        {
            return;
        }
        let liveness = async {
            if let Some(probe) = &self.container.liveness_probe {
                self.watch(probe, "Liveness", true, Verdict::Alive).await;
            }
        };
        let readiness = async {
            if let Some(probe) = &self.container.readiness_probe {
                self.watch(probe, "Readiness", false, Verdict::Ready).await;
            }
        };
        tokio::join!(liveness, readiness);
    }

    fn tell(&self, verdict: Verdict) {
        // A worker that has gone is not interested.
        let _ = self.verdicts.send((self.id.clone(), verdict));
    }

    /// Probes until the verdict is there.
    async fn settle(&self, probe: &Probe, kind: &str, verdict: fn(bool) -> Verdict) -> bool {
        let mut counts = Counts::of(probe);
        self.first(probe).await;
        loop {
            if let Some(passed) = self
                .once(probe, kind)
                .await
                .and_then(|passed| counts.count(passed))
            {
                self.tell(verdict(passed));
                return passed;
            }
            sleep(period(probe)).await;
        }
    }

    /// Probes for good, or until a liveness probe has failed.
    async fn watch(&self, probe: &Probe, kind: &str, ends: bool, verdict: fn(bool) -> Verdict) {
        let mut counts = Counts::of(probe);
        let mut told = None;
        self.first(probe).await;
        loop {
            let passed = self
                .once(probe, kind)
                .await
                .and_then(|passed| counts.count(passed));
            if passed.is_some() && passed != told {
                told = passed;
                passed
                    .map(verdict)
                    .into_iter()
                    .for_each(|verdict| self.tell(verdict));
            }
            if ends && passed == Some(false) {
                return;
            }
            sleep(period(probe)).await;
        }
    }

    /// Waits for the first probe. After the start of an agent, the probes of all containers must not come at once.
    async fn first(&self, probe: &Probe) {
        let due = self.started + seconds(probe.initial_delay_seconds, 0);
        let now = Instant::now();
        if due + period(probe) < now {
            let part = super::worker::jittered(period(probe)) - period(probe);
            sleep(part * 2).await;
        } else {
            sleep_until(due).await;
        }
    }

    /// One probe: passed, failed, or no answer that counts.
    async fn once(&self, probe: &Probe, kind: &str) -> Option<bool> {
        let limit = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
        let result = match self.attempt(probe, limit).await {
            Ok(()) => return Some(true),
            Err(error) => error,
        };
        let cause = chain(&result);
        let (counts, message) = match result {
            HookError::Unsupported | HookError::Exec(_) => (
                None,
                format!("{kind} probe errored and resulted in unknown state: {cause}"),
            ),
            HookError::Exit { output, .. } => {
                (Some(false), format!("{kind} probe failed: {output}"))
            }
            _ => (Some(false), format!("{kind} probe failed: {cause}")),
        };
        self.deps.event(
            &self.pod,
            &self.container,
            EventKind::Warning,
            "Unhealthy",
            &message,
        );
        counts
    }

    async fn attempt(&self, probe: &Probe, limit: Duration) -> Result<(), HookError> {
        if let Some(exec) = &probe.exec {
            let command = exec.command.clone().unwrap_or_default();
            return hooks::run_exec(&*self.deps.runtime, command, &self.id, Some(limit)).await;
        }
        let work = async {
            if let Some(get) = &probe.http_get {
                return hooks::run_http(get, &self.container, &self.ip, USER_AGENT).await;
            }
            if let Some(socket) = &probe.tcp_socket {
                let host = socket.host.as_deref().filter(|host| !host.is_empty());
                let port = hooks::port(&socket.port, &self.container);
                return hooks::connect(host.unwrap_or(&self.ip), port).await;
            }
            Err(HookError::Unsupported)
        };
        timeout(limit, work)
            .await
            .unwrap_or(Err(HookError::Timeout(limit)))
    }
}

/// Counts answers against the thresholds.
struct Counts {
    passes: i32,
    failures: i32,
    success_threshold: i32,
    failure_threshold: i32,
}

impl Counts {
    fn of(probe: &Probe) -> Self {
        Self {
            passes: 0,
            failures: 0,
            success_threshold: probe.success_threshold.unwrap_or(1).max(1),
            failure_threshold: probe.failure_threshold.unwrap_or(3).max(1),
        }
    }

    /// The verdict after one more answer; none while a threshold is not reached.
    fn count(&mut self, passed: bool) -> Option<bool> {
        let (count, threshold) = match passed {
            true => {
                self.failures = 0;
                self.passes = self.passes.saturating_add(1);
                (self.passes, self.success_threshold)
            }
            false => {
                self.passes = 0;
                self.failures = self.failures.saturating_add(1);
                (self.failures, self.failure_threshold)
            }
        };
        (count >= threshold).then_some(passed)
    }
}

/// Time between probes.
fn period(probe: &Probe) -> Duration {
    seconds(probe.period_seconds, 10).max(Duration::from_secs(1))
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(
        value
            .and_then(|value| u64::try_from(value).ok())
            .unwrap_or(default),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_count_answers_in_a_row() {
        let probe = Probe {
            success_threshold: Some(2),
            failure_threshold: Some(3),
            ..Probe::default()
        };
        let mut counts = Counts::of(&probe);
        let answers = [
            true, false, true, true, false, false, true, false, false, false,
        ];
        let verdicts: Vec<_> = answers.map(|passed| counts.count(passed)).into();
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(
            verdicts,
            [None, None, None, yes, None, None, None, None, None, no]
        );
    }
}
