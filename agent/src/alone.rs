//! What a node without an API server has in its place: events go to the log, statuses to nobody but those who ask the
//! kubelet API, and nobody can be asked who a caller is.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::pod::spec;
use crate::server::{Access, Identity, ReviewError, Reviewer};
use crate::sinks::{EventKind, EventSink, StatusSink};

/// Writes events to the log. Values are quoted: some of their words come out of containers.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogEvents;

impl EventSink for LogEvents {
    fn pod_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        let pod = format!("{}/{}", spec::namespace(pod), spec::name(pod));
        let container = container.unwrap_or_default();
        match kind {
            EventKind::Normal => tracing::info!(pod, container, reason, note = message, "event"),
            EventKind::Warning => tracing::warn!(pod, container, reason, note = message, "event"),
        }
    }
}

/// Sends statuses nowhere. The newest of each pod is in the pod directory, for `/pods`.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStatuses;

impl StatusSink for NoStatuses {
    fn publish(&self, _pod: &Arc<Pod>, _status: PodStatus) {}

    fn terminated(&self, _pod: &Arc<Pod>) {}
}

/// Knows nobody and allows nothing. The configuration of a standalone node asks it nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReviewer;

impl NoReviewer {
    fn refuse<T>(review: &'static str) -> Result<T, ReviewError> {
        Err(ReviewError {
            review,
            message: "this node is standalone: it has no API server".to_owned(),
        })
    }
}

#[async_trait]
impl Reviewer for NoReviewer {
    async fn review_token(&self, _token: &str) -> Result<Option<Identity>, ReviewError> {
        Self::refuse("TokenReview")
    }

    async fn review_access(&self, _who: &Identity, _what: &Access) -> Result<bool, ReviewError> {
        Self::refuse("SubjectAccessReview")
    }
}
