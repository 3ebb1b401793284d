//! A container as the shim keeps it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use hanok_shim::protocol::{ContainerState, Exit, Process};

use crate::cgroup::{Cgroups, Entry, OomCounter, OomKills};
use crate::channel::{Line, ResolvedUser};
use crate::failure::Failure;
use crate::log::LogFile;

/// Where a container is in its life.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Its process is being set up and has not exec'd.
    Starting(Start),
    /// The container's program runs.
    Running,
    /// It has ended, and its record is on disk.
    Exited(Exit),
}

/// A start under way.
#[derive(Debug)]
pub(crate) struct Start {
    /// The channel to the process.
    pub(crate) line: Line,
    /// Who asked.
    pub(crate) connection: u64,
    /// Where it is said that the cgroups are there, until it was.
    pub(crate) cgroups: Option<OwnedFd>,
    /// The process said that exec comes next.
    pub(crate) executing: bool,
    /// The step that failed; the answer waits until the process is gone.
    pub(crate) failure: Option<Failure>,
}

/// A container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) state_dir: PathBuf,
    pub(crate) cgroups: Cgroups,
    /// For what is exec'd in it.
    pub(crate) entry: Entry,
    /// Whether its init is the first process of a PID namespace: then nothing outlives it.
    pub(crate) owns_pids: bool,
    /// Where OOM kills are counted, until its end.
    pub(crate) oom: OomCounter,
    /// OOM kills in the cgroup before the start.
    pub(crate) oom_kills_before: OomKills,
    /// What was asked to run; exec inherits from it.
    pub(crate) process: Process,
    /// Whom it runs as, once known.
    pub(crate) user: Option<ResolvedUser>,
    pub(crate) io: Io,
    pub(crate) phase: Phase,
}

/// A container's streams on the shim's side.
#[derive(Debug, Default)]
pub(crate) struct Io {
    pub(crate) log: Option<LogFile>,
    /// Read end of its stdout.
    pub(crate) stdout: Option<OwnedFd>,
    /// Read end of its stderr.
    pub(crate) stderr: Option<OwnedFd>,
    /// Write end of its stdin.
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdin_once: bool,
    /// The terminal's master; then `stdout` and `stdin` are copies of it.
    pub(crate) terminal: Option<OwnedFd>,
}

impl Container {
    pub(crate) fn state(&self) -> ContainerState {
        let exit = match &self.phase {
            Phase::Exited(exit) => Some(exit.clone()),
            Phase::Starting(_) | Phase::Running => None,
        };
        ContainerState {
            id: self.id.clone(),
            pid: self.pid,
            exit,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.phase, Phase::Exited(_))
    }
}
