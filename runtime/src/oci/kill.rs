//! `kill`: a signal to a container's process, or to all of them.

use hanok_shim::sys::process;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::record::{Record, Status, is_alive};
use super::{OciError, Result, Runtime, cgroups, pause, signals};

impl Runtime {
    /// Sends a signal, by number or name. Everything that is left of a container can be reached with `all`, also
    /// after its process has ended.
    pub fn kill(&self, id: &str, signal: &str, all: bool) -> Result<()> {
        let record = self.state(id)?;
        let number = signals::parse(signal)
            .ok_or_else(|| OciError::Option(format!("unknown signal {signal:?}")))?;
        if all && let Some(directory) = record.cgroups.first() {
            for pid in cgroups::processes(directory).unwrap_or_default() {
                // It may have ended since.
                let _ = process::kill(pid, number);
            }
            return wake_to_die(&record, number);
        }
        let status = record.status();
        if !Status::ALIVE.contains(&status) {
            let id = record.id;
            return Err(OciError::NotRunning { id, status });
        }
        signal_process(&record, number)
    }
}

/// To the very process of the record, not to whoever got its number later.
pub(super) fn signal_process(record: &Record, signal: i32) -> Result<()> {
    let failed = |error: rustix::io::Errno| {
        OciError::io("signal", format!("process {}", record.pid).as_ref())(error.into())
    };
    let pid = Pid::from_raw(record.pid)
        .ok_or(rustix::io::Errno::SRCH)
        .map_err(failed)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    if !is_alive(record.pid, record.started) {
        return Err(failed(rustix::io::Errno::SRCH));
    }
    process::pidfd_kill(&pidfd, signal).map_err(failed)?;
    wake_to_die(record, signal)
}

/// On v1 a process that is frozen does not even end by SIGKILL.
fn wake_to_die(record: &Record, signal: i32) -> Result<()> {
    match signal {
        libc::SIGKILL => pause::thaw(record),
        _ => Ok(()),
    }
}
