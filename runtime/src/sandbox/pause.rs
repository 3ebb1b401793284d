//! The pause controller: a shim for each sandbox, and a pause process below it that holds the namespaces.
//!
//! The shim's socket is bound here, before the shim exists, and becomes its standard input: a client can
//! connect at once, and nobody waits for a socket to appear. The shim is started without running any code
//! of ours between vfork and exec, so the size and the threads of the agent do not matter.

use std::fs;
use std::io;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hanok_shim::command_line::STATE_DIR;
use hanok_shim::protocol::{self, Namespace, Request, SandboxSpec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::Child;

use super::strays::{self, unless_gone};
use super::{ControllerError, Holder, SandboxController, SandboxPlan};
use crate::api::{NamespaceMode, UserNamespace};
use crate::shim_client::{self, Shim};

/// `oom_score_adj` of pause: after everything else of the pod.
const PAUSE_OOM_SCORE_ADJ: i32 = -998;

/// How long the shim's first process may take to say why it failed.
const LAUNCH: Duration = Duration::from_secs(5);

/// Makes sandboxes of shim and pause.
#[derive(Debug)]
pub struct PauseController {
    shim: PathBuf,
    pause: PathBuf,
}

impl PauseController {
    /// With these programs.
    pub fn new(shim: PathBuf, pause: PathBuf) -> Self {
        PauseController { shim, pause }
    }

    /// Starts the shim. It becomes a child of PID 1 by itself, and its first process ends when it serves.
    fn spawn(&self, plan: &SandboxPlan) -> Result<Child, ControllerError> {
        let failed = |verb, path: &Path, source| ControllerError::Io {
            verb,
            path: path.to_owned(),
            source,
        };
        let socket = socket(&plan.dir);
        let listener =
            shim_client::bind(&socket).map_err(|source| failed("create", &socket, source))?;
        tokio::process::Command::new(&self.shim)
            .arg(STATE_DIR)
            .arg(&plan.dir)
            .arg("--socket")
            .arg(&socket)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| failed("start", &self.shim, source))
    }

    /// The result of the first request to a shim that was just started, and the end of its first process.
    async fn served<T>(
        &self,
        mut child: Child,
        result: Result<T, shim_client::ShimError>,
    ) -> Result<T, ControllerError> {
        match result {
            Ok(value) => {
                tokio::spawn(async move { child.wait().await });
                Ok(value)
            }
            Err(source) => Err(match self.refusal(child).await {
                Some(refusal) => refusal,
                None => ControllerError::Shim {
                    verb: "start",
                    source,
                },
            }),
        }
    }

    /// Why the shim did not come to serve, in its own words; none when that is not why.
    async fn refusal(&self, child: Child) -> Option<ControllerError> {
        let ended = tokio::time::timeout(LAUNCH, child.wait_with_output())
            .await
            .ok()?
            .ok()?;
        if ended.status.success() {
            return None;
        }
        let words = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        let source = io::Error::other(format!("{}: {words}", ended.status));
        Some(ControllerError::Io {
            verb: "run",
            path: self.shim.clone(),
            source,
        })
    }

    fn order(&self, plan: &SandboxPlan) -> SandboxSpec {
        let config = &plan.record.config;
        let own = |mode: &NamespaceMode| match mode {
            NamespaceMode::Node => Namespace::Host,
            _ => Namespace::New,
        };
        let text = |path: &Path| path.to_string_lossy().into_owned();
        SandboxSpec {
            id: plan.record.id.0.clone(),
            pause: text(&self.pause),
            net: plan
                .record
                .netns
                .as_deref()
                .map_or(Namespace::Host, |p| Namespace::Path(text(p))),
            ipc: own(&config.ipc),
            // The host name belongs to the network's owner.
            uts: own(&config.network),
            pid: match config.pid {
                NamespaceMode::Pod => Namespace::New,
                _ => Namespace::Host,
            },
            hostname: config.hostname.clone(),
            sysctls: config.sysctls.clone(),
            cgroups: plan.cgroups.iter().map(|path| text(path)).collect(),
            oom_score_adj: PAUSE_OOM_SCORE_ADJ,
        }
    }
}

#[async_trait]
impl SandboxController for PauseController {
    async fn create(&self, _plan: &SandboxPlan) -> Result<(), ControllerError> {
        Ok(())
    }

    async fn make_user_namespace(
        &self,
        plan: &SandboxPlan,
        users: UserNamespace,
    ) -> Result<(), ControllerError> {
        let child = self.spawn(plan)?;
        let netns = plan.record.netns.as_deref().unwrap_or(Path::new(""));
        let order = Request::MakeUserNamespace(protocol::UserNamespace {
            host_id: users.host_id,
            length: users.length,
            netns: netns.to_string_lossy().into_owned(),
        });
        let shim = Shim::new(socket(&plan.dir));
        let made = shim.order(&order).await;
        self.served(child, made).await
    }

    async fn start(&self, plan: &SandboxPlan) -> Result<Holder, ControllerError> {
        // With a user namespace the shim runs already.
        let child = match plan.record.config.user_namespace {
            None => Some(self.spawn(plan)?),
            Some(_) => None,
        };
        let shim = Arc::new(Shim::new(socket(&plan.dir)));
        // The socket takes connections already; whether anybody will answer them shows.
        let start = async {
            let events = shim.subscribe().await?;
            let pid = shim.start(&Request::StartSandbox(self.order(plan))).await?;
            Ok((events, pid))
        };
        let started = start.await;
        let (events, pid) = match child {
            Some(child) => self.served(child, started).await?,
            None => started.map_err(|source| ControllerError::Shim {
                verb: "start",
                source,
            })?,
        };
        Ok(Holder { pid, shim, events })
    }

    async fn status(&self, plan: &SandboxPlan) -> Result<Option<Holder>, ControllerError> {
        let shim = Arc::new(Shim::new(socket(&plan.dir)));
        let found = async {
            // First the events, then the state: what happens in between comes twice and not never.
            let events = shim.subscribe().await?;
            let state = shim.state().await?;
            Ok(Holder {
                pid: state.pause_pid,
                shim,
                events,
            })
        };
        match found.await {
            Ok(holder) => Ok(Some(holder)),
            Err(shim_client::ShimError::Gone { .. }) => Ok(None),
            Err(source) => Err(ControllerError::Shim {
                verb: "reach",
                source,
            }),
        }
    }

    async fn stop(&self, plan: &SandboxPlan) -> Result<(), ControllerError> {
        end(&plan.dir).await
    }

    async fn remove(&self, _plan: &SandboxPlan) -> Result<(), ControllerError> {
        Ok(())
    }
}

/// Ends the shim of a sandbox's directory with everything in it. Success when there is none.
pub(crate) async fn end(dir: &Path) -> Result<(), ControllerError> {
    match Shim::new(socket(dir)).shutdown().await {
        Ok(()) => {}
        // Its socket may be gone and not the shim.
        Err(shim_client::ShimError::Gone { .. }) => kill_shim(dir).await?,
        Err(source) => {
            // A shim that does not answer is killed; what it held dies with the cgroups.
            kill_shim(dir).await?;
            tracing::warn!(
                sandbox = %dir.display(),
                error = crate::service::chain(&source),
                "shim did not shut down and was killed"
            );
        }
    }
    for file in [socket(dir), pid_file(dir)] {
        match fs::remove_file(&file) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(ControllerError::Io {
                    verb: "remove",
                    path: file,
                    source,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn socket(dir: &Path) -> PathBuf {
    dir.join("shim.sock")
}

fn pid_file(dir: &Path) -> PathBuf {
    dir.join("shim.pid")
}

/// Kills the process of the pid file, if it still is the shim of this directory. Without an error none is left: the
/// file goes then, and nobody could find it again.
async fn kill_shim(dir: &Path) -> Result<(), ControllerError> {
    let (owned, path) = (dir.to_owned(), pid_file(dir));
    let killed = strays::aside(strays::PATIENCE, move || {
        try_kill_shim(&owned, &pid_file(&owned))
    });
    killed.await.map_err(|source| ControllerError::Io {
        verb: "kill the process of",
        path,
        source,
    })
}

fn try_kill_shim(dir: &Path, pid_file: &Path) -> io::Result<()> {
    let Some(text) = unless_gone(fs::read(pid_file))? else {
        // It may have been removed with the whole directory.
        return strays::end(|other| other == dir).map(drop);
    };
    let number = String::from_utf8_lossy(&text).trim().parse().ok();
    let Some(pid) = number.and_then(Pid::from_raw) else {
        return Ok(());
    };
    let Some(handle) = unless_gone(pidfd_open(pid, PidfdFlags::empty()))? else {
        return Ok(());
    };
    // Read after the pidfd was opened: the process behind it cannot become another one.
    if strays::state_dir(pid)?.is_none_or(|other| other != dir) {
        return Ok(());
    }
    unless_gone(pidfd_send_signal(handle, Signal::KILL)).map(drop)
}
