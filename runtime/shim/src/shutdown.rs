//! Shutdown: kills every container, then pause, and ends the shim once they are gone.
//!
//! It goes on in the loop, driven by the ends of the processes. Something that cannot be killed in time (it
//! hangs in the kernel) makes the request fail and leaves the shim as it is, for another attempt.

use std::time::{Duration, Instant};

use hanok_shim::protocol::Reply;
use hanok_shim::sys::process;

use crate::failure::Failure;
use crate::shim::{Outcome, Shim};

/// Longest wait for processes that were killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A shutdown under way.
#[derive(Debug)]
pub(crate) struct Shutdown {
    connection: u64,
    deadline: Instant,
}

impl Shutdown {
    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl Shim {
    pub(crate) fn start_shutdown(&mut self, connection: u64) -> Outcome {
        self.kill_execs(|_| true);
        self.nursery.end();
        for container in self.containers.values().filter(|c| c.is_alive()) {
            container.cgroups.kill_all();
            let _ = process::pidfd_kill(&container.pidfd, libc::SIGKILL);
        }
        self.shutdown = Some(Shutdown {
            connection,
            deadline: Instant::now() + PATIENCE,
        });
        self.kill_pause_when_alone();
        Outcome::Later
    }

    /// Asked after every turn of the loop. True once nothing is left and the caller has its answer.
    pub(crate) fn is_shut_down(&mut self) -> bool {
        let Some(shutdown) = &self.shutdown else {
            return false;
        };
        let (connection, late) = (shutdown.connection, shutdown.remaining().is_zero());
        if self.is_alone() && self.sandbox.as_ref().is_none_or(|s| s.pid() == 0) {
            self.reply(connection, &Reply::Ok);
            return true;
        }
        if late {
            self.shutdown = None;
            let failure =
                Failure::system(format!("killed processes are still there: {}", self.left()));
            self.reply_later(connection, &failure.into());
            return false;
        }
        self.kill_pause_when_alone();
        false
    }

    fn is_alone(&self) -> bool {
        self.nursery.pid().is_none()
            && self.execs.is_empty()
            && self.containers.values().all(|c| !c.is_alive())
    }

    fn kill_pause_when_alone(&self) {
        if let Some(sandbox) = &self.sandbox
            && self.is_alone()
        {
            // Again and again does no harm.
            let _ = process::pidfd_kill(sandbox.pidfd(), libc::SIGKILL);
        }
    }

    fn left(&self) -> String {
        let containers = self
            .containers
            .values()
            .filter(|c| c.is_alive())
            .map(|c| format!("{}", c.pid));
        let execs = self.execs.values().map(|exec| match exec.pid {
            0 => format!("exec {} without a process", exec.id),
            pid => format!("{pid}"),
        });
        let zygote = self.nursery.pid().map(|pid| format!("zygote {pid}"));
        let pause = self.sandbox.iter().map(|s| s.pid()).filter(|pid| *pid != 0);
        let pause = pause.map(|pid| format!("pause {pid}"));
        containers
            .chain(execs)
            .chain(zygote)
            .chain(pause)
            .collect::<Vec<_>>()
            .join(", ")
    }
}
