//! What runs, as the kernel knows it: sandboxes, records of containers, and their processes, which may die on their
//! own, listen to TERM or not, and lose their records.

use std::collections::BTreeMap;
use std::sync::Arc;

use hanok_runtime::api::{
    Container, ContainerId, ContainerState, PodSandbox, PodUid, SandboxId, SandboxState,
};
use tokio::sync::Notify;

use super::ground::wants_restart;
use super::world::{Due, World};
use crate::pod::spec::{self, ContainerKind, RestartPolicy};

/// Sandboxes, records and processes.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) sandboxes: Vec<PodSandbox>,
    pub(super) records: Vec<Container>,
    /// Those that live.
    pub(super) processes: BTreeMap<ContainerId, Process>,
    /// For names that nothing had before.
    pub(super) made: u32,
}

/// A container's process that lives.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) uid: PodUid,
    pub(super) name: String,
    pub(super) sandbox: SandboxId,
    /// When TERM came.
    pub(super) told: Option<u64>,
    /// How long it takes to end at TERM; none when it does not listen.
    pub(super) reaction: Option<u64>,
    /// A probe of it has failed.
    pub(super) failed_probe: bool,
    /// Its postStart hook has failed.
    pub(super) failed_hook: bool,
    /// Its definition has changed since it was made.
    pub(super) changed: bool,
    /// Rings when it has ended.
    pub(super) ended: Arc<Notify>,
}

impl Machine {
    pub(super) fn record(&mut self, id: &ContainerId) -> Option<&mut Container> {
        self.records.iter_mut().find(|record| record.id == *id)
    }

    pub(super) fn sandbox(&mut self, id: &SandboxId) -> Option<&mut PodSandbox> {
        self.sandboxes.iter_mut().find(|sandbox| sandbox.id == *id)
    }

    /// The living processes of a pod's containers.
    pub(super) fn living<'a>(
        &'a self,
        uid: &'a PodUid,
    ) -> impl Iterator<Item = (&'a ContainerId, &'a Process)> {
        self.processes
            .iter()
            .filter(move |(_, process)| process.uid == *uid)
    }

    /// Whether a container of that name lives.
    pub(super) fn lives(&self, uid: &PodUid, name: &str) -> bool {
        self.living(uid).any(|(_, process)| process.name == name)
    }

    /// The pod's sandbox that can be used, the newest one.
    pub(super) fn ready_sandbox(&self, uid: &PodUid) -> Option<&PodSandbox> {
        let ready = |sandbox: &&PodSandbox| {
            sandbox.config.uid == *uid && sandbox.state == SandboxState::Ready
        };
        self.sandboxes.iter().rfind(ready)
    }
}

/// What a process is going to do.
struct Course {
    /// After so many milliseconds, with that code and reason; none for never.
    ends: Option<(u64, i32, &'static str)>,
    reaction: Option<u64>,
}

impl World {
    /// Starts the process of a container that is there.
    pub(super) fn start_process(&mut self, id: &ContainerId) {
        let now = self.time();
        let Some(record) = self.machine.record(id) else {
            return;
        };
        record.state = ContainerState::Running;
        record.started_at = Some(now);
        record.pid = 1;
        let record = record.clone();
        let (uid, name) = (record.pod.clone(), record.config.name.clone());
        let course = self.course(&uid, &name);
        let wanted = self.laws.pod(&uid).and_then(|pod| {
            let (_, container) = spec::find_container(&pod, &name)?;
            Some((wants_restart(&pod, &container, &record), container.image))
        });
        let same = (false, Some(record.config.image_reference.clone()));
        let changed = wanted != Some(same);
        let process = Process {
            uid: uid.clone(),
            name: name.clone(),
            sandbox: record.sandbox.clone(),
            told: None,
            reaction: course.reaction,
            failed_probe: false,
            failed_hook: false,
            changed,
            ended: Arc::new(Notify::new()),
        };
        self.machine.processes.insert(id.clone(), process);
        self.process_started(&record);
        if let Some((after, code, reason)) = course.ends {
            self.later(after, Due::Exit(id.clone(), code, reason));
        }
        self.ring(&uid);
    }

    /// What the program of a container does this time.
    fn course(&mut self, uid: &PodUid, name: &str) -> Course {
        let pod = self.laws.pod(uid);
        let kind = pod.as_ref().and_then(|pod| spec::find_container(pod, name));
        let kind = kind.map_or(ContainerKind::App, |(kind, _)| kind);
        let policy = pod.map_or(RestartPolicy::Always, |pod| spec::pod_restart_policy(&pod));
        let reaction = match self.chance.percent(80) {
            true => Some(self.chance.between(0, 3000)),
            false => None,
        };
        let bad = self.chance.percent(self.weather.programs);
        let soon = self.chance.between(1, 5000);
        let late = self.chance.between(20_000, 900_000);
        let code = *self.chance.pick(&[1, 2, 126, 137]).unwrap_or(&1);
        let ends = match (kind, policy) {
            (ContainerKind::Init, _) if !bad => Some((soon, 0, "Completed")),
            (ContainerKind::Init, _) => match self.chance.between(0, 9) {
                0..=5 => Some((soon, code, "Error")),
                6 | 7 => Some((soon, 0, "OOMKilled")),
                _ => Some((late, 0, "Completed")),
            },
            (ContainerKind::Ephemeral, _) => Some((soon * 10, 0, "Completed")),
            (_, _) if bad => match self.chance.between(0, 9) {
                0..=4 => Some((soon, code, "Error")),
                5 | 6 => Some((soon, 0, "Completed")),
                7 => Some((soon, 137, "OOMKilled")),
                _ => Some((late, code, "Error")),
            },
            (ContainerKind::App, RestartPolicy::OnFailure | RestartPolicy::Never)
                if self.chance.percent(60) =>
            {
                Some((soon * 8, 0, "Completed"))
            }
            _ => None,
        };
        Course { ends, reaction }
    }

    /// A process ends, if it has not.
    pub(super) fn end_process(&mut self, id: &ContainerId, code: i32, reason: &'static str) {
        let Some(process) = self.machine.processes.remove(id) else {
            return;
        };
        let now = self.time();
        if let Some(record) = self
            .machine
            .record(id)
            .filter(|record| record.state == ContainerState::Running)
        {
            record.state = ContainerState::Exited;
            record.exit_code = code;
            record.reason = reason.to_owned();
            record.finished_at = Some(now);
            record.pid = 0;
        }
        self.say(format_args!("  {id} ends: {code} {reason}"));
        self.process_ended(id, &process, code, reason);
        process.ended.notify_waiters();
        self.ring(&process.uid);
    }

    /// Every process in a sandbox dies.
    pub(super) fn kill_all_in(&mut self, sandbox: &hanok_runtime::api::SandboxId) {
        let inside = |(_, process): &(&ContainerId, &Process)| process.sandbox == *sandbox;
        let ids: Vec<_> = self
            .machine
            .processes
            .iter()
            .filter(inside)
            .map(|(id, _)| id.clone())
            .collect();
        for id in ids {
            self.end_process(&id, 137, "Error");
        }
    }

    /// TERM for a process. When it has come already, it is not told again.
    pub(super) fn tell_to_end(&mut self, id: &ContainerId) {
        let now = self.now;
        let Some(process) = self.machine.processes.get_mut(id) else {
            return;
        };
        if process.told.is_some() {
            return;
        }
        process.told = Some(now);
        if let Some(after) = process.reaction {
            self.later(after, Due::Exit(id.clone(), 143, "Error"));
        }
    }
}
