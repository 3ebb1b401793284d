//! Kill: a signal to a container's init, to all of a container, or to an exec with everything it started.

use hanok_shim::protocol::Reply;
use hanok_shim::sys::process;

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
        let processes = self
            .containers
            .get(&exec.container)
            .map(|c| c.cgroups.processes());
        for pid in processes.unwrap_or_default() {
            if process::session_of(pid) == Ok(exec.pid) {
                let _ = process::kill(pid, signal);
            }
        }
        let _ = process::kill(-exec.pid, signal);
        true
    }
}
