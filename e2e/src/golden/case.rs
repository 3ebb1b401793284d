//! What a case is: a pod, what is done with it, and the lines by which it has said what it has to say.

use serde_json::{Value, json};

use crate::manifest;

/// One pod.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) manifest: Value,
    /// Whether the node has it from a file, and the cluster only its mirror.
    pub(super) is_static: bool,
    /// The case and the beginning of the line of its that this one waits for.
    pub(super) after: Option<(&'static str, &'static str)>,
    /// Each is the beginning of a line that has to come before the pod is acted on.
    pub(super) first: &'static [&'static str],
    pub(super) act: Option<Act>,
    /// Each is the beginning of a line that has to come before its words are taken.
    pub(super) until: &'static [&'static str],
}

/// What is done with a pod.
#[derive(Debug)]
pub(super) enum Act {
    /// It is deleted; a finalizer keeps its last words.
    Delete,
    /// A subresource of it is patched; "" is the pod itself.
    Patch(&'static str, Value),
}

/// What keeps a deleted pod readable.
const FINALIZER: &str = "golden.hanok.example/read";

/// A pod whose words are taken when lines with these beginnings are there.
pub(super) fn case(pod: &manifest::Pod, until: &'static [&'static str]) -> Case {
    let manifest = pod.manifest();
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    Case {
        name: name.to_owned(),
        manifest,
        is_static: false,
        after: None,
        first: &[],
        act: None,
        until,
    }
}

impl Case {
    /// Is deleted when lines with these beginnings are there.
    pub(super) fn deleted(mut self, first: &'static [&'static str]) -> Self {
        self.manifest["metadata"]["finalizers"] = json!([FINALIZER]);
        self.first = first;
        self.act = Some(Act::Delete);
        self
    }

    /// A subresource of it is patched when lines with these beginnings are there.
    pub(super) fn patched(
        mut self,
        first: &'static [&'static str],
        subresource: &'static str,
        patch: Value,
    ) -> Self {
        self.first = first;
        self.act = Some(Act::Patch(subresource, patch));
        self
    }

    /// Is made only when another case has such a line.
    pub(super) fn after(mut self, case: &'static str, line: &'static str) -> Self {
        self.after = Some((case, line));
        self
    }

    /// Is a static pod.
    pub(super) fn made_static(mut self) -> Self {
        self.is_static = true;
        self
    }

    /// Sets a field of the metadata.
    pub(super) fn metadata(mut self, field: &str, value: Value) -> Self {
        self.manifest["metadata"][field] = value;
        self
    }

    /// The pod's name in the cluster.
    pub(super) fn pod(&self, node: &str) -> String {
        match self.is_static {
            true => format!("{}-{node}", self.name),
            false => self.name.clone(),
        }
    }

    /// The manifest for a node.
    pub(super) fn on(&self, node: &str) -> Value {
        let mut manifest = self.manifest.clone();
        manifest["spec"]["nodeName"] = node.into();
        manifest
    }
}
