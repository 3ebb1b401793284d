//! Stops containers of a pod that is to run: they are replaced, restarted, or have failed for good.

use std::time::Duration;

use hanok_runtime::api::{ContainerId, ContainerState};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::Worker;
use super::operations::{Key, Outcome};
use super::stopping::within;
use crate::pod::actions::{Stop, StopReason};
use crate::pod::back_off;
use crate::pod::observation::Observation;
use crate::pod::probe::FailedProbe;
use crate::pod::spec::{self, ContainerKind, RestartPolicy};
use crate::pod::sync::stop;

impl Worker {
    /// Stops a container that is to be replaced or restarted.
    pub(super) fn stop_for_restart(&mut self, seen: &Observation, plan: Stop) {
        let key = Key::Stop(plan.id.clone());
        if self.operations.has(&key) || self.stopped.contains(&plan.id) || !self.is_due(&key) {
            return;
        }
        let found = spec::find_container(&self.pod, &plan.name);
        let message = match &found {
            Some((kind, container)) => message(plan.why, *kind, container, || {
                spec::restart_policy(&self.pod, *kind, container) == RestartPolicy::Never
            }),
            None => format!("Stopping container {}", plan.name),
        };
        let container = found.map(|(_, container)| container);
        let grace = grace(&self.pod, container.as_ref(), plan.why);
        let job = stop::Job {
            deps: self.deps.clone(),
            pod: self.pod.clone(),
            container,
            id: plan.id,
            name: plan.name,
            pod_ip: self.deps.pod_ip(&self.pod, seen),
            grace,
            message: Some(message),
            turn: None,
        };
        // Of one that may have ended long ago, the end is not this one.
        if !matches!(plan.why, StopReason::Unknown | StopReason::OldSandbox) {
            self.restarts(seen, &job.name, &job.id);
        }
        self.restarts_until = self.restarts_until.max(Some(within(grace)));
        self.operations
            .spawn(key, async { Outcome::Stop(stop::stop(job).await) });
    }

    /// Takes note that what runs is about to be stopped so that it begins anew.
    pub(super) fn restarts_all_running(&mut self, seen: &Observation) {
        let running = seen
            .alive()
            .filter(|record| record.state == ContainerState::Running);
        for record in running {
            self.restarts(seen, &record.config.name, &record.id);
        }
    }

    /// The same of one run.
    fn restarts(&mut self, seen: &Observation, name: &str, id: &ContainerId) {
        let mut before = seen.records_of(name).filter_map(back_off::end);
        self.restarted.insert(id.clone(), before.next());
    }
}

/// The time that the container has: that of the probe that has failed, where it says one, be it more than the pod's.
fn grace(pod: &Pod, container: Option<&Container>, why: StopReason) -> Duration {
    let probe = container.and_then(|container| match why {
        StopReason::Probe(FailedProbe::Startup) => container.startup_probe.as_ref(),
        StopReason::Probe(FailedProbe::Liveness) => container.liveness_probe.as_ref(),
        _ => None,
    });
    let own = probe.and_then(|probe| probe.termination_grace_period_seconds);
    own.and_then(|own| u64::try_from(own).ok())
        .map_or_else(|| spec::grace_period(pod), Duration::from_secs)
}

/// What the event of the stop says. Only of a regular container it says whether it begins anew.
fn message(
    why: StopReason,
    kind: ContainerKind,
    container: &Container,
    ends_for_good: impl Fn() -> bool,
) -> String {
    let name = &container.name;
    let (what, then) = match kind {
        ContainerKind::Init | ContainerKind::Sidecar => ("Init container", ""),
        _ => ("Container", ", will be restarted"),
    };
    match why {
        StopReason::DefinitionChanged => format!("{what} {name} definition changed{then}"),
        StopReason::Probe(failed) => {
            let probe = match failed {
                FailedProbe::Startup => "startup",
                FailedProbe::Liveness => "liveness",
            };
            let then = if ends_for_good() { "" } else { then };
            format!("{what} {name} failed {probe} probe{then}")
        }
        StopReason::Resize => format!("Container {name} resize requires restart"),
        StopReason::Unknown => {
            format!("{what} is in \"unknown\" state, try killing it before restart")
        }
        StopReason::OldSandbox => format!("Stopping container {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::json;

    #[test]
    fn the_event_of_a_stop_names_its_cause_in_the_kubelets_words() {
        use FailedProbe::{Liveness, Startup};
        use StopReason::{DefinitionChanged, OldSandbox, Probe, Resize, Unknown};
        // Why, whether the policy is Never; what is said of a regular container, and of a sidecar.
        let unknown = "is in \"unknown\" state, try killing it before restart";
        let table = [
            (
                DefinitionChanged,
                true,
                "c definition changed, will be restarted",
                "c definition changed",
            ),
            (
                Probe(Liveness),
                false,
                "c failed liveness probe, will be restarted",
                "c failed liveness probe",
            ),
            (
                Probe(Liveness),
                true,
                "c failed liveness probe",
                "c failed liveness probe",
            ),
            (
                Probe(Startup),
                false,
                "c failed startup probe, will be restarted",
                "c failed startup probe",
            ),
            (Unknown, false, unknown, unknown),
        ];
        let pod = sample::pod("Always", &[], &["c"]);
        let container = &spec::app_containers(&pod)[0];
        for (why, never, app, sidecar) in table {
            let said = |kind| message(why, kind, container, || never);
            assert_eq!(said(ContainerKind::App), format!("Container {app}"));
            assert_eq!(
                said(ContainerKind::Sidecar),
                format!("Init container {sidecar}")
            );
        }
        for kind in [ContainerKind::App, ContainerKind::Sidecar] {
            let said = |why| message(why, kind, container, || false);
            assert_eq!(said(Resize), "Container c resize requires restart");
            assert_eq!(said(OldSandbox), "Stopping container c");
        }
    }

    #[test]
    fn only_the_probe_that_has_failed_has_a_grace_of_its_own() {
        use FailedProbe::{Liveness, Startup};
        use StopReason::{DefinitionChanged, Probe};
        // Seconds of the pod, of its startup and of its liveness probe; why, and how long there is.
        let table = [
            (60, None, None, Probe(Liveness), 60),
            (60, None, Some(10), Probe(Liveness), 10),
            (60, Some(10), None, Probe(Startup), 10),
            (10, Some(60), None, Probe(Startup), 60),
            (10, None, Some(60), Probe(Liveness), 60),
            (60, None, Some(10), DefinitionChanged, 60),
            (60, Some(10), None, Probe(Liveness), 60),
            (60, Some(10), Some(30), DefinitionChanged, 60),
            (60, Some(10), Some(30), Probe(Startup), 10),
            (60, Some(10), Some(30), Probe(Liveness), 30),
        ];
        for (own, startup, liveness, why, want) in table {
            let probe = |grace: Option<i64>| json!({"terminationGracePeriodSeconds": grace});
            let container = json!({"name": "c", "image": "i:1", "startupProbe": probe(startup),
                "livenessProbe": probe(liveness)});
            let pod = sample::from(
                json!({"terminationGracePeriodSeconds": own, "containers": [container]}),
            );
            let container = spec::app_containers(&pod).first();
            let case = format!("{own} {startup:?} {liveness:?} {why:?}");
            assert_eq!(grace(&pod, container, why).as_secs(), want, "{case}");
        }
    }
}
