//! Decides what to do next for a pod that should run. Pure: no I/O, no clock, nothing remembered.
//!
//! ```text
//! sandbox missing or broken ─► retire the old one, create the next, init containers again from the first
//! sandbox ready ─► init containers one by one ─► app containers (and ephemeral ones at any time)
//! nothing left to run ─► stop the pod
//! ```
//! Progress is read from what nobody cleans away: an app container in the sandbox means that init is over,
//! and the last init container found means that those before it are done.

mod change;
mod init;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use hanok_runtime::api::{self, ContainerId, ContainerState, NamespaceMode, SandboxState};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::back_off::{self, Pause, Runs, Step};
use super::observation::{self, Observation};
use super::probe::{FailedProbe, ProbeResults};
use super::spec::{self, ContainerKind, Exit};

/// Everything a plan is made from.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The pod as it is desired.
    pub pod: &'a Pod,
    /// What there is of it.
    pub seen: &'a Observation,
    /// Containers that are being pulled for, created or started at this moment; they are left alone.
    pub starting: &'a BTreeSet<String>,
    /// Runs that the node itself stops so that the next one begins, each with the end of the run before it.
    pub restarted: &'a BTreeMap<ContainerId, Option<SystemTime>>,
    /// What probes say.
    pub probes: &'a ProbeResults,
    /// The longest back-off of a restart on this node.
    pub back_off_cap: Duration,
    /// The time.
    pub now: Timestamp,
}

/// What to do next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Stop every container and sandbox: the pod has nothing left to run.
    pub stop_pod: bool,
    /// Retire what sandboxes there are and create the one with this attempt.
    pub create_sandbox: Option<u32>,
    /// Stop these and remove them with all that came before them, in this order: every container starts anew.
    pub reset: Vec<ContainerId>,
    /// Containers to start, in order.
    pub start: Vec<Start>,
    /// Containers to stop.
    pub stop: Vec<Stop>,
    /// Running containers whose limits are to change.
    pub resize: Vec<ContainerId>,
    /// Containers that wait for their back-off to pass.
    pub crash_loops: Vec<CrashLoop>,
    /// When the plan changes by itself.
    pub wait_until: Option<Timestamp>,
}

/// A container to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its name.
    pub name: String,
    /// Its restart count, as far as records and status know.
    pub attempt: u32,
    /// The back-off that will stand after this run; none for a first run.
    pub back_off: Option<Step>,
}

/// A container to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Which run of it.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// Why.
    pub why: StopReason,
}

/// Why a container is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Name or image changed.
    DefinitionChanged,
    /// A probe failed for good.
    Probe(FailedProbe),
    /// Its resources changed, and it wants to begin anew for that.
    Resize,
    /// Nobody knows whether it runs.
    Unknown,
    /// It runs in a sandbox that is not the pod's any more.
    OldSandbox,
}

/// A container in CrashLoopBackOff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashLoop {
    /// Its name.
    pub name: String,
    /// The back-off.
    pub delay: Duration,
}

/// Plans the next steps.
pub fn plan(inputs: &Inputs<'_>) -> PodActions {
    let mut actions = PodActions::default();
    if let Some(attempt) = needed_sandbox(inputs) {
        plan_sandbox(inputs, attempt, &mut actions);
        return actions;
    }
    let sources = inputs.seen.reset_by(inputs.pod);
    if !sources.is_empty() {
        // Half of a start is no ground for a plan.
        if inputs.starting.is_empty() {
            actions.reset = change::reset(inputs, &sources);
        }
        return actions;
    }
    for record in inputs.seen.alive() {
        let current = inputs
            .seen
            .newest_sandbox()
            .is_some_and(|sandbox| sandbox.id == record.sandbox);
        if !current {
            actions.stop.push(stop(record, StopReason::OldSandbox));
        }
    }
    plan_ephemeral(inputs, &mut actions);
    change::resize(inputs, &mut actions);
    match init::plan(inputs, &mut actions) {
        init::Progress::Busy => {}
        init::Progress::Failed => actions = stop_pod(),
        init::Progress::Done => plan_apps(inputs, &mut actions),
    }
    actions
}

/// The attempt of the sandbox to create; none when the newest one serves.
fn needed_sandbox(inputs: &Inputs<'_>) -> Option<u32> {
    let Some(newest) = inputs.seen.newest_sandbox() else {
        return Some(0);
    };
    let ready = |sandbox: &&api::PodSandbox| sandbox.state == SandboxState::Ready;
    let host_network = spec::host_network(inputs.pod);
    let wanted = if host_network {
        NamespaceMode::Node
    } else {
        NamespaceMode::Pod
    };
    let serves = ready(&newest)
        && newest.config.network == wanted
        && (host_network || !newest.ips.is_empty())
        && inputs.seen.sandboxes().iter().filter(ready).count() == 1;
    (!serves).then(|| newest.config.attempt.saturating_add(1))
}

/// A new sandbox, if anything is to run in it. A kubelet asks no further under a pod's policy Never once there has been
/// any container, and leaves a pod with others to start waiting for good; here they are started.
fn plan_sandbox(inputs: &Inputs<'_>, attempt: u32, actions: &mut PodActions) {
    let pod = inputs.pod;
    let init_is_over = spec::app_containers(pod)
        .iter()
        .any(|container| has_run(inputs, &container.name));
    let init_failed = !init_is_over
        && spec::init_containers(pod).iter().any(|container| {
            let kind = spec::init_kind(container);
            ended(inputs, &container.name).is_some_and(|exit| {
                spec::init_failed(&exit) && !spec::should_restart(pod, kind, container, &exit)
            })
        });
    let to_run = spec::app_containers(pod).iter().any(|container| {
        ended(inputs, &container.name)
            .is_none_or(|exit| spec::should_restart(pod, ContainerKind::App, container, &exit))
    });
    if init_failed || !to_run {
        *actions = stop_pod();
        return;
    }
    actions.create_sandbox = Some(attempt);
    actions.stop = inputs
        .seen
        .alive()
        .map(|record| stop(record, StopReason::OldSandbox))
        .collect();
}

/// Whether the container has ever been started.
fn has_run(inputs: &Inputs<'_>, name: &str) -> bool {
    let started = |record: &api::Container| record.state != ContainerState::Created;
    inputs.seen.records_of(name).any(started) || inputs.seen.lost(name).is_some()
}

/// How the container ended, or will have ended when its sandbox is gone. What was stopped to begin anew has not ended by
/// itself.
fn ended(inputs: &Inputs<'_>, name: &str) -> Option<Exit> {
    let interrupted = inputs.seen.newest(name).is_some_and(|record| {
        record.state == ContainerState::Running || inputs.restarted.contains_key(&record.id)
    });
    if interrupted {
        return Some(Exit {
            code: observation::LOST_EXIT_CODE,
            reason: "Error".to_owned(),
        });
    }
    inputs.seen.last_exit(name)
}

/// Ephemeral containers start once, whenever there is a sandbox.
fn plan_ephemeral(inputs: &Inputs<'_>, actions: &mut PodActions) {
    for container in spec::ephemeral_containers(inputs.pod) {
        if !has_run(inputs, &container.name) {
            start(inputs, &container, actions);
        }
    }
}

/// Regular containers: start, restart, replace; and the end of the pod when none is left.
fn plan_apps(inputs: &Inputs<'_>, actions: &mut PodActions) {
    let mut wanted = 0_usize;
    for container in spec::app_containers(inputs.pod) {
        let verdict = judge(inputs, ContainerKind::App, container);
        wanted += usize::from(verdict != Verdict::Leave);
        carry_out(inputs, container, verdict, actions);
    }
    if wanted == 0 {
        *actions = stop_pod();
    }
}

/// What is to become of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It runs, or is being started, as it should.
    Keep,
    /// It has ended for good.
    Leave,
    /// It is to be started, after its back-off.
    Start,
    /// It is to be stopped; what comes then is decided when it has ended.
    Stop(StopReason),
}

/// Judges one container by its newest record.
fn judge(inputs: &Inputs<'_>, kind: ContainerKind, container: &Container) -> Verdict {
    if inputs.starting.contains(&container.name) {
        return Verdict::Keep;
    }
    let restarts = |exit: Exit| match spec::should_restart(inputs.pod, kind, container, &exit) {
        true => Verdict::Start,
        false => Verdict::Leave,
    };
    let Some(record) = inputs.seen.newest(&container.name) else {
        return inputs
            .seen
            .last_exit(&container.name)
            .map_or(Verdict::Start, restarts);
    };
    let in_use = inputs
        .seen
        .newest_sandbox()
        .is_some_and(|sandbox| sandbox.id == record.sandbox);
    match record.state {
        ContainerState::Created => Verdict::Start,
        // What runs in an old sandbox is being stopped; it is judged again when it has ended.
        ContainerState::Running | ContainerState::Unknown if !in_use => Verdict::Keep,
        // What comes then is for its policy to say, as after any end: a pod that is to run once must not run twice. A
        // kubelet starts it anew whatever the policy, but its runtimes call what they have lost sight of ended.
        ContainerState::Unknown => Verdict::Stop(StopReason::Unknown),
        ContainerState::Running => match stop_reason(inputs, kind, container, record) {
            Some(why) => Verdict::Stop(why),
            None => Verdict::Keep,
        },
        ContainerState::Exited if change::replaced(inputs, kind, container, record) => {
            Verdict::Start
        }
        ContainerState::Exited => observation::exit(record).map_or(Verdict::Start, restarts),
    }
}

/// Why a running container has to be stopped. An init container runs to its end whatever becomes of its definition, and
/// so does a sidecar until it has started, or has failed to.
fn stop_reason(
    inputs: &Inputs<'_>,
    kind: ContainerKind,
    container: &Container,
    record: &api::Container,
) -> Option<StopReason> {
    let changed = change::of_definition(container, record);
    let failed = inputs.probes.failure(&record.id).map(StopReason::Probe);
    let has_started = inputs.probes.started(container, &record.id);
    match kind {
        ContainerKind::Init => None,
        ContainerKind::Sidecar if !has_started => failed,
        _ if changed => Some(StopReason::DefinitionChanged),
        _ => failed,
    }
}

/// Adds the verdict's steps to the plan.
fn carry_out(
    inputs: &Inputs<'_>,
    container: &Container,
    verdict: Verdict,
    actions: &mut PodActions,
) {
    match verdict {
        Verdict::Keep | Verdict::Leave => {}
        Verdict::Start => start(inputs, container, actions),
        Verdict::Stop(why) => {
            let record = inputs.seen.newest(&container.name);
            actions.stop.extend(record.map(|record| stop(record, why)));
        }
    }
}

/// Starts a container, now or after its back-off.
fn start(inputs: &Inputs<'_>, container: &Container, actions: &mut PodActions) {
    if inputs.starting.contains(&container.name) {
        return;
    }
    // A container that was made and could not be started has not run: what counts is the run before.
    let last = inputs
        .seen
        .records_of(&container.name)
        .find(|record| back_off::end(record).is_some());
    let pause = last.map_or_else(Pause::default, |last| {
        let runs = match inputs.restarted.get(&last.id) {
            Some(before) => Runs::Stopped {
                last,
                before: *before,
            },
            None => Runs::Ended(last),
        };
        back_off::pause(&runs, back_off::key(container), inputs.back_off_cap)
    });
    if let Some((ended, delay)) = pause.since
        && back_off::is_within(inputs.now, ended, delay)
    {
        actions.crash_loops.push(CrashLoop {
            name: container.name.clone(),
            delay,
        });
        wait_until(actions, back_off::after(ended, delay));
        return;
    }
    actions.start.push(Start {
        name: container.name.clone(),
        attempt: inputs.seen.next_attempt(&container.name),
        back_off: pause.next,
    });
}

/// Looks again then, or earlier.
fn wait_until(actions: &mut PodActions, until: Timestamp) {
    actions.wait_until = Some(
        actions
            .wait_until
            .map_or(until, |already| already.min(until)),
    );
}

/// A stop of one run.
fn stop(record: &api::Container, why: StopReason) -> Stop {
    Stop {
        id: record.id.clone(),
        name: record.config.name.clone(),
        why,
    }
}

/// The plan for a pod with nothing left to run.
fn stop_pod() -> PodActions {
    PodActions {
        stop_pod: true,
        ..PodActions::default()
    }
}
