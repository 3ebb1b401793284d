//! From manifest files to pods and the objects that they refer to. Strict: every complaint is one line that names
//! the file, the document, the field and what is wrong with it. Pure.

use std::fmt;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodTemplateSpec, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::check;
use crate::objects::manifest::ManifestObjects;

/// Most pods that one run takes on.
const MAX_PODS: usize = 250;

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
pub(super) struct Complaint {
    /// Path of the field; empty for the document as a whole.
    pub(super) field: String,
    /// What is wrong.
    pub(super) message: String,
}

impl Complaint {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
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
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
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
    #[error("{file}: no pod in it")]
    Empty {
        /// The file, or all of them.
        file: String,
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
                let name = value.pointer("/metadata/name").and_then(Value::as_str);
                self.ignored
                    .push(format!("{kind} {}", name.unwrap_or_default()));
                Ok(())
            }
        }
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

/// The typed form of an object; refuses fields that it does not have.
fn typed<T: DeserializeOwned + Serialize>(value: Value) -> Result<T, Complaint> {
    let object: T = serde_path_to_error::deserialize(&value).map_err(|error| {
        let field = error.path().to_string();
        let given = at(&value, &field)
            .map(|given| format!("{given}: "))
            .unwrap_or_default();
        let field = if field == "." { String::new() } else { field };
        Complaint::new(
            field,
            format!("{given}{}", one_line(&error.into_inner().to_string())),
        )
    })?;
    let known = serde_json::to_value(&object).unwrap_or_default();
    match unknown_field(&value, &known) {
        Some(field) => Err(Complaint::new(field, "unknown field")),
        None => Ok(object),
    }
}

/// The short value at a path as `serde_path_to_error` writes it.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let pointer = path.replace('[', ".").replace(']', "").replace('.', "/");
    value
        .pointer(&format!("/{pointer}"))
        .filter(|found| !found.is_object() && !found.is_array())
}

/// The path of a field that was given and is not known: it is gone when the object is written again.
fn unknown_field(given: &Value, known: &Value) -> Option<String> {
    let join = |name: String, rest: String| match rest.as_str() {
        "" => name,
        _ if rest.starts_with('[') => format!("{name}{rest}"),
        _ => format!("{name}.{rest}"),
    };
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            let mut fields = given.iter().filter(|(_, value)| !value.is_null());
            fields.find_map(|(name, value)| match known.get(name) {
                None => Some(name.clone()),
                Some(known) => unknown_field(value, known).map(|rest| join(name.clone(), rest)),
            })
        }
        (Value::Array(given), Value::Array(known)) => {
            let mut items = given.iter().zip(known).enumerate();
            items.find_map(|(index, (given, known))| {
                unknown_field(given, known).map(|rest| join(format!("[{index}]"), rest))
            })
        }
        _ => None,
    }
}

/// Quantities may be written as numbers; the API's type is text.
fn quantities_to_text(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(quantities_to_text),
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), &mut *value) {
                    ("limits" | "requests" | "overhead", Value::Object(quantities)) => {
                        quantities.values_mut().for_each(number_to_text);
                    }
                    ("sizeLimit" | "divisor", value) => number_to_text(value),
                    (_, value) => quantities_to_text(value),
                }
            }
        }
        _ => {}
    }
}

fn number_to_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}

/// Messages of parsers may have several lines.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Manifests, String> {
        let mut manifests = Manifests::default();
        manifests
            .add("m.yaml", text)
            .map_err(|error| error.to_string())?;
        Ok(manifests)
    }

    fn names(manifests: &Manifests) -> Vec<String> {
        manifests
            .pods
            .iter()
            .filter_map(|pod| pod.metadata.name.clone())
            .collect()
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: c\n    image: i:1\n";

    #[test]
    fn pods_workloads_and_lists_become_pods() {
        let template = "template: {spec: {containers: [{name: c, image: 'i:1'}]}}";
        let text = format!(
            "{POD}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\n\
             spec: {{replicas: 2, selector: {{}}, {template}}}\n---\n# nothing\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: batch/v1, kind: Job, metadata: {{name: j, \
             namespace: n}}, spec: {{{template}}}}}\n- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}}}\n\
             - {{apiVersion: v1, kind: Namespace, metadata: {{name: n}}}}\n"
        );
        let manifests = read(&text).expect("manifests");
        assert_eq!(names(&manifests), ["web", "d-0", "d-1", "j-0"]);
        assert_eq!(manifests.pods[3].metadata.namespace.as_deref(), Some("n"));
        assert_eq!(manifests.ignored, ["Namespace n"]);
    }

    #[test]
    fn numbers_are_quantities_too() {
        let text = format!(
            "{POD}    resources: {{limits: {{cpu: 1, memory: 64Mi}}, requests: {{cpu: 0.5}}}}\n"
        );
        let manifests = read(&text).expect("a manifest");
        let resources = manifests.pods[0]
            .spec
            .as_ref()
            .and_then(|spec| spec.containers[0].resources.as_ref());
        let limits = resources
            .and_then(|resources| resources.limits.as_ref())
            .expect("limits");
        assert_eq!(limits["cpu"].0, "1");
    }

    #[test]
    fn a_complaint_names_file_document_and_field_in_one_line() {
        let second = |text: &str| format!("{POD}---\n{text}");
        let pod = |spec: &str| {
            second(&format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec: {spec}\n"
            ))
        };
        let table = [
            ("a: [".to_owned(), "m.yaml: "),
            (second("3"), "document 2: is no object"),
            (second("kind: Pod"), "document 2: apiVersion: is missing"),
            (
                pod("{containers: [{name: c, image: i, imagePullPolcy: Always}]}"),
                "document 2: spec.containers[0].imagePullPolcy: unknown field",
            ),
            (
                pod("{containers: [{name: c, image: i, ports: [{containerPort: http}]}]}"),
                "document 2: spec.containers[0].ports[0].containerPort: \"http\": invalid type",
            ),
            (pod("{}"), "document 2: spec"),
            (
                pod("{containers: []}"),
                "document 2: spec.containers: is empty",
            ),
            (
                second(POD),
                "document 2: metadata.name: \"web\" is the name of another pod, too",
            ),
            (
                second(
                    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {}, replicas: 9000, template: {}}",
                ),
                "document 2: spec.replicas: 9000: a run takes on 250 pods at most",
            ),
            (
                second(
                    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {}, template: {spec: {containers: [{name: c}]}}}",
                ),
                "document 2: spec.template.spec.containers[0].image: is missing",
            ),
            (
                second(
                    "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: 'A:B:C'}]}}]}",
                ),
                "document 2: items[0].spec.containers[0].image: \"A:B:C\": ",
            ),
        ];
        for (text, want) in table {
            let message = read(&text)
                .map(|manifests| names(&manifests))
                .expect_err(&text);
            assert!(
                message.starts_with("m.yaml: ") && message.contains(want),
                "{message}\n{text}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
