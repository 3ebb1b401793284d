//! Pods that make a node say something.

mod admission;
mod changes;
mod configuration;
mod ends;
mod files;
mod hooks;
mod images;
mod names;
mod probes;
mod restarts;
mod static_pods;
mod storage;
mod volumes;

use serde_json::{Value, json};

use super::case::Case;
use crate::manifest::{Container, Pod, pod, shell, testapp};

/// Every case.
pub(super) fn all() -> Vec<Case> {
    let groups = [
        ends::cases(),
        restarts::cases(),
        images::cases(),
        configuration::cases(),
        files::cases(),
        names::cases(),
        volumes::cases(),
        probes::cases(),
        hooks::cases(),
        admission::cases(),
        changes::cases(),
        static_pods::cases(),
        storage::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// What pods refer to.
pub(super) fn objects() -> Vec<Value> {
    let meta = json!({"name": "here"});
    vec![
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"key": "value"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"key": "value"}}),
        json!({
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "golden-nowhere"},
            "handler": "nowhere",
        }),
    ]
}

/// Pods that have run when the cases begin: their images are there.
pub(super) fn images() -> [Pod; 4] {
    [
        pod("image-busybox")
            .restart("Never")
            .with(shell("c", "exit 0")),
        pod("image-nonroot")
            .restart("Never")
            .with(shell("c", "exit 0").image("nonroot:1")),
        pod("image-named")
            .restart("Never")
            .with(shell("c", "exit 0").image("named:1")),
        pod("image-testapp")
            .restart("Never")
            .with(testapp("c", "print")),
    ]
}

/// A container that does nothing, and does not hear TERM.
fn sleeper(name: &str) -> Container {
    shell(name, "sleep 600")
}

/// A pod whose containers are not started again.
fn once(name: &str) -> Pod {
    pod(name).restart("Never")
}
