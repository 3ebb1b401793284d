//! A worker's turns while its pod is to run: carries out the plan.

use std::time::Duration;

use hanok_runtime::api::ContainerId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use tokio::time::Instant;

use super::operations::{Key, Outcome};
use super::stopping::Stopping;
use super::{NodeDecision, Reset, Worker};
use crate::pod::actions::{self, PodActions, Start};
use crate::pod::admit;
use crate::pod::back_off::{self, RESET_AFTER, after};
use crate::pod::observation::{self, Observation};
use crate::pod::spec::{self, ContainerKind};
use crate::pod::start_order;
use crate::pod::status::{Failure, Waiting};
use crate::pod::sync::{image, reset, sandbox, start};
use crate::sinks::EventKind;

/// How long a failed pull shows as such, before it shows as back-off.
const PULL_FAILURE_SHOWN: Duration = Duration::from_secs(3);

impl Worker {
    /// One turn: what ends the pod, or else the plan.
    pub(super) fn turn_running(&mut self, seen: &Observation) {
        if let Some(stopping) = self.reason_to_stop() {
            self.begin_stopping(stopping);
            return;
        }
        self.watch_storage(seen);
        if self.operations.has(&Key::Sandbox) || self.operations.has(&Key::Reset) {
            // Half of a sandbox is no ground for a plan.
            return;
        }
        let starting = self.operations.starting();
        let exists = |id: &ContainerId| seen.records().iter().any(|record| record.id == *id);
        self.restarted.retain(|id, _| exists(id));
        let plan = actions::plan(&actions::Inputs {
            pod: &self.pod,
            seen,
            starting: &starting,
            restarted: &self.restarted,
            probes: &self.probes,
            back_off_cap: self.deps.settings.back_off_cap,
            now: self.deps.clock.now(),
        });
        self.apply(seen, plan);
    }

    /// Why the pod is not to run any more.
    fn reason_to_stop(&mut self) -> Option<Stopping> {
        if let Some(grace) = self.gone_grace() {
            return Some(Stopping::within(grace));
        }
        if let Some(grace) = spec::deletion_grace(&self.pod) {
            return Some(Stopping::within(grace));
        }
        if let Some(stopping) = self.over() {
            return Some(stopping);
        }
        self.take_decision();
        if let Some(deadline) = self.deadline() {
            match deadline <= self.deps.clock.now() {
                true => self.exceed_deadline(),
                false => self.wake_when(deadline),
            }
        }
        let failed = self.facts.failure.is_some();
        failed.then(|| Stopping::within(spec::grace_period(&self.pod)))
    }

    /// The end of a pod whose phase is final.
    pub(super) fn over(&self) -> Option<Stopping> {
        let phase = self.last.as_ref()?.phase.as_deref()?;
        spec::is_terminal_phase(phase).then(|| Stopping::within(spec::grace_period(&self.pod)))
    }

    /// Takes over what the owner of the set has decided about the pod, and tells of it.
    fn take_decision(&mut self) {
        let (told, failure) = match self.decision.clone() {
            None => return,
            Some(NodeDecision::Rejected(failure)) => {
                self.facts.rejected = true;
                let shown = admit::rejected(&failure);
                (failure, shown)
            }
            Some(NodeDecision::Preempted) => {
                let (failure, condition) = admit::preempted();
                self.facts.disruption = Some(condition);
                (failure.clone(), failure)
            }
        };
        let (reason, message) = (&told.reason, &told.message);
        self.deps
            .pod_event(&self.pod, EventKind::Warning, reason, message);
        self.facts.failure = Some(failure);
    }

    /// When `activeDeadlineSeconds` ends.
    fn deadline(&self) -> Option<Timestamp> {
        let seconds = spec::spec(&self.pod)?.active_deadline_seconds?;
        let since = self.last.as_ref().and_then(|last| last.start_time.as_ref());
        let since = since.map_or(self.facts.start_time, |time| time.0);
        Some(after(
            since,
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
        ))
    }

    /// Whether regular containers begin by this plan: what has ended then says nothing of the pod's end.
    fn begins_apps(&self, plan: &PodActions) -> bool {
        let apps = spec::app_containers(&self.pod);
        let mut starts = plan.start.iter();
        plan.create_sandbox.is_some()
            || !plan.reset.is_empty()
            || starts.any(|start| apps.iter().any(|app| app.name == start.name))
    }

    /// Carries out a plan.
    fn apply(&mut self, seen: &Observation, plan: PodActions) {
        self.announce_crash_loops(seen, &plan);
        self.facts.crash_loops.clone_from(&plan.crash_loops);
        self.facts.to_start = self.begins_apps(&plan);
        if let Some(time) = plan.wait_until {
            self.wake_when(time);
        }
        if plan.stop_pod {
            let stopping = Stopping::within(spec::grace_period(&self.pod));
            self.begin_stopping(stopping);
            return;
        }
        if let Some(attempt) = plan.create_sandbox {
            if !self.operations.starting().is_empty() {
                // They belong to the old one, and say nothing of how far the new one is.
                self.operations.cancel_starts();
                return;
            }
            self.mount_volumes();
            self.create_sandbox(seen, attempt);
            return;
        }
        if !plan.reset.is_empty() {
            self.reset(seen, &plan.reset);
            return;
        }
        self.resize(seen, &plan);
        for stop in plan.stop {
            self.stop_for_restart(seen, stop);
        }
        if plan.start.is_empty() {
            return;
        }
        self.mount_volumes();
        let starting = self.operations.starting();
        for start in plan.start {
            let begun = self.operations.starting();
            let failed = &self.facts.waiting;
            if !start_order::waits(&self.pod, seen, failed, &starting, &begun, &start.name) {
                self.start_container(seen, start);
            }
        }
    }

    /// Says once for each run that its restart is backed off.
    fn announce_crash_loops(&mut self, seen: &Observation, plan: &PodActions) {
        for looping in &plan.crash_loops {
            let newest = seen.newest(&looping.name).map(|record| record.id.clone());
            if newest.is_some_and(|id| self.announced.insert(id)) {
                let name = &looping.name;
                let display = spec::display(&self.pod);
                let message =
                    format!("Back-off restarting failed container {name} in pod {display}");
                let kind = EventKind::Warning;
                self.deps
                    .events
                    .pod_event(&self.pod, Some(name), kind, "BackOff", &message);
            }
        }
        self.announced
            .retain(|id| seen.records().iter().any(|record| record.id == *id));
    }

    /// Sets the volumes up, unless they are.
    fn mount_volumes(&mut self) {
        if self.volumes.mounted.is_none() {
            self.spawn_mount();
        }
    }

    /// Brings the contents of volumes up to date. An agent that has found the pod running has not set them up itself,
    /// and must refresh them all the same.
    pub(super) fn refresh_volumes(&mut self) {
        self.spawn_mount();
    }

    fn spawn_mount(&mut self) {
        if self.operations.has(&Key::Volumes) || !self.is_due(&Key::Volumes) {
            return;
        }
        let (volumes, pod) = (self.deps.volumes.clone(), self.pod.clone());
        let span = tracing::info_span!("volumes");
        let work = async move { Outcome::Volumes(volumes.mount(&pod).await) };
        self.operations
            .spawn(Key::Volumes, tracing::Instrument::instrument(work, span));
    }

    /// Makes the sandbox, in place of what there is.
    fn create_sandbox(&mut self, seen: &Observation, attempt: u32) {
        if !self.is_due(&Key::Sandbox) {
            return;
        }
        // Of what was there before the machine began anew, only the status knows.
        let ran = {
            let mut told = self.last.iter().flat_map(observation::statuses);
            told.any(|status| status.container_id.is_some())
        };
        if seen.newest_sandbox().is_some() || ran {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            self.deps
                .pod_event(&self.pod, EventKind::Normal, "SandboxChanged", message);
        }
        if spec::init_containers(&self.pod).is_empty() {
            // With nothing to wait for, what is ended now begins anew at once, however it ends.
            self.restarts_all_running(seen);
        }
        let job = sandbox::Job {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            attempt,
            old: seen
                .sandboxes()
                .iter()
                .map(|sandbox| sandbox.id.clone())
                .collect(),
            alive: seen.alive().cloned().collect(),
            grace: spec::grace_period(&self.pod),
            cancelled: self.operations.starts(),
        };
        self.operations.spawn(Key::Sandbox, async {
            Outcome::Sandbox(sandbox::run(job).await)
        });
    }

    /// Starts every container anew: at once the first time, and then with the back-off of a container that crashes. A
    /// kubelet has no back-off here, and a pod may keep its node busy for good.
    fn reset(&mut self, seen: &Observation, ids: &[ContainerId]) {
        let now = Instant::now();
        let standing = self
            .resets
            .filter(|reset| now < reset.at + reset.delay + RESET_AFTER);
        if let Some(reset) = standing.filter(|reset| now < reset.at + reset.delay) {
            self.wake_at(reset.at + reset.delay);
            return;
        }
        if !self.is_due(&Key::Reset) {
            return;
        }
        let before = standing.map(|reset| reset.delay);
        let delay = back_off::next(before, self.deps.settings.back_off_cap);
        self.resets = Some(Reset { at: now, delay });
        self.facts.waiting.clear();
        let find = |id: &ContainerId| seen.records().iter().find(|record| record.id == *id);
        let job = reset::Job {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            records: ids.iter().filter_map(find).cloned().collect(),
        };
        self.operations
            .spawn(Key::Reset, async { Outcome::Reset(reset::run(job).await) });
    }

    /// Ends the pod, which ran too long.
    fn exceed_deadline(&mut self) {
        let failure = Failure {
            reason: "DeadlineExceeded".to_owned(),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
        };
        let (kind, reason) = (EventKind::Normal, failure.reason.as_str());
        self.deps
            .pod_event(&self.pod, kind, reason, &failure.message);
        self.facts.failure = Some(failure);
    }

    /// Starts a container, unless its image or an earlier failure keeps it back.
    fn start_container(&mut self, seen: &Observation, plan: Start) {
        let key = Key::Start(plan.name.clone());
        let (Some(volumes), Some(sandbox)) = (self.volumes.mounted.clone(), seen.newest_sandbox())
        else {
            return;
        };
        let Some((kind, container)) = spec::find_container(&self.pod, &plan.name) else {
            return;
        };
        if self.is_pull_backed_off(&container) || !self.is_due(&key) {
            return;
        }
        let target = spec::ephemeral_target(&self.pod, &plan.name)
            .filter(|_| kind == ContainerKind::Ephemeral)
            .map(|name| {
                let id = seen.current(name).map(|record| record.id.clone());
                id.ok_or_else(|| format!("unable to find target container {name}"))
            });
        let job = start::Job {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            container,
            records: seen.records_of(&plan.name).cloned().collect(),
            plan,
            sandbox: sandbox.clone(),
            volumes,
            target,
            cancelled: self.operations.starts(),
        };
        self.operations
            .spawn(key, async { Outcome::Start(start::start(job).await) });
    }

    /// Whether the last pull of an image that the container needs failed too recently; shows it as back-off after a
    /// moment.
    fn is_pull_backed_off(&mut self, container: &Container) -> bool {
        let name = container.name.as_str();
        let now = self.deps.clock.now();
        let volumes = image::of_volumes(&self.pod, container);
        let volumes = volumes.map(|(_, source)| (source.reference.as_ref(), false));
        let images = volumes.chain([(container.image.as_ref(), true)]);
        let failed = images.into_iter().find_map(|(image, own)| {
            let failed = self.pulls.in_back_off(image?, now)?;
            Some((failed.clone(), image?.clone(), own))
        });
        let Some((failed, image, own)) = failed else {
            return false;
        };
        self.wake_when(failed.until());
        let shown = after(failed.at, PULL_FAILURE_SHOWN);
        if now < shown {
            self.wake_when(shown);
            return true;
        }
        let message = format!("Back-off pulling image \"{image}\"");
        let waiting = Waiting {
            reason: "ImagePullBackOff".to_owned(),
            message: format!("{message}: {}: {}", failed.reason, failed.message),
        };
        let before = self.facts.waiting.insert(name.to_owned(), waiting.clone());
        if before != Some(waiting) {
            let (events, pod) = (&self.deps.events, &self.pod);
            let of = own.then_some(name);
            events.pod_event(pod, of, EventKind::Normal, "BackOff", &message);
            let message = "Error: ImagePullBackOff";
            events.pod_event(pod, Some(name), EventKind::Warning, "Failed", message);
        }
        true
    }
}
