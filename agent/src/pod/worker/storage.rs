//! Watches what the pod writes to the node's disk, if that is limited, and ends a pod that has written too much.

use std::time::Duration;

use super::operations::{Key, Outcome};
use super::stopping::Stopping;
use super::{Stage, Worker, jittered};
use crate::pod::observation::Observation;
use crate::pod::status::Failure;
use crate::pod::storage::{self, Usage};
use crate::pod::sync::storage as sync;
use crate::sinks::EventKind;

/// Time between looks, as a kubelet has it between rounds of evictions; half as much again at random.
const LOOK: Duration = Duration::from_secs(10);

/// The time that such a pod gets.
const GRACE: Duration = Duration::from_secs(1);

impl Worker {
    /// Looks, when it is time to.
    pub(super) fn watch_storage(&mut self, seen: &Observation) {
        let limited = self.deps.settings.limits_storage && storage::is_limited(&self.pod);
        if !limited || !seen.any_running() {
            return;
        }
        if self.operations.has(&Key::Storage) || !self.is_due(&Key::Storage) {
            return;
        }
        let mounted = self.volumes.mounted.as_ref();
        let on_disk = storage::volumes_on_disk(&self.pod).filter_map(|name| {
            let path = mounted?.get(name)?;
            Some((name.to_owned(), path.clone()))
        });
        let job = sync::Job {
            deps: self.deps.clone(),
            uid: self.uid.clone(),
            volumes: on_disk.collect(),
            disk: self.disk.clone(),
            cancelled: self.operations.starts(),
        };
        self.operations.spawn(Key::Storage, async {
            Outcome::Storage(sync::measure(job).await)
        });
    }

    /// Takes note of what the pod has written.
    pub(super) fn finish_storage(&mut self, usage: Option<Usage>) {
        self.retry_later(Key::Storage, jittered(LOOK));
        let exceeded = usage.and_then(|usage| storage::exceeded(&self.pod, &usage));
        let Some(message) = exceeded.filter(|_| matches!(self.stage, Stage::Running)) else {
            return;
        };
        let reason = "Evicted";
        self.deps
            .pod_event(&self.pod, EventKind::Warning, reason, &message);
        self.facts.failure = Some(Failure {
            reason: reason.to_owned(),
            message,
        });
        self.begin_stopping(Stopping::within(GRACE));
    }
}
