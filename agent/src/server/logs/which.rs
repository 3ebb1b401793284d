//! Which container's log is meant, by the pod's status. Pure.
//!
//! A container name has had many containers; the status names the current one and the one before. Where there is
//! none, users read the reason here, in the kubelet's words.

use hanok_runtime::api::ContainerId;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

/// The id of the container whose log to read, or why there is none.
pub(super) fn container_id(
    pod: &str,
    status: &PodStatus,
    name: &str,
    previous: bool,
) -> Result<ContainerId, String> {
    let container = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .find(|container| container.name == name)
    .ok_or_else(|| format!("container {name:?} in pod {pod:?} is not available"))?;
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    if previous {
        return last.and_then(id_of).ok_or_else(|| {
            format!("previous terminated container {name:?} in pod {pod:?} not found")
        });
    }
    current(container, last).map_err(|why| format!("container {name:?} in pod {pod:?} is {why}"))
}

fn current(
    container: &ContainerStatus,
    last: Option<&ContainerStateTerminated>,
) -> Result<ContainerId, String> {
    let state = container.state.clone().unwrap_or_default();
    if state.running.is_some() {
        let id = container.container_id.as_deref().and_then(strip_scheme);
        return id.ok_or_else(|| "waiting to start - no logs yet".to_owned());
    }
    if let Some(terminated) = &state.terminated {
        // The next container may not have come about; then the one before is the newest.
        let id = id_of(terminated).or_else(|| last.and_then(id_of));
        return id.ok_or_else(|| "terminated".to_owned());
    }
    if let Some(last) = last {
        return id_of(last).ok_or_else(|| "terminated".to_owned());
    }
    let Some(waiting) = &state.waiting else {
        return Err("waiting to start - no logs yet".to_owned());
    };
    Err(match waiting.reason.as_deref().unwrap_or_default() {
        "ErrImagePull" => "waiting to start: image can't be pulled".to_owned(),
        "ImagePullBackOff" => "waiting to start: trying and failing to pull image".to_owned(),
        reason => format!("waiting to start: {reason}"),
    })
}

fn id_of(terminated: &ContainerStateTerminated) -> Option<ContainerId> {
    terminated.container_id.as_deref().and_then(strip_scheme)
}

/// `hanok://ID` to ID.
fn strip_scheme(id: &str) -> Option<ContainerId> {
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then(|| ContainerId(id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateWaiting,
    };

    fn terminated(id: &str) -> ContainerState {
        ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: (!id.is_empty()).then(|| format!("hanok://{id}")),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        }
    }

    fn waiting(reason: &str) -> ContainerState {
        ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.to_owned()),
                message: None,
            }),
            ..ContainerState::default()
        }
    }

    fn running() -> ContainerState {
        let running = Some(ContainerStateRunning::default());
        ContainerState {
            running,
            ..ContainerState::default()
        }
    }

    fn ask(
        state: ContainerState,
        last: Option<ContainerState>,
        previous: bool,
    ) -> Result<String, String> {
        let status = PodStatus {
            container_statuses: Some(vec![ContainerStatus {
                name: "c".to_owned(),
                container_id: Some("hanok://now".to_owned()),
                state: Some(state),
                last_state: last,
                ..ContainerStatus::default()
            }]),
            ..PodStatus::default()
        };
        container_id("p", &status, "c", previous).map(|id| id.0)
    }

    #[test]
    fn the_state_decides_whose_log_it_is() {
        assert_eq!(ask(running(), None, false).unwrap(), "now");
        assert_eq!(ask(terminated("end"), None, false).unwrap(), "end");
        assert_eq!(
            ask(terminated(""), Some(terminated("last")), false).unwrap(),
            "last"
        );
        assert_eq!(
            ask(waiting("CrashLoopBackOff"), Some(terminated("last")), false).unwrap(),
            "last"
        );
        assert_eq!(
            ask(running(), Some(terminated("last")), true).unwrap(),
            "last"
        );
    }

    #[test]
    fn the_reason_why_not_is_told_in_the_known_words() {
        let start = r#"container "c" in pod "p" is "#;
        let table = [
            (
                ask(waiting("ContainerCreating"), None, false),
                "waiting to start: ContainerCreating",
            ),
            (
                ask(waiting("PodInitializing"), None, false),
                "waiting to start: PodInitializing",
            ),
            (
                ask(waiting("ErrImagePull"), None, false),
                "waiting to start: image can't be pulled",
            ),
            (
                ask(waiting("ImagePullBackOff"), None, false),
                "waiting to start: trying and failing to pull image",
            ),
            (ask(terminated(""), None, false), "terminated"),
            (
                ask(ContainerState::default(), None, false),
                "waiting to start - no logs yet",
            ),
        ];
        for (answer, text) in table {
            assert_eq!(answer.unwrap_err(), format!("{start}{text}"));
        }
        let previous = ask(running(), None, true).unwrap_err();
        assert_eq!(
            previous,
            r#"previous terminated container "c" in pod "p" not found"#
        );
        let unknown = container_id("p", &PodStatus::default(), "x", false).unwrap_err();
        assert_eq!(unknown, r#"container "x" in pod "p" is not available"#);
    }
}
