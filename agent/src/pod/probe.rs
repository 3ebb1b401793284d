//! What probes say of containers.
//!
//! The planner and the status builder see only [`ProbeResults`]; whoever probes fills them in and wakes the
//! worker. A container without a probe of a kind has passed it as soon as it runs.

use std::collections::BTreeMap;

use hanok_runtime::api::ContainerId;
use k8s_openapi::api::core::v1::Container;

/// The verdicts on one run of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Startup probe: none so far, passed, or failed for good.
    pub started: Option<bool>,
    /// Readiness probe; none counts as not ready.
    pub ready: Option<bool>,
    /// Liveness probe; none counts as alive.
    pub alive: Option<bool>,
}

/// The verdicts on every probed container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeResults {
    verdicts: BTreeMap<ContainerId, Verdicts>,
}

impl ProbeResults {
    /// The verdicts on one run.
    pub fn get(&self, id: &ContainerId) -> Verdicts {
        self.verdicts.get(id).copied().unwrap_or_default()
    }

    /// Replaces the verdicts on one run.
    pub fn set(&mut self, id: ContainerId, verdicts: Verdicts) {
        self.verdicts.insert(id, verdicts);
    }

    /// Forgets the runs that `keep` does not name.
    pub fn retain(&mut self, keep: impl Fn(&ContainerId) -> bool) {
        self.verdicts.retain(|id, _| keep(id));
    }

    /// Whether a running container has started.
    pub fn started(&self, container: &Container, id: &ContainerId) -> bool {
        container.startup_probe.is_none() || self.get(id).started == Some(true)
    }

    /// Whether a running container is ready.
    pub fn ready(&self, container: &Container, id: &ContainerId) -> bool {
        let passed = container.readiness_probe.is_none() || self.get(id).ready == Some(true);
        passed && self.started(container, id)
    }

    /// Why a running container has to be restarted.
    pub fn failure(&self, id: &ContainerId) -> Option<FailedProbe> {
        let verdicts = self.get(id);
        match (verdicts.started, verdicts.alive) {
            (Some(false), _) => Some(FailedProbe::Startup),
            (_, Some(false)) => Some(FailedProbe::Liveness),
            _ => None,
        }
    }
}

/// The kinds of probe whose failure restarts a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedProbe {
    /// `startupProbe`.
    Startup,
    /// `livenessProbe`.
    Liveness,
}
