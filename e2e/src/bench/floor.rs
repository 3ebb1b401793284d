//! The API server's own share: create → watch → status patch → watch, by a node that starts nothing.

use std::time::Instant;

use anyhow::{Context, Result};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use serde_json::json;

use super::lifecycle::millis;
use super::report::Report;
use super::watch::PodWatch;
use crate::cluster::name;
use crate::manifest::{pod, testapp};

const NAMESPACE: &str = "floor";

/// Measures it.
///
/// # Errors
/// When the API server does not answer.
pub(super) async fn measure(client: &Client, report: &mut Report, count: usize) -> Result<()> {
    super::namespace(client, NAMESPACE).await?;
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let mut watch = PodWatch::start(client, NAMESPACE).await?;
    // Pods are told from here on.
    let list = pods.list(&ListParams::default()).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let node = tokio::spawn(pretend(pods.clone(), version));
    let mut times = Vec::new();
    for n in 0..count {
        let manifest = pod(&format!("p{n}"))
            .bound_to("none")
            .with(testapp("main", "serve"));
        let pod: Pod =
            serde_json::from_value(manifest.manifest()).context("the bench's own manifest")?;
        let began = Instant::now();
        pods.create(&PostParams::default(), &pod).await?;
        let ready = watch.ready(name(&pod)).await?;
        times.push(millis(ready - began));
        pods.delete(name(&pod), &DeleteParams::default().grace_period(0))
            .await?;
        watch.gone(name(&pod)).await?;
    }
    node.abort();
    report.add_times("api", "floor_create_to_ready", times);
    Ok(())
}

/// Says of every new pod that it is ready.
async fn pretend(pods: Api<Pod>, version: String) -> Result<()> {
    let stream = pods.watch(&WatchParams::default(), &version).await?;
    let mut stream = std::pin::pin!(stream);
    let status = json!({ "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
    while let Some(event) = stream.next().await {
        if let WatchEvent::Added(pod) = event? {
            let patch = Patch::Strategic(&status);
            pods.patch_status(name(&pod), &PatchParams::default(), &patch)
                .await?;
        }
    }
    Ok(())
}
