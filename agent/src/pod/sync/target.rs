//! The container that an ephemeral container is to look into. Pure.
//!
//! Who asks for the processes of another container is not shown some of its own instead.

use hanok_runtime::api::{self, ContainerId, ContainerState};

/// A container by name, as it was last seen.
#[derive(Debug)]
pub(in crate::pod) struct Target {
    pub(in crate::pod) name: String,
    /// None as long as it was never made.
    pub(in crate::pod) record: Option<api::Container>,
}

impl Target {
    /// Which it is. The error is what the user reads.
    pub(super) fn id(&self) -> Result<ContainerId, String> {
        let record = self.record.as_ref();
        record
            .map(|record| record.id.clone())
            .ok_or_else(|| format!("unable to find target container {}", self.name))
    }

    /// Whether there are processes to see. The error is what the user reads, in the words of containerd.
    pub(super) fn runs(&self) -> Result<(), String> {
        let id = self.id()?;
        let state = match self.record.as_ref().map(|record| record.state) {
            Some(ContainerState::Running) => return Ok(()),
            Some(ContainerState::Created) => "CREATED",
            Some(ContainerState::Exited) => "EXITED",
            Some(ContainerState::Unknown) | None => "UNKNOWN",
        };
        Err(format!(
            "invalid target container: container {:?} is not running - in state CONTAINER_{state}",
            id.as_str()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;

    #[test]
    fn a_target_has_to_be_there_and_to_run() {
        let pod = sample::pod("Never", &[], &["a"]);
        let target = |record| Target {
            name: "a".into(),
            record,
        };
        assert!(target(Some(sample::running(&pod, "a"))).runs().is_ok());
        for (record, want) in [
            (None, "unable to find target container a"),
            (
                Some(sample::exited(&pod, "a", 0, 1, 5)),
                "invalid target container: container \"a.0\" is not running - in state CONTAINER_EXITED",
            ),
        ] {
            assert_eq!(target(record).runs(), Err(want.to_owned()));
        }
    }
}
