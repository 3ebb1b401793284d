//! The cluster's trust bundles, for projected volumes: one watch for all of them, for as long as a registered pod has
//! such a volume.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::certificates::v1::ClusterTrustBundleSpec;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use kube::Api;
use kube::core::{ApiResource, GroupVersionKind, NotUsed, Object};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;

use super::cache::Changed;
use super::references::TrustBundle;
use super::trust_anchors::{self, Bundle, Bundles};
use crate::client::{ApiServer, Failure, failure};
use crate::sinks::{NO_TRUST_BUNDLES, ObjectError};

/// How long a pod waits for the first list before it tries again.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// Between questions which version the server has.
const NEXT_QUESTION: Duration = Duration::from_secs(10);
/// Bundles in one answer: each may have 1 MiB.
const PAGE: u32 = 20;
/// Their API group.
const GROUP: &str = "certificates.k8s.io";
/// Versions with the same fields, the best first.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const PLURAL: &str = "clustertrustbundles";

/// A ClusterTrustBundle of any version.
type AnyVersion = Object<ClusterTrustBundleSpec, NotUsed>;

/// What is known of all bundles.
#[derive(Debug, Clone)]
enum Known {
    /// Not listed yet.
    Nothing,
    /// The server has no such objects.
    Unserved,
    /// All that there are.
    All(Bundles),
}

/// The watched trust bundles.
#[derive(Debug)]
pub(super) struct TrustBundles {
    server: ApiServer,
    changed: Changed,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What each pod asks for.
    pods: HashMap<PodUid, BTreeSet<TrustBundle>>,
    /// There while a pod asks for something. The watch ends when the last of these is dropped.
    known: Option<watch::Receiver<Known>>,
}

impl TrustBundles {
    pub(super) fn new(server: ApiServer, changed: Changed) -> Self {
        Self {
            server,
            changed,
            state: Mutex::default(),
        }
    }

    /// Makes `pod` ask for exactly these bundles.
    pub(super) fn set(self: &Arc<Self>, pod: &PodUid, wanted: BTreeSet<TrustBundle>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.is_empty() {
            state.pods.remove(pod);
        } else {
            state.pods.insert(pod.clone(), wanted);
        }
        if state.pods.is_empty() {
            state.known = None;
        } else if state.known.is_none() {
            let (sender, receiver) = watch::channel(Known::Nothing);
            let (server, bundles) = (self.server.clone(), Arc::downgrade(self));
            tokio::spawn(async move {
                tokio::select! {
                    () = follow(&server, &bundles, &sender) => {}
                    () = sender.closed() => {}
                }
            });
            state.known = Some(receiver);
        }
    }

    /// The certificates that the projection asks for, as PEM.
    pub(super) async fn anchors(
        &self,
        wanted: &ClusterTrustBundleProjection,
    ) -> Result<Vec<u8>, ObjectError> {
        let state = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = state().known.clone();
        let known = match receiver {
            Some(mut receiver) => {
                let listed = receiver.wait_for(|known| !matches!(known, Known::Nothing));
                let listed = tokio::time::timeout(FIRST_LIST, listed).await;
                listed.map_or(Known::Nothing, |known| {
                    known.map_or(Known::Nothing, |known| known.clone())
                })
            }
            None => Known::Nothing,
        };
        let anchors = match known {
            Known::Nothing => Err("ClusterTrustBundle informer has not yet synced".to_owned()),
            Known::Unserved => Err(NO_TRUST_BUNDLES.to_owned()),
            Known::All(bundles) => trust_anchors::anchors(&bundles, wanted),
        };
        anchors.map(String::into_bytes).map_err(ObjectError::Other)
    }

    /// Rings the pods that ask for a bundle that is another one now.
    fn ring(&self, before: &Bundles, now: &Bundles) {
        let mut touched = BTreeSet::new();
        for (name, bundle) in before.iter().chain(now) {
            if before.get(name) != now.get(name) {
                touched.insert(TrustBundle::Name(name.clone()));
                touched.insert(TrustBundle::Signer(bundle.signer.clone()));
            }
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (pod, wanted) in &state.pods {
            if !wanted.is_disjoint(&touched) {
                // Nobody listens any more when the agent ends.
                let _ = self.changed.send(pod.clone());
            }
        }
    }
}

/// The best version that the server has; waits until it has one.
async fn served(server: &ApiServer, known: &watch::Sender<Known>) -> ApiResource {
    loop {
        let mut answers = 0;
        for version in VERSIONS {
            let list = format!("{GROUP}/{version}");
            match server.requests.list_api_group_resources(&list).await {
                Ok(list) if list.resources.iter().any(|kind| kind.name == PLURAL) => {
                    let kind = GroupVersionKind::gvk(GROUP, version, "ClusterTrustBundle");
                    return ApiResource::from_gvk_with_plural(&kind, PLURAL);
                }
                Ok(_) => answers += 1,
                Err(error) if failure(&error) == Failure::NotFound => answers += 1,
                Err(error) => {
                    tracing::debug!(%error, "cannot learn the version of trust bundles, trying again");
                    break;
                }
            }
        }
        if answers == VERSIONS.len() {
            known.send_replace(Known::Unserved);
        }
        tokio::time::sleep(NEXT_QUESTION).await;
    }
}

/// Keeps `known` up to date, and rings.
async fn follow(server: &ApiServer, bundles: &Weak<TrustBundles>, known: &watch::Sender<Known>) {
    let resource = served(server, known).await;
    let api: Api<AnyVersion> = Api::all_with(server.watches.clone(), &resource);
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut all = Bundles::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => {
                all = Bundles::new();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                all.extend([entry(object)]);
                continue;
            }
            Ok(watcher::Event::InitDone) => {}
            Ok(watcher::Event::Apply(object)) => all.extend([entry(object)]),
            Ok(watcher::Event::Delete(object)) => {
                all.remove(&entry(object).0);
            }
            Err(error) => {
                tracing::debug!(%error, "watch of trust bundles failed, trying again");
                continue;
            }
        }
        // Who asked before the first list waits for it; what comes later is news.
        let before = known.send_replace(Known::All(all.clone()));
        if let (Known::All(before), Some(bundles)) = (before, bundles.upgrade()) {
            bundles.ring(&before, &all);
        }
    }
}

fn entry(object: AnyVersion) -> (String, Arc<Bundle>) {
    let bundle = Bundle {
        signer: object.spec.signer_name.unwrap_or_default(),
        labels: object.metadata.labels.unwrap_or_default(),
        pem: object.spec.trust_bundle,
    };
    (object.metadata.name.unwrap_or_default(), Arc::new(bundle))
}

#[cfg(test)]
#[path = "trust_bundles/tests.rs"]
mod tests;
