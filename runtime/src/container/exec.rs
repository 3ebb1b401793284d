//! Exec and attach: pipes whose far ends go to the shim.

mod outlet;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use async_trait::async_trait;
use hanok_shim::protocol::{Capabilities, ExecSpec, Process, Request, RunSpec, User};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, watch};

use super::{Container, Phase};
use crate::api::{ContainerId, Error, ExecProcess, ExecRequest, ExecSession, Result};
use crate::service::{Core, chain, record};
use crate::shim_client::{ExecConnection, Shim, ShimError};
use outlet::Outlet;

/// Runs a command in a running container.
pub(crate) async fn exec(
    core: &Core,
    id: &ContainerId,
    request: ExecRequest,
) -> Result<ExecSession> {
    let (_, shim) = running(core, id)?;
    let streams = Streams::new(request.stdin, !request.tty)?;
    let exec = record::exec_id().map_err(|error| Error::Internal(format!("exec id: {error}")))?;
    let far = streams.far.iter().map(AsFd::as_fd).collect::<Vec<_>>();
    let connection = ask(&shim, id, &exec, request, &far).await;
    let connection = connection.map_err(|error| match error {
        ShimError::Failed { message, .. } => Error::Internal(message),
        other => Error::Internal(format!("cannot exec in container {id}: {}", chain(&other))),
    })?;
    drop(far);
    let process = Exec {
        id: exec,
        shim,
        end: Mutex::new(End::Awaited(connection)),
    };
    Ok(streams.session(Box::new(process)))
}

async fn ask(
    shim: &Shim,
    id: &ContainerId,
    exec: &str,
    request: ExecRequest,
    far: &[BorrowedFd<'_>],
) -> std::result::Result<ExecConnection, ShimError> {
    let (container, exec) = (id.0.clone(), exec.to_owned());
    if request.only_end && !request.tty && !request.stdin {
        let order = Request::Run(Box::new(RunSpec {
            container: container.clone(),
            exec: exec.clone(),
            args: request.command.clone(),
        }));
        if let Some(connection) = shim.run(&order, far).await? {
            return Ok(connection);
        }
    }
    let order = Request::Exec(Box::new(ExecSpec {
        container,
        exec,
        process: only_arguments(request.command),
        inherit: true,
        stdin: request.stdin,
        stdout: true,
        stderr: !request.tty,
        tty: request.tty,
    }));
    shim.exec(&order, far).await
}

/// Joins the streams of a running container.
pub(crate) async fn attach(core: &Core, id: &ContainerId, stdin: bool) -> Result<ExecSession> {
    let (container, shim) = running(core, id)?;
    let config = container.record().config;
    let stdin = stdin && config.stdin;
    // The frame carries stdout and stderr whether the container has a terminal or not.
    let streams = Streams::new(stdin, true)?;
    let far = streams.far.iter().map(AsFd::as_fd).collect::<Vec<_>>();
    let request = Request::Attach {
        container: id.0.clone(),
        stdin,
    };
    shim.order_with(&request, &far).await.map_err(|error| {
        Error::Internal(format!(
            "cannot attach to container {id}: {}",
            chain(&error)
        ))
    })?;
    drop(far);
    let phase = container.watch();
    let mut session = streams.session(Box::new(Attached {
        id: id.clone(),
        shim,
        phase,
    }));
    if config.tty {
        session.stderr = None;
    }
    Ok(session)
}

fn running(core: &Core, id: &ContainerId) -> Result<(Arc<Container>, Arc<Shim>)> {
    let container = core.registry.container(id).ok_or_else(|| Error::NotFound {
        kind: "container",
        id: id.0.clone(),
    })?;
    let shim = container.sandbox.shim();
    match (container.phase(), shim) {
        (Phase::Running { .. }, Some(shim)) => Ok((container, shim)),
        _ => Err(Error::Internal(format!("container {id} is not running"))),
    }
}

/// The rest is the container's own.
fn only_arguments(args: Vec<String>) -> Process {
    Process {
        args,
        env: Vec::new(),
        cwd: String::new(),
        user: User {
            spec: String::new(),
            gid: None,
            additional_gids: Vec::new(),
            strict_groups: false,
        },
        capabilities: Capabilities::default(),
        no_new_privileges: false,
        seccomp: Vec::new(),
        seccomp_flags: 0,
        rlimits: Vec::new(),
        oom_score_adj: None,
        umask: None,
        apparmor: None,
        selinux: None,
    }
}

/// Our ends of the pipes, and the far ends in the order of the protocol: stdin, stdout, stderr.
struct Streams {
    stdin: Option<pipe::Sender>,
    stdout: Outlet,
    stderr: Option<Outlet>,
    far: Vec<OwnedFd>,
}

impl Streams {
    fn new(stdin: bool, stderr: bool) -> Result<Self> {
        let failed =
            |error: std::io::Error| Error::Internal(format!("cannot make a pipe: {error}"));
        let make = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let mut far = Vec::new();
        let mut ours = None;
        if stdin {
            let (read, write) = make()?;
            far.push(read);
            ours = Some(pipe::Sender::from_owned_fd(write).map_err(failed)?);
        }
        let (read, write) = make()?;
        far.push(write);
        let stdout = Outlet::new(read);
        let mut errors = None;
        if stderr {
            let (read, write) = make()?;
            far.push(write);
            errors = Some(Outlet::new(read));
        }
        Ok(Streams {
            stdin: ours,
            stdout,
            stderr: errors,
            far,
        })
    }

    /// Closes the far ends here, so that the end of the process is the end of the streams.
    fn session(self, process: Box<dyn ExecProcess>) -> ExecSession {
        drop(self.far);
        ExecSession {
            stdin: self.stdin.map(|stdin| Box::new(stdin) as _),
            stdout: Box::new(self.stdout),
            stderr: self.stderr.map(|stderr| Box::new(stderr) as _),
            process,
        }
    }
}

/// The end of an exec.
enum End {
    /// It comes here, for whoever waits first.
    Awaited(ExecConnection),
    /// It has come, and everybody gets it.
    Known(std::result::Result<i32, String>),
}

struct Exec {
    id: String,
    shim: Arc<Shim>,
    end: Mutex<End>,
}

#[async_trait]
impl ExecProcess for Exec {
    async fn wait(&self) -> Result<i32> {
        let mut end = self.end.lock().await;
        if let End::Awaited(connection) = &mut *end {
            let exit = connection.exit().await;
            *end = End::Known(exit.map_err(|error| match error {
                // What could not be started.
                ShimError::Failed { message, .. } => message,
                other => format!("exec was lost: {}", chain(&other)),
            }));
        }
        match &*end {
            End::Known(Ok(code)) => Ok(*code),
            End::Known(Err(message)) => Err(Error::Internal(message.clone())),
            End::Awaited(_) => Err(Error::Internal("exec was lost".to_owned())),
        }
    }

    async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        order(
            &self.shim,
            &Request::Resize {
                id: self.id.clone(),
                rows,
                cols,
            },
        )
        .await
    }

    async fn kill(&self) -> Result<()> {
        let request = Request::Kill {
            id: self.id.clone(),
            signal: libc::SIGKILL,
            all: true,
        };
        order(&self.shim, &request).await
    }
}

struct Attached {
    id: ContainerId,
    shim: Arc<Shim>,
    phase: watch::Receiver<Phase>,
}

#[async_trait]
impl ExecProcess for Attached {
    async fn wait(&self) -> Result<i32> {
        let mut phase = self.phase.clone();
        let ended = phase
            .wait_for(Phase::is_over)
            .await
            .map(|phase| phase.clone());
        match ended {
            Ok(Phase::Exited(exit)) => Ok(exit.code),
            _ => Err(Error::Internal(format!("container {} is gone", self.id))),
        }
    }

    async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        order(
            &self.shim,
            &Request::Resize {
                id: self.id.0.clone(),
                rows,
                cols,
            },
        )
        .await
    }

    async fn kill(&self) -> Result<()> {
        Ok(())
    }
}

async fn order(shim: &Shim, request: &Request) -> Result<()> {
    shim.order(request)
        .await
        .map_err(|error| Error::Internal(chain(&error)))
}
