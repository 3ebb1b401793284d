//! RemoveContainer: the end of everything that create and start made. Safe to repeat.

use std::sync::Arc;

use hanok_shim::protocol::{FailureKind, Request};

use super::{Container, ContainerRecord, Phase, stop};
use crate::api::{ContainerId, Error, NamespaceMode, Result};
use crate::sandbox::teardown::Failures;
use crate::service::{Core, chain, record};
use crate::shim_client;
use crate::spec::pid_mode;

/// Removes a container, killing it first when it runs.
pub(crate) async fn remove(core: &Core, id: &ContainerId) -> Result<()> {
    let Some(container) = core.registry.container(id) else {
        return Ok(());
    };
    let _gate = container.gate.lock().await;
    if container.phase().may_run() {
        stop::kill(&container, &mut container.watch()).await?;
    }
    let mut failures = Failures::default();
    container.ahead.settle().await;
    // Whatever becomes of the shim, nothing survives the cgroups. Both at once: the shim has its own to do. Files go on a
    // thread of their own, beside that when nobody can write to them any more.
    let cgroup = container.cgroup();
    let ending = async { tokio::join!(forget_in_shim(&container), core.cgroups.remove(&cgroup)) };
    let files = core.images.remove(id.as_str());
    let (rootfs, (forgotten, removed)) = if ended_with_its_init(&container) {
        tokio::join!(files, ending)
    } else {
        let ended = ending.await;
        (files.await, ended)
    };
    failures.note(forgotten);
    failures.note(removed.err().map(|error| chain(&error)));
    failures.note(rootfs.err().map(|error| chain(&error)));
    let volumes = record::remove_dir(&core.layout.volumes(id));
    failures.note(
        volumes
            .err()
            .map(|error| format!("cannot remove volumes: {error}")),
    );
    failures.result("remove", id)?;
    record::remove_dir(&container.dir)
        .map_err(|error| Error::Internal(format!("cannot remove container files: {error}")))?;
    core.registry.drop_container(id);
    Ok(())
}

/// Whether it is known that no process of it is left: the kernel reports the end of a PID namespace's init after all the
/// others'. In other namespaces the rest may still be dying, and of a lost container nobody knows anything.
fn ended_with_its_init(container: &Container) -> bool {
    let owned_pids = container.sandbox.with_record(|sandbox| {
        let mode = |own: &ContainerRecord| pid_mode(&sandbox.config, &own.config).clone();
        container.with_record(mode) == NamespaceMode::Container
    });
    owned_pids && matches!(container.phase(), Phase::Exited(_))
}

async fn forget_in_shim(container: &Arc<Container>) -> Option<String> {
    if !matches!(container.phase(), Phase::Exited(_)) {
        return None;
    }
    let shim = container.sandbox.shim()?;
    match shim
        .order(&Request::Delete {
            container: container.id.0.clone(),
        })
        .await
    {
        Ok(())
        | Err(
            shim_client::ShimError::Gone { .. }
            | shim_client::ShimError::Failed {
                kind: FailureKind::NotFound,
                ..
            },
        ) => None,
        Err(error) => Some(chain(&error)),
    }
}
