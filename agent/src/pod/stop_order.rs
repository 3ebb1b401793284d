//! The order in which the containers of a pod that ends are stopped. Pure.
//!
//! All are told at once, and run their hooks at once. Then regular, init and ephemeral containers end together, and the
//! sidecars wait for their turn: until the regular containers and the later sidecars are gone, and the starts of those
//! that were called off too late are through. All of them share one budget; when it is spent, nobody waits for anybody.

use std::collections::BTreeSet;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::observation::Observation;
use super::spec::{self, ContainerKind};

/// What every container gets between TERM and KILL, however little of the budget is left.
pub const MINIMUM_GRACE: Duration = Duration::from_secs(2);

/// A container to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopNow {
    /// Which run of it.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// What is left of the budget. Between TERM and KILL there is [`MINIMUM_GRACE`] at least.
    pub grace: Duration,
    /// Whether it is its turn to end; it is told, and runs its hook, before that.
    pub is_due: bool,
}

/// Everything there is to stop. Those of `starting` may still come to life. `left` is what is left of the budget.
pub fn plan(
    pod: &Pod,
    seen: &Observation,
    starting: &BTreeSet<String>,
    left: Duration,
) -> Vec<StopNow> {
    let alive = || seen.alive().map(|record| record.config.name.as_str());
    let living: BTreeSet<&str> = alive().chain(starting.iter().map(String::as_str)).collect();
    let stop = |record: &api::Container| StopNow {
        id: record.id.clone(),
        name: record.config.name.clone(),
        grace: left,
        is_due: left.is_zero() || is_due(pod, &record.config.name, &living),
    };
    seen.alive().map(stop).collect()
}

/// Whether it is a container's turn to end while those of these names live.
pub fn is_due(pod: &Pod, name: &str, living: &BTreeSet<&str>) -> bool {
    let init = spec::init_containers(pod);
    let is_sidecar = |container: &Container| spec::init_kind(container) == ContainerKind::Sidecar;
    let position = init
        .iter()
        .position(|container| container.name == name && is_sidecar(container));
    let Some(position) = position else {
        return true;
    };
    let later = init[position + 1..]
        .iter()
        .filter(|later| is_sidecar(later));
    let mut before = later.chain(spec::app_containers(pod));
    !before.any(|container| living.contains(container.name.as_str()))
}

/// Whether the container has a process to stop, or may have.
pub fn is_alive(record: &api::Container) -> bool {
    matches!(
        record.state,
        ContainerState::Running | ContainerState::Unknown
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;

    /// Who is to end at this moment, of those that are told.
    fn due(pod: &Pod, alive: &[&str], starting: &[&str], left: u64) -> Vec<(String, u64)> {
        let records = alive
            .iter()
            .map(|name| sample::running(pod, name))
            .collect();
        let seen = Observation::new(sample::view(records), None);
        let left = Duration::from_secs(left);
        let starting = starting.iter().map(|name| (*name).to_owned()).collect();
        let told = plan(pod, &seen, &starting, left);
        assert_eq!(told.len(), alive.len(), "all are told at once");
        let due = told.into_iter().filter(|stop| stop.is_due);
        let mut stops: Vec<_> = due.map(|stop| (stop.name, stop.grace.as_secs())).collect();
        stops.sort();
        stops
    }

    #[test]
    fn main_containers_end_first_then_sidecars_in_reverse() {
        let pod = sample::pod("Always", &["s1:sidecar", "i", "s2:sidecar"], &["a", "b"]);
        let one = |name: &str, grace| (name.to_owned(), grace);
        assert_eq!(
            due(&pod, &["s1", "s2", "a", "b"], &[], 30),
            [one("a", 30), one("b", 30)]
        );
        assert_eq!(due(&pod, &["s1", "s2", "b"], &[], 30), [one("b", 30)]);
        assert_eq!(due(&pod, &["s1", "s2"], &[], 20), [one("s2", 20)]);
        assert_eq!(due(&pod, &["s1"], &[], 1), [one("s1", 1)]);
        assert_eq!(due(&pod, &[], &[], 1), []);
    }

    #[test]
    fn sidecars_wait_for_no_init_and_no_ephemeral_container() {
        let mut pod = sample::pod("Always", &["s1:sidecar", "i", "s2:sidecar"], &["a"]);
        let ephemeral = serde_json::json!([{"name": "e", "image": "i:1"}]);
        pod.spec.as_mut().expect("a spec").ephemeral_containers =
            serde_json::from_value(ephemeral).expect("containers");
        let names = |alive: &[&str]| -> Vec<String> {
            let due = due(&pod, alive, &[], 30).into_iter();
            due.map(|(name, _)| name).collect()
        };
        assert_eq!(names(&["s1", "i"]), ["i", "s1"]);
        assert_eq!(names(&["s1", "s2", "e"]), ["e", "s2"]);
        assert_eq!(names(&["s1", "s2", "a", "e"]), ["a", "e"]);
    }

    #[test]
    fn sidecars_wait_for_what_is_being_started_before_them() {
        let pod = sample::pod("Always", &["s1:sidecar", "s2:sidecar"], &["a", "b"]);
        for (alive, starting, left, expected) in [
            (vec!["s1", "s2"], vec!["b"], 30, vec![]),
            (vec!["s1", "s2", "a"], vec!["b"], 30, vec!["a"]),
            (vec!["s1", "a"], vec!["s2"], 30, vec!["a"]),
            (vec!["s1"], vec!["s2"], 30, vec![]),
            (vec!["s1", "s2"], vec!["s1"], 30, vec!["s2"]),
            (vec!["s1", "s2"], vec!["b"], 0, vec!["s1", "s2"]),
        ] {
            let case = format!("{alive:?} beside {starting:?}, {left} s left");
            let due = due(&pod, &alive, &starting, left).into_iter();
            let due: Vec<_> = due.map(|(name, _)| name).collect();
            assert_eq!(due, expected, "{case}");
        }
    }

    #[test]
    fn a_spent_budget_stops_everything_at_once() {
        let pod = sample::pod("Always", &["s1:sidecar", "s2:sidecar"], &["a"]);
        let stopped = due(&pod, &["s1", "s2", "a"], &[], 0);
        assert_eq!(stopped.len(), 3);
        assert!(stopped.iter().all(|(_, grace)| *grace == 0));
    }
}
