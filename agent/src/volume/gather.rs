//! What is to be set up for a volume, with everything in hand that it needs from the API server.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, ProjectedVolumeSource, Volume, VolumeProjection};

use super::payload::{self, DEFAULT_MODE, Files};
use crate::env::field::NodeFacts;
use crate::objects::DEFAULT_TOKEN_SECONDS;
use crate::quantity::Amount;
use crate::sinks::{ObjectError, Objects, TokenRequest};
use std::sync::Arc;

/// Directory of volumes that begin empty.
pub(super) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
/// Directory of volumes from ConfigMaps.
pub(super) const CONFIG_MAP: &str = "kubernetes.io~configmap";
/// Directory of volumes from Secrets.
pub(super) const SECRET: &str = "kubernetes.io~secret";
/// Directory of volumes from the pod's own fields.
pub(super) const DOWNWARD_API: &str = "kubernetes.io~downward-api";
/// Directory of volumes from several sources.
pub(super) const PROJECTED: &str = "kubernetes.io~projected";

/// Directory of mounted images.
pub(super) const IMAGE: &str = "kubernetes.io~image";

/// What is to be done for one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    /// A directory for containers to write in.
    EmptyDir,
    /// The same in memory, of at most this many bytes.
    Memory(Option<u64>),
    /// Files, in the directory of this plugin.
    Files(&'static str, Files),
    /// A path of the node, of this type.
    HostPath(PathBuf, String),
}

/// Decides what a volume needs and fetches it. The error is the message of a FailedMount event.
pub(super) async fn plan(
    pod: &Arc<Pod>,
    volume: &Volume,
    objects: &dyn Objects,
    facts: &NodeFacts,
) -> Result<Plan, String> {
    if !super::is_plain(&volume.name) {
        return Err(format!("{:?} is no name of a volume", volume.name));
    }
    let source = Source {
        pod,
        objects,
        facts,
    };
    if let Some(empty) = &volume.empty_dir {
        return match empty.medium.as_deref().unwrap_or_default() {
            "" => Ok(Plan::EmptyDir),
            "Memory" => {
                let limit = empty.size_limit.as_ref().map(Amount::try_from).transpose();
                let limit = limit
                    .map_err(|error| error.to_string())?
                    .map(Amount::to_units);
                let bytes = limit
                    .filter(|&bytes| bytes > 0)
                    .or_else(|| memory_limit(pod));
                Ok(Plan::Memory(
                    bytes.and_then(|bytes| u64::try_from(bytes).ok()),
                ))
            }
            medium => Err(format!(
                "emptyDir medium {medium:?} is not supported by this node"
            )),
        };
    }
    if let Some(path) = &volume.host_path {
        let kind = path.type_.clone().unwrap_or_default();
        return Ok(Plan::HostPath(PathBuf::from(&path.path), kind));
    }
    if let Some(config) = &volume.config_map {
        let optional = config.optional.unwrap_or(false);
        let object = optionally(
            objects.config_map(source.namespace(), &config.name).await,
            optional,
        )?;
        let mode = config.default_mode.unwrap_or(DEFAULT_MODE);
        let files =
            payload::config_map(object.as_deref(), config.items.as_deref(), mode, optional)?;
        return Ok(Plan::Files(CONFIG_MAP, files));
    }
    if let Some(secret) = &volume.secret {
        let optional = secret.optional.unwrap_or(false);
        let name = secret.secret_name.as_deref().unwrap_or_default();
        let object = optionally(objects.secret(source.namespace(), name).await, optional)?;
        let mode = secret.default_mode.unwrap_or(DEFAULT_MODE);
        let files = payload::secret(object.as_deref(), secret.items.as_deref(), mode, optional)?;
        return Ok(Plan::Files(SECRET, files));
    }
    if let Some(downward) = &volume.downward_api {
        let mode = downward.default_mode.unwrap_or(DEFAULT_MODE);
        let files = payload::downward_api(pod, facts, downward.items.as_deref(), mode)?;
        return Ok(Plan::Files(DOWNWARD_API, files));
    }
    if let Some(projected) = &volume.projected {
        return Ok(Plan::Files(PROJECTED, source.projected(projected).await?));
    }
    Err(format!(
        "volumes of kind {} are not supported by this node",
        kind(volume)
    ))
}

/// A missing optional object is none.
fn optionally<T>(result: Result<T, ObjectError>, optional: bool) -> Result<Option<T>, String> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(ObjectError::NotFound { .. }) if optional => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The sum of the containers' memory limits, when all have one.
fn memory_limit(pod: &Pod) -> Option<i64> {
    let mut sum = 0i64;
    for container in &pod.spec.as_ref()?.containers {
        let limit = container
            .resources
            .as_ref()?
            .limits
            .as_ref()?
            .get("memory")?;
        sum = sum.saturating_add(Amount::try_from(limit).ok()?.to_units());
    }
    Some(sum).filter(|&sum| sum > 0)
}

/// The field of the volume that is set, as the API spells it.
fn kind(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten();
    let mut kinds = fields
        .map(|(name, _)| name.as_str())
        .filter(|name| *name != "name");
    kinds.next().unwrap_or("unknown").to_owned()
}

/// Where a volume's contents come from.
struct Source<'a> {
    pod: &'a Arc<Pod>,
    objects: &'a dyn Objects,
    facts: &'a NodeFacts,
}

impl Source<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// The sources of a projected volume, laid over one another.
    async fn projected(&self, volume: &ProjectedVolumeSource) -> Result<Files, String> {
        let mode = volume.default_mode.unwrap_or(DEFAULT_MODE);
        let sources = volume.sources.as_deref().unwrap_or_default();
        let fetched = sources.iter().map(|source| self.projection(source, mode));
        let (mut files, mut errors) = (Files::new(), Vec::new());
        for part in futures::future::join_all(fetched).await {
            match part {
                Ok(part) => files.extend(part),
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        match errors.as_slice() {
            [] => Ok(files),
            [error] => Err(error.clone()),
            errors => Err(format!("[{}]", errors.join(", "))),
        }
    }

    async fn projection(&self, source: &VolumeProjection, mode: i32) -> Result<Files, String> {
        if let Some(config) = &source.config_map {
            let optional = config.optional.unwrap_or(false);
            let object = self
                .objects
                .config_map(self.namespace(), &config.name)
                .await;
            let object = optionally(object, optional)?;
            return payload::config_map(object.as_deref(), config.items.as_deref(), mode, optional);
        }
        if let Some(secret) = &source.secret {
            let optional = secret.optional.unwrap_or(false);
            let object = self.objects.secret(self.namespace(), &secret.name).await;
            let object = optionally(object, optional)?;
            return payload::secret(object.as_deref(), secret.items.as_deref(), mode, optional);
        }
        if let Some(downward) = &source.downward_api {
            return payload::downward_api(self.pod, self.facts, downward.items.as_deref(), mode);
        }
        if let Some(token) = &source.service_account_token {
            let request = TokenRequest {
                pod: self.pod.clone(),
                audience: token.audience.clone().unwrap_or_default(),
                expiration_seconds: token.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECONDS),
            };
            let answer = self
                .objects
                .token(&request)
                .await
                .map_err(|error| error.to_string())?;
            return self.file_of_users(&token.path, answer.token.into_bytes(), mode);
        }
        if let Some(bundle) = &source.cluster_trust_bundle {
            let anchors = self.objects.trust_anchors(bundle).await;
            let anchors = anchors.map_err(|error| error.to_string())?;
            return self.file_of_users(&bundle.path, anchors, mode);
        }
        let value = serde_json::to_value(source).unwrap_or_default();
        let kind = value
            .as_object()
            .and_then(|map| map.keys().next().cloned())
            .unwrap_or_default();
        Err(format!(
            "projected sources of kind {kind} are not supported by this node"
        ))
    }

    /// A single file for the pod's users.
    fn file_of_users(&self, path: &str, data: Vec<u8>, mode: i32) -> Result<Files, String> {
        let mut files = Files::new();
        payload::add(&mut files, path, payload::of_users(self.pod, data, mode))?;
        Ok(files)
    }
}
