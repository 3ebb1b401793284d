//! Back-off of restarts and of pulls: 10 s, doubled, at most 300 s.
//!
//! The back-off of a restart is kept in the record of the run that it follows (annotation
//! [`labels::BACK_OFF`]), so that a new agent goes on with it. The back-off of pulls lives in the worker.

mod pull;

use std::time::{Duration, SystemTime};

use hanok_runtime::api::{self, ContainerState};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;

pub use pull::{FailedPull, PullBackOff};

use super::labels;
use super::observation::timestamp;

/// The first back-off.
const INITIAL: Duration = Duration::from_secs(10);
/// The longest back-off, unless the node's configuration says less.
pub const CAP: Duration = Duration::from_secs(300);
/// A run (or a pause between failed pulls) longer than this starts anew: twice the longest back-off,
/// also when the configured cap is lower.
pub const RESET_AFTER: Duration = Duration::from_secs(600);

/// The back-off that stands after one run of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// How long to wait after the end of the run.
    pub delay: Duration,
    /// Hash of image and resources: a change of either forgets the back-off.
    pub key: u64,
}

impl Step {
    /// As the annotation has it: `MILLISECONDS KEY`.
    pub fn annotation(self) -> String {
        format!("{} {:016x}", self.delay.as_millis(), self.key)
    }

    /// Of the annotation; none when there is none or it does not parse.
    pub fn of(record: &api::Container) -> Option<Self> {
        let text = record.config.annotations.get(labels::BACK_OFF)?;
        let (delay, key) = text.split_once(' ')?;
        Some(Self {
            delay: Duration::from_millis(delay.parse().ok()?),
            key: u64::from_str_radix(key, 16).ok()?,
        })
    }
}

/// Hash of what resets a container's back-off when it changes.
pub fn key(container: &Container) -> u64 {
    let image = container.image.as_deref().unwrap_or_default();
    let resources = container.resources.as_ref();
    let resources = resources
        .and_then(|resources| serde_json::to_vec(resources).ok())
        .unwrap_or_default();
    labels::fnv1a(&[image.as_bytes(), &resources])
}

/// When a run ended. One whose end nobody saw counts from its beginning: it may have ended as soon.
pub fn end(record: &api::Container) -> Option<SystemTime> {
    match record.state {
        ContainerState::Created | ContainerState::Running => None,
        ContainerState::Exited | ContainerState::Unknown => {
            Some(record.finished_at.unwrap_or(record.created_at))
        }
    }
}

/// The back-off that stands after the run of this record, if any.
pub fn standing(record: &api::Container, key: u64) -> Option<Duration> {
    let step = Step::of(record).filter(|step| step.key == key)?;
    let ran = end(record)?
        .duration_since(record.created_at)
        .unwrap_or_default();
    (ran <= RESET_AFTER).then_some(step.delay)
}

/// The runs that a container's next one follows.
#[derive(Debug, Clone, Copy)]
pub enum Runs<'a> {
    /// The last one ended by itself.
    Ended(&'a api::Container),
    /// The node has stopped the last one so that the next one begins.
    Stopped {
        /// The last one.
        last: &'a api::Container,
        /// The end of the one before, if it was known when the last one was stopped.
        before: Option<SystemTime>,
    },
}

/// The pause before a container's next run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pause {
    /// When it began, and how long it is; none for at once.
    pub since: Option<(Timestamp, Duration)>,
    /// What stands after the next run.
    pub next: Option<Step>,
}

/// The pause before the next run.
///
/// A run that the node stops is followed as the kubelet does it, which looks at its list of ended runs before it stops
/// one: the pause counts from the end of the run before, and has passed when the stopped run was longer than it.
/// Without a run before there is no pause, and the back-off is what it was.
pub fn pause(runs: &Runs<'_>, key: u64, cap: Duration) -> Pause {
    let (last, is_spent) = match *runs {
        Runs::Ended(last) => (last, false),
        Runs::Stopped { last, before: None } => {
            return Pause {
                since: None,
                next: Step::of(last).filter(|step| step.key == key),
            };
        }
        Runs::Stopped {
            last,
            before: Some(before),
        } => (last, has_passed(last, before, key)),
    };
    let (standing, ended) = match is_spent {
        true => (Step::of(last).map(|step| step.delay), None),
        false => (standing(last, key), end(last)),
    };
    Pause {
        since: standing
            .zip(ended)
            .map(|(delay, ended)| (timestamp(ended), delay)),
        next: Some(Step {
            delay: next(standing, cap),
            key,
        }),
    }
}

/// Whether the last run ended later than the pause after the run before it.
fn has_passed(last: &api::Container, before: SystemTime, key: u64) -> bool {
    let Some(step) = Step::of(last).filter(|step| step.key == key) else {
        return false;
    };
    let over = before.checked_add(step.delay);
    end(last)
        .zip(over)
        .is_some_and(|(ended, over)| ended >= over)
}

/// The step after a standing one.
pub fn next(standing: Option<Duration>, cap: Duration) -> Duration {
    standing.map_or(INITIAL, |delay| delay * 2).min(cap)
}

/// Whether a pause that began at that time lasts at `now`. A clock that was set back shows a time before its beginning,
/// and says nothing of how long that is ago; a pause must not become hours by it.
pub fn is_within(now: Timestamp, began: Timestamp, delay: Duration) -> bool {
    began <= now && now < after(began, delay)
}

/// `time + delay`, saturating.
pub fn after(time: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    time.checked_add(delay).unwrap_or(Timestamp::MAX)
}

/// A duration as Go prints it, which is how messages have it: `10s`, `1m20s`, `5m0s`.
pub fn go_duration(duration: Duration) -> String {
    let (total, millis) = (duration.as_secs(), duration.subsec_millis());
    if total == 0 {
        return match millis {
            0 if duration.is_zero() => "0s".to_owned(),
            0 => format!("{}µs", duration.subsec_micros()),
            _ => format!(
                "{}ms",
                decimal(u64::from(millis), duration.subsec_micros() % 1000)
            ),
        };
    }
    let (hours, minutes) = (total / 3600, total / 60 % 60);
    let seconds = decimal(total % 60, millis);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `whole.thousandths` without trailing zeros.
fn decimal(whole: u64, thousandths: u32) -> String {
    if thousandths == 0 {
        return whole.to_string();
    }
    let text = format!("{whole}.{thousandths:03}");
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{sample, spec};

    #[test]
    fn delays_double_up_to_the_cap() {
        let mut standing = None;
        let mut seen = Vec::new();
        for _ in 0..7 {
            let delay = next(standing, CAP);
            seen.push(go_duration(delay));
            standing = Some(delay);
        }
        assert_eq!(
            seen,
            ["10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"]
        );
    }

    #[test]
    fn a_step_survives_in_the_record_and_dies_with_its_key() {
        let pod = sample::pod("Always", &[], &["c"]);
        let key = key(&spec::app_containers(&pod)[0]);
        let mut record = sample::exited(&pod, "c", 1, 1, 5);
        assert_eq!(standing(&record, key), None);
        let step = Step {
            delay: Duration::from_secs(40),
            key,
        };
        record
            .config
            .annotations
            .insert(labels::BACK_OFF.into(), step.annotation());
        assert_eq!(standing(&record, key), Some(Duration::from_secs(40)));
        assert_eq!(standing(&record, key + 1), None);
    }

    #[test]
    fn a_run_of_more_than_ten_minutes_forgets_the_back_off() {
        let pod = sample::pod("Always", &[], &["c"]);
        let mut record = sample::exited(&pod, "c", 1, 1, 5);
        let step = Step {
            delay: Duration::from_secs(40),
            key: 9,
        };
        record
            .config
            .annotations
            .insert(labels::BACK_OFF.into(), step.annotation());
        record.created_at = sample::ago(5 + 600);
        assert_eq!(standing(&record, 9), Some(Duration::from_secs(40)));
        record.created_at = sample::ago(5 + 601);
        assert_eq!(standing(&record, 9), None);
    }

    /// The pauses between runs of that length in seconds, each of which the node has stopped, or which have ended by
    /// themselves.
    fn pauses(length: u64, are_stopped: bool) -> Vec<u64> {
        let pod = sample::pod("Always", &[], &["c"]);
        let mut runs: Vec<api::Container> = Vec::new();
        let (mut now, mut pauses) = (0, Vec::new());
        let mut step: Option<Step> = None;
        for attempt in 0..7 {
            let time = |second| SystemTime::from(sample::now()) + Duration::from_secs(second);
            let mut record = sample::exited(&pod, "c", attempt, 1, 0);
            record.created_at = time(now);
            record.finished_at = Some(time(now + length));
            if let Some(step) = step {
                let annotations = &mut record.config.annotations;
                annotations.insert(labels::BACK_OFF.into(), step.annotation());
            }
            runs.insert(0, record);
            runs.truncate(2);
            let runs = match are_stopped {
                false => Runs::Ended(&runs[0]),
                true => Runs::Stopped {
                    last: &runs[0],
                    before: runs.get(1).and_then(end),
                },
            };
            let pause = pause(&runs, 9, CAP);
            let ended = after(sample::now(), Duration::from_secs(now + length));
            let wait = pause.since.map_or(0, |(since, delay)| {
                after(since, delay).duration_since(ended).as_secs()
            });
            pauses.push(u64::try_from(wait).expect("not before its end"));
            now += length + pauses[pauses.len() - 1];
            step = pause.next;
        }
        pauses
    }

    #[test]
    fn a_run_that_the_node_stops_has_its_own_length_counted() {
        let table: [(u64, bool, &[u64]); 5] = [
            (1, false, &[0, 10, 20, 40, 80, 160, 300]),
            (15, false, &[0, 10, 20, 40, 80, 160, 300]),
            (15, true, &[0, 0, 0, 20, 40, 80, 160]),
            (1, true, &[0, 0, 10, 20, 40, 80, 160]),
            (350, true, &[0, 0, 0, 0, 0, 0, 0]),
        ];
        for (length, are_stopped, want) in table {
            assert_eq!(pauses(length, are_stopped), want, "{length} {are_stopped}");
        }
    }

    #[test]
    fn key_follows_image_and_resources() {
        let container = |json| serde_json::from_value::<Container>(json).expect("a container");
        let base = serde_json::json!({"name": "c", "image": "i:1"});
        let other_image = serde_json::json!({"name": "c", "image": "i:2"});
        let limited =
            serde_json::json!({"name": "c", "image": "i:1", "resources": {"limits": {"cpu": "1"}}});
        let other_args = serde_json::json!({"name": "c", "image": "i:1", "args": ["x"]});
        let base = key(&container(base));
        assert_ne!(base, key(&container(other_image)));
        assert_ne!(base, key(&container(limited)));
        assert_eq!(base, key(&container(other_args)));
    }

    #[test]
    fn pulls_back_off_by_image_and_forget_after_success() {
        let mut pulls = PullBackOff::default();
        let at = |seconds| after(sample::now(), Duration::from_secs(seconds));
        pulls.failed("i:1", "ErrImagePull", "no such host".into(), at(0));
        assert!(pulls.in_back_off("i:1", at(9)).is_some());
        assert!(pulls.in_back_off("i:1", at(10)).is_none());
        assert!(pulls.in_back_off("i:2", at(1)).is_none());
        pulls.failed("i:1", "ErrImagePull", "no such host".into(), at(10));
        assert!(pulls.in_back_off("i:1", at(29)).is_some());
        pulls.succeeded("i:1");
        assert!(pulls.in_back_off("i:1", at(11)).is_none());
    }

    #[test]
    fn durations_read_as_go_prints_them() {
        let table = [
            (Duration::ZERO, "0s"),
            (Duration::from_micros(7), "7µs"),
            (Duration::from_micros(1250), "1.25ms"),
            (Duration::from_millis(1500), "1.5s"),
            (Duration::from_secs(300), "5m0s"),
            (Duration::from_secs(3661), "1h1m1s"),
        ];
        for (duration, want) in table {
            assert_eq!(go_duration(duration), want);
        }
    }
}
