//! From manifest files to pods and the objects that they refer to. Strict: every complaint is one line that names
//! the file, the document, the field and what is wrong with it. Pure.

mod kinds;
#[cfg(test)]
mod tests;
mod typed;

use std::fmt;

use hanok_oci::complaint::clip;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplateSpec, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value};

use self::kinds::{PODS, misspelt, only};
pub(crate) use self::typed::quantities_to_text;
use self::typed::typed;
use super::check;
use crate::objects::manifest::ManifestObjects;

/// Most pods that one run takes on.
const MAX_PODS: usize = 250;

/// Longest message about one field, bytes.
const MAX_MESSAGE: usize = 400;

/// What the manifests ask for.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    /// Pods, with names and namespaces, in order.
    pub(super) pods: Vec<Pod>,
    /// What they refer to.
    pub(super) objects: ManifestObjects,
    /// `KIND NAME` of what has no meaning without a cluster.
    pub(super) ignored: Vec<String>,
}

/// What is wrong with a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// Path of the field; empty for the document as a whole.
    pub(super) field: String,
    /// What is wrong.
    pub(super) message: String,
}

impl Complaint {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        let mut message = message.into();
        // A value may be as long as the file.
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            message.push_str("...");
        }
        Self {
            field: field.into(),
            message,
        }
    }

    /// The same, of a field below another one.
    pub(super) fn below(self, parent: &str) -> Self {
        let field = match (parent.is_empty(), self.field.is_empty()) {
            (true, _) => self.field,
            (_, true) => parent.to_owned(),
            _ => format!("{parent}.{}", self.field),
        };
        Self { field, ..self }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&clip(&self.message)),
            field => write!(f, "{}: {}", clip(field), clip(&self.message)),
        }
    }
}

/// A manifest that cannot be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    /// It is no YAML.
    #[error("{file}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, column and cause.
        message: String,
    },
    /// One of its documents is wrong.
    #[error("{file}: document {document}: {complaint}")]
    Document {
        /// The file.
        file: String,
        /// Its number, from 1.
        document: usize,
        /// What is wrong.
        complaint: Complaint,
    },
    /// Nothing to run.
    #[error("{files}: no pod in it{}: kinds with pods are {}", only(.ignored), PODS.join(", "))]
    Empty {
        /// The file, or all of them.
        files: String,
        /// What was there instead.
        ignored: Vec<String>,
    },
}

impl Manifests {
    /// Adds the documents of one file.
    pub(super) fn add(&mut self, file: &str, text: &str) -> Result<(), ManifestError> {
        // As Kubernetes' own reader has it, `n` and `y` are text.
        let options = serde_saphyr::options! { strict_booleans: true };
        let documents = serde_saphyr::from_multiple_with_options::<Value>(text, options);
        let documents = documents.map_err(|error| ManifestError::Syntax {
            file: file.to_owned(),
            message: one_line(&error.without_snippet().to_string()),
        })?;
        for (index, document) in documents.into_iter().enumerate() {
            if document.is_null() {
                continue;
            }
            self.document(document)
                .map_err(|complaint| ManifestError::Document {
                    file: file.to_owned(),
                    document: index + 1,
                    complaint,
                })?;
        }
        Ok(())
    }

    /// Adds one object.
    fn document(&mut self, mut value: Value) -> Result<(), Complaint> {
        let Value::Object(map) = &mut value else {
            return Err(Complaint::new(
                "",
                "is no object: a mapping with apiVersion and kind is expected",
            ));
        };
        let text = |map: &Map<String, Value>, key: &str| {
            map.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (kind, version) = (text(map, "kind"), text(map, "apiVersion"));
        if kind.is_empty() || version.is_empty() {
            let missing = if kind.is_empty() {
                "kind"
            } else {
                "apiVersion"
            };
            return Err(Complaint::new(missing, "is missing"));
        }
        map.remove("status");
        quantities_to_text(&mut value);
        match (version.as_str(), kind.as_str()) {
            ("v1", "List") => self.list(value),
            ("v1", "Pod") => {
                let pod: Pod = typed(value)?;
                self.pod(pod, "")
            }
            ("apps/v1", "Deployment") => {
                let object: Deployment = typed(value)?;
                let spec = object.spec;
                self.template(&object.metadata, Some(spec.template), spec.replicas)
            }
            ("apps/v1", "ReplicaSet") => {
                let object: ReplicaSet = typed(value)?;
                let spec = object.spec;
                self.template(&object.metadata, spec.template, spec.replicas)
            }
            ("apps/v1", "StatefulSet") => {
                let object: StatefulSet = typed(value)?;
                let spec = object.spec;
                self.template(&object.metadata, Some(spec.template), spec.replicas)
            }
            ("apps/v1", "DaemonSet") => {
                let object: DaemonSet = typed(value)?;
                let spec = object.spec;
                self.template(&object.metadata, Some(spec.template), None)
            }
            ("batch/v1", "Job") => {
                let object: Job = typed(value)?;
                let spec = object.spec.unwrap_or_default();
                self.template(&object.metadata, Some(spec.template), spec.parallelism)
            }
            ("v1", "ConfigMap") => {
                typed::<ConfigMap>(value).map(|it| self.objects.add_config_map(it))
            }
            ("v1", "Secret") => typed::<Secret>(value).map(|it| self.objects.add_secret(it)),
            ("v1", "Service") => typed::<Service>(value).map(|it| self.objects.add_service(it)),
            _ => {
                misspelt(&version, &kind)?;
                let name = value.pointer("/metadata/name").and_then(Value::as_str);
                let shown = format!("{kind} {}", name.unwrap_or_default());
                self.ignored.push(shown.trim_end().to_owned());
                Ok(())
            }
        }
    }

    /// The same, if there is anything to run in them.
    pub(super) fn complete(self, files: &[String]) -> Result<Self, ManifestError> {
        if self.pods.is_empty() {
            return Err(ManifestError::Empty {
                files: files.join(", "),
                ignored: self.ignored,
            });
        }
        Ok(self)
    }

    /// Adds the items of a List.
    fn list(&mut self, mut value: Value) -> Result<(), Complaint> {
        let Some(Value::Array(items)) = value.get_mut("items").map(Value::take) else {
            return Err(Complaint::new("items", "is missing, or no list"));
        };
        for (index, item) in items.into_iter().enumerate() {
            self.document(item)
                .map_err(|complaint| complaint.below(&format!("items[{index}]")))?;
        }
        Ok(())
    }

    /// Adds the pods of a workload.
    fn template(
        &mut self,
        owner: &ObjectMeta,
        template: Option<PodTemplateSpec>,
        replicas: Option<i32>,
    ) -> Result<(), Complaint> {
        let template = template.unwrap_or_default();
        let name = owner.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Err(Complaint::new("metadata.name", "is missing"));
        }
        let replicas = usize::try_from(replicas.unwrap_or(1)).unwrap_or(0);
        if self.pods.len() + replicas > MAX_PODS {
            let message = format!("{replicas}: a run takes on {MAX_PODS} pods at most");
            return Err(Complaint::new("spec.replicas", message));
        }
        for index in 0..replicas {
            let mut metadata = template.metadata.clone().unwrap_or_default();
            metadata.name = Some(format!("{name}-{index}"));
            metadata.namespace.clone_from(&owner.namespace);
            let pod = Pod {
                metadata,
                spec: template.spec.clone(),
                status: None,
            };
            self.pod(pod, "spec.template")?;
        }
        Ok(())
    }

    /// Adds one pod.
    fn pod(&mut self, mut pod: Pod, prefix: &str) -> Result<(), Complaint> {
        check::pod(&pod).map_err(|complaint| complaint.below(prefix))?;
        pod.metadata
            .namespace
            .get_or_insert_with(|| "default".to_owned());
        let id = |pod: &Pod| (pod.metadata.namespace.clone(), pod.metadata.name.clone());
        if self.pods.iter().any(|other| id(other) == id(&pod)) {
            let name = pod.metadata.name.unwrap_or_default();
            return Err(Complaint::new(
                "metadata.name",
                format!("{name:?} is the name of another pod, too"),
            ));
        }
        self.pods.push(pod);
        Ok(())
    }
}

/// Messages of parsers may have several lines.
pub(crate) fn one_line(message: &str) -> String {
    clip(&message.split_whitespace().collect::<Vec<_>>().join(" "))
}
