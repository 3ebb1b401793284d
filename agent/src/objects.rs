//! Objects that pods refer to, from the API server: ConfigMaps and Secrets one by one, tokens, Services,
//! trust bundles.
//!
//! Stays within what the Node authorizer grants: nothing is asked for that no pod of this node refers to.

mod cache;
mod follow;
pub mod manifest;
mod references;
mod runtime_class;
mod service;
mod token;
mod trust_anchors;
mod trust_bundles;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{ClusterTrustBundleProjection, ConfigMap, Pod, Secret, Service};

pub use cache::Changed;
pub use references::DEFAULT_TOKEN_SECONDS;
pub use runtime_class::ApiRuntimeClasses;

use crate::client::ApiServer;
use crate::sinks::{ObjectError, Objects, Token, TokenRequest};
use cache::Cache;
use service::Services;
use token::Tokens;
use trust_bundles::TrustBundles;

/// Objects by way of the API server.
#[derive(Debug, Clone)]
pub struct ApiObjects {
    config_maps: Arc<Cache<ConfigMap>>,
    secrets: Arc<Cache<Secret>>,
    tokens: Arc<Tokens>,
    services: Arc<Services>,
    trust_bundles: Arc<TrustBundles>,
    /// The namespace of each registered pod.
    registered: Arc<Mutex<HashMap<PodUid, String>>>,
}

impl ApiObjects {
    /// `changed` is rung with the UID of every pod that refers to an object that has changed.
    pub fn new(server: &ApiServer, changed: Changed) -> Self {
        Self {
            config_maps: Arc::new(Cache::new(server.clone(), changed.clone())),
            secrets: Arc::new(Cache::new(server.clone(), changed.clone())),
            tokens: Arc::new(Tokens::new(server.clone())),
            services: Arc::new(Services::new(server.clone())),
            trust_bundles: Arc::new(TrustBundles::new(server.clone(), changed)),
            registered: Arc::default(),
        }
    }

    /// Asks for what the pod will need in a moment, so that it is here by then.
    fn prefetch(&self, pod: &Arc<Pod>, first_wait: Duration) {
        for request in references::tokens(pod) {
            let tokens = self.tokens.clone();
            // A failure is told to whoever asks for the token in earnest.
            tokio::spawn(async move {
                tokens.hold(&request, first_wait).await;
            });
        }
        let services = self.services.clone();
        tokio::spawn(async move { services.start().await });
    }
}

/// The server's authorizer learns that a pod is bound to this node by a watch, as we do, and may learn it a moment
/// later: what the pod refers to is then refused. A pod that has never been here before gets this start; it is spent
/// beside the making of the pod's sandbox, which takes longer.
const AUTHORIZER_START: Duration = Duration::from_millis(5);

/// How long to wait before the pod's objects are asked for.
fn first_wait(pod: &Pod) -> Duration {
    let seen_before = pod
        .status
        .as_ref()
        .is_some_and(|status| status.start_time.is_some());
    if seen_before {
        Duration::ZERO
    } else {
        AUTHORIZER_START
    }
}

/// The pod's phase is final.
fn is_over(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[async_trait]
impl Objects for ApiObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        self.config_maps.get(namespace, name).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        self.secrets.get(namespace, name).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<Token, ObjectError> {
        self.tokens.get(request).await
    }

    async fn services(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectError> {
        self.services.of(namespace).await
    }

    async fn trust_anchors(
        &self,
        wanted: &ClusterTrustBundleProjection,
    ) -> Result<Vec<u8>, ObjectError> {
        self.trust_bundles.anchors(wanted).await
    }

    fn register(&self, pod: &Arc<Pod>) {
        let uid = PodUid(pod.metadata.uid.clone().unwrap_or_default());
        if is_over(pod) {
            return self.unregister(&uid);
        }
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let found = references::references(pod);
        let first_wait = first_wait(pod);
        self.config_maps
            .set(&uid, &namespace, &found.config_maps, first_wait);
        self.secrets
            .set(&uid, &namespace, &found.secrets, first_wait);
        self.trust_bundles.set(&uid, found.trust_bundles);
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let new = registered.insert(uid, namespace).is_none();
        if new && pod.metadata.deletion_timestamp.is_none() {
            self.prefetch(pod, first_wait);
        }
    }

    fn unregister(&self, uid: &PodUid) {
        let mut registered = self
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(namespace) = registered.remove(uid) else {
            return;
        };
        self.config_maps
            .set(uid, &namespace, &BTreeSet::new(), Duration::ZERO);
        self.secrets
            .set(uid, &namespace, &BTreeSet::new(), Duration::ZERO);
        self.trust_bundles.set(uid, BTreeSet::new());
        self.tokens.forget(uid);
    }
}

#[cfg(test)]
#[path = "objects/tests.rs"]
mod tests;
