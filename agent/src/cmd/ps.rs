//! `hanok ps`: pods and containers on this machine, straight from the records and the shims.

use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Context;
use hanok_runtime::api::{Container, ContainerState, PodSandbox, PodView, SandboxState};
use hanok_runtime::inspect::inspect;
use serde::Serialize;

use super::table::{self, Format};

/// Options of `hanok ps`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Also what does not run any more
    #[arg(short, long)]
    all: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Directory of the runtime's records
    #[arg(long, value_name = "DIR", default_value = "/run/hanok")]
    run_dir: PathBuf,
}

/// Runs the command.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let view = inspect(&options.run_dir)
        .await
        .with_context(|| format!("cannot read {}", options.run_dir.display()))?;
    let view = if options.all { view } else { running(view) };
    let text = match options.output {
        Format::Table => table::table(&HEADING, &rows(&view, SystemTime::now())),
        Format::Json => serde_json::to_string_pretty(&pods(&view))? + "\n",
    };
    table::print(&text)?;
    Ok(())
}

const HEADING: [&str; 8] = [
    "NAMESPACE",
    "POD",
    "CONTAINER",
    "STATE",
    "RESTARTS",
    "AGE",
    "IP",
    "ID",
];

/// Leaves what is there to be used: ready sandboxes, and containers that run or are about to.
fn running(mut view: PodView) -> PodView {
    view.sandboxes
        .retain(|sandbox| sandbox.state == SandboxState::Ready);
    view.containers.retain(|container| {
        matches!(
            container.state,
            ContainerState::Running | ContainerState::Created
        )
    });
    view
}

/// One row for each container; one for a sandbox without any.
fn rows(view: &PodView, now: SystemTime) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for sandbox in &view.sandboxes {
        let pod = |container: &str, state: &str, restarts: String, since, id: &str| {
            vec![
                sandbox.config.namespace.clone(),
                sandbox.config.name.clone(),
                container.to_owned(),
                state.to_owned(),
                restarts,
                table::age(since, now),
                sandbox
                    .ips
                    .first()
                    .cloned()
                    .unwrap_or_else(|| "-".to_owned()),
                table::short(id).to_owned(),
            ]
        };
        let before = rows.len();
        for container in containers_of(view, sandbox) {
            rows.push(pod(
                &container.config.name,
                &state(container),
                container.config.attempt.to_string(),
                container.started_at.unwrap_or(container.created_at),
                container.id.as_str(),
            ));
        }
        if rows.len() == before {
            let state = sandbox_state(sandbox);
            rows.push(pod(
                "-",
                state,
                "-".to_owned(),
                sandbox.created_at,
                sandbox.id.as_str(),
            ));
        }
    }
    rows
}

fn containers_of<'a>(
    view: &'a PodView,
    sandbox: &'a PodSandbox,
) -> impl Iterator<Item = &'a Container> {
    view.containers
        .iter()
        .filter(|container| container.sandbox == sandbox.id)
}

fn state(container: &Container) -> String {
    match container.state {
        ContainerState::Exited => format!("{} ({})", container.reason, container.exit_code),
        state => format!("{state:?}"),
    }
}

fn sandbox_state(sandbox: &PodSandbox) -> &'static str {
    match sandbox.state {
        SandboxState::Ready => "Ready",
        SandboxState::NotReady => "NotReady",
    }
}

/// A pod in the JSON form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodRow<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    sandbox_id: &'a str,
    state: &'static str,
    ips: &'a [String],
    pid: i32,
    created_at: String,
    containers: Vec<ContainerRow<'a>>,
}

/// A container in the JSON form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerRow<'a> {
    name: &'a str,
    id: &'a str,
    image: &'a str,
    image_ref: &'a str,
    state: String,
    reason: &'a str,
    exit_code: Option<i32>,
    attempt: u32,
    pid: i32,
    started_at: Option<String>,
    finished_at: Option<String>,
    log_path: String,
}

fn pods(view: &PodView) -> Vec<PodRow<'_>> {
    view.sandboxes
        .iter()
        .map(|sandbox| PodRow {
            namespace: &sandbox.config.namespace,
            name: &sandbox.config.name,
            uid: sandbox.config.uid.as_str(),
            sandbox_id: sandbox.id.as_str(),
            state: sandbox_state(sandbox),
            ips: &sandbox.ips,
            pid: sandbox.pid,
            created_at: timestamp(sandbox.created_at),
            containers: containers_of(view, sandbox).map(container_row).collect(),
        })
        .collect()
}

fn container_row(container: &Container) -> ContainerRow<'_> {
    let ended = container.state == ContainerState::Exited;
    ContainerRow {
        name: &container.config.name,
        id: container.id.as_str(),
        image: &container.config.image_reference,
        image_ref: &container.image_ref,
        state: format!("{:?}", container.state),
        reason: &container.reason,
        exit_code: ended.then_some(container.exit_code),
        attempt: container.config.attempt,
        pid: container.pid,
        started_at: container.started_at.map(timestamp),
        finished_at: container.finished_at.map(timestamp),
        log_path: container.log_path.display().to_string(),
    }
}

fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| String::new(), |time| time.to_string())
}
