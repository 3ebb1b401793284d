//! Takes note of how operations ended.

use std::time::Duration;

use hanok_runtime::api;
use tracing::warn;

use super::operations::{Key, Outcome};
use super::{RETRY, Worker, jittered};
use crate::pod::spec;
use crate::pod::status::Waiting;
use crate::pod::sync::start::StartError;
use crate::sinks::{EventKind, MountedVolumes, VolumeError};
use hanok_runtime::service::chain;

/// The first pause between tries to set volumes up.
const VOLUME_RETRY: Duration = Duration::from_millis(500);
/// The longest.
const VOLUME_RETRY_CAP: Duration = Duration::from_secs(122);

impl Worker {
    /// Takes note of an operation's end.
    pub(super) fn finish(&mut self, done: (Option<Key>, Outcome)) {
        let (Some(key), outcome) = done else { return };
        match outcome {
            Outcome::Sandbox(Ok(())) | Outcome::Clean(Ok(())) => {
                self.retries.remove(&key);
                self.cleaned(&key);
            }
            Outcome::Sandbox(Err(message)) => {
                warn!(message, "no sandbox");
                self.retry_later(key, jittered(RETRY));
            }
            Outcome::Volumes(result) => self.finish_volumes(key, result),
            Outcome::Start(result) => self.finish_start(key, result),
            Outcome::Stop(result) => self.finish_stop(key, result),
            Outcome::Clean(Err(failed)) => self.clean_failed(key, &failed),
            Outcome::Resize(result) => self.finish_resize(key, result),
            Outcome::Storage(usage) => self.finish_storage(usage),
            Outcome::Reset(Ok(())) => {}
            Outcome::Reset(Err(error)) => {
                warn!(error = chain(&error), "cannot restart all containers");
                self.retry_later(key, jittered(RETRY));
            }
            Outcome::Lost => {
                warn!(operation = ?key, "operation was lost");
                self.retry_later(key, jittered(RETRY));
            }
        }
    }

    fn finish_volumes(&mut self, key: Key, result: Result<MountedVolumes, Vec<VolumeError>>) {
        match result {
            Ok(mounted) => {
                self.volumes.mounted = Some(mounted);
                self.volumes.failures = 0;
            }
            Err(errors) => {
                for error in errors {
                    let (kind, message) = (EventKind::Warning, error.to_string());
                    self.deps
                        .pod_event(&self.pod, kind, "FailedMount", &message);
                }
                let delay = VOLUME_RETRY.saturating_mul(1 << self.volumes.failures.min(10));
                self.volumes.failures += 1;
                self.retry_later(key, delay.min(VOLUME_RETRY_CAP));
            }
        }
    }

    fn finish_start(&mut self, key: Key, result: Result<(), StartError>) {
        let Key::Start(name) = &key else { return };
        let container = spec::find_container(&self.pod, name);
        let image = container
            .and_then(|(_, container)| container.image)
            .unwrap_or_default();
        let waiting = |reason: &str, message: String| Waiting {
            reason: reason.to_owned(),
            message,
        };
        match result {
            Err(StartError::Cancelled) => {}
            Ok(()) => {
                self.pulls.succeeded(&image);
                self.facts.waiting.remove(name);
            }
            Err(StartError::Pull {
                image,
                reason,
                message,
            }) => {
                self.pulls
                    .failed(&image, reason, message.clone(), self.deps.clock.now());
                self.facts
                    .waiting
                    .insert(name.clone(), waiting(reason, message));
            }
            Err(StartError::Failed { reason, message }) => {
                self.facts
                    .waiting
                    .insert(name.clone(), waiting(reason, message));
                self.retry_later(key, jittered(RETRY));
            }
            Err(StartError::Ended { reason, message }) => {
                self.pulls.succeeded(&image);
                self.facts
                    .waiting
                    .insert(name.clone(), waiting(reason, message));
            }
        }
    }

    fn finish_stop(&mut self, key: Key, result: Result<(), api::Error>) {
        let Key::Stop(id) = &key else { return };
        match result {
            Ok(()) => {
                self.stopped.insert(id.clone());
            }
            Err(error) => {
                let cause = chain(&error);
                warn!(container = %id, error = cause, "cannot stop the container");
                self.retry_later(key, jittered(RETRY));
            }
        }
    }
}
