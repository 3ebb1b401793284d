//! Which objects a pod refers to. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, Volume};

use crate::sinks::TokenRequest;

/// ClusterTrustBundles, by what a pod calls them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrustBundle {
    /// One of them.
    Name(String),
    /// Those of a signer that have certain labels.
    Signer(String),
}

/// Names of objects, in the pod's own namespace where they have one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct References {
    /// ConfigMaps.
    pub(super) config_maps: BTreeSet<String>,
    /// Secrets.
    pub(super) secrets: BTreeSet<String>,
    /// ClusterTrustBundles.
    pub(super) trust_bundles: BTreeSet<TrustBundle>,
}

/// Everything that the pod's environment, volumes and image pulls name.
pub(super) fn references(pod: &Pod) -> References {
    let mut found = References::default();
    let Some(spec) = &pod.spec else { return found };
    for container in spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
    {
        found.environment(container.env.as_deref(), container.env_from.as_deref());
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        found.environment(container.env.as_deref(), container.env_from.as_deref());
    }
    for volume in spec.volumes.iter().flatten() {
        found.volume(volume);
    }
    for secret in spec.image_pull_secrets.iter().flatten() {
        add(&mut found.secrets, &secret.name);
    }
    found
}

/// A reference without a name means nothing.
fn add(set: &mut BTreeSet<String>, name: &str) {
    if !name.is_empty() {
        set.insert(name.to_owned());
    }
}

impl References {
    fn environment(&mut self, env: Option<&[EnvVar]>, from: Option<&[EnvFromSource]>) {
        for from in from.into_iter().flatten() {
            if let Some(source) = &from.config_map_ref {
                add(&mut self.config_maps, &source.name);
            }
            if let Some(source) = &from.secret_ref {
                add(&mut self.secrets, &source.name);
            }
        }
        for source in env
            .into_iter()
            .flatten()
            .filter_map(|var| var.value_from.as_ref())
        {
            if let Some(source) = &source.config_map_key_ref {
                add(&mut self.config_maps, &source.name);
            }
            if let Some(source) = &source.secret_key_ref {
                add(&mut self.secrets, &source.name);
            }
        }
    }

    fn volume(&mut self, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            add(&mut self.config_maps, &source.name);
        }
        if let Some(source) = &volume.secret {
            add(
                &mut self.secrets,
                source.secret_name.as_deref().unwrap_or_default(),
            );
        }
        let projected = volume
            .projected
            .iter()
            .flat_map(|source| source.sources.iter().flatten());
        for source in projected {
            if let Some(source) = &source.config_map {
                add(&mut self.config_maps, &source.name);
            }
            if let Some(source) = &source.secret {
                add(&mut self.secrets, &source.name);
            }
            if let Some(source) = &source.cluster_trust_bundle {
                let name = source.name.clone().map(TrustBundle::Name);
                let signer = source.signer_name.clone().map(TrustBundle::Signer);
                self.trust_bundles.extend(name.or(signer));
            }
        }
    }
}

/// The API server's default for a projected token, in seconds.
pub const DEFAULT_TOKEN_SECONDS: i64 = 3600;

/// The tokens that the pod's projected volumes ask for.
pub(super) fn tokens(pod: &std::sync::Arc<Pod>) -> Vec<TokenRequest> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let projected = volumes.filter_map(|volume| volume.projected.as_ref());
    let sources = projected.flat_map(|source| source.sources.iter().flatten());
    sources
        .filter_map(|source| source.service_account_token.as_ref())
        .map(|token| TokenRequest {
            pod: pod.clone(),
            audience: token.audience.clone().unwrap_or_default(),
            expiration_seconds: token.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECONDS),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_place_that_can_name_an_object_is_looked_at() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "imagePullSecrets": [{"name": "s-pull"}, {"name": ""}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "c-init"}}]}],
            "containers": [{"name": "c",
                "envFrom": [{"secretRef": {"name": "s-from"}}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c-env", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "k"}}},
                ]}],
            "ephemeralContainers": [{"name": "e", "envFrom": [{"configMapRef": {"name": "c-eph"}}]}],
            "volumes": [
                {"name": "a", "configMap": {"name": "c-vol"}},
                {"name": "b", "secret": {"secretName": "s-vol"}},
                {"name": "p", "projected": {"sources": [
                    {"configMap": {"name": "c-proj"}}, {"secret": {"name": "s-proj"}},
                    {"clusterTrustBundle": {"name": "b", "path": "b"}},
                    {"clusterTrustBundle": {"signerName": "x/s", "path": "s"}},
                    {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}},
                ]}},
            ],
        }}))
        .unwrap();
        let found = references(&pod);
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(names(&found.config_maps), "c-env c-eph c-init c-proj c-vol");
        assert_eq!(names(&found.secrets), "s-env s-from s-proj s-pull s-vol");
        let bundles = [
            TrustBundle::Name("b".into()),
            TrustBundle::Signer("x/s".into()),
        ];
        assert_eq!(found.trust_bundles, BTreeSet::from(bundles));
        let tokens = tokens(&std::sync::Arc::new(pod));
        assert_eq!(tokens.len(), 1);
        assert_eq!(
            (tokens[0].audience.as_str(), tokens[0].expiration_seconds),
            ("vault", 600)
        );
    }
}
