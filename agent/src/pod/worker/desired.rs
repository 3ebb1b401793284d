//! What is wanted of a pod, and how a worker takes it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::operations::Key;
use super::{RECONCILE, Stage, Worker};
use crate::pod::resize::{Allocation, Pending};
use crate::pod::status::{self, Failure};

/// What is wanted of a pod.
#[derive(Debug, Clone)]
pub(in crate::pod) struct Desired {
    /// Its newest form.
    pub(in crate::pod) pod: Arc<Pod>,
    /// Whether its object still exists.
    pub(in crate::pod) exists: Existence,
    /// Why the node itself ends it.
    pub(in crate::pod) decision: Option<NodeDecision>,
    /// Why it has not the resources that somebody wishes, and of which generation the wish is.
    pub(in crate::pod) pending: Option<(Pending, i64)>,
}

impl Desired {
    /// A pod that is to run, unless it says otherwise itself.
    pub(in crate::pod) fn wanted(pod: Arc<Pod>) -> Self {
        Self {
            pod,
            exists: Existence::Object,
            decision: None,
            pending: None,
        }
    }

    /// A pod that only the runtime knows.
    pub(in crate::pod) fn orphan(pod: Pod) -> Self {
        Self {
            exists: Existence::Orphan,
            ..Self::wanted(Arc::new(pod))
        }
    }
}

/// Why the node itself ends a pod that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pod) enum NodeDecision {
    /// It may not run here. The failure is the event's.
    Rejected(Failure),
    /// A critical pod takes its place.
    Preempted,
}

/// Whether a pod's object exists at its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) enum Existence {
    /// It does.
    Object,
    /// It did; what is left of the pod goes at once.
    Gone,
    /// No object was ever seen: the runtime had the pod when the agent started.
    Orphan,
}

impl Worker {
    /// Takes the newest form of the pod.
    pub(super) fn take_desired(&mut self) {
        let Desired {
            pod,
            exists,
            decision,
            pending,
        } = self.inbox.borrow_and_update().clone();
        self.decision = decision;
        self.facts.resize_pending = pending;
        if Arc::ptr_eq(&pod, &self.pod) && exists == self.exists {
            return;
        }
        if pod.metadata.generation != self.pod.metadata.generation || pod.spec != self.pod.spec {
            // What failed for the old form may work for the new one.
            if !matches!(self.stage, Stage::Gone) {
                self.deps.objects.register(&pod);
            }
            if !Allocation::of(&self.pod).covers(&pod) {
                self.to_resize = true;
                self.facts.resizing = None;
                self.retries.remove(&Key::Resize);
            }
            self.retries
                .retain(|key, _| !matches!(key, Key::Start(_) | Key::Sandbox));
        }
        match (&mut self.last, &pod.status) {
            (Some(last), Some(theirs)) => {
                status::take_foreign(last, theirs);
                let at = self.reconcile.unwrap_or_else(|| Instant::now() + RECONCILE);
                self.reconcile = (!status::is_told(theirs, last)).then_some(at);
            }
            (last @ None, Some(theirs)) if theirs.phase.is_some() => *last = Some(theirs.clone()),
            _ => {}
        }
        if matches!(self.stage, Stage::Gone) && exists == Existence::Object {
            // The source has not taken notice yet.
            self.deps.status.terminated(&pod);
        }
        self.slot.set_pod(pod.clone());
        (self.pod, self.exists) = (pod, exists);
    }
}
