//! Taints, and pods that a node does not take.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Space;
use crate::manifest::Pod;

/// A tainted node; it is no longer when this is dropped, however the story ends.
#[derive(Debug)]
pub struct Tainted<'a> {
    space: &'a Space<'a>,
    node: String,
    taint: String,
    /// When the taint was there.
    pub since: Instant,
}

impl Drop for Tainted<'_> {
    fn drop(&mut self) {
        let Self { node, taint, .. } = self;
        let _ = self.space.kubectl(&format!("taint node {node} {taint}-"));
    }
}

impl Space<'_> {
    /// Taints a node with `KEY=VALUE:EFFECT`.
    ///
    /// # Errors
    /// When kubectl fails.
    pub fn taint(&self, node: &str, taint: &str) -> Result<Tainted<'_>> {
        self.kubectl(&format!("taint node {node} {taint}"))?;
        Ok(Tainted {
            space: self,
            node: node.to_owned(),
            taint: taint.to_owned(),
            since: Instant::now(),
        })
    }

    /// Makes a pod that its node does not run. Whoever evicts deletes it at once, mostly before it can be refused: a
    /// finalizer keeps it.
    ///
    /// # Errors
    /// When it is not refused within 30 s, or a container of it was made.
    pub fn until_refused(&self, pod: &Pod) -> Result<()> {
        let mut manifest = pod.manifest();
        let name = manifest["metadata"]["name"].as_str().context("a name")?;
        let name = name.to_owned();
        manifest["metadata"]["finalizers"] = json!(["hanok.test/kept"]);
        self.apply(&manifest)?;
        let failed = self.until_phase(&name, "Failed");
        let events = self.events(&name);
        self.kubectl(&format!(
            "patch pod {name} --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}"
        ))?;
        let status = failed?.status.context("a status")?;
        let mut containers = status.container_statuses.iter().flatten();
        let made = containers.any(|container| container.container_id.is_some());
        ensure!(!made, "{status:?}");
        let events = events?;
        let made = events.iter().any(|event| event.starts_with("Created"));
        ensure!(!made, "{events:#?}");
        Ok(())
    }
}
