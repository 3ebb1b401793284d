//! Back-off of restarts and of pulls: 10 s, doubled, at most 300 s.
//!
//! The back-off of a restart is kept in the record of the run that it follows (annotation
//! [`labels::BACK_OFF`]), so that a new agent goes on with it. The back-off of pulls lives in the worker.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use hanok_runtime::api::{self, ContainerState};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;

use super::labels;

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

/// The step after a standing one.
pub fn next(standing: Option<Duration>, cap: Duration) -> Duration {
    standing.map_or(INITIAL, |delay| delay * 2).min(cap)
}

/// A pull that failed, and until when it is not tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedPull {
    /// The container-status reason of the failure, `ErrImagePull` or a finer one.
    pub reason: String,
    /// The failure.
    pub message: String,
    /// When it failed.
    pub at: Timestamp,
    /// The back-off that it got.
    pub delay: Duration,
}

impl FailedPull {
    /// When the next try may be.
    pub fn until(&self) -> Timestamp {
        after(self.at, self.delay)
    }
}

/// The failed pulls of one pod, by image reference.
#[derive(Debug, Clone, Default)]
pub struct PullBackOff {
    failed: BTreeMap<String, FailedPull>,
}

impl PullBackOff {
    /// The failure that keeps the image from being tried at `now`.
    pub fn in_back_off(&self, image: &str, now: Timestamp) -> Option<&FailedPull> {
        self.failed.get(image).filter(|failed| now < failed.until())
    }

    /// The last failure of this image.
    pub fn last(&self, image: &str) -> Option<&FailedPull> {
        self.failed.get(image)
    }

    /// Records a failure.
    pub fn failed(&mut self, image: &str, reason: &str, message: String, now: Timestamp) {
        let standing = self
            .failed
            .get(image)
            .filter(|failed| now <= after(failed.until(), RESET_AFTER));
        let delay = next(standing.map(|failed| failed.delay), CAP);
        let failed = FailedPull {
            reason: reason.to_owned(),
            message,
            at: now,
            delay,
        };
        self.failed.insert(image.to_owned(), failed);
    }

    /// Records a success.
    pub fn succeeded(&mut self, image: &str) {
        self.failed.remove(image);
    }
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
