//! `delete`: what is left of a stopped container.

use std::fs;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::create::unmount_shared;
use super::kill::signal_process;
use super::record::{Record, Status};
use super::{OciError, Result, Runtime, cgroups, hooks};

/// How long a killed process may take to go.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

impl Runtime {
    /// Deletes a stopped container; with `force` one in any state, and one that does not exist is no error. The
    /// warnings are of hooks that failed.
    pub fn delete(&self, id: &str, force: bool) -> Result<Vec<String>> {
        let record = match self.state(id) {
            Err(OciError::NotFound(_)) if force => {
                // One whose creation was cut short has no record.
                let _ = fs::remove_dir_all(self.root.join(id));
                return Ok(Vec::new());
            }
            found => found?,
        };
        if force {
            kill_and_wait(&record);
        } else {
            record.require("delete", &[Status::Stopped])?;
        }
        delete(self, &record)
    }
}

pub(super) fn delete(runtime: &Runtime, record: &Record) -> Result<Vec<String>> {
    cgroups::remove(runtime, record)?;
    unmount_shared(record);
    fs::remove_dir_all(&record.dir).map_err(OciError::io("remove", &record.dir))?;
    let failed = hooks::run_all(&record.poststop, record.pid);
    Ok(failed
        .iter()
        .map(|error| crate::service::chain(error))
        .collect())
}

/// Already ended is as good; who does not end keeps its cgroup, and that is the error then.
fn kill_and_wait(record: &Record) {
    let pidfd = Pid::from_raw(record.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if signal_process(record, libc::SIGKILL).is_err() {
        return;
    }
    if let Some(pidfd) = pidfd {
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PATIENCE));
    }
}
