//! Routes that answer from memory: pods, health, configuration, a few metrics.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hanok_runtime::api::{Container, ContainerState, PodSandbox, SandboxState};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Container as SpecContainer, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Health;
use super::route::App;
use super::target::Refusal;

/// When this process began to serve.
static STARTED: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

/// The process serves from now on.
pub(super) fn mark_start() {
    LazyLock::force(&STARTED);
}

/// When this process began to serve.
pub(super) fn started() -> SystemTime {
    *STARTED
}

/// The node's pods with the newest status of each.
pub(super) async fn pods(State(app): State<App>) -> Json<List<Pod>> {
    let items = app
        .deps
        .pods
        .pods()
        .into_iter()
        .map(|entry| {
            let mut pod = Pod::clone(&entry.pod);
            pod.status = Some(entry.status);
            pod
        })
        .collect();
    Json(List {
        items,
        ..List::default()
    })
}

/// The pods that the runtime runs, as far as it knows them.
pub(super) async fn running_pods(State(app): State<App>) -> Result<Json<List<Pod>>, Refusal> {
    let (sandboxes, containers) = observe(&app).await?;
    let mut running: BTreeMap<String, Vec<SpecContainer>> = BTreeMap::new();
    for container in containers
        .iter()
        .filter(|one| one.state == ContainerState::Running)
    {
        running
            .entry(container.sandbox.to_string())
            .or_default()
            .push(SpecContainer {
                name: container.config.name.clone(),
                image: Some(container.config.image_reference.clone()),
                ..SpecContainer::default()
            });
    }
    let items = sandboxes
        .iter()
        .filter(|sandbox| sandbox.state == SandboxState::Ready)
        .map(|sandbox| Pod {
            metadata: ObjectMeta {
                name: Some(sandbox.config.name.clone()),
                namespace: Some(sandbox.config.namespace.clone()),
                uid: Some(sandbox.config.uid.to_string()),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: running.remove(sandbox.id.as_str()).unwrap_or_default(),
                ..PodSpec::default()
            }),
            status: None,
        })
        .collect();
    Ok(Json(List {
        items,
        ..List::default()
    }))
}

/// "ok", or what is wrong.
pub(super) async fn healthz(State(app): State<App>) -> Response {
    health_response(&app.deps.health)
}

/// The answer of a health check.
pub(super) fn health_response(health: &Health) -> Response {
    match health() {
        Ok(()) => "ok".into_response(),
        Err(message) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{message}\nhealthz check failed\n"),
        )
            .into_response(),
    }
}

/// The configuration in force.
pub(super) async fn configz(State(app): State<App>) -> Json<serde_json::Value> {
    Json(serde_json::json!({ "kubeletconfig": app.deps.configz }))
}

/// Counts in the Prometheus text format.
pub(super) async fn metrics(State(app): State<App>) -> Result<Response, Refusal> {
    let (sandboxes, containers) = observe(&app).await?;
    let text = render(&app.config.node_name, &sandboxes, &containers);
    Ok((
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response())
}

async fn observe(app: &App) -> Result<(Vec<PodSandbox>, Vec<Container>), Refusal> {
    let runtime = &app.deps.runtime;
    let both = futures::future::try_join(runtime.list_pod_sandboxes(), runtime.list_containers());
    both.await
        .map_err(|error| Refusal::internal(error.to_string()))
}

fn render(node: &str, sandboxes: &[PodSandbox], containers: &[Container]) -> String {
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let ready = sandboxes
        .iter()
        .filter(|one| one.state == SandboxState::Ready)
        .count();
    metric(
        "kubelet_running_pods",
        "gauge",
        "[ALPHA] Number of pods that have a running pod sandbox",
        &[(String::new(), count(ready))],
    );
    let states = [
        (ContainerState::Created, "created"),
        (ContainerState::Exited, "exited"),
        (ContainerState::Running, "running"),
        (ContainerState::Unknown, "unknown"),
    ]
    .map(|(state, label)| {
        let number = containers
            .iter()
            .filter(|container| container.state == state)
            .count();
        (format!("{{container_state=\"{label}\"}}"), count(number))
    });
    metric(
        "kubelet_running_containers",
        "gauge",
        "[ALPHA] Number of containers by state",
        &states,
    );
    metric(
        "kubelet_node_name",
        "gauge",
        "[ALPHA] The node's name. The count is always 1.",
        &[(format!("{{node=\"{}\"}}", escape(node)), 1.0)],
    );
    metric(
        "kubernetes_build_info",
        "gauge",
        "[ALPHA] Which version of the node agent this is",
        &[(
            format!("{{git_version=\"v{}\"}}", env!("CARGO_PKG_VERSION")),
            1.0,
        )],
    );
    let since = started().duration_since(UNIX_EPOCH).unwrap_or_default();
    metric(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        &[(String::new(), since.as_secs_f64())],
    );
    text
}

/// A count as Prometheus writes numbers.
fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

/// Escapes a label's value.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
