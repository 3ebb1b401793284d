//! Exec and attach: pipes whose far ends go to the shim.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use async_trait::async_trait;
use hanok_shim::protocol::{Capabilities, ExecSpec, Process, Request, User};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::{Container, Phase};
use crate::api::{ContainerId, Error, ExecProcess, ExecRequest, ExecSession, Result};
use crate::service::{Core, chain, record};
use crate::shim_client::{self, ExecConnection, Shim};

/// Runs a command in a running container.
pub(crate) async fn exec(
    core: &Core,
    id: &ContainerId,
    request: ExecRequest,
) -> Result<ExecSession> {
    let (container, shim) = running(core, id)?;
    let streams = Streams::new(request.stdin, !request.tty)?;
    let exec = record::new_id().map_err(|error| Error::Internal(format!("exec id: {error}")))?;
    let order = Request::Exec(Box::new(ExecSpec {
        container: container.id.0.clone(),
        exec: exec.clone(),
        process: only_arguments(request.command),
        inherit: true,
        stdin: request.stdin,
        stdout: true,
        stderr: !request.tty,
        tty: request.tty,
    }));
    let far = streams.far.iter().map(AsFd::as_fd).collect::<Vec<_>>();
    let connection = shim.exec(&order, &far).await.map_err(|error| match error {
        shim_client::ShimError::Failed { message, .. } => Error::Internal(message),
        other => Error::Internal(format!("cannot exec in container {id}: {}", chain(&other))),
    })?;
    drop(far);
    let process = Exec {
        id: exec,
        shim,
        exit: follow(connection),
    };
    Ok(streams.session(Box::new(process)))
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
    stdout: pipe::Receiver,
    stderr: Option<pipe::Receiver>,
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
        let stdout = pipe::Receiver::from_owned_fd(read).map_err(failed)?;
        let mut errors = None;
        if stderr {
            let (read, write) = make()?;
            far.push(write);
            errors = Some(pipe::Receiver::from_owned_fd(read).map_err(failed)?);
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

/// How an exec ended, once it has.
type ExecExit = Option<std::result::Result<i32, String>>;

/// Waits for the end of the exec in a task, so that everybody who asks gets it, at any time.
fn follow(mut connection: ExecConnection) -> watch::Receiver<ExecExit> {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let exit = connection.exit().await.map_err(|error| chain(&error));
        let _ = sender.send(Some(exit));
    });
    receiver
}

struct Exec {
    id: String,
    shim: Arc<Shim>,
    exit: watch::Receiver<ExecExit>,
}

#[async_trait]
impl ExecProcess for Exec {
    async fn wait(&self) -> Result<i32> {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await;
        match ended.ok().and_then(|exit| exit.clone()) {
            Some(Ok(code)) => Ok(code),
            Some(Err(message)) => Err(Error::Internal(format!("exec was lost: {message}"))),
            None => Err(Error::Internal("exec was lost".to_owned())),
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
