//! The schedule of one run of a container that is probed.

use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::ContainerId;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::command::Look;
use super::super::settings::Deps;
use super::attempt::{Answer, Question};
use super::ticks::Ticks;
use crate::sinks::EventKind;

/// Attempts in a row when one could not be made.
const TRIES: u32 = 3;

/// For so long after its start, a program that has never passed may only not be up yet. It is asked again soon, which makes
/// it ready as soon as it is, and nothing that it fails before counts.
const SETTLING: Duration = Duration::from_secs(1);

/// One probe's answer, as it changes a container's verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Started(bool),
    Ready(bool),
    Alive(bool),
}

/// A run of a container that is probed.
pub(super) struct Subject {
    pub(super) deps: Arc<Deps>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) id: ContainerId,
    pub(super) ip: String,
    pub(super) started: Instant,
    /// It was started by another agent.
    pub(super) is_adopted: bool,
    pub(super) verdicts: UnboundedSender<(ContainerId, Verdict)>,
    /// Nobody is to be restarted for a probe any more.
    pub(super) ending: CancellationToken,
}

impl Subject {
    pub(super) async fn run(self, already_started: bool) {
        if let Some(probe) = &self.container.startup_probe
            && !already_started
        {
            let startup = self.settle(probe, "Startup", Verdict::Started);
            match self.ending.run_until_cancelled(startup).await {
                Some(false) => return,
                Some(true) => {}
                // Nobody waits for it any more; readiness has its say.
                None => self.tell(Verdict::Started(true)),
            }
        }
        let liveness = async {
            let Some(probe) = &self.container.liveness_probe else {
                return;
            };
            let watch = self.watch(probe, "Liveness", true, Verdict::Alive);
            if self.ending.run_until_cancelled(watch).await.is_none() {
                self.tell(Verdict::Alive(true));
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
        let mut timer = self.timer(probe);
        let question = self.question(probe);
        loop {
            timer.tick().await;
            let passed = self.once(&question, probe, kind, &counts, &mut timer).await;
            if let Some(passed) = passed.and_then(|passed| counts.count(passed)) {
                self.tell(verdict(passed));
                return passed;
            }
        }
    }

    /// Probes for good, or until a liveness probe has failed.
    async fn watch(&self, probe: &Probe, kind: &str, ends: bool, verdict: fn(bool) -> Verdict) {
        let mut counts = Counts::of(probe);
        let mut told = None;
        let mut timer = self.timer(probe);
        let question = self.question(probe);
        loop {
            timer.tick().await;
            let passed = self.once(&question, probe, kind, &counts, &mut timer).await;
            let passed = passed.and_then(|passed| counts.count(passed));
            if let Some(news) = passed.filter(|news| Some(*news) != told) {
                told = passed;
                self.tell(verdict(news));
            }
            if ends && passed == Some(false) {
                return;
            }
        }
    }

    /// Ticks when the initial delay is over, and then by the period. After the start of an agent, the probes of all
    /// containers must not come at once.
    fn timer(&self, probe: &Probe) -> Ticks {
        let period = period(probe);
        let due = self.started + seconds(probe.initial_delay_seconds, 0);
        let first = match self.is_adopted {
            true => Instant::now() + (super::super::worker::jittered(period) - period) * 2,
            false => due,
        };
        let first = first.max(due).max(Instant::now());
        Ticks::new(self.deps.clock, first, period)
    }

    fn question(&self, probe: &Probe) -> Question {
        Question::new(probe, &self.container, &self.ip)
    }

    /// One probe: passed, failed, or no answer that counts.
    async fn once(
        &self,
        question: &Question,
        probe: &Probe,
        kind: &str,
        counts: &Counts,
        timer: &mut Ticks,
    ) -> Option<bool> {
        let limit = seconds(probe.timeout_seconds, 1).max(Duration::from_secs(1));
        // Nobody waits for what is up to be up.
        let look = match counts.was_up {
            true => Look::Later,
            false => Look::AtOnce,
        };
        let runtime = &*self.deps.runtime;
        let mut answer = question.ask(runtime, &self.id, limit, look).await;
        for _ in 1..TRIES {
            if !matches!(answer, Answer::Unknown(_) | Answer::BrokenOff(_)) {
                break;
            }
            answer = question.ask(runtime, &self.id, limit, look).await;
        }
        let is_down = !matches!(answer, Answer::Passed | Answer::Warning(_));
        if is_down && !counts.was_up && self.started.elapsed() < SETTLING {
            timer.hurry();
            return None;
        }
        let (passed, reason, message) = match answer {
            Answer::Passed => return Some(true),
            Answer::Warning(text) => (
                Some(true),
                "ProbeWarning",
                format!("{kind} probe warning: {text}"),
            ),
            Answer::Failed(text) => (
                Some(false),
                "Unhealthy",
                format!("{kind} probe failed: {text}"),
            ),
            Answer::Unknown(text) => (
                None,
                "Unhealthy",
                format!("{kind} probe errored and resulted in unknown state: {text}"),
            ),
            Answer::BrokenOff(text) => (
                None,
                "Unhealthy",
                format!("{kind} probe errored and resulted in failure state: {text}"),
            ),
        };
        let (pod, container) = (&self.pod, &self.container);
        self.deps
            .event(pod, container, EventKind::Warning, reason, &message);
        passed
    }
}

/// Counts answers against the thresholds.
struct Counts {
    passes: i32,
    failures: i32,
    /// It has passed at least once.
    was_up: bool,
    success_threshold: i32,
    failure_threshold: i32,
}

impl Counts {
    fn of(probe: &Probe) -> Self {
        Self {
            passes: 0,
            failures: 0,
            was_up: false,
            success_threshold: probe.success_threshold.unwrap_or(1).max(1),
            failure_threshold: probe.failure_threshold.unwrap_or(3).max(1),
        }
    }

    /// The verdict after one more answer; none while a threshold is not reached.
    fn count(&mut self, passed: bool) -> Option<bool> {
        self.was_up |= passed;
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
