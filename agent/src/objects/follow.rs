//! Follows one object: a GET, then a watch from the version that it gave, for ever.
//!
//! The answer to the GET is what a starting pod waits for; the watch only brings news. Both are retried with
//! back-off; a watch that ends is resumed where it ended. The version of an object that nobody has changed for long
//! is too old to watch from; then a LIST of this one object gives both the object and the version of now.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};

use super::cache::{Known, Referable};
use crate::client::{Failure, failure, message};

/// First wait after a failure. Short, since the server may refuse an object of a pod that it has bound this very
/// moment: its authorizer learns of the binding by a watch, as we do.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// Longest wait between tries.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Failures in a row before a waiting pod is told; before that they are taken for the race above.
const QUIET_FAILURES: u32 = 4;

/// Doubling waits.
#[derive(Debug, Default)]
struct BackOff {
    failures: u32,
}

impl BackOff {
    fn next(&mut self) -> Duration {
        let wait = FIRST_RETRY.saturating_mul(1 << self.failures.min(12));
        self.failures = self.failures.saturating_add(1);
        wait.min(LAST_RETRY)
    }
}

/// Follows the object until the task is aborted; returns only when there is nothing more to come.
pub(super) async fn follow<K: Referable>(
    requests: Api<K>,
    watches: Api<K>,
    name: String,
    publish: impl Fn(Known<K>) + Send + Sync,
) {
    let mut back_off = BackOff::default();
    let mut asked = false;
    loop {
        let answer = if asked {
            list(&requests, &name).await
        } else {
            get(&requests, &name).await
        };
        match answer {
            Ok((object, version)) => {
                asked = true;
                back_off = BackOff::default();
                let immutable = object.as_ref().is_some_and(Referable::immutable);
                publish(object.map_or(Known::Absent, |object| Known::Present(Arc::new(object))));
                if immutable {
                    return;
                }
                watch(&watches, &name, version, &publish).await;
            }
            Err(error) => {
                let wait = back_off.next();
                if back_off.failures > QUIET_FAILURES {
                    publish(Known::Failed(message(&error)));
                }
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// The object and its own version; no object when there is none.
async fn get<K: Referable>(api: &Api<K>, name: &str) -> kube::Result<(Option<K>, Option<String>)> {
    match api.get(name).await {
        Ok(object) => {
            let version = object.meta().resource_version.clone();
            Ok((Some(object), version))
        }
        Err(error) if failure(&error) == Failure::NotFound => Ok((None, None)),
        Err(error) => Err(error),
    }
}

/// The object and the server's version of now.
async fn list<K: Referable>(api: &Api<K>, name: &str) -> kube::Result<(Option<K>, Option<String>)> {
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = api.list(&params).await?;
    Ok((
        list.items.into_iter().next(),
        list.metadata.resource_version,
    ))
}

/// Watches from a version on (none: from whatever the server has now) until it must be asked anew.
async fn watch<K: Referable>(
    api: &Api<K>,
    name: &str,
    version: Option<String>,
    publish: &(impl Fn(Known<K>) + Send + Sync),
) {
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(timeout(name));
    let mut version = version.unwrap_or_else(|| "0".into());
    let mut back_off = BackOff::default();
    loop {
        let failed = match api.watch(&params, &version).await {
            Ok(stream) => {
                let mut stream = std::pin::pin!(stream);
                loop {
                    match stream.next().await {
                        Some(Ok(event)) => {
                            back_off = BackOff::default();
                            if let Some(seen) = step(event, publish) {
                                version = seen;
                            } else {
                                return;
                            }
                        }
                        Some(Err(_)) => break true,
                        None => break false,
                    }
                }
            }
            // Too old a version, or one the server has not reached after a restore.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 410 | 504) => return,
            Err(_) => true,
        };
        if failed {
            tokio::time::sleep(back_off.next()).await;
        }
    }
}

/// Takes in one event; gives the version to resume from, or none when the object must be asked for anew.
fn step<K: Referable>(event: WatchEvent<K>, publish: &impl Fn(Known<K>)) -> Option<String> {
    let version = match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            let version = object.meta().resource_version.clone();
            publish(Known::Present(Arc::new(object)));
            version
        }
        WatchEvent::Deleted(object) => {
            publish(Known::Absent);
            object.meta().resource_version.clone()
        }
        WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
        WatchEvent::Error(_) => None,
    };
    version.filter(|version| !version.is_empty())
}

/// Watches of a node should not all end in the same second: 200 to 290 s, by name.
fn timeout(name: &str) -> u32 {
    let sum = name.bytes().fold(7u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    200 + sum % 91
}
