//! Kill: a signal to a container's init, to all of a container, or to an exec with everything it started.

use hanok_shim::protocol::Reply;
use hanok_shim::sys::process;

use crate::exec::Exec;
use crate::failure::{Failure, Result};
use crate::shim::{Outcome, Shim};

/// Largest signal number.
const MAX_SIGNAL: i32 = 64;

impl Shim {
    pub(crate) fn kill(&mut self, id: &str, signal: i32, all: bool) -> Result<Outcome> {
        if !(1..=MAX_SIGNAL).contains(&signal) {
            return Err(Failure::invalid(format!(
                "signal {signal} is not in 1..={MAX_SIGNAL}"
            )));
        }
        if let Some(key) = self.exec_key(id) {
            let is_born = self.kill_session(key, signal);
            if !is_born && signal != libc::SIGKILL {
                return Err(Failure::invalid(format!("{id} has no process yet")));
            }
            return Ok(Outcome::Done(Reply::Ok));
        }
        let key = self.container_key(id)?;
        let Some(container) = self.containers.get(&key).filter(|c| c.is_alive()) else {
            return Ok(Outcome::Done(Reply::Ok));
        };
        if all && signal == libc::SIGKILL {
            container.cgroups.kill_all();
        } else if all {
            container.cgroups.signal_all(signal);
        }
        if !all || signal == libc::SIGKILL {
            // Also when it is in no cgroup. It may have ended by itself meanwhile.
            let _ = process::pidfd_kill(&container.pidfd, signal);
        }
        Ok(Outcome::Done(Reply::Ok))
    }

    /// An exec's process leads a session; whatever it started is in that session unless it left on purpose. False when it
    /// is not known yet. Killed, it is when the zygote is gone, or there is none; other signals are lost.
    pub(crate) fn kill_session(&mut self, key: u64, signal: i32) -> bool {
        self.learn_of_births();
        let Some(exec) = self.execs.get_mut(&key) else {
            return true;
        };
        if signal == libc::SIGKILL {
            exec.set_killed();
        }
        if exec.pid == 0 {
            if signal == libc::SIGKILL {
                self.nursery.end();
            }
            return false;
        }
        let container = self.containers.get(&exec.container);
        let processes = container.map(|c| c.cgroups.processes());
        signal_session(exec.pid, &processes.unwrap_or_default(), signal);
        true
    }

    /// Kills some of the execs, however far they have come.
    pub(crate) fn kill_execs(&mut self, which: impl Fn(&Exec) -> bool) {
        let execs = self.execs.iter().filter(|(_, exec)| which(exec));
        let execs: Vec<u64> = execs.map(|(&key, _)| key).collect();
        for key in execs {
            self.kill_session(key, libc::SIGKILL);
        }
    }
}

/// Signals a session's members among some processes, and its leader, which is a child that has not been reaped.
fn signal_session(leader: i32, processes: &[i32], signal: i32) {
    for &pid in processes {
        if process::session_of(pid) == Ok(leader) {
            let _ = process::kill(pid, signal);
        }
    }
    // Just born, it is in its maker's session and group, and may not have joined the cgroups.
    if process::kill(-leader, signal).is_err() {
        let _ = process::kill(leader, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_leads_no_session_yet_is_killed() {
        let mut born = Command::new("sleep").arg("5").spawn().unwrap();
        let pid = born.id().cast_signed();
        assert_ne!(process::session_of(pid), Ok(pid));
        signal_session(pid, &[], libc::SIGKILL);
        assert_eq!(born.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
