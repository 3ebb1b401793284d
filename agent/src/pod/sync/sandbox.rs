//! Makes a pod's sandbox, after what is left of the one before has been retired.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hanok_runtime::api::{self, ContainerState, SandboxId, UserNamespace};
use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::stop;
use crate::pod::files::{self, dns};
use crate::pod::settings::Deps;
use crate::pod::{config, resources, spec};
use crate::sinks::EventKind;
use hanok_runtime::service::chain;

/// A sandbox to make.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    pub(in crate::pod) attempt: u32,
    /// Sandboxes to retire.
    pub(in crate::pod) old: Vec<SandboxId>,
    /// Containers in them that run.
    pub(in crate::pod) alive: Vec<api::Container>,
    /// The time that these get.
    pub(in crate::pod) grace: Duration,
    /// The pod is not to run any more.
    pub(in crate::pod) cancelled: CancellationToken,
}

/// Makes it, unless the pod is ended meanwhile. The error is what the user reads, as its event says it.
pub(in crate::pod) async fn run(job: Job) -> Result<(), String> {
    let pod = &*job.pod;
    retire(&job).await.inspect_err(|message| {
        job.deps
            .pod_event(pod, EventKind::Warning, "FailedKillPod", message);
    })?;
    if job.cancelled.is_cancelled() {
        return Ok(());
    }
    let Err(cause) = create(&job).await else {
        return Ok(());
    };
    if job.cancelled.is_cancelled() {
        // Perhaps because of that, and nobody waits for it any more.
        return Ok(());
    }
    let (reason, message) = match unready_network(&job).await {
        Some(why) => {
            // It need not be due to the network, and no event tells of it.
            warn!(cause, "cannot create the pod's sandbox");
            ("NetworkNotReady", why)
        }
        None => {
            let message = format!("Failed to create pod sandbox: {cause}");
            ("FailedCreatePodSandBox", message)
        }
    };
    job.deps
        .pod_event(pod, EventKind::Warning, reason, &message);
    Err(message)
}

/// Why no pod could have a network, if that is so, as users know it. A pod on the node's network needs none.
async fn unready_network(job: &Job) -> Option<String> {
    if spec::host_network(&job.pod) {
        return None;
    }
    let why = job.deps.runtime.network_ready().await.err()?;
    Some(format!("network is not ready: {}", network_not_ready(&why)))
}

/// The text that people search for when a node has no network.
pub(crate) fn network_not_ready(why: &str) -> String {
    format!(
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:{why}"
    )
}

/// Stops containers and then their sandboxes. Records stay: they say how containers ended.
async fn retire(job: &Job) -> Result<(), String> {
    let stops = job.alive.iter().map(|record| {
        let name = &record.config.name;
        let container = spec::find_container(&job.pod, name);
        // Of one that may have ended long ago, nothing is said.
        let runs = record.state == ContainerState::Running;
        stop::Job {
            deps: job.deps.clone(),
            pod: job.pod.clone(),
            container: container.map(|(_, container)| container),
            id: record.id.clone(),
            name: name.clone(),
            pod_ip: String::new(),
            grace: job.grace,
            message: runs.then(|| format!("Stopping container {name}")),
            turn: None,
        }
    });
    // What could not be stopped is killed with its sandbox.
    stop::stop_all(stops.collect()).await;
    for result in join_all(
        job.old
            .iter()
            .map(|id| job.deps.runtime.stop_pod_sandbox(id)),
    )
    .await
    {
        result.map_err(|error| format!("error killing pod: {}", chain(&error)))?;
    }
    Ok(())
}

/// Resolves the handler, makes the pod's cgroup, then the sandbox.
async fn create(job: &Job) -> Result<(), String> {
    let (deps, pod) = (&job.deps, &*job.pod);
    let class = spec::spec(pod).and_then(|spec| spec.runtime_class_name.as_deref());
    let handler = match class.filter(|class| !class.is_empty()) {
        Some(class) => deps.classes.handler(class).await?,
        None => String::new(),
    };
    let users = users(job, &handler).await?;
    let sandbox = config::sandbox(pod, job.attempt, handler, users, &deps.settings)?;
    for (reason, message) in dns::resolv_conf(pod, &deps.settings.dns).1 {
        deps.pod_event(pod, EventKind::Warning, reason, &message);
    }
    let limits = resources::pod_resources(pod, deps.settings.pod_pids_limit);
    let path = sandbox.cgroup_parent.clone();
    // The cgroup's limits and the network take their time side by side.
    let (limited, made) = tokio::join!(
        deps.runtime.update_cgroup(&path, &limits),
        deps.runtime
            .run_pod_sandbox_until(sandbox, job.cancelled.clone())
    );
    let made = made.map_err(|error| chain(&error))?;
    if let Err(error) = limited {
        if let Err(error) = deps.runtime.remove_pod_sandbox(&made.id).await {
            warn!(
                error = chain(&error),
                "cannot remove the sandbox of a pod without limits"
            );
        }
        return Err(format!("cannot make the pod's cgroup: {}", chain(&error)));
    }
    Ok(())
}

/// The pod's range of users and groups; none for a pod that has the node's.
async fn users(job: &Job, handler: &str) -> Result<Option<UserNamespace>, String> {
    let (deps, pod) = (&job.deps, &job.pod);
    if spec::spec(pod).and_then(|spec| spec.host_users) != Some(false) {
        return Ok(None);
    }
    if let Err(why) = deps.runtime.user_namespaces().await {
        let who = match handler {
            "" => "runtime".to_owned(),
            handler => format!("RuntimeClass handler {handler:?}"),
        };
        return Err(format!(
            "can't set `spec.hostUsers: false`, {who} does not support user namespaces: {why}"
        ));
    }
    let sandboxes = deps.runtime.list_pod_sandboxes().await;
    let sandboxes = sandboxes.map_err(|error| chain(&error))?;
    let running: Vec<_> = sandboxes
        .into_iter()
        .filter_map(|sandbox| sandbox.config.user_namespace)
        .collect();
    let (ranges, uid) = (deps.settings.users.clone(), spec::uid(pod));
    files::off_the_loop(move || ranges.of_pod(&uid, &running).map_err(|error| chain(&error)))
        .await
        .unwrap_or_else(|| Err("choosing the pod's users failed".to_owned()))
        .map(Some)
}
