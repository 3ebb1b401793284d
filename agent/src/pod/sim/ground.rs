//! What newer ground has beyond the older one: resources that are resized and fought for, rules of restart, a server
//! that cannot be reached at all, and machines on which every shim dies.

use hanok_runtime::api::{
    Container, ContainerId, ContainerState, Error, PodUid, Resources, Result,
};
use k8s_openapi::api::core::v1::{self as core, Pod, PodStatus};
use serde_json::{Value, json};

use super::world::World;
use crate::pod::admit::{NodeView, Placement};
use crate::pod::{resize, spec};
use crate::quantity::Amount;

/// CPUs for pods, in thousandths.
const CPUS: u64 = 2000;

/// What may happen in an episode. Each ground has all that the one before it has; the seed of a fault stays on the ground
/// that it was found on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ground {
    /// Crashes, edits, deletions, probes, bad weather.
    First,
    /// Resources, rules of restart, a server out of reach.
    Second,
}

impl Ground {
    /// The last kind of edits.
    pub(super) fn edits(self) -> u64 {
        match self {
            Self::First => 5,
            Self::Second => 7,
        }
    }

    /// The node that pods compete for.
    pub(super) fn node(self) -> NodeView {
        if self == Self::First {
            return NodeView::default();
        }
        let amount = |text: &str| Amount::parse(text).expect("a quantity");
        let all = [
            ("cpu", format!("{CPUS}m")),
            ("memory", "8Gi".into()),
            ("pods", "10".into()),
        ];
        let allocatable = all.map(|(name, text)| (name.to_owned(), amount(&text)));
        NodeView {
            placement: Some(Placement {
                allocatable: allocatable.into(),
                ..Placement::default()
            }),
            ..NodeView::default()
        }
    }
}

/// Whether a container has other limits than its pod says, and is to begin anew for that.
pub(super) fn wants_restart(pod: &Pod, container: &core::Container, record: &Container) -> bool {
    let change = resize::change(pod, container, record);
    change.is_some_and(|change| change.needs_restart(container))
}

impl World {
    /// Some of what a container may ask for. What it is limited to it also asks for, so that its pod keeps its class.
    fn any_resources(&mut self, limited: bool) -> Value {
        let millis = *self.chance.pick(&[50, 100, 250, 500, 900]).unwrap_or(&50);
        let amounts = json!({"cpu": format!("{millis}m"), "memory": format!("{millis}Mi")});
        match limited {
            true => json!({"requests": amounts, "limits": amounts}),
            false => json!({"requests": {"cpu": amounts["cpu"]}}),
        }
    }

    /// What newer ground gives to a container.
    pub(super) fn broaden(&mut self, container: &mut Value, sidecar: bool) {
        if self.ground == Ground::First {
            return;
        }
        if self.chance.percent(40) {
            let limited = self.chance.percent(40);
            container["resources"] = self.any_resources(limited);
            let mut policies = Vec::new();
            for resource in ["cpu", "memory"] {
                if self.chance.percent(30) {
                    policies.push(
                        json!({"resourceName": resource, "restartPolicy": "RestartContainer"}),
                    );
                }
            }
            container["resizePolicy"] = json!(policies);
        }
        if !sidecar && self.chance.percent(15) {
            let actions = ["Restart", "RestartAllContainers"];
            let codes = self.chance.pick(&[[1, 2], [126, 137], [137, 143]]);
            let on = json!({"operator": "In", "values": codes});
            container["restartPolicy"] = json!(self.chance.pick(&["Never", "OnFailure"]));
            container["restartPolicyRules"] =
                json!([{"action": self.chance.pick(&actions), "exitCodes": on}]);
        }
    }

    /// What newer ground gives to a pod.
    pub(super) fn broaden_pod(&mut self, pod: &mut Value) {
        if self.ground != Ground::First && self.chance.percent(5) {
            pod["spec"]["priority"] = json!(2_000_000_000);
        }
    }

    /// A client wishes for other resources.
    pub(super) fn somebody_resizes(&mut self, uid: &PodUid) {
        let resources = [self.any_resources(false), self.any_resources(true)];
        let [some, all] = resources.map(|value| {
            serde_json::from_value::<core::ResourceRequirements>(value).expect("resources")
        });
        let number = usize::try_from(self.chance.between(0, 4)).unwrap_or(0);
        self.change(uid, |pod| {
            let Some(spec) = pod.spec.as_mut() else {
                return;
            };
            let sidecars = spec.init_containers.iter_mut().flatten();
            let sidecars =
                sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
            let resizable = spec.containers.iter_mut().chain(sidecars);
            let mut resizable: Vec<_> = resizable.filter_map(|it| it.resources.as_mut()).collect();
            if resizable.is_empty() {
                return;
            }
            let count = resizable.len();
            let of = &mut *resizable[number % count];
            let wished = if of.limits.is_some() { all } else { some };
            if *of != wished {
                *of = wished;
                pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
            }
        });
    }

    /// The limits of a container change.
    pub(super) fn resize(&mut self, id: &ContainerId, to: &Resources) -> Result<()> {
        self.say(format_args!(
            "resize {id} {} {} {}",
            to.cpu_shares, to.cpu_quota, to.memory_limit
        ));
        let bad = self.weather.programs / 2;
        let in_use = to.memory_limit > 0 && self.chance.percent(bad);
        let Some(record) = self.machine.record(id) else {
            return Err(Error::NotFound {
                kind: "container",
                id: id.0.clone(),
            });
        };
        let has = &mut record.config.resources;
        let limit = u64::try_from(to.memory_limit).unwrap_or(0);
        if in_use && to.memory_limit < has.memory_limit {
            return Err(Error::MemoryInUse {
                usage: limit + 1,
                limit,
            });
        }
        let kept = |new: i64, old: i64| if new == 0 { old } else { new };
        has.cpu_shares = to.cpu_shares;
        has.cpu_quota = kept(to.cpu_quota, has.cpu_quota);
        has.memory_limit = kept(to.memory_limit, has.memory_limit);
        Ok(())
    }

    /// Whether the server cannot be reached for anything.
    pub(super) fn is_cut_off(&self) -> bool {
        self.ground != Ground::First && self.weather.api_away
    }

    /// The server goes out of reach, or comes back.
    pub(super) fn road_to_server_changes(&mut self) {
        if self.is_cut_off() {
            self.break_watch();
        } else if self.ground != Ground::First && !self.cluster.watch.connected {
            self.list();
        }
    }

    /// The machine reboots, or all shims die and what they wrote stays.
    pub(super) fn everything_stops(&mut self) {
        if self.ground == Ground::First || self.chance.percent(50) {
            return self.reboot();
        }
        self.say(format_args!("all shims die"));
        let living: Vec<_> = self.machine.processes.keys().cloned().collect();
        for id in living {
            self.kill_shim(&id);
        }
        for sandbox in &mut self.machine.sandboxes {
            sandbox.state = hanok_runtime::api::SandboxState::NotReady;
        }
    }

    /// What is not in force of a pod's resources.
    pub(super) fn unsettled_resize(
        &self,
        uid: &PodUid,
        pod: &Pod,
        status: &PodStatus,
    ) -> Option<String> {
        let mut conditions = status.conditions.iter().flatten();
        if conditions
            .clone()
            .any(|found| found.type_ == resize::IN_PROGRESS)
        {
            return Some(format!("{uid} is being resized"));
        }
        if conditions.any(|found| found.type_ == resize::PENDING) {
            return None;
        }
        let mut running = self
            .machine
            .records
            .iter()
            .filter(|record| record.pod == *uid && record.state == ContainerState::Running);
        running.find_map(|record| {
            let (_, container) = spec::find_container(pod, &record.config.name)?;
            resize::change(pod, &container, record)?;
            Some(format!("{} has not the limits of its pod", record.id))
        })
    }

    /// More than there is has been given away.
    pub(super) fn overcommitted(&self) -> Option<String> {
        let living = self.machine.records.iter();
        let living = living.filter(|record| record.state == ContainerState::Running);
        // The least share is that of a container that asks for nothing.
        let shares = living
            .map(|record| record.config.resources.cpu_shares)
            .filter(|shares| *shares > 2);
        let shares: u64 = shares.sum();
        // Another agent does not refuse what it finds, and judges before it is told everything.
        let judged_all = self.ground != Ground::First && self.agent == 1;
        (judged_all && shares > CPUS * 1024 / 1000)
            .then(|| format!("{shares} shares are given away"))
    }
}
