//! The conditions that the node owns; others' are carried over.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Inputs;
use super::container::{Statuses, is_initialized};
use crate::pod::observation::ALL_RESTARTING;
use crate::pod::resize;
use crate::pod::spec::{self, ContainerKind};

/// The types that this module writes.
const OWNED: [&str; 8] = [
    ALL_RESTARTING,
    resize::PENDING,
    resize::IN_PROGRESS,
    "PodReadyToStartContainers",
    "Initialized",
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

/// Every condition of the pod: the node's own, then those of others as they were.
pub(super) fn conditions(
    inputs: &Inputs<'_>,
    statuses: &Statuses,
    phase: &str,
) -> Vec<PodCondition> {
    let containers = containers_ready(inputs, statuses, phase);
    let ready = ready(inputs, &containers);
    let answers = [
        ("PodReadyToStartContainers", ready_to_start(inputs)),
        ("Initialized", initialized(inputs, statuses, phase)),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", Answer::yes("")),
    ];
    let all_restarting = all_restarting(inputs, phase);
    let own = answers
        .into_iter()
        .chain(all_restarting.map(|answer| (ALL_RESTARTING, answer)))
        .map(|(type_, answer)| condition(inputs, type_, answer));
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let disruption = inputs.facts.disruption.as_ref();
    let disruption = disruption
        .filter(|_| spec::is_terminal_phase(phase))
        .map(|condition| dated(inputs, condition));
    let others = last.into_iter().flatten().filter(|other| {
        let replaced = disruption.as_ref();
        !is_owned(&other.type_) && replaced.is_none_or(|own| own.type_ != other.type_)
    });
    let others: Vec<_> = others.cloned().collect();
    let own = own.chain(resize_conditions(inputs));
    own.chain(disruption).chain(others).collect()
}

/// A condition with the time since when it is as it is.
fn dated(inputs: &Inputs<'_>, condition: &PodCondition) -> PodCondition {
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let same = last.into_iter().flatten().find(|last| {
        last.type_ == condition.type_
            && last.status == condition.status
            && last.reason == condition.reason
    });
    let since = same.and_then(|same| same.last_transition_time.clone());
    PodCondition {
        last_transition_time: since.or(Some(Time(inputs.now))),
        observed_generation: inputs.pod.metadata.generation,
        ..condition.clone()
    }
}

/// What is to be said of a resize; nothing when nothing is asked for.
fn resize_conditions(inputs: &Inputs<'_>) -> Vec<PodCondition> {
    let facts = inputs.facts;
    let holds = |type_: &str, reason: &'static str, message: String, generation| {
        let answer = Answer {
            holds: true,
            reason,
            message,
        };
        PodCondition {
            observed_generation: Some(generation),
            ..condition(inputs, type_, answer)
        }
    };
    let pending = facts.resize_pending.as_ref().map(|(pending, generation)| {
        let message = pending.message.clone();
        holds(resize::PENDING, pending.reason, message, *generation)
    });
    let under_way = facts.resizing.map(|generation| {
        let error = facts.resize_error.clone();
        let reason = if error.is_some() { "Error" } else { "" };
        holds(
            resize::IN_PROGRESS,
            reason,
            error.unwrap_or_default(),
            generation,
        )
    });
    pending.into_iter().chain(under_way).collect()
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

/// Init containers are done. Once an app container has started it stays so.
fn initialized(inputs: &Inputs<'_>, statuses: &Statuses, phase: &str) -> Answer {
    if phase == "Succeeded" {
        return Answer::yes("PodCompleted");
    }
    if is_initialized(inputs) {
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

/// The containers are ready, and so is every readiness gate.
fn ready(inputs: &Inputs<'_>, containers: &Answer) -> Answer {
    if !containers.holds {
        return Answer::no(containers.reason, containers.message.clone());
    }
    let gates = spec::spec(inputs.pod).and_then(|spec| spec.readiness_gates.as_ref());
    let last = inputs.last.and_then(|last| last.conditions.as_ref());
    let closed: Vec<String> = gates
        .into_iter()
        .flatten()
        .filter_map(|gate| {
            let type_ = &gate.condition_type;
            match last
                .into_iter()
                .flatten()
                .find(|condition| condition.type_ == *type_)
            {
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
