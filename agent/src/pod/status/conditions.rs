//! The conditions that the node owns; others' are carried over.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::container::{Statuses, is_initialized};
use super::{Ending, Inputs};
use crate::pod::observation::ALL_RESTARTING;
use crate::pod::resize;
use crate::pod::spec::{self, ContainerKind};

const INITIALIZED: &str = "Initialized";

/// The types that this module writes.
const OWNED: [&str; 8] = [
    ALL_RESTARTING,
    resize::PENDING,
    resize::IN_PROGRESS,
    "PodReadyToStartContainers",
    INITIALIZED,
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// Whether the node writes conditions of this type.
pub(super) fn is_owned(type_: &str) -> bool {
    OWNED.contains(&type_)
}

/// Whether the node has written this condition. One type it shares with others: of disruptions, those are its own
/// that it has caused.
pub(super) fn is_ours(condition: &PodCondition) -> bool {
    is_owned(&condition.type_) || condition.reason.as_deref() == Some("TerminationByKubelet")
}

/// The conditions of a status whose types are others'.
pub(super) fn of_others(status: &PodStatus) -> Vec<PodCondition> {
    let all = status.conditions.iter().flatten();
    all.filter(|condition| !is_owned(&condition.type_))
        .cloned()
        .collect()
}

/// A condition's answer with its reason and message; both may be empty.
struct Answer {
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Answer {
    fn yes(reason: &'static str) -> Self {
        Self {
            holds: true,
            reason,
            message: String::new(),
        }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self {
            holds: false,
            reason,
            message,
        }
    }
}

/// Every condition of the pod: those of others as they were, then the node's own.
pub(super) fn conditions(
    inputs: &Inputs<'_>,
    statuses: &Statuses,
    phase: &str,
) -> Vec<PodCondition> {
    let disruption = inputs.facts.disruption.as_ref();
    let disruption = disruption
        .filter(|_| spec::is_terminal_phase(phase))
        .map(|condition| dated(inputs, condition));
    let mut all = inputs.last.map(of_others).unwrap_or_default();
    all.retain(|other| {
        let replaced = disruption.as_ref();
        replaced.is_none_or(|own| own.type_ != other.type_)
    });
    all.extend(resize_conditions(inputs));
    all.extend(disruption);
    let containers = containers_ready(inputs, statuses, phase);
    let add = |all: &mut Vec<_>, type_, answer| all.push(condition(inputs, type_, answer));
    add(
        &mut all,
        "PodReadyToStartContainers",
        ready_to_start(inputs),
    );
    add(&mut all, INITIALIZED, initialized(inputs, statuses, phase));
    let ready = ready(inputs, &containers, &all);
    add(&mut all, "Ready", ready);
    add(&mut all, "ContainersReady", containers);
    add(&mut all, "PodScheduled", Answer::yes(""));
    if let Some(answer) = all_restarting(inputs, phase) {
        add(&mut all, ALL_RESTARTING, answer);
    }
    all
}

/// A condition with the time since when it is as it is.
fn dated(inputs: &Inputs<'_>, condition: &PodCondition) -> PodCondition {
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let mut last = last.into_iter().flatten();
    let same = last.find(|last| last.type_ == condition.type_ && last.status == condition.status);
    let since = same.and_then(|same| same.last_transition_time.clone());
    PodCondition {
        last_transition_time: since.or(Some(Time(inputs.now))),
        observed_generation: inputs.pod.metadata.generation,
        ..condition.clone()
    }
}

/// What is to be said of a resize; nothing when nothing is asked for, or of a pod that has ended.
fn resize_conditions(inputs: &Inputs<'_>) -> Vec<PodCondition> {
    let facts = inputs.facts;
    if facts.ending == Ending::Ended {
        return Vec::new();
    }
    let pending = facts.resize_pending.as_ref().map(|(pending, generation)| {
        let message = pending.message.clone();
        resize_condition(
            inputs,
            resize::PENDING,
            pending.reason,
            message,
            *generation,
        )
    });
    let under_way = facts.resizing.map(|generation| {
        let error = facts.resize_error.clone();
        let reason = if error.is_some() { "Error" } else { "" };
        let message = error.unwrap_or_default();
        resize_condition(inputs, resize::IN_PROGRESS, reason, message, generation)
    });
    pending.into_iter().chain(under_way).collect()
}

/// A condition that is there only while it holds. Its time changes with its reason, and it also tells when it was last
/// looked into.
fn resize_condition(
    inputs: &Inputs<'_>,
    type_: &str,
    reason: &str,
    message: String,
    generation: i64,
) -> PodCondition {
    let now = Some(Time(inputs.now));
    let new = PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: some(reason.to_owned()),
        message: some(message),
        last_transition_time: now.clone(),
        observed_generation: Some(generation),
        last_probe_time: now,
    };
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let mut last = last.into_iter().flatten();
    let Some(last) = last.find(|last| last.type_ == type_ && last.reason == new.reason) else {
        return new;
    };
    let same = last.message == new.message && last.observed_generation == new.observed_generation;
    PodCondition {
        last_transition_time: last
            .last_transition_time
            .clone()
            .or(new.last_transition_time),
        last_probe_time: last
            .last_probe_time
            .clone()
            .filter(|_| same)
            .or(new.last_probe_time),
        ..new
    }
}

/// One condition; its time changes only with its answer.
fn condition(inputs: &Inputs<'_>, type_: &str, answer: Answer) -> PodCondition {
    let status = if answer.holds { "True" } else { "False" };
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let last = last
        .into_iter()
        .flatten()
        .find(|last| last.type_ == type_ && last.status == status);
    let since = last.and_then(|last| last.last_transition_time.clone());
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: some(answer.reason.to_owned()),
        message: some(answer.message),
        last_transition_time: since.or(Some(Time(inputs.now))),
        observed_generation: inputs.pod.metadata.generation,
        last_probe_time: last.and_then(|last| last.last_probe_time.clone()),
    }
}

/// All containers are being restarted; only where that may be.
fn all_restarting(inputs: &Inputs<'_>, phase: &str) -> Option<Answer> {
    if !spec::may_restart_all(inputs.pod) {
        return None;
    }
    let no = |reason| Some(Answer::no(reason, String::new()));
    match phase {
        "Succeeded" => no("PodCompleted"),
        "Failed" => no("PodFailed"),
        _ if !inputs.resets() => no(""),
        _ => Some(Answer {
            holds: true,
            reason: "RestartAllContainersStarted",
            message: "container exited with restart policy rule".to_owned(),
        }),
    }
}

/// A sandbox with an address exists.
fn ready_to_start(inputs: &Inputs<'_>) -> Answer {
    let says = |message: &str| Answer::no("PodSandboxNotReady", message.to_owned());
    match inputs.seen.ready_sandbox() {
        None if had_sandbox(inputs) => says("pod sandbox is not ready"),
        None => says("no pod sandbox exists"),
        Some(sandbox) if sandbox.ips.is_empty() && !spec::host_network(inputs.pod) => {
            says("pod sandbox has no IP address")
        }
        Some(_) => Answer::yes(""),
    }
}

/// Whether there is a sandbox, or was one in which a container was made.
fn had_sandbox(inputs: &Inputs<'_>) -> bool {
    let made = |list: &Option<Vec<ContainerStatus>>| {
        let mut statuses = list.iter().flatten();
        statuses.any(|status| status.container_id.is_some())
    };
    let last = inputs.last;
    inputs.seen.newest_sandbox().is_some()
        || last.is_some_and(|last| {
            made(&last.container_statuses) || made(&last.init_container_statuses)
        })
}

/// Init containers are done. Once they are it stays so, though they run again in a new sandbox.
fn initialized(inputs: &Inputs<'_>, statuses: &Statuses, phase: &str) -> Answer {
    if phase == "Succeeded" {
        return Answer::yes("PodCompleted");
    }
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let mut last = last.into_iter().flatten();
    let was = last.any(|last| last.type_ == INITIALIZED && last.status == "True");
    if was || is_initialized(inputs) {
        return Answer::yes("");
    }
    let pairs = spec::init_containers(inputs.pod).iter().zip(&statuses.init);
    let incomplete: Vec<_> = pairs
        .filter(|(container, status)| match spec::init_kind(container) {
            ContainerKind::Sidecar => status.started != Some(true),
            _ => !status.ready,
        })
        .map(|(container, _)| container.name.as_str())
        .collect();
    if incomplete.is_empty() {
        return Answer::yes("");
    }
    let message = format!(
        "containers with incomplete status: [{}]",
        incomplete.join(" ")
    );
    Answer::no("ContainersNotInitialized", message)
}

/// Every app container and sidecar is ready.
fn containers_ready(inputs: &Inputs<'_>, statuses: &Statuses, phase: &str) -> Answer {
    match phase {
        "Succeeded" => return Answer::no("PodCompleted", String::new()),
        "Failed" => return Answer::no("PodFailed", String::new()),
        _ => {}
    }
    let sidecars = spec::init_containers(inputs.pod)
        .iter()
        .zip(&statuses.init)
        .filter(|(container, _)| spec::init_kind(container) == ContainerKind::Sidecar);
    let apps = spec::app_containers(inputs.pod).iter().zip(&statuses.app);
    let unready: Vec<&str> = sidecars
        .chain(apps)
        .filter(|(_, status): &(&Container, &ContainerStatus)| !status.ready)
        .map(|(container, _)| container.name.as_str())
        .collect();
    if unready.is_empty() {
        return Answer::yes("");
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    Answer::no("ContainersNotReady", message)
}

/// The containers are ready, and so is every readiness gate, by those conditions that are known.
fn ready(inputs: &Inputs<'_>, containers: &Answer, known: &[PodCondition]) -> Answer {
    if !containers.holds {
        return Answer::no(containers.reason, containers.message.clone());
    }
    let gates = spec::spec(inputs.pod).and_then(|spec| spec.readiness_gates.as_ref());
    let closed: Vec<String> = gates
        .into_iter()
        .flatten()
        .filter_map(|gate| {
            let type_ = &gate.condition_type;
            match known.iter().find(|condition| condition.type_ == *type_) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{type_}\" does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{type_}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    match closed.is_empty() {
        true => Answer::yes(""),
        false => Answer::no("ReadinessGatesNotReady", closed.join(", ")),
    }
}

/// Text that is absent when it is empty.
fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
