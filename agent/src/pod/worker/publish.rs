//! What a worker tells of its pod, and when.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::time::Instant;
use tracing::info;

use super::{Existence, Stage, Worker};
use crate::pod::back_off::{self, after, is_within};
use crate::pod::observation::Observation;
use crate::pod::status;
use crate::pod::sync::clean::Extent;
use crate::timeline;

/// How long a restart may go on before its middle is told. A kubelet looks at its containers once a second, and whoever
/// watches a pod of a Service counts on it that a container that is replaced in less than that stays ready.
const UNTOLD_RESTART: Duration = Duration::from_secs(1);

impl Worker {
    /// Publishes the status if it has changed.
    pub(super) fn publish(&mut self, seen: &Observation) {
        let vanishing = self.cleaning == Some(Extent::Deleted);
        if self.exists == Existence::Orphan || vanishing || matches!(self.stage, Stage::Gone) {
            return;
        }
        self.facts.starting = self.operations.starting();
        let now = self.deps.clock.now();
        let status = status::build(&status::Inputs {
            pod: &self.pod,
            seen,
            facts: &self.facts,
            probes: &self.probes,
            last: self.last.as_ref(),
            now,
        });
        if self.last.as_ref() == Some(&status) {
            self.slot.confirm_status(&status);
            self.reconcile(status);
            return;
        }
        if let Some(ended) = self.restart_began(seen)
            && is_within(now, ended, UNTOLD_RESTART)
        {
            self.wake_when(after(ended, UNTOLD_RESTART));
            return;
        }
        self.last = Some(status.clone());
        self.slot.set_status(status.clone());
        let is_ready = is_ready(&status);
        self.deps.status.publish(&self.pod, status);
        if !self.told_ready && is_ready {
            self.told_ready = true;
            if let Some(steps) = self.deps.timeline.ready(&self.uid) {
                info!(timeline = timeline::one_line(&steps), "pod is ready");
            }
        }
    }

    /// Tells a status again that somebody has written over.
    fn reconcile(&mut self, status: PodStatus) {
        let Some(at) = self.reconcile else { return };
        if Instant::now() < at {
            self.wake_at(at);
            return;
        }
        self.reconcile = None;
        self.deps.status.publish(&self.pod, status);
    }

    /// When the latest restart began whose middle need not be told yet: the end of a container that the node itself has
    /// stopped and that is being started again at this moment.
    fn restart_began(&self, seen: &Observation) -> Option<Timestamp> {
        if !matches!(self.stage, Stage::Running) {
            return None;
        }
        let restarting = seen.records().iter().filter(|record| {
            self.restarted.contains_key(&record.id)
                && self.facts.starting.contains(&record.config.name)
        });
        restarting
            .filter_map(|record| Timestamp::try_from(back_off::end(record)?).ok())
            .max()
    }
}

/// Whether the pod's Ready condition holds.
pub(super) fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
