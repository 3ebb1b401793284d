//! A worker's turns when its pod ends: stops the containers, then removes what they used.

use std::path::PathBuf;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::operations::{Key, Outcome};
use super::{Existence, Stage, Worker};
use crate::pod::observation::Observation;
use crate::pod::status::Ending;
use crate::pod::stop_order::{self, MINIMUM_GRACE};
use crate::pod::sync::{clean, stop};
use crate::pod::{files, resources, spec};
use crate::sinks::EventKind;

/// The first pause between tries to clean up; a mount or cgroup that is busy is soon free.
const CLEAN_RETRY: Duration = Duration::from_secs(1);
/// The longest.
const CLEAN_RETRY_CAP: Duration = Duration::from_secs(10);
/// The least budget, as the kubelet has it: a pod deleted without grace has that much time for hooks.
const LEAST_GRACE: Duration = Duration::from_secs(1);
/// Longer than anybody waits, and short enough to be added to a time.
const LONGEST_GRACE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The end of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stopping {
    /// When the budget of its containers is spent.
    deadline: Instant,
    /// The grace period that the deadline was made from.
    grace: Duration,
    /// Tries to clean up that have failed.
    failures: u32,
}

impl Stopping {
    /// Within a grace period.
    pub(super) fn within(grace: Duration) -> Self {
        let grace = grace.max(LEAST_GRACE);
        Self {
            deadline: within(grace),
            grace,
            failures: 0,
        }
    }

    /// At once: nobody waits for the pod any more.
    pub(super) fn gone() -> Self {
        Self::within(MINIMUM_GRACE)
    }
}

/// The end of a grace period that begins now, of which nobody knows how long it may be.
pub(super) fn within(grace: Duration) -> Instant {
    Instant::now() + grace.min(LONGEST_GRACE)
}

impl Worker {
    /// Nothing of the pod is started from here on.
    pub(super) fn begin_stopping(&mut self, stopping: Stopping) {
        self.operations.starts().cancel();
        self.prober.end();
        // A restart may have been given more time than there is now.
        if self.restarts_until > Some(stopping.deadline) {
            self.operations.abandon_stops();
        }
        // What failed for a restart is tried at once for the end.
        self.retries.retain(|key, _| !matches!(key, Key::Stop(_)));
        self.facts.crash_loops.clear();
        self.facts.to_start = false;
        self.set_ending(Ending::Stopping);
        self.stage = Stage::Stopping(stopping);
    }

    /// One turn: tells everything to stop, and lets end whatever is next in order.
    pub(super) fn turn_stopping(&mut self, seen: &Observation) {
        self.shorten();
        let Stage::Stopping(stopping) = self.stage else {
            return;
        };
        let left = stopping.deadline.saturating_duration_since(Instant::now());
        let orphan = self.exists == Existence::Orphan;
        let starting = self.operations.starting();
        let plan = stop_order::plan(&self.pod, seen, &starting, left);
        // One that has ended meanwhile waits for nobody.
        let waits = |id: &ContainerId| plan.iter().any(|next| next.id == *id && !next.is_due);
        for (_, turn) in self.turns.iter().filter(|(id, _)| !waits(id)) {
            turn.cancel();
        }
        for next in plan {
            let key = Key::Stop(next.id.clone());
            if self.operations.has(&key) || self.stopped.contains(&next.id) || !self.is_due(&key) {
                continue;
            }
            let container = spec::find_container(&self.pod, &next.name);
            let message = format!("Stopping container {}", next.name);
            let turn = CancellationToken::new();
            if next.is_due {
                turn.cancel();
            }
            self.turns.insert(next.id.clone(), turn.clone());
            let job = stop::Job {
                deps: self.deps.clone(),
                pod: self.pod.clone(),
                container: container.map(|(_, container)| container),
                id: next.id,
                name: next.name,
                pod_ip: self.deps.pod_ip(&self.pod, seen),
                grace: next.grace,
                message: Some(message).filter(|_| !orphan),
                turn: Some(turn),
            };
            self.operations
                .spawn(key, async { Outcome::Stop(stop::stop(job).await) });
        }
        let spent = left.is_zero();
        let lives = seen
            .alive()
            .any(|record| !self.stopped.contains(&record.id));
        let given_up = spent && !self.operations.any() && lives;
        if !self.operations.any() && (!lives || given_up) {
            self.set_ending(Ending::Ended);
            self.slot.set_over();
            self.stage = Stage::Cleaning(stopping);
            return;
        }
        if !spent {
            self.wake_at(stopping.deadline);
        }
    }

    /// The time that is left to a pod whose object is gone; none while it exists. Whoever removes the manifest of a
    /// static pod has no other way to end it in order; an object that goes before its pod does was deleted by force.
    pub(super) fn gone_grace(&self) -> Option<Duration> {
        match self.exists {
            Existence::Object => None,
            Existence::Gone if spec::is_static(&self.pod) => Some(spec::grace_period(&self.pod)),
            Existence::Gone | Existence::Orphan => Some(MINIMUM_GRACE),
        }
    }

    /// A later wish may leave less time, never more.
    fn shorten(&mut self) {
        let gone = self.gone_grace();
        let wanted = gone.or_else(|| spec::deletion_grace(&self.pod));
        let Stage::Stopping(stopping) = &mut self.stage else {
            return;
        };
        let wanted = wanted.map(|grace| grace.max(LEAST_GRACE));
        let Some(grace) = wanted.filter(|grace| *grace < stopping.grace) else {
            return;
        };
        stopping.grace = grace;
        stopping.deadline = stopping.deadline.min(within(grace));
        self.operations.abandon_stops();
        self.retries.retain(|key, _| !matches!(key, Key::Stop(_)));
    }

    /// One turn after the containers have ended: cleans, then waits for the deletion.
    pub(super) fn turn_cleaning(&mut self, seen: &Observation) {
        let deleted = self.is_deleted();
        let extent = match self.stage {
            // What could not be stopped is killed with its sandbox, and its end is told before its record goes.
            Stage::Cleaning(_) if deleted && !seen.any_running() => clean::Extent::Deleted,
            Stage::Cleaning(_) => clean::Extent::Finished,
            Stage::Finished if deleted => {
                self.stage = Stage::Cleaning(Stopping::gone());
                clean::Extent::Deleted
            }
            _ => return,
        };
        if self.operations.any_but_stops() || !self.is_due(&Key::Clean) {
            return;
        }
        let mut cgroups: Vec<String> = seen
            .sandboxes()
            .iter()
            .map(|sandbox| sandbox.config.cgroup_parent.clone())
            .collect();
        if self.exists != Existence::Orphan {
            cgroups.push(resources::pod_cgroup(&self.pod));
        }
        cgroups.sort();
        cgroups.dedup();
        let job = clean::Job {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            uid: self.uid.clone(),
            sandboxes: seen
                .sandboxes()
                .iter()
                .map(|sandbox| sandbox.id.clone())
                .collect(),
            cgroups,
            log_links: self.log_links(seen),
            extent,
        };
        self.cleaning = Some(extent);
        self.operations.spawn(Key::Clean, async {
            Outcome::Clean(clean::clean(job).await)
        });
    }

    /// Takes note that everything is clean.
    pub(super) fn cleaned(&mut self, key: &Key) {
        if *key != Key::Clean {
            return;
        }
        self.volumes.mounted = None;
        if self.cleaning.take() == Some(clean::Extent::Finished) {
            self.stage = Stage::Finished;
            return;
        }
        self.stage = Stage::Gone;
        self.deps.objects.unregister(&self.uid);
        if self.exists != Existence::Orphan {
            self.deps.status.terminated(&self.pod);
        }
        info!("nothing of the pod is left");
    }

    /// Tries again, less and less often.
    pub(super) fn clean_failed(&mut self, key: Key, failed: &[String]) {
        let message = format!("error killing pod: {}", failed.join("; "));
        warn!(message, "cannot clean up after the pod");
        if self.exists != Existence::Orphan {
            self.deps
                .pod_event(&self.pod, EventKind::Warning, "FailedKillPod", &message);
        }
        let Stage::Cleaning(stopping) = &mut self.stage else {
            return;
        };
        let delay = CLEAN_RETRY
            .saturating_mul(1 << stopping.failures.min(8))
            .min(CLEAN_RETRY_CAP);
        stopping.failures += 1;
        self.retry_later(key, delay);
    }

    /// The links to the logs of the pod's containers.
    fn log_links(&self, seen: &Observation) -> Vec<PathBuf> {
        let pod = (spec::namespace(&self.pod), spec::name(&self.pod));
        let directory = &self.deps.settings.log_links_dir;
        let link = |record: &api::Container| {
            files::log_link(directory, pod, &record.config.name, record.id.as_str())
        };
        seen.records().iter().map(link).collect()
    }

    /// Whether the pod is to vanish, and not only to end.
    pub(super) fn is_deleted(&self) -> bool {
        self.exists != Existence::Object || spec::deletion_grace(&self.pod).is_some()
    }
}
