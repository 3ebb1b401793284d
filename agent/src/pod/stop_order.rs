//! The order in which the containers of a pod that ends are stopped. Pure.
//!
//! Regular, init and ephemeral containers together; then the sidecars, the last one first, each when
//! those before it are gone. All of them share one budget; when it is spent, nobody waits for anybody.

use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ContainerState};
use jiff::Timestamp;
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

/// The containers to stop at this moment; those to come later follow when these have ended.
pub fn plan(pod: &Pod, seen: &Observation, deadline: Timestamp, now: Timestamp) -> Vec<StopNow> {
    let left = Duration::try_from(deadline.duration_since(now)).unwrap_or(Duration::ZERO);
    let mut alive: Vec<(usize, &api::Container)> = seen
        .alive()
        .map(|record| (rank(pod, &record.config.name), record))
        .collect();
    let first = alive.iter().map(|(rank, _)| *rank).min();
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
    use crate::pod::back_off::after;
    use crate::pod::sample;

    fn names(pod: &Pod, alive: &[&str], left: u64) -> Vec<(String, u64)> {
        let records = alive
            .iter()
            .map(|name| sample::running(pod, name))
            .collect();
        let seen = Observation::new(sample::view(records), None);
        let deadline = after(sample::now(), Duration::from_secs(left));
        let mut stops: Vec<_> = plan(pod, &seen, deadline, sample::now())
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
    fn a_spent_budget_stops_everything_at_once() {
        let pod = sample::pod("Always", &["s1:sidecar", "s2:sidecar"], &["a"]);
        let stopped = names(&pod, &["s1", "s2", "a"], 0);
        assert_eq!(stopped.len(), 3);
        assert!(stopped.iter().all(|(_, grace)| *grace == 2));
    }
}
