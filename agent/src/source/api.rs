//! The pods that the API server has bound to this node.
//!
//! One watch with a selector for the node's name. When it breaks, nothing happens to pods until it is back; then the
//! whole set is listed again, and what is missing from it is told to be gone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc;

use crate::back_off::BackOff;
use crate::client::ApiServer;
use crate::sinks::PodUpdate;

/// First and longest wait after a failure. The longest is short: one watch a node costs the server little, and pods
/// wait for it.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Sends every change of this node's pods until nobody listens any more.
pub async fn watch(server: &ApiServer, node_name: &str, updates: mpsc::Sender<PodUpdate>) {
    let api: Api<Pod> = Api::all(server.watches.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
    let mut events = watcher(api.clone(), config.clone().streaming_lists()).boxed();
    let mut pods = KnownPods::default();
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = updates.closed() => return,
        };
        match event {
            Some(Ok(event)) => {
                back_off.reset();
                for update in pods.take_in(event) {
                    if updates.send(update).await.is_err() {
                        return;
                    }
                }
            }
            Some(Err(error)) => {
                if refuses_streaming(&error) {
                    tracing::info!("the API server does not stream lists, listing in pages");
                    events = watcher(api.clone(), config.clone()).boxed();
                }
                // Once for an outage, and not for every try.
                if back_off.failures() == 3 {
                    tracing::warn!(%error, "cannot watch this node's pods; they keep running, trying again");
                }
                back_off.wait().await;
            }
            None => events = watcher(api.clone(), config.clone()).boxed(),
        }
    }
}

/// Servers before 1.32 refuse the parameters of a streaming list as invalid.
fn refuses_streaming(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            matches!(status.code, 400 | 422) && status.message.contains("sendInitialEvents")
        }
        _ => false,
    }
}

/// The pods that have been told of, to find out which are missing from a list.
#[derive(Debug, Default)]
struct KnownPods {
    /// UID to resource version.
    told: HashMap<String, String>,
    /// UIDs of the list that is coming in.
    listed: Option<HashSet<String>>,
    synced: bool,
}

impl KnownPods {
    /// Turns an event of the watch into updates.
    fn take_in(&mut self, event: Event<Pod>) -> Vec<PodUpdate> {
        match event {
            Event::Init => {
                self.listed = Some(HashSet::new());
                Vec::new()
            }
            Event::InitApply(pod) => {
                if let (Some(listed), Some(uid)) = (&mut self.listed, &pod.metadata.uid) {
                    listed.insert(uid.clone());
                }
                self.apply(pod).into_iter().collect()
            }
            Event::InitDone => self.finish_list(),
            Event::Apply(pod) => self.apply(pod).into_iter().collect(),
            Event::Delete(pod) => {
                let uid = pod.metadata.uid.unwrap_or_default();
                self.told.remove(&uid);
                vec![PodUpdate::Gone(PodUid(uid))]
            }
        }
    }

    /// A pod in a form that has not been told yet.
    fn apply(&mut self, mut pod: Pod) -> Option<PodUpdate> {
        let uid = pod.metadata.uid.clone().filter(|uid| !uid.is_empty())?;
        let version = pod.metadata.resource_version.clone().unwrap_or_default();
        if self
            .told
            .get(&uid)
            .is_some_and(|told| *told == version && !version.is_empty())
        {
            return None;
        }
        self.told.insert(uid, version);
        // Half of a pod's size, and of no use here.
        pod.metadata.managed_fields = None;
        Some(PodUpdate::Apply(Arc::new(pod)))
    }

    fn finish_list(&mut self) -> Vec<PodUpdate> {
        let listed = self.listed.take().unwrap_or_default();
        let missing: Vec<String> = self
            .told
            .keys()
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        let mut updates = Vec::new();
        for uid in missing {
            self.told.remove(&uid);
            updates.push(PodUpdate::Gone(PodUid(uid)));
        }
        if !self.synced {
            self.synced = true;
            updates.push(PodUpdate::Synced);
        }
        updates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, version: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": uid, "resourceVersion": version}
        }))
        .unwrap()
    }

    fn tell(pods: &mut KnownPods, events: Vec<Event<Pod>>) -> Vec<String> {
        let updates = events.into_iter().flat_map(|event| pods.take_in(event));
        updates
            .map(|update| match update {
                PodUpdate::Apply(pod) => {
                    let meta = &pod.metadata;
                    format!(
                        "{}@{}",
                        meta.uid.as_ref().unwrap(),
                        meta.resource_version.as_ref().unwrap()
                    )
                }
                PodUpdate::Gone(uid) => format!("gone {uid}"),
                PodUpdate::Synced => "synced".into(),
            })
            .collect()
    }

    #[test]
    fn a_list_is_told_once_and_synced_only_at_the_start() {
        let mut pods = KnownPods::default();
        let list = || {
            vec![
                Event::Init,
                Event::InitApply(pod("a", "1")),
                Event::InitDone,
            ]
        };
        assert_eq!(tell(&mut pods, list()), ["a@1", "synced"]);
        assert!(tell(&mut pods, list()).is_empty());
    }

    #[test]
    fn what_a_list_no_longer_holds_is_gone() {
        let mut pods = KnownPods::default();
        tell(
            &mut pods,
            vec![
                Event::Init,
                Event::InitApply(pod("a", "1")),
                Event::InitDone,
            ],
        );
        tell(&mut pods, vec![Event::Apply(pod("b", "2"))]);
        let relist = vec![
            Event::Init,
            Event::InitApply(pod("b", "3")),
            Event::InitDone,
        ];
        assert_eq!(tell(&mut pods, relist), ["b@3", "gone a"]);
    }

    #[test]
    fn a_list_that_breaks_off_says_nothing_of_what_it_did_not_reach() {
        let mut pods = KnownPods::default();
        tell(
            &mut pods,
            vec![
                Event::Init,
                Event::InitApply(pod("a", "1")),
                Event::InitDone,
            ],
        );
        assert!(tell(&mut pods, vec![Event::Init]).is_empty());
        let again = vec![
            Event::Init,
            Event::InitApply(pod("a", "1")),
            Event::InitDone,
        ];
        assert!(tell(&mut pods, again).is_empty());
    }

    #[test]
    fn a_namesake_with_another_uid_is_another_pod() {
        let mut pods = KnownPods::default();
        tell(
            &mut pods,
            vec![Event::Init, Event::InitDone, Event::Apply(pod("a", "1"))],
        );
        let events = vec![Event::Delete(pod("a", "2")), Event::Apply(pod("b", "3"))];
        assert_eq!(tell(&mut pods, events), ["gone a", "b@3"]);
    }
}
