//! Works out a pod's status from what was observed. Pure.
//!
//! ```text
//! Observation + Facts + probes ─► container statuses ─► phase ─► conditions ─► PodStatus
//! ```
//! Nothing is claimed that was not observed, and what others own in the status (their conditions, claims) is
//! carried over from the last one.

mod conditions;
mod container;
mod layout;
mod lost;
mod phase;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use hanok_runtime::api::ContainerId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::actions::CrashLoop;
use super::observation::{self, Observation};
use super::probe::ProbeResults;
use super::resize::{self, Pending};
use super::{resources as quality, spec};

/// Why a container waits: the reason and the message of its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// A container-status reason, e.g. `ErrImagePull`.
    pub reason: String,
    /// Details.
    pub message: String,
}

/// Why the node has failed the whole pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A pod reason, e.g. `DeadlineExceeded`.
    pub reason: String,
    /// Details.
    pub message: String,
}

/// How far the end of a pod is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ending {
    /// It is to run.
    #[default]
    No,
    /// Its containers are being stopped; none is restarted.
    Stopping,
    /// All of them have ended.
    Ended,
}

/// What only the pod's worker knows.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The node's addresses, primary first.
    pub host_ips: Vec<String>,
    /// When the node first saw the pod.
    pub start_time: Timestamp,
    /// Why containers could not be started, by name.
    pub waiting: BTreeMap<String, Waiting>,
    /// Containers in CrashLoopBackOff.
    pub crash_loops: Vec<CrashLoop>,
    /// Containers being started.
    pub starting: BTreeSet<String>,
    /// Regular containers, or a sandbox for them, are to be started that have not been begun yet.
    pub to_start: bool,
    /// Why the node has failed the pod.
    pub failure: Option<Failure>,
    /// The node has not taken the pod: nothing of it has run.
    pub rejected: bool,
    /// The condition of a pod that the node has ended for others' sake.
    pub disruption: Option<PodCondition>,
    /// A resize that is not taken on: why, and for which generation.
    pub resize_pending: Option<(Pending, i64)>,
    /// A resize that is not in force yet: of which generation.
    pub resizing: Option<i64>,
    /// Why it is not.
    pub resize_error: Option<String>,
    /// How far the end is.
    pub ending: Ending,
    /// Termination messages of ended containers.
    pub messages: BTreeMap<ContainerId, String>,
}

/// What a status is made from.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The pod as it is desired.
    pub pod: &'a Pod,
    /// What there is of it.
    pub seen: &'a Observation,
    /// What the worker knows beside.
    pub facts: &'a Facts,
    /// What probes say.
    pub probes: &'a ProbeResults,
    /// The last status: this node's own, or the one that the pod came with.
    pub last: Option<&'a PodStatus>,
    /// The time of changes.
    pub now: Timestamp,
}

impl Inputs<'_> {
    /// Whether all containers are being restarted.
    fn resets(&self) -> bool {
        self.facts.ending == Ending::No && !self.seen.reset_by(self.pod).is_empty()
    }

    /// Whether they are, or have just been: what has no record has been ended for that.
    fn has_reset(&self) -> bool {
        self.resets() || self.last.is_some_and(observation::is_resetting)
    }
}

/// Works out the status.
pub fn build(inputs: &Inputs<'_>) -> PodStatus {
    let pod = inputs.pod;
    // One that ran before the machine was started anew may be refused now; its runs have ended.
    let mut told = inputs.last.into_iter().flat_map(observation::statuses);
    let ran = told.any(|status| status.container_id.is_some());
    if let (true, Some(failure)) = (inputs.facts.rejected && !ran, &inputs.facts.failure) {
        return rejected(inputs, failure);
    }
    let statuses = container::Statuses::build(inputs);
    let phase = phase::phase(inputs, &statuses);
    // Why a pod has failed is told when it has.
    let failure = inputs.facts.failure.as_ref();
    let failure = failure.filter(|_| spec::is_terminal_phase(phase));
    let mut kept = inputs.last.map(kept).unwrap_or_default();
    if inputs.last.and_then(|last| last.phase.as_deref()) != Some(phase) {
        // They belong to the phase.
        (kept.reason, kept.message) = (None, None);
    }
    let ips = pod_ips(inputs);
    let mut status = PodStatus {
        conditions: Some(conditions::conditions(inputs, &statuses, phase)),
        pod_ip: ips.first().cloned(),
        pod_ips: some(ips.into_iter().map(|ip| PodIP { ip }).collect()),
        host_ip: inputs.facts.host_ips.first().cloned(),
        host_ips: some(
            inputs
                .facts
                .host_ips
                .iter()
                .map(|ip| HostIP { ip: ip.clone() })
                .collect(),
        ),
        init_container_statuses: some(statuses.init),
        container_statuses: some(statuses.app),
        ephemeral_container_statuses: some(statuses.ephemeral),
        phase: Some(phase.to_owned()),
        reason: failure
            .map(|failure| failure.reason.clone())
            .or(kept.reason),
        message: failure
            .map(|failure| failure.message.clone())
            .or(kept.message),
        qos_class: Some(quality::qos_class(pod).as_str().to_owned()),
        start_time: kept.start_time.or(Some(Time(inputs.facts.start_time))),
        observed_generation: pod.metadata.generation,
        ..kept
    };
    resources::report_pod(&mut status, inputs);
    layout::lay_out(&mut status);
    status
}

/// What stays of the last status: others' fields, and what is said once. Conditions have their own rules.
fn kept(last: &PodStatus) -> PodStatus {
    // Every field has its name here, so that a new one is thought of.
    let PodStatus {
        allocated_resources: _,
        conditions: _,
        container_statuses: _,
        ephemeral_container_statuses: _,
        extended_resource_claim_status,
        host_ip: _,
        host_ips: _,
        init_container_statuses: _,
        message,
        node_allocatable_resource_claim_statuses,
        // The pod has its node.
        nominated_node_name: _,
        observed_generation: _,
        phase: _,
        pod_ip: _,
        pod_ips: _,
        qos_class: _,
        reason,
        resize: _,
        resource_claim_statuses,
        resources: _,
        start_time,
        volume_health,
    } = last;
    PodStatus {
        extended_resource_claim_status: extended_resource_claim_status.clone(),
        message: message.clone(),
        node_allocatable_resource_claim_statuses: node_allocatable_resource_claim_statuses.clone(),
        reason: reason.clone(),
        resource_claim_statuses: resource_claim_statuses.clone(),
        start_time: start_time.clone(),
        volume_health: volume_health.clone(),
        ..PodStatus::default()
    }
}

/// The generation whose resize is under way, by the status.
pub(super) fn resizing(status: &PodStatus) -> Option<i64> {
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|found| found.type_ == resize::IN_PROGRESS)?;
    Some(found.observed_generation.unwrap_or_default())
}

/// The status of a pod that the node has not taken: of its containers, its addresses and its conditions there is nothing
/// to say.
fn rejected(inputs: &Inputs<'_>, failure: &Failure) -> PodStatus {
    let kept = inputs.last.map(kept).unwrap_or_default();
    PodStatus {
        conditions: some(inputs.last.map(conditions::of_others).unwrap_or_default()),
        phase: Some("Failed".to_owned()),
        reason: Some(failure.reason.clone()),
        message: Some(failure.message.clone()),
        qos_class: Some(quality::qos_class(inputs.pod).as_str().to_owned()),
        start_time: kept.start_time.or(Some(Time(inputs.facts.start_time))),
        observed_generation: inputs.pod.metadata.generation,
        ..kept
    }
}

/// Takes over into a status what others have written into `theirs`: their conditions, their fields, and a
/// terminal phase.
pub fn take_foreign(own: &mut PodStatus, theirs: &PodStatus) {
    let mut ours = own.conditions.take().unwrap_or_default();
    ours.retain(conditions::is_ours);
    let mut all = conditions::of_others(theirs);
    all.retain(|theirs| !ours.iter().any(|own| own.type_ == theirs.type_));
    all.extend(ours);
    own.conditions = some(all);
    own.resource_claim_statuses
        .clone_from(&theirs.resource_claim_statuses);
    own.extended_resource_claim_status
        .clone_from(&theirs.extended_resource_claim_status);
    if theirs.phase.as_deref().is_some_and(spec::is_terminal_phase) {
        own.phase.clone_from(&theirs.phase);
        own.reason.clone_from(&theirs.reason);
        own.message.clone_from(&theirs.message);
    }
}

/// Whether a status that the API server has says what the node says, whatever others say beside.
pub fn is_told(theirs: &PodStatus, own: &PodStatus) -> bool {
    let conditions = |status: &PodStatus| -> BTreeSet<_> {
        let all = status.conditions.iter().flatten();
        let ours = all
            .filter(|condition| conditions::is_ours(condition))
            .cloned();
        ours.map(|found| (found.type_, found.status, found.reason, found.message))
            .collect()
    };
    // As JSON, since the server keeps whole seconds.
    let rest = |status: &PodStatus| {
        let mut rest = PodStatus {
            conditions: None,
            extended_resource_claim_status: None,
            node_allocatable_resource_claim_statuses: None,
            resource_claim_statuses: None,
            ..status.clone()
        };
        let lists = [
            &mut rest.container_statuses,
            &mut rest.init_container_statuses,
            &mut rest.ephemeral_container_statuses,
        ];
        // The server always has one, be it empty.
        for status in lists.into_iter().flatten().flatten() {
            let last = &mut status.last_state;
            last.take_if(|last| *last == ContainerState::default());
        }
        serde_json::to_value(&rest).ok()
    };
    conditions(theirs) == conditions(own) && rest(theirs) == rest(own)
}

/// The pod's addresses, at most one of each family. A pod without a sandbox keeps the last ones.
fn pod_ips(inputs: &Inputs<'_>) -> Vec<String> {
    if spec::host_network(inputs.pod) {
        return inputs.facts.host_ips.clone();
    }
    let observed = inputs
        .seen
        .ready_sandbox()
        .map(|sandbox| sandbox.ips.as_slice());
    let observed = observed.unwrap_or_default();
    if observed.is_empty() {
        let last = inputs.last.and_then(|last| last.pod_ips.as_ref());
        return last.into_iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    let prefers_v6 = inputs.facts.host_ips.first().is_some_and(|ip| is_v6(ip));
    let first = observed.iter().find(|ip| is_v6(ip) == prefers_v6);
    let second = observed.iter().find(|ip| is_v6(ip) != prefers_v6);
    first.into_iter().chain(second).cloned().collect()
}

/// Whether an address is of IPv6.
fn is_v6(ip: &str) -> bool {
    ip.contains(':')
}

/// A list that is absent when it is empty.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// The status of the run with that container id, in any of the lists.
pub(super) fn status_of_run<'a>(status: &'a PodStatus, id: &str) -> Option<&'a ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = init.chain(status.container_statuses.iter().flatten());
    let id = format!("{}://{id}", container::RUNTIME);
    all.find(|status| status.container_id.as_deref() == Some(id.as_str()))
}

/// The status of that name in any of the lists.
pub(super) fn status_of<'a>(
    status: Option<&'a PodStatus>,
    name: &str,
) -> Option<&'a ContainerStatus> {
    observation::statuses(status?).find(|status| status.name == name)
}
