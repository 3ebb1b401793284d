//! Questions about a pod's specification, answered in one place.

#[cfg(test)]
mod tests;

use std::time::Duration;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, EphemeralContainer, Pod, PodSpec,
};

/// Kubernetes' default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Which list of the specification a container stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: starts in order, then stays beside the others.
    Sidecar,
    /// A regular container.
    App,
    /// Added to a running pod for debugging; never restarted.
    Ephemeral,
}

/// When an ended container is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// After every end.
    Always,
    /// After a failure.
    OnFailure,
    /// Not at all.
    Never,
}

impl RestartPolicy {
    /// The API's word; anything else is Always, which is the API's default.
    pub fn parse(text: &str) -> Self {
        match text {
            "OnFailure" => Self::OnFailure,
            "Never" => Self::Never,
            _ => Self::Always,
        }
    }
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code.
    pub code: i32,
    /// The runtime's reason; `OOMKilled` matters.
    pub reason: String,
}

/// The pod's UID; empty when it has none.
pub fn uid(pod: &Pod) -> PodUid {
    PodUid(pod.metadata.uid.clone().unwrap_or_default())
}

/// The pod's namespace.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod as messages name it: `NAME_NAMESPACE(UID)`.
pub fn display(pod: &Pod) -> String {
    format!("{}_{}({})", name(pod), namespace(pod), uid(pod))
}

/// The specification. A pod without one is not desired and has been refused by its source.
pub fn spec(pod: &Pod) -> Option<&PodSpec> {
    pod.spec.as_ref()
}

/// Init containers and sidecars in order.
pub fn init_containers(pod: &Pod) -> &[Container] {
    spec(pod)
        .and_then(|spec| spec.init_containers.as_deref())
        .unwrap_or_default()
}

/// Regular containers in order.
pub fn app_containers(pod: &Pod) -> &[Container] {
    spec(pod)
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default()
}

/// Init containers and sidecars, then regular containers, in order.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> + Clone {
    init_containers(pod).iter().chain(app_containers(pod))
}

/// Ephemeral containers in order, as ordinary containers.
pub fn ephemeral_containers(pod: &Pod) -> Vec<Container> {
    spec(pod)
        .and_then(|spec| spec.ephemeral_containers.as_deref())
        .unwrap_or_default()
        .iter()
        .map(ephemeral_as_container)
        .collect()
}

/// Whether a member of `initContainers` is a sidecar.
pub fn init_kind(container: &Container) -> ContainerKind {
    match container.restart_policy.as_deref() {
        Some("Always") => ContainerKind::Sidecar,
        _ => ContainerKind::Init,
    }
}

/// Every container of the pod in the order init, app, ephemeral.
pub fn all_containers(pod: &Pod) -> Vec<(ContainerKind, Container)> {
    let init = init_containers(pod)
        .iter()
        .map(|container| (init_kind(container), container.clone()));
    let app = app_containers(pod)
        .iter()
        .map(|container| (ContainerKind::App, container.clone()));
    let ephemeral = ephemeral_containers(pod)
        .into_iter()
        .map(|container| (ContainerKind::Ephemeral, container));
    init.chain(app).chain(ephemeral).collect()
}

/// The container of that name, with its kind.
pub fn find_container(pod: &Pod, name: &str) -> Option<(ContainerKind, Container)> {
    let init = init_containers(pod).iter();
    let init = init.map(|container| (init_kind(container), container));
    let app = app_containers(pod).iter();
    let app = app.map(|container| (ContainerKind::App, container));
    let named = |(_, container): &(_, &Container)| container.name == name;
    if let Some((kind, container)) = init.chain(app).find(named) {
        return Some((kind, container.clone()));
    }
    let ephemeral = spec(pod)?.ephemeral_containers.as_deref()?;
    let container = ephemeral.iter().find(|container| container.name == name)?;
    Some((ContainerKind::Ephemeral, ephemeral_as_container(container)))
}

/// The container that an ephemeral container debugs.
pub fn ephemeral_target<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let containers = spec(pod)?.ephemeral_containers.as_deref()?;
    let container = containers.iter().find(|container| container.name == name)?;
    container
        .target_container_name
        .as_deref()
        .filter(|target| !target.is_empty())
}

/// The pod's restart policy.
pub fn pod_restart_policy(pod: &Pod) -> RestartPolicy {
    let text = spec(pod).and_then(|spec| spec.restart_policy.as_deref());
    RestartPolicy::parse(text.unwrap_or_default())
}

/// The policy for one container: its own, or else the pod's. Rules are not counted in.
pub fn restart_policy(pod: &Pod, kind: ContainerKind, container: &Container) -> RestartPolicy {
    match (kind, container.restart_policy.as_deref()) {
        (ContainerKind::Sidecar, _) => RestartPolicy::Always,
        (ContainerKind::Ephemeral, _) => RestartPolicy::Never,
        (_, Some(text)) => RestartPolicy::parse(text),
        (_, None) => pod_restart_policy(pod),
    }
}

/// Whether an end of an init container is a failure. The kernel may kill a child and leave exit code 0; under OnFailure
/// a kubelet then neither starts it again nor ends the pod, and here it is one like others.
pub fn init_failed(exit: &Exit) -> bool {
    exit.code != 0 || exit.reason == "OOMKilled"
}

/// What a container's end is called whose run was ended with all others of the pod.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";
/// What is said beside it.
pub const RESTARTING_ALL_MESSAGE: &str =
    "The container is removed because RestartAllContainers in place";

/// Whether the container is started again after that end (the first matching rule, then the policy).
pub fn should_restart(pod: &Pod, kind: ContainerKind, container: &Container, exit: &Exit) -> bool {
    if kind != ContainerKind::Ephemeral
        && (exit.reason == RESTARTING_ALL || rule(container, exit.code).is_some())
    {
        return true;
    }
    match (kind, restart_policy(pod, kind, container)) {
        (_, RestartPolicy::Never) => false,
        (ContainerKind::Init, _) => init_failed(exit),
        (_, RestartPolicy::OnFailure) => exit.code != 0,
        (_, RestartPolicy::Always) => true,
    }
}

/// What a restart rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// The container is started again.
    Restart,
    /// Every container of the pod is.
    RestartAll,
}

/// The action of the first of the container's restart rules that holds for this exit code.
pub fn rule(container: &Container, code: i32) -> Option<RuleAction> {
    let rules = container.restart_policy_rules.as_deref();
    let holds = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|on| {
            let listed = on.values.as_deref().unwrap_or_default().contains(&code);
            listed == (on.operator == "In")
        })
    };
    let first = rules.unwrap_or_default().iter().find(holds)?;
    action(first)
}

fn action(rule: &ContainerRestartRule) -> Option<RuleAction> {
    match rule.action.as_str() {
        "Restart" => Some(RuleAction::Restart),
        "RestartAllContainers" => Some(RuleAction::RestartAll),
        _ => None,
    }
}

/// Whether the end of one container may restart all.
pub fn may_restart_all(pod: &Pod) -> bool {
    let mut rules =
        containers(pod).flat_map(|container| container.restart_policy_rules.iter().flatten());
    rules.any(|rule| action(rule) == Some(RuleAction::RestartAll))
}

/// Whether the pod lives in the node's network namespace.
pub fn host_network(pod: &Pod) -> bool {
    spec(pod)
        .and_then(|spec| spec.host_network)
        .unwrap_or(false)
}

/// The time that containers get between TERM and KILL when nobody says otherwise.
pub fn grace_period(pod: &Pod) -> Duration {
    let seconds = spec(pod).and_then(|spec| spec.termination_grace_period_seconds);
    seconds.map_or(DEFAULT_GRACE, seconds_or_zero)
}

/// The grace period that the deletion asks for; none when the pod is not being deleted.
pub fn deletion_grace(pod: &Pod) -> Option<Duration> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let seconds = pod.metadata.deletion_grace_period_seconds;
    Some(seconds.map_or_else(|| grace_period(pod), seconds_or_zero))
}

/// Whether the pod came from a file or the command line: it keeps its name over a change of UID.
pub fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref();
    source
        .and_then(|annotations| annotations.get("kubernetes.io/config.source"))
        .is_some_and(|source| source != "api")
}

/// Whether a phase is one that a pod never leaves.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Seconds of the API as a duration; what is negative is none.
fn seconds_or_zero(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// The fields are the same but for the target.
fn ephemeral_as_container(from: &EphemeralContainer) -> Container {
    let from = from.clone();
    Container {
        args: from.args,
        command: from.command,
        env: from.env,
        env_from: from.env_from,
        image: from.image,
        image_pull_policy: from.image_pull_policy,
        name: from.name,
        security_context: from.security_context,
        stdin: from.stdin,
        stdin_once: from.stdin_once,
        termination_message_path: from.termination_message_path,
        termination_message_policy: from.termination_message_policy,
        tty: from.tty,
        volume_devices: from.volume_devices,
        volume_mounts: from.volume_mounts,
        working_dir: from.working_dir,
        ..Container::default()
    }
}
