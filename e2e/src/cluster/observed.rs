//! What the API says about a pod, in the words of stories.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// A pod's phase.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|s| s.phase.as_deref())
        .unwrap_or_default()
}

/// Whether the pod's Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready") == "True"
}

/// The status of a condition, "" when the pod has none of this type.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> &'a str {
    let conditions = pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == kind)
        .map(|c| c.status.as_str())
        .next()
        .unwrap_or_default()
}

/// The pod's address.
pub fn ip(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|s| s.pod_ip.as_deref())
        .unwrap_or_default()
}

/// A pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The status of a container of any kind by name.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .find(|c| c.name == name)
}

/// How often a container was restarted.
pub fn restarts(pod: &Pod, name: &str) -> i32 {
    container(pod, name).map_or(-1, |c| c.restart_count)
}

/// Id of a container, to tell whether it is still the same.
pub fn container_id<'a>(pod: &'a Pod, name: &str) -> &'a str {
    container(pod, name)
        .and_then(|c| c.container_id.as_deref())
        .unwrap_or_default()
}

/// The reason that a container waits for, "" when it does not wait.
pub fn waiting<'a>(pod: &'a Pod, name: &str) -> &'a str {
    let state = container(pod, name).and_then(|c| c.state.as_ref());
    state
        .and_then(|s| s.waiting.as_ref())
        .and_then(|w| w.reason.as_deref())
        .unwrap_or_default()
}

/// Exit code and reason of a container's end: of its present state, or of the last one when it runs again.
pub fn ended<'a>(pod: &'a Pod, name: &str) -> Option<(i32, &'a str)> {
    let status = container(pod, name)?;
    let now = status.state.as_ref().and_then(|s| s.terminated.as_ref());
    let last = status
        .last_state
        .as_ref()
        .and_then(|s| s.terminated.as_ref());
    let terminated = now.or(last)?;
    Some((
        terminated.exit_code,
        terminated.reason.as_deref().unwrap_or_default(),
    ))
}

/// Whether a container runs.
pub fn is_running(pod: &Pod, name: &str) -> bool {
    let state = container(pod, name).and_then(|c| c.state.as_ref());
    state.is_some_and(|s| s.running.is_some())
}

/// A pod and its status in a line, for messages.
pub fn describe(pod: &Pod) -> String {
    let status = serde_json::to_string(&pod.status).unwrap_or_default();
    format!(
        "{} on {:?}: {status}",
        name(pod),
        pod.spec.as_ref().and_then(|s| s.node_name.as_deref())
    )
}
