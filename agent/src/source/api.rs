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

use super::manifest::SOURCE;
use super::static_pods::Gate;
use crate::back_off::BackOff;
use crate::client::ApiServer;
use crate::mirror::Mirrors;
use crate::sinks::PodUpdate;

/// First and longest wait after a failure. The longest is short: one watch a node costs the server little, and pods
/// wait for it.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Sends every change of this node's pods until nobody listens any more. Mirror pods are given to `mirrors`.
pub async fn watch(
    server: &ApiServer,
    node_name: &str,
    updates: mpsc::Sender<PodUpdate>,
    mirrors: &Mirrors,
    gate: Gate,
) {
    let mut gate = Some(gate);
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
                    let open = match (mirrors.take(update), &mut gate) {
                        (None, _) => true,
                        (Some(PodUpdate::Synced), gate) => match gate.take() {
                            Some(gate) => gate.pass().await.is_ok(),
                            None => true,
                        },
                        (Some(update), _) => updates.send(update).await.is_ok(),
                    };
                    if !open {
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
    /// The list that is coming in.
    listed: Option<Vec<Pod>>,
    synced: bool,
}

impl KnownPods {
    /// Turns an event of the watch into updates.
    fn take_in(&mut self, event: Event<Pod>) -> Vec<PodUpdate> {
        match event {
            Event::Init => {
                self.listed = Some(Vec::new());
                Vec::new()
            }
            Event::InitApply(pod) => {
                self.listed.get_or_insert_default().push(pod);
                Vec::new()
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
        let is_mirror = crate::mirror::is_mirror(&pod);
        let annotations = pod.metadata.annotations.as_mut();
        if let Some(source) = annotations.and_then(|given| given.get_mut(SOURCE))
            && !is_mirror
        {
            // Whoever makes a pod may write this, and does not make it one of the node's own.
            "api".clone_into(source);
        }
        Some(PodUpdate::Apply(Arc::new(pod)))
    }

    /// What is missing from the list is gone. Of the others, those that run come first and then the older ones: they
    /// have been given their place before.
    fn finish_list(&mut self) -> Vec<PodUpdate> {
        let mut listed = self.listed.take().unwrap_or_default();
        let uids: HashSet<&String> = listed
            .iter()
            .filter_map(|pod| pod.metadata.uid.as_ref())
            .collect();
        let missing = self.told.keys().filter(|uid| !uids.contains(uid));
        let missing: Vec<String> = missing.cloned().collect();
        let mut updates = Vec::new();
        for uid in missing {
            self.told.remove(&uid);
            updates.push(PodUpdate::Gone(PodUid(uid)));
        }
        listed.sort_by_cached_key(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let is_new = phase.is_none_or(|phase| phase == "Pending");
            (is_new, pod.metadata.creation_timestamp.clone())
        });
        for pod in listed {
            updates.extend(self.apply(pod));
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
        assert_eq!(tell(&mut pods, relist), ["gone a", "b@3"]);
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
    fn pods_that_have_a_place_come_before_those_that_want_one() {
        let listed = |uid: &str, phase: &str, created: &str| {
            let mut pod = pod(uid, "1");
            let more =
                json!({"metadata": {"creationTimestamp": created}, "status": {"phase": phase}});
            let more: Pod = serde_json::from_value(more).unwrap();
            pod.metadata.creation_timestamp = more.metadata.creation_timestamp;
            pod.status = more.status;
            Event::InitApply(pod)
        };
        let events = vec![
            Event::Init,
            listed("young", "Pending", "2026-01-01T00:00:03Z"),
            listed("old", "Pending", "2026-01-01T00:00:01Z"),
            listed("running", "Running", "2026-01-01T00:00:09Z"),
            Event::InitDone,
        ];
        let told = tell(&mut KnownPods::default(), events);
        assert_eq!(told, ["running@1", "old@1", "young@1", "synced"]);
    }

    #[test]
    fn no_pod_of_the_api_passes_for_one_of_the_nodes_own() {
        let with = |annotations| {
            let mut pod = pod("a", "1");
            pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
            let update = KnownPods::default().apply(pod);
            let Some(PodUpdate::Apply(pod)) = update else {
                panic!("{update:?}")
            };
            crate::pod::spec::is_static(&pod)
        };
        assert!(!with(json!({"kubernetes.io/config.source": "file"})));
        assert!(!with(json!({})));
        let mirror =
            json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "h"});
        assert!(with(mirror));
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
