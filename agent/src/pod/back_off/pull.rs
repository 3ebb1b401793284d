//! Pulls that failed, and when they may be tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::{CAP, RESET_AFTER, after, is_within, next};

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
        let failed = self.failed.get(image);
        failed.filter(|failed| is_within(now, failed.at, failed.delay))
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
