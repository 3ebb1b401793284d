//! The order in which the containers of a pod that ends are stopped. Pure.
//!
//! Regular, init and ephemeral containers together; then the sidecars, the last one first, each when
//! those before it are gone, and the starts that were called off too late are through. All of them share one budget;
//! when it is spent, nobody waits for anybody.

use std::collections::BTreeSet;
use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ContainerState};
use k8s_openapi::api::core::v1::Pod;

use super::observation::Observation;
use super::spec::{self, ContainerKind};

/// What every container gets between TERM and KILL, however little of the budget is left.
pub const MINIMUM_GRACE: Duration = Duration::from_secs(2);

/// A container to stop now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopNow {
    /// Which run of it.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// From TERM to KILL.
    pub grace: Duration,
}

/// The containers to stop at this moment; those to come later follow when these have ended. Those of `starting` may
/// still come to life. `left` is what is left of the budget.
pub fn plan(
    pod: &Pod,
    seen: &Observation,
    starting: &BTreeSet<String>,
    left: Duration,
) -> Vec<StopNow> {
    let mut alive: Vec<(usize, &api::Container)> = seen
        .alive()
        .map(|record| (rank(pod, &record.config.name), record))
        .collect();
    let ranks = alive.iter().map(|(rank, _)| *rank);
    let first = ranks
        .chain(starting.iter().map(|name| rank(pod, name)))
        .min();
    if !left.is_zero() {
        alive.retain(|(rank, _)| Some(*rank) == first);
    }
    let stop = |(_, record): (usize, &api::Container)| StopNow {
        id: record.id.clone(),
        name: record.config.name.clone(),
        grace: left.max(MINIMUM_GRACE),
    };
    alive.into_iter().map(stop).collect()
}

/// 0 for what stops first; sidecars by how far from the end of the list they are.
fn rank(pod: &Pod, name: &str) -> usize {
    let init = spec::init_containers(pod);
    let position = init.iter().position(|container| {
        container.name == name && spec::init_kind(container) == ContainerKind::Sidecar
    });
    position.map_or(0, |position| init.len() - position)
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

    fn names(pod: &Pod, alive: &[&str], left: u64) -> Vec<(String, u64)> {
        names_beside(pod, alive, &[], left)
    }

    fn names_beside(pod: &Pod, alive: &[&str], starting: &[&str], left: u64) -> Vec<(String, u64)> {
        let records = alive
            .iter()
            .map(|name| sample::running(pod, name))
            .collect();
        let seen = Observation::new(sample::view(records), None);
        let left = Duration::from_secs(left);
        let starting = starting.iter().map(|name| (*name).to_owned()).collect();
        let mut stops: Vec<_> = plan(pod, &seen, &starting, left)
            .into_iter()
            .map(|stop| (stop.name, stop.grace.as_secs()))
            .collect();
        stops.sort();
        stops
    }

    #[test]
    fn main_containers_stop_first_then_sidecars_in_reverse() {
        let pod = sample::pod("Always", &["s1:sidecar", "i", "s2:sidecar"], &["a", "b"]);
        let one = |name: &str, grace| (name.to_owned(), grace);
        assert_eq!(
            names(&pod, &["s1", "s2", "a", "b"], 30),
            [one("a", 30), one("b", 30)]
        );
        assert_eq!(names(&pod, &["s1", "s2"], 20), [one("s2", 20)]);
        assert_eq!(names(&pod, &["s1"], 1), [one("s1", 2)]);
        assert_eq!(names(&pod, &[], 1), []);
    }

    #[test]
    fn sidecars_wait_for_what_is_being_started_before_them() {
        let pod = sample::pod("Always", &["s1:sidecar", "s2:sidecar"], &["a", "b"]);
        let stopped = |alive: &[&str], starting: &[&str], left| -> Vec<String> {
            let stops = names_beside(&pod, alive, starting, left);
            stops.into_iter().map(|(name, _)| name).collect()
        };
        for (alive, starting, left, expected) in [
            (vec!["s1", "s2"], vec!["b"], 30, vec![]),
            (vec!["s1", "s2", "a"], vec!["b"], 30, vec!["a"]),
            (vec!["s1", "a"], vec!["s2"], 30, vec!["a"]),
            (vec!["s1"], vec!["s2"], 30, vec![]),
            (vec!["s1", "s2"], vec!["s1"], 30, vec!["s2"]),
            (vec!["s1", "s2"], vec!["b"], 0, vec!["s1", "s2"]),
        ] {
            let case = format!("{alive:?} beside {starting:?}, {left} s left");
            assert_eq!(stopped(&alive, &starting, left), expected, "{case}");
        }
    }

    #[test]
    fn a_spent_budget_stops_everything_at_once() {
        let pod = sample::pod("Always", &["s1:sidecar", "s2:sidecar"], &["a"]);
        let stopped = names(&pod, &["s1", "s2", "a"], 0);
        assert_eq!(stopped.len(), 3);
        assert!(stopped.iter().all(|(_, grace)| *grace == 2));
    }
}
