//! StartContainer: the cgroup and the shim, both at once where a process may begin before its cgroup is there.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use hanok_shim::protocol::{ContainerSpec, FailureKind, Request};
use tracing::{Instrument, info_span};

use super::{Container, Phase, StartFailure, create, devices, identity, target};
use crate::api::{ContainerId, Error, NamespaceMode, Result};
use crate::cgroup::Prepared;
use crate::oom;
use crate::service::{Core, chain};
use crate::shim_client::{Shim, ShimError};
use crate::spec::{OrderInputs, order, pid_mode};

/// Exit code of a container that was never started. Runtimes under a kubelet give it whatever the cause, so that is what
/// rules by exit code are written for.
const NEVER_STARTED: i32 = 128;

/// Starts a created container. When it cannot be started it is Exited, and nothing of it is left running.
pub(crate) async fn start(core: &Arc<Core>, id: &ContainerId) -> Result<()> {
    let container = core.registry.container(id).ok_or_else(|| Error::NotFound {
        kind: "container",
        id: id.0.clone(),
    })?;
    let span = info_span!("container.start", container = %id);
    async {
        let _gate = container.gate.lock().await;
        if !container.advance(&Phase::Created, Phase::Starting) {
            return Err(Error::Internal(format!(
                "container {id} was started before"
            )));
        }
        match launch(core, &container).await {
            Ok(pid) => {
                note_identity(&container, pid);
                // Not when the exit came first.
                if container.advance(&Phase::Starting, Phase::Running { pid }) {
                    oom::watch(core, &container);
                }
                Ok(())
            }
            Err(failure) => Err(fail(core, &container, failure).await),
        }
    }
    .instrument(span)
    .await
}

/// Writes down who the process is. It may have changed that in the moment since it began, which hardly any does; and
/// one that has ended already is nobody.
fn note_identity(container: &Container, pid: i32) {
    let Some(identity) = identity::of(pid) else {
        return;
    };
    if let Err(error) = container.update(|record| record.identity = Some(identity)) {
        tracing::warn!(%error, "cannot record who the container runs as");
    }
}

async fn launch(core: &Arc<Core>, container: &Container) -> Result<i32, StartFailure> {
    let shim = container
        .sandbox
        .shim()
        .ok_or_else(|| failure("the sandbox is gone"))?;
    // On disk before the process: whoever finds the process knows since when it runs. Not while the process begins: the
    // order wakes the shim on this very processor, where it would wait for us.
    container
        .update(|record| record.started_at = Some(SystemTime::now()))
        .map_err(|error| failure(format!("cannot record the start: {error}")))?;
    let (spec, label) = order_for(core, container)?;
    let ahead = core.cgroups.may_come_later() && shim.is_current().await.map_err(refused)?;
    let (started, cgroup) = match ahead {
        true => start_ahead(core, container, &shim, Request::StartAhead { spec, label }).await?,
        false => {
            let cgroup = make_cgroup(core, container).await?;
            let request = match label {
                Some(label) => Request::StartLabelled { spec, label },
                None => Request::StartContainer(spec),
            };
            (shim.start(&request).await, cgroup)
        }
    };
    cgroup.release();
    started.map_err(refused)
}

/// The process begins while its cgroup is still being made, and hears of it by a pipe.
async fn start_ahead(
    core: &Arc<Core>,
    container: &Container,
    shim: &Shim,
    request: Request,
) -> Result<(Result<i32, ShimError>, Prepared), StartFailure> {
    let (theirs, mut ours) =
        std::io::pipe().map_err(|error| failure(format!("cannot make a pipe: {error}")))?;
    let making = async move {
        // Without one the pipe ends, and the shim gives up.
        let cgroup = make_cgroup(core, container).await?;
        // A shim that does not listen any more says why.
        let _ = ours.write_all(&[1]);
        Ok(cgroup)
    };
    let (started, cgroup) = tokio::join!(shim.start_with(&request, theirs.as_fd()), making);
    Ok((started, cgroup?))
}

fn refused(error: ShimError) -> StartFailure {
    match error {
        ShimError::Failed {
            kind: FailureKind::CommandNotFound | FailureKind::CommandNotExecutable,
            message,
        } => failure(message),
        other => failure(chain(&other)),
    }
}

/// The cgroup with its limits.
async fn make_cgroup(core: &Arc<Core>, container: &Container) -> Result<Prepared, StartFailure> {
    let other = |error: &(dyn std::error::Error + 'static)| failure(chain(error));
    let resources = container.with_record(|record| record.config.resources.clone());
    if let Some(prepared) = container.ahead.take(&resources).await {
        return Ok(prepared);
    }
    let record = container.record();
    let devices = devices::resolve(&record.config).map_err(|error| other(&error))?;
    let cgroup = container.cgroup();
    let prepared = core
        .cgroups
        .prepare(&cgroup, &resources, &devices.rules)
        .await;
    prepared.map_err(|error| other(&error))
}

/// The order for the shim, with the SELinux label of what is mounted.
fn order_for(
    core: &Core,
    container: &Container,
) -> Result<(Box<ContainerSpec>, Option<String>), StartFailure> {
    let other = |error: &(dyn std::error::Error + 'static)| failure(chain(error));
    let record = container.record();
    let sandbox = container.sandbox.record();
    let target_pid = match pid_mode(&sandbox.config, &record.config) {
        NamespaceMode::Target(of) => target::pid_of(core, container, of).map_err(failure)?,
        _ => 0,
    };
    let seccomp = match record.config.security.privileged {
        true => None,
        false => {
            let capabilities = create::bounding(core, &record.config)
                .map_err(|error| failure(error.to_string()))?;
            let profile = &record.config.security.seccomp;
            core.filters
                .get(profile, capabilities)
                .map_err(|error| other(&error))?
        }
    };
    let directories = core.cgroups.directories(&container.cgroup());
    let directories = directories.map_err(|error| other(&error))?;
    let spec = container.take_spec().map_err(|error| other(&error))?;
    let log = container.log_path();
    let inputs = OrderInputs {
        id: container.id.as_str(),
        sandbox: &sandbox.config,
        config: &record.config,
        state_dir: &container.dir,
        rootfs: record.rootfs,
        netns: sandbox.netns.as_deref(),
        target_pid,
        seccomp,
        cgroups: directories.iter().map(|dir| text(dir)).collect(),
        log: (!record.config.log_path.as_os_str().is_empty()).then_some(log.as_path()),
    };
    let order = Box::new(order(&spec, inputs).map_err(|error| other(&error))?);
    let label = spec
        .linux()
        .as_ref()
        .and_then(|linux| linux.mount_label().clone());
    Ok((order, label))
}

/// The container is over, and what was made for it is taken back.
async fn fail(core: &Core, container: &Container, failure: StartFailure) -> Error {
    // It may have failed before anybody took the cgroup that is being made.
    container.ahead.settle().await;
    if let Err(error) = core.cgroups.remove(&container.cgroup()).await {
        tracing::warn!(
            error = chain(&error),
            "cannot remove the cgroup of a failed start"
        );
    }
    let recorded = container.update(|record| record.failure = Some(failure.clone()));
    if let Err(error) = recorded {
        tracing::warn!(%error, "cannot record the failed start");
    }
    container.advance(&Phase::Starting, Phase::Failed(failure.clone()));
    Error::Start {
        id: container.id.clone(),
        code: failure.code,
        message: failure.message,
    }
}

fn failure(message: impl Into<String>) -> StartFailure {
    StartFailure {
        code: NEVER_STARTED,
        message: message.into(),
        at: SystemTime::now(),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
