//! Objects where there is no API server: those that the manifests of `hanok run` hold, none for a standalone agent, and
//! nobody who could sign a token.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};

use crate::sinks::{ObjectError, Objects, Token, TokenRequest};

/// Namespace and name.
type Name = (String, String);

/// The ConfigMaps, Secrets and Services of a manifest.
#[derive(Debug, Clone, Default)]
pub struct ManifestObjects {
    config_maps: BTreeMap<Name, Arc<ConfigMap>>,
    secrets: BTreeMap<Name, Arc<Secret>>,
    services: BTreeMap<Name, Arc<Service>>,
}

/// Where an object without a namespace belongs.
const DEFAULT_NAMESPACE: &str = "default";

fn name(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Name {
    let namespace = meta
        .namespace
        .clone()
        .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    (namespace, meta.name.clone().unwrap_or_default())
}

impl ManifestObjects {
    /// Adds a ConfigMap; a later one of the same name replaces it.
    pub fn add_config_map(&mut self, object: ConfigMap) {
        self.config_maps
            .insert(name(&object.metadata), Arc::new(object));
    }

    /// Adds a Secret; `stringData`, which the API server would fold in, is folded in here.
    pub fn add_secret(&mut self, mut object: Secret) {
        for (key, text) in object.string_data.take().into_iter().flatten() {
            let data = object.data.get_or_insert_default();
            data.insert(key, k8s_openapi::ByteString(text.into_bytes()));
        }
        self.secrets
            .insert(name(&object.metadata), Arc::new(object));
    }

    /// Adds a Service.
    pub fn add_service(&mut self, object: Service) {
        self.services
            .insert(name(&object.metadata), Arc::new(object));
    }
}

/// Looks an object up, or says in the API server's words that it is not there.
fn find<T>(
    map: &BTreeMap<Name, Arc<T>>,
    kind: &'static str,
    namespace: &str,
    name: &str,
) -> Result<Arc<T>, ObjectError> {
    let found = map.get(&(namespace.to_owned(), name.to_owned())).cloned();
    found.ok_or_else(|| ObjectError::NotFound {
        kind,
        name: name.to_owned(),
    })
}

#[async_trait]
impl Objects for ManifestObjects {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>, ObjectError> {
        find(&self.config_maps, "configmap", namespace, name)
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        find(&self.secrets, "secret", namespace, name)
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token, ObjectError> {
        let message = "there is no API server that could sign a service account token";
        Err(ObjectError::Other(message.into()))
    }

    async fn services(&self, namespace: &str) -> Result<Vec<Arc<Service>>, ObjectError> {
        let of = self
            .services
            .iter()
            .filter(|((home, _), _)| home == namespace);
        Ok(of.map(|(_, service)| service.clone()).collect())
    }

    fn register(&self, _pod: &Arc<Pod>) {}

    fn unregister(&self, _uid: &PodUid) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn objects_are_found_by_namespace_and_name() {
        let mut objects = ManifestObjects::default();
        objects.add_config_map(serde_json::from_value(json!({"metadata": {"name": "c"}})).unwrap());
        objects.add_secret(
            serde_json::from_value(json!({
                "metadata": {"name": "s", "namespace": "ns"}, "stringData": {"k": "v"}
            }))
            .unwrap(),
        );
        assert!(objects.config_map("default", "c").await.is_ok());
        let secret = objects.secret("ns", "s").await.unwrap();
        assert_eq!(secret.data.as_ref().unwrap()["k"].0, b"v");
        let missing = objects.config_map("ns", "c").await.unwrap_err().to_string();
        assert_eq!(missing, "configmap \"c\" not found");
    }
}
