//! A worker's part in a resize: puts into force what the pod has been promised, and tells of it.

use hanok_runtime::api::ContainerId;

use super::operations::{Key, Outcome};
use super::{RETRY, Worker, jittered};
use crate::pod::actions::{PodActions, StopReason};
use crate::pod::observation::Observation;
use crate::pod::sync::resize::{self, Job, One};
use crate::pod::{resize as rules, resources, spec};
use crate::sinks::EventKind;

impl Worker {
    /// Begins with a resize, goes on with it, or notices that it is done.
    pub(super) fn resize(&mut self, seen: &Observation, plan: &PodActions) {
        let stops = plan.stop.iter().any(|stop| stop.why == StopReason::Resize);
        let behind = stops || !plan.resize.is_empty();
        let generation = self.pod.metadata.generation.unwrap_or_default();
        if behind || self.to_resize {
            if self.facts.resizing.is_none() {
                self.facts.resizing = Some(generation);
                let message = rules::message("started", &self.pod, generation, None);
                self.tell(EventKind::Normal, "ResizeStarted", &message);
            }
            if (!plan.resize.is_empty() || self.to_resize) && !self.operations.has(&Key::Resize) {
                self.begin_resize(seen, plan);
            }
            return;
        }
        if !self.operations.has(&Key::Resize)
            && let Some(generation) = self.facts.resizing.take()
        {
            self.facts.resize_error = None;
            let message = rules::message("completed", &self.pod, generation, None);
            self.tell(EventKind::Normal, "ResizeCompleted", &message);
        }
    }

    fn begin_resize(&mut self, seen: &Observation, plan: &PodActions) {
        let Some(sandbox) = seen.newest_sandbox().filter(|_| self.is_due(&Key::Resize)) else {
            return;
        };
        let one = |id: &ContainerId| {
            let record = seen.records().iter().find(|record| record.id == *id)?;
            let (_, container) = spec::find_container(&self.pod, &record.config.name)?;
            Some(One {
                id: record.id.clone(),
                name: container.name.clone(),
                has: record.config.resources.clone(),
                wanted: rules::wanted(&self.pod, &container, record),
            })
        };
        let cgroup = match sandbox.config.cgroup_parent.as_str() {
            "" => resources::pod_cgroup(&self.pod),
            path => path.to_owned(),
        };
        let job = Job {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            cgroup,
            containers: plan.resize.iter().filter_map(one).collect(),
        };
        self.to_resize = false;
        self.operations.spawn(Key::Resize, async {
            Outcome::Resize(resize::run(job).await)
        });
    }

    /// Takes note of how it ended.
    pub(super) fn finish_resize(&mut self, key: Key, result: Result<(), String>) {
        let Err(error) = result else {
            self.retries.remove(&key);
            self.facts.resize_error = None;
            return;
        };
        tracing::warn!(error, "cannot resize the pod");
        let generation = self.facts.resizing.unwrap_or_default();
        if self.facts.resize_error.as_ref() != Some(&error) {
            let message = rules::message("error", &self.pod, generation, Some(&error));
            self.tell(EventKind::Warning, "ResizeError", &message);
        }
        self.facts.resize_error = Some(error);
        self.to_resize = true;
        self.retry_later(key, jittered(RETRY));
    }

    fn tell(&self, kind: EventKind, reason: &str, message: &str) {
        self.deps.pod_event(&self.pod, kind, reason, message);
    }
}
