//! StartAhead: a container's process that mounts while its caller still makes its cgroups.
//!
//! Making them takes as long on v1 as half of what the process has to do before it needs them, and both at once spare a
//! start the wait. The caller says by a pipe that they are there; when the pipe ends without a word, they never will be,
//! because they could not be made or because the caller is gone, and the start has failed.

use std::os::fd::OwnedFd;

use hanok_shim::protocol::ContainerSpec;
use rustix::io::{Errno, ioctl_fionbio, read};

use crate::cgroup::Entry;
use crate::channel::Line;
use crate::container::{Container, Phase};
use crate::failure::{Doing, Failure, Result};
use crate::poller::{Interest, Token};
use crate::shim::{Outcome, Shim};

impl Shim {
    /// As [`Shim::start_container`]; the cgroups come later.
    pub(crate) fn start_ahead(
        &mut self,
        connection: u64,
        spec: ContainerSpec,
        label: Option<&str>,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Outcome> {
        let (Some(pipe), true) = (fds.pop(), fds.is_empty()) else {
            return Err(Failure::invalid("a start ahead comes with one descriptor"));
        };
        self.start_container(connection, spec, label, Some(pipe))
    }

    /// Joins a container's process to its cgroups, or waits until they are made.
    pub(super) fn let_in(
        &self,
        key: u64,
        pid: i32,
        line: &Line,
        entry: &Entry,
        cgroups_later: Option<&OwnedFd>,
    ) -> Result<()> {
        match cgroups_later {
            None => {
                entry.join(pid)?;
                line.permit().doing(|| "wake the container")
            }
            Some(pipe) => self.await_cgroups(key, pipe),
        }
    }

    fn await_cgroups(&self, key: u64, pipe: &OwnedFd) -> Result<()> {
        ioctl_fionbio(pipe, true)
            .and_then(|()| self.poller.add(pipe, Token::Cgroups(key), Interest::READ))
            .doing(|| "wait for the cgroups")
    }

    /// Takes the word about a container's cgroups.
    pub(crate) fn cgroups_progress(&mut self, key: u64) {
        let Some(container) = self.containers.get_mut(&key) else {
            return;
        };
        let Phase::Starting(start) = &mut container.phase else {
            return;
        };
        let Some(pipe) = &start.cgroups else {
            return;
        };
        let said = match read(pipe, &mut [0; 1]) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(errno) => Err(errno).doing(|| "hear of the cgroups"),
            Ok(0) => Err(Failure::system("the cgroups were not made")),
            Ok(_) => Ok(()),
        };
        self.poller.remove(pipe);
        start.cgroups = None;
        let Err(failure) = said.and_then(|()| join(container)) else {
            return;
        };
        if let Phase::Starting(start) = &mut container.phase {
            start.failure.get_or_insert(failure);
        }
        self.kill_failed_start(key);
    }
}

/// Puts a container's process into the cgroups that are there now, and lets it go on.
fn join(container: &mut Container) -> Result<()> {
    let Phase::Starting(start) = &container.phase else {
        return Ok(());
    };
    container.entry = container.cgroups.late_entry()?;
    container.oom = container.cgroups.oom_counter();
    container.oom_kills_before = container.oom.read();
    container.entry.join(container.pid)?;
    start.line.permit().doing(|| "wake the container")
}
