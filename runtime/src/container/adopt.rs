//! Containers that an agent before us made.

use std::sync::Arc;

use hanok_shim::protocol::{Exit, ShimState};

use super::{Container, ContainerRecord, Phase, exit_file, record_file, spec_file};
use crate::api::SandboxId;
use crate::oom;
use crate::sandbox::Sandbox;
use crate::service::record::{Unseen, seen};
use crate::service::{Core, file_name, is_id, record};

/// Reads the records of a sandbox's containers.
pub(crate) fn load(core: &Core, sandbox: &Arc<Sandbox>) -> Result<(), Unseen> {
    let containers = core.layout.containers(&sandbox.id);
    let dirs = seen(&containers, record::subdirectories(&containers))?;
    for dir in dirs.unwrap_or_default() {
        if !file_name(&dir).is_some_and(is_id) {
            continue;
        }
        let spec = spec_file(&dir);
        if seen(&spec, std::fs::metadata(&spec))?.is_err() {
            // Creation did not come to its end, so nobody was told of it. Its snapshot, volumes and cgroup have no owner and
            // are collected.
            if let Err(error) = record::remove_dir(&dir) {
                tracing::warn!(path = %dir.display(), %error, "cannot remove unfinished container");
            }
            continue;
        }
        let file = record_file(&dir);
        let record: ContainerRecord = match seen(&file, record::read(&file))? {
            Ok(record) => record,
            Err(error) => {
                // What it had has no owner either; the directory goes with the sandbox.
                tracing::error!(path = %dir.display(), %error, "container record cannot be read");
                continue;
            }
        };
        let exit = exit_file(&dir);
        let phase = recorded_phase(&record, seen(&exit, record::read(&exit))?.ok());
        let container = Container::new(record, sandbox.clone(), dir, phase);
        core.registry.add_container(Arc::new(container));
    }
    Ok(())
}

/// What the disk alone says. A container whose start was ordered may run; the shim will tell.
pub(crate) fn recorded_phase(record: &ContainerRecord, exit: Option<Exit>) -> Phase {
    match (&record.failure, exit, record.started_at) {
        (Some(failure), _, _) => Phase::Failed(failure.clone()),
        (None, Some(exit), _) => Phase::Exited(exit),
        (None, None, Some(_)) => Phase::Starting,
        (None, None, None) => Phase::Created,
    }
}

/// Adds what a shim says of its containers.
pub(crate) fn merge(core: &Arc<Core>, sandbox: &SandboxId, state: &ShimState) {
    for container in core.registry.containers_of(sandbox) {
        let held = state
            .containers
            .iter()
            .find(|held| held.id == container.id.0);
        match held {
            Some(held) => match &held.exit {
                Some(exit) => container.exited(exit.clone()),
                None => {
                    if container.advance(&Phase::Starting, Phase::Running { pid: held.pid }) {
                        oom::watch(core, &container);
                    }
                }
            },
            // The agent died between writing down the start and ordering it, or while the shim refused.
            None => {
                if container.advance(&Phase::Starting, Phase::Created) {
                    let _ = container.update(|record| record.started_at = None);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::StartFailure;
    use super::*;
    use crate::api::{ContainerConfig, ContainerId};

    #[test]
    fn disk_tells_how_far_a_container_was() {
        let record = ContainerRecord {
            id: ContainerId("c".into()),
            sandbox: SandboxId("s".into()),
            config: ContainerConfig::default(),
            image_ref: String::new(),
            stop_signal: String::new(),
            identity: None,
            rootfs: hanok_shim::protocol::Rootfs::Dir(String::new()),
            created_at: SystemTime::UNIX_EPOCH,
            started_at: None,
            failure: None,
        };
        let exit = Exit {
            container: "c".into(),
            code: 3,
            signal: 0,
            oom_killed: false,
            finished_at_ns: 1,
        };
        assert_eq!(recorded_phase(&record, None), Phase::Created);
        let started = ContainerRecord {
            started_at: Some(SystemTime::UNIX_EPOCH),
            ..record.clone()
        };
        assert_eq!(recorded_phase(&started, None), Phase::Starting);
        assert_eq!(
            recorded_phase(&started, Some(exit.clone())),
            Phase::Exited(exit)
        );
        let failure = StartFailure {
            code: 127,
            message: String::new(),
            at: SystemTime::UNIX_EPOCH,
        };
        let failed = ContainerRecord {
            failure: Some(failure.clone()),
            ..started
        };
        assert_eq!(recorded_phase(&failed, None), Phase::Failed(failure));
    }
}
