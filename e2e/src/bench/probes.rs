//! What a node spends on probes: its own processes, without the programs that exec probes run.

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::json;

use super::Options;
use super::lifecycle::Bench;
use super::report::Report;
use super::subject::Subject;
use super::usage;
use crate::manifest::{pod, testapp};

/// Makes the pods without probes and then with them, and takes the difference of what the node spends.
///
/// # Errors
/// When a pod does not become ready or does not go.
pub(super) async fn measure(
    client: &Client,
    registry: &str,
    subjects: &[Subject],
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let mut bench = Bench::new(client, registry).await?;
    let idle = Duration::from_secs(options.idle);
    for subject in subjects {
        bench.warm_up(subject).await?;
        for probed in [false, true] {
            let pods = (0..options.burst)
                .map(|number| manifest(registry, subject, number, probed))
                .collect::<Result<Vec<_>>>()?;
            let mut aside = Report::default();
            let names = bench.create_pods(subject, &mut aside, &pods).await?;
            let name = if probed { "probes" } else { "no_probes" };
            usage::spent(subject, report, name, idle).await;
            bench.delete_burst(subject, &mut aside, names).await?;
        }
    }
    Ok(())
}

/// A pod that is asked by HTTP, by TCP and by exec, each every second; or the same without questions.
fn manifest(registry: &str, subject: &Subject, number: usize, probed: bool) -> Result<Pod> {
    let every_second =
        |action: &str, what: serde_json::Value| json!({action: what, "periodSeconds": 1});
    let mut server = testapp("main", "serve 8080");
    let mut other = testapp("other", "sleep");
    if probed {
        let path = json!({"port": 8080, "path": "/"});
        server = server
            .set("livenessProbe", every_second("httpGet", path))
            .set(
                "readinessProbe",
                every_second("tcpSocket", json!({"port": 8080})),
            );
        let command = json!({"command": ["/testapp", "print", "yes"]});
        other = other.set("livenessProbe", every_second("exec", command));
    }
    let name = format!(
        "{}-{number}-{}",
        subject.name(),
        if probed { "probed" } else { "plain" }
    );
    let manifest = pod(&name)
        .set("nodeName", subject.node())
        .set("tolerations", json!([{ "operator": "Exists" }]))
        .with(server)
        .with(other);
    let text = manifest
        .manifest()
        .to_string()
        .replace("REGISTRY", registry);
    serde_json::from_str(&text).context("the bench's own manifest")
}
