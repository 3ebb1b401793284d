//! The end of processes: pause, containers, execs, and orphans that the kernel gave to the shim.

use hanok_shim::protocol::{Event, Exit};
use rustix::process::{WaitOptions, WaitStatus, wait};

use crate::container::Phase;
use crate::exit_record;
use crate::failure::{Doing, Failure, complain};
use crate::log::now_ns;
use crate::poller::Stream;
use crate::shim::Shim;

/// A process's end in the numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) code: i32,
    pub(crate) signal: i32,
}

impl Ending {
    fn of(status: WaitStatus) -> Option<Self> {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Self { code, signal: 0 }),
            (None, Some(signal)) => Some(Self {
                code: 128 + signal,
                signal,
            }),
            // Stopped or continued: not an end.
            (None, None) => None,
        }
    }
}

impl Shim {
    /// Reaps whatever has ended. One SIGCHLD may stand for many.
    pub(crate) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(ending) = Ending::of(status) {
                self.process_ended(pid.as_raw_nonzero().get(), ending);
            }
        }
    }

    fn process_ended(&mut self, pid: i32, ending: Ending) {
        if let Some(sandbox) = self.sandbox.as_mut().filter(|s| s.pid() == pid) {
            sandbox.set_exited();
            self.publish(&Event::SandboxExited);
            return;
        }
        if self.is_zygote(pid) {
            return self.zygote_ended();
        }
        self.learn_of_births();
        let container = self
            .containers
            .iter()
            .find(|(_, c)| c.pid == pid && c.is_alive());
        if let Some((&key, _)) = container {
            // Its last reports may not have been read yet, and they decide between failure and exit.
            self.container_setup_progress(key);
            // One of them may say that another process goes on in its place.
            if self.containers.get(&key).is_some_and(|c| c.pid == pid) {
                self.container_ended(key, ending);
            }
            return;
        }
        let exec = self.execs.iter().find(|(_, e)| e.pid == pid);
        if let Some((&key, _)) = exec {
            self.exec_setup_progress(key);
            self.exec_ended(key, ending);
        }
    }

    fn container_ended(&mut self, key: u64, ending: Ending) {
        match self.containers.get(&key).map(|c| &c.phase) {
            // Whoever made it in its user namespace may hold the channel open for a moment longer.
            Some(Phase::Starting(start)) if start.executing && start.failure.is_none() => {
                self.container_channel_closed(key);
                self.container_exited(key, ending);
            }
            Some(Phase::Starting(_)) => self.start_failed(key, ending),
            Some(Phase::Running) => self.container_exited(key, ending),
            Some(Phase::Exited(_)) | None => {}
        }
    }

    /// The process ended before its exec: the container was never there.
    fn start_failed(&mut self, key: u64, ending: Ending) {
        let Some(container) = self.containers.remove(&key) else {
            return;
        };
        let Phase::Starting(start) = container.phase else {
            return;
        };
        self.poller.remove(&start.line);
        if let Some(pipe) = &start.cgroups {
            self.poller.remove(pipe);
        }
        let failure = start.failure.unwrap_or_else(|| {
            let how = match ending.signal {
                0 => format!("exit code {}", ending.code),
                signal => format!("signal {signal}"),
            };
            Failure::system(format!(
                "the container's process ended during its set-up by {how}"
            ))
        });
        self.reply_later(start.connection, &failure.into());
    }

    fn container_exited(&mut self, key: u64, ending: Ending) {
        let finished_at_ns = now_ns();
        let Some(container) = self.containers.get(&key) else {
            return;
        };
        if !container.owns_pids {
            // In a shared PID namespace the rest of the container outlives its init, and what is on its way into it
            // would come.
            container.cgroups.kill_all();
            self.kill_execs(|exec| exec.container == key);
        }
        // All that was written before the end is in the pipes now. Whoever still holds one is not waited for.
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.finish_output(key, stream);
        }
        let Some(container) = self.containers.get_mut(&key) else {
            return;
        };
        let kills = std::mem::take(&mut container.oom).read();
        let exit = Exit {
            container: container.id.clone(),
            code: ending.code,
            signal: ending.signal,
            oom_killed: kills.since(container.oom_kills_before, ending.signal == libc::SIGKILL),
            finished_at_ns,
        };
        // Without a record the event and the state still tell.
        if let Err(failure) = exit_record::write(&container.state_dir, &exit)
            .doing(|| format!("record the end of {}", container.id))
        {
            complain(&failure);
        }
        container.phase = Phase::Exited(exit.clone());
        container.io = crate::container::Io::default();
        // Nothing execs in it any more; its environment and filter need not wait for Delete.
        container.process.env = Vec::new();
        container.process.seccomp = Vec::new();
        for other in self.containers.values_mut() {
            // None of these was theirs.
            other.oom_kills_before.around = kills.around;
        }
        self.nursery.leave(key);
        self.detach_all(key);
        self.drop_stdin_relays(key);
        self.publish(&Event::ContainerExited { exit });
    }
}
