//! The laws at the statuses.

use std::sync::Arc;

use hanok_runtime::api::{ContainerState, PodUid};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::pod::observation::statuses;
use crate::pod::sim::world::World;
use crate::pod::spec::{self, ContainerKind};
use crate::pod::status::is_told;

/// The status in one line.
pub(in crate::pod::sim) fn short(status: &PodStatus) -> String {
    let mut text = status.phase.clone().unwrap_or_default();
    for container in statuses(status) {
        let state = container.state.as_ref();
        let runs = state
            .and_then(|state| state.running.as_ref())
            .map(|_| "runs".to_owned());
        let ended = state.and_then(|state| state.terminated.as_ref());
        let ended = ended.map(|ended| format!("ended {}", ended.exit_code));
        let waits = state
            .and_then(|state| state.waiting.as_ref())
            .and_then(|waiting| waiting.reason.clone());
        let state = runs.or(ended).or(waits).unwrap_or_default();
        let ready = if container.ready { "+" } else { "-" };
        text += &format!(
            ", {}.{}{ready} {state}",
            container.name, container.restart_count
        );
    }
    text
}

/// How far a phase is.
fn rank(phase: Option<&str>) -> u32 {
    match phase {
        Some("Running") => 1,
        Some("Succeeded" | "Failed") => 2,
        _ => 0,
    }
}

fn runs(status: &ContainerStatus) -> bool {
    status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some())
}

impl World {
    /// The agent publishes a status.
    pub(in crate::pod::sim) fn published(&mut self, pod: &Arc<Pod>, status: &PodStatus) {
        let uid = spec::uid(pod);
        self.say(format_args!("status {uid} {}", short(status)));
        self.is_born_again(&uid, false);
        self.lists_are_complete(pod, status);
        self.claims_are_true(&uid, status);
        let Some(book) = self.laws.books.get_mut(&uid) else {
            return;
        };
        let mut broken = Vec::new();
        if book.terminated {
            broken.push("a status after the pod is gone".to_owned());
        }
        if let Some(last) = &book.last {
            // What somebody has written over is told again.
            let theirs = pod.status.as_ref();
            let is_over = theirs.is_some_and(|theirs| !is_told(theirs, status));
            if book.published && last == status && !is_over {
                broken.push("the same status twice".to_owned());
            }
            broken.extend(steps_back(last, status));
        }
        for container in statuses(status) {
            let states = [container.state.as_ref(), container.last_state.as_ref()];
            let ends = states
                .into_iter()
                .flatten()
                .filter_map(|state| state.terminated.as_ref());
            // That all were restarted says nothing of how a run ended.
            let ends = ends.filter(|ended| ended.reason.as_deref() != Some(spec::RESTARTING_ALL));
            for ended in ends {
                let Some(id) = ended.container_id.clone() else {
                    continue;
                };
                let told = *book.codes.entry(id.clone()).or_insert(ended.exit_code);
                if told != ended.exit_code {
                    broken.push(format!(
                        "{id} ended with {told}, and then with {}",
                        ended.exit_code
                    ));
                }
            }
        }
        book.last = Some(status.clone());
        book.published = true;
        for law in broken {
            self.broken(format_args!("{uid}: {law}"));
        }
    }

    /// Every container stands in its own list, from the first status on.
    fn lists_are_complete(&mut self, pod: &Pod, status: &PodStatus) {
        let names = |list: &Option<Vec<ContainerStatus>>| -> Vec<String> {
            list.iter()
                .flatten()
                .map(|status| status.name.clone())
                .collect()
        };
        let of = |list: &[k8s_openapi::api::core::v1::Container]| -> Vec<String> {
            list.iter()
                .map(|container| container.name.clone())
                .collect()
        };
        let init = names(&status.init_container_statuses) == of(spec::init_containers(pod));
        let mut sorted = of(spec::app_containers(pod));
        sorted.sort();
        let apps = names(&status.container_statuses) == sorted;
        // Of a pod that was refused there is nothing to say.
        let refused =
            status.phase.as_deref() == Some("Failed") && statuses(status).next().is_none();
        if (!init || !apps) && !refused {
            self.broken(format_args!("a status whose lists are not the pod's"));
        }
        if statuses(status).any(|container| container.state.is_none()) {
            self.broken(format_args!("a container without a state"));
        }
    }

    /// Nothing is claimed that is not so.
    fn claims_are_true(&mut self, uid: &PodUid, status: &PodStatus) {
        let mut broken = Vec::new();
        for container in statuses(status) {
            let id = container
                .container_id
                .as_deref()
                .and_then(|id| id.strip_prefix("hanok://"));
            let record = self
                .machine
                .records
                .iter()
                .find(|record| Some(record.id.as_str()) == id);
            let lives = record.is_some_and(|record| record.state == ContainerState::Running);
            let name = &container.name;
            if runs(container) && !lives {
                broken.push(format!("{name} is said to run"));
            }
            let state = container.state.as_ref();
            if container.ready && state.is_none_or(|state| state.waiting.is_some()) {
                broken.push(format!("{name} is said to be ready"));
            }
            let ended = state.and_then(|state| state.terminated.as_ref());
            if let (Some(ended), Some(record)) = (ended, record) {
                let exited =
                    record.state == ContainerState::Exited && record.exit_code == ended.exit_code;
                if !exited && record.state != ContainerState::Unknown {
                    broken.push(format!(
                        "{name} is said to have ended with {}",
                        ended.exit_code
                    ));
                }
            }
        }
        let mut conditions = status.conditions.iter().flatten();
        let ready = conditions.any(|found| found.type_ == "Ready" && found.status == "True");
        let pod = self.laws.pod(uid);
        let counts = |name: &str| {
            let kind = pod.as_ref().and_then(|pod| spec::find_container(pod, name));
            matches!(kind, Some((ContainerKind::App | ContainerKind::Sidecar, _)))
        };
        let mut unready = statuses(status).filter(|_| ready).filter(|of| !of.ready);
        if let Some(other) = unready.find(|of| counts(&of.name)) {
            broken.push(format!("it is said to be ready, and {} is not", other.name));
        }
        let over = status.phase.as_deref().is_some_and(spec::is_terminal_phase);
        if over && let Some((id, _)) = self.machine.living(uid).next() {
            broken.push(format!("a terminal phase while {id} lives"));
        }
        for law in broken {
            self.broken(format_args!("{uid}: {law}"));
        }
    }
}

/// What never goes back and does.
fn steps_back(last: &PodStatus, status: &PodStatus) -> Vec<String> {
    let mut broken = Vec::new();
    let (old, new) = (last.phase.as_deref(), status.phase.as_deref());
    let runs_again = rank(old) == 1 && status.init_container_statuses.is_some();
    if (rank(new) < rank(old) && !runs_again) || (rank(old) == 2 && old != new) {
        broken.push(format!(
            "phase {} after {}",
            new.unwrap_or_default(),
            old.unwrap_or_default()
        ));
    }
    if last.start_time.is_some() && last.start_time != status.start_time {
        broken.push("another start time".to_owned());
    }
    if status.observed_generation < last.observed_generation {
        broken.push("an older generation".to_owned());
    }
    for container in statuses(status) {
        let Some(old) = statuses(last).find(|old| old.name == container.name) else {
            continue;
        };
        let name = &container.name;
        if container.restart_count < old.restart_count {
            broken.push(format!(
                "restart count of {name} goes down to {}",
                container.restart_count
            ));
        }
        let ended = old
            .state
            .as_ref()
            .is_some_and(|state| state.terminated.is_some());
        if ended && runs(container) && old.container_id == container.container_id {
            broken.push(format!("{name} runs after its end"));
        }
    }
    for condition in status.conditions.iter().flatten() {
        let mut conditions = last.conditions.iter().flatten();
        let Some(old) = conditions.find(|old| old.type_ == condition.type_) else {
            continue;
        };
        let moved = old.last_transition_time != condition.last_transition_time;
        // Those of a resize answer by their reason.
        let resizes = condition.type_.starts_with("PodResize");
        let same = old.status == condition.status && (!resizes || old.reason == condition.reason);
        if moved && same && !condition.type_.contains('/') {
            broken.push(format!(
                "condition {} has a new time and the old answer",
                condition.type_
            ));
        }
    }
    let foreign = |status: &PodStatus| {
        let conditions = status.conditions.iter().flatten();
        conditions
            .filter(|condition| condition.type_.contains('/'))
            .count()
    };
    if foreign(status) < foreign(last) {
        broken.push("another's condition is lost".to_owned());
    }
    broken
}
