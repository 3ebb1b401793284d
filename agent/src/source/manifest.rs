//! From a manifest to static pods: named after the node, identified by their contents, and without any reference to
//! what only an API server could give. Pure.

use std::fmt::Write as _;

use hanok_oci::complaint::clip;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Toleration, Volume};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cmd::run::check;
use crate::cmd::run::manifest::{one_line, quantities_to_text};
use crate::config::text;

/// Annotation: where the pod comes from, `file` or `http`.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// Annotation: hash of the manifest. It is the pod's UID unless the manifest names another.
pub const HASH: &str = "kubernetes.io/config.hash";
/// Annotation: when the node first saw the pod in this form.
pub const SEEN: &str = "kubernetes.io/config.seen";

/// Where a manifest was found.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// A file; its path.
    File(&'a str),
    /// An HTTP server; the URL.
    Http(&'a str),
}

/// Why a manifest makes no pod: one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is no YAML.
    #[error("couldn't parse as pod: {0}")]
    Syntax(String),
    /// It is something else.
    #[error("couldn't parse as pod: it is {0}: a v1 Pod is expected")]
    Kind(String),
    /// It breaks a rule.
    #[error("invalid pod: {0}")]
    Invalid(String),
    /// It needs an API server.
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// The pods of a manifest: one, or the items of a list where the origin is HTTP.
pub fn pods(text: &str, node_name: &str, origin: Origin<'_>) -> Result<Vec<Pod>, ManifestError> {
    let value = parse(text)?;
    let kind = |value: &Value| {
        let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        format!("{} {}", field("apiVersion"), field("kind"))
    };
    let values = match (kind(&value).as_str(), origin) {
        ("v1 Pod", _) => vec![value],
        ("v1 PodList", Origin::Http(_)) => match value.get("items") {
            Some(Value::Array(items)) => items.clone(),
            _ => Vec::new(),
        },
        (" ", _) => {
            return Err(ManifestError::Kind(
                "nothing with apiVersion and kind".into(),
            ));
        }
        (other, _) => return Err(ManifestError::Kind(clip(other.trim()))),
    };
    values
        .into_iter()
        .map(|value| pod(value, node_name, origin))
        .collect()
}

/// The first document that says anything.
fn parse(text: &str) -> Result<Value, ManifestError> {
    // As Kubernetes' own reader has it, `n` and `y` are text.
    let options = serde_saphyr::options! { strict_booleans: true };
    let documents = serde_saphyr::from_multiple_with_options::<Value>(text, options);
    let documents = documents.map_err(|error| {
        let message = error.without_snippet().to_string();
        ManifestError::Syntax(one_line(&message))
    })?;
    let mut documents = documents.into_iter();
    documents
        .find(|document| !document.is_null())
        .ok_or_else(|| ManifestError::Syntax("it is empty".to_owned()))
}

/// One pod, as the node runs it.
fn pod(mut value: Value, node_name: &str, origin: Origin<'_>) -> Result<Pod, ManifestError> {
    quantities_to_text(&mut value);
    let mut pod: Pod = serde_path_to_error::deserialize(&value).map_err(|error| {
        let field = error.path().to_string();
        ManifestError::Invalid(one_line(&format!("{field}: {}", error.into_inner())))
    })?;
    pod.status = None;
    check::pod(&pod).map_err(|complaint| ManifestError::Invalid(complaint.to_string()))?;
    if let Some(resource) = pod.spec.as_ref().and_then(reference) {
        return Err(ManifestError::Reference(resource));
    }
    let hash = hash(&pod, node_name, origin);
    let metadata = &mut pod.metadata;
    let uid = metadata.uid.take().filter(|uid| !uid.is_empty());
    let uid = uid.unwrap_or(hash);
    let name = metadata.name.take().unwrap_or_default();
    let name = format!("{name}-{}", node_name.to_lowercase());
    if !text::is_dns_subdomain(&name) {
        let message = format!("metadata.name: {name:?} is no name of a pod");
        return Err(ManifestError::Invalid(message));
    }
    metadata.name = Some(name);
    let namespace = metadata.namespace.take();
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    metadata.namespace = Some(namespace.unwrap_or_else(|| "default".into()));
    let annotations = metadata.annotations.get_or_insert_default();
    let source = match origin {
        Origin::File(_) => "file",
        Origin::Http(_) => "http",
    };
    annotations.insert(SOURCE.to_owned(), source.to_owned());
    annotations.insert(HASH.to_owned(), uid.clone());
    metadata.uid = Some(uid);
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node_name.to_owned());
        default(spec, origin);
    }
    Ok(pod)
}

/// What the API server would have filled in, as far as the node asks for it.
fn default(spec: &mut PodSpec, origin: Origin<'_>) {
    if spec.host_network == Some(true) {
        let containers = spec.init_containers.iter_mut().flatten();
        for container in containers.chain(&mut spec.containers) {
            for port in container.ports.iter_mut().flatten() {
                port.host_port.get_or_insert(port.container_port);
            }
        }
    }
    if matches!(origin, Origin::File(_)) {
        // Trouble with the node is no reason to end what the node itself wants to run.
        let tolerations = spec.tolerations.get_or_insert_default();
        let all = Toleration {
            operator: Some("Exists".to_owned()),
            effect: Some("NoExecute".to_owned()),
            ..Toleration::default()
        };
        let same = |one: &&mut Toleration| {
            let given =
                |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
            (&one.operator, &one.effect) == (&all.operator, &all.effect)
                && !given(&one.key)
                && !given(&one.value)
        };
        match tolerations.iter_mut().find(same) {
            // It may have been meant for a while only.
            Some(own) => *own = all,
            None => tolerations.push(all),
        }
    }
}

/// A UID that follows from node, origin and contents: 32 hexadecimal digits.
fn hash(pod: &Pod, node_name: &str, origin: Origin<'_>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(serde_json::to_vec(pod).unwrap_or_default());
    match origin {
        Origin::File(path) => hasher.update(format!("host:{node_name}file:{path}")),
        Origin::Http(url) => hasher.update(format!("url:{url}")),
    }
    let mut text = String::new();
    for byte in &hasher.finalize()[..16] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The kind of object that the pod refers to, as messages name it.
fn reference(spec: &PodSpec) -> Option<&'static str> {
    let given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if given(&spec.service_account_name) || given(&spec.service_account) {
        return Some("serviceaccounts");
    }
    let containers = || {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers)
    };
    if spec.image_pull_secrets.iter().flatten().next().is_some()
        || containers().any(|container| environment(container, Kind::Secret))
    {
        return Some("secrets");
    }
    if containers().any(|container| environment(container, Kind::ConfigMap)) {
        return Some("configmaps");
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(volume)
}

/// What an environment may come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Secret,
    ConfigMap,
}

fn environment(container: &Container, kind: Kind) -> bool {
    let mut from = container.env_from.iter().flatten();
    let mut variables = container.env.iter().flatten();
    from.any(|from| match kind {
        Kind::Secret => from.secret_ref.is_some(),
        Kind::ConfigMap => from.config_map_ref.is_some(),
    }) || variables.any(|variable| {
        let source = variable.value_from.as_ref();
        source.is_some_and(|source| match kind {
            Kind::Secret => source.secret_key_ref.is_some(),
            Kind::ConfigMap => source.config_map_key_ref.is_some(),
        })
    })
}

fn volume(volume: &Volume) -> Option<&'static str> {
    let projected = volume.projected.iter();
    let mut sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    match () {
        () if volume.config_map.is_some() => Some("configmaps (via configmap volumes)"),
        () if volume.secret.is_some() => Some("secrets (via secret volumes)"),
        () if volume.csi.is_some() => Some("csidrivers (via CSI volumes)"),
        () if volume.glusterfs.is_some() => Some("endpoints (via glusterFS volumes)"),
        () if volume.persistent_volume_claim.is_some() => Some("persistentvolumeclaims"),
        () if volume.ephemeral.is_some() => Some("persistentvolumeclaims (via ephemeral volumes)"),
        () if volume.azure_file.is_some() => Some("secrets (via azureFile volumes)"),
        () => sources.find_map(|source| match () {
            () if source.config_map.is_some() => Some("configmaps (via projected volumes)"),
            () if source.secret.is_some() => Some("secrets (via projected volumes)"),
            () if source.service_account_token.is_some() => {
                Some("serviceaccounts (via projected volumes)")
            }
            () if source.cluster_trust_bundle.is_some() => Some("clustertrustbundles"),
            () if source.pod_certificate.is_some() => Some("podcertificates"),
            () => None,
        }),
    }
}

#[cfg(test)]
mod tests;
