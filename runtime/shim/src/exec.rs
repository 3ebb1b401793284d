//! Exec: another process in a running container.
//!
//! The child joins the namespaces of the container's init by its pidfd in one call, after it was cloned into
//! the right PID namespace and cgroup; it is not dumpable while it does (CVE-2016-9962), as the shim is not.
//! Then it goes the same way as a container's own process.
//!
//! The process is a fork of the shim, which can do everything, or made by the shim's zygote ([`nursery`]), which costs less.

mod child;
mod nursery;
mod place;

use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::protocol::{ExecSpec, FailureKind, Process, Reply, RunSpec};
use hanok_shim::sys::clone::{Cloned, clone_process, ns, setns};
use hanok_shim::sys::{exec, process};

use crate::channel::{Line, Received, Report};
use crate::container::Container;
use crate::failure::{Doing, Failure, Result};
use crate::poller::{Interest, Token};
use crate::process::duplicate;
use crate::reap::Ending;
use crate::relay::Owner;
use crate::shim::{Outcome, Shim};
pub(crate) use child::Child;
use child::effective_process;
pub(crate) use nursery::Nursery;
use nursery::Ordered;

/// When the client hears of an exec first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// When it runs, or failed to.
    AtStart,
    /// When it has ended.
    AtEnd,
}

/// A process beside a container's init.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: String,
    /// 0 as long as the zygote has not made it.
    pub(crate) pid: i32,
    pub(crate) container: u64,
    /// Who asked, and hears of the end.
    pub(crate) connection: u64,
    pub(crate) terminal: Option<OwnedFd>,
    way: Way,
    /// The client's sides, until the terminal is there.
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    told: Told,
    executing: bool,
    started: bool,
    failure: Option<Failure>,
}

/// How the process comes to be.
#[derive(Debug)]
enum Way {
    /// It is a fork, and reports.
    Long { pidfd: OwnedFd, line: Line },
    /// The zygote makes it.
    Short(Ordered),
}

impl Exec {
    /// The reason why it never ran, if it did not.
    fn into_failure(self, ending: Ending) -> Option<Failure> {
        match self.way {
            Way::Short(order) if !order.has_failed() => return None,
            Way::Long { .. } if self.started => return None,
            _ => {}
        }
        Some(self.failure.unwrap_or_else(|| {
            let message = format!(
                "the exec'd process ended during its set-up ({})",
                ending.code
            );
            Failure::system(message)
        }))
    }
}

impl Shim {
    pub(crate) fn exec(
        &mut self,
        connection: u64,
        spec: ExecSpec,
        fds: Vec<OwnedFd>,
    ) -> Result<Outcome> {
        self.start_exec(connection, spec, fds, Told::AtStart)
    }

    pub(crate) fn run_to_its_end(
        &mut self,
        connection: u64,
        spec: RunSpec,
        fds: Vec<OwnedFd>,
    ) -> Result<Outcome> {
        self.start_exec(connection, of_run(spec), fds, Told::AtEnd)
    }

    fn start_exec(
        &mut self,
        connection: u64,
        spec: ExecSpec,
        fds: Vec<OwnedFd>,
        told: Told,
    ) -> Result<Outcome> {
        let container = self.exec_place(&spec)?;
        let mut streams = Streams::take([spec.stdin, spec.stdout, spec.stderr], fds)?;
        if let Some(users) = &self.users {
            for fd in [&streams.stdin, &streams.stdout, &streams.stderr]
                .into_iter()
                .flatten()
            {
                users.hand_over(fd)?;
            }
        }
        if !spec.inherit {
            self.nursery
                .admit(&spec.process.capabilities, self.users.is_some());
        }
        if told == Told::AtEnd {
            match self.order_exec(container, &spec.process.args, streams) {
                Ok(order) => {
                    self.await_birth(Exec {
                        id: spec.exec,
                        pid: 0,
                        container,
                        connection,
                        terminal: None,
                        way: Way::Short(order),
                        stdin: None,
                        stdout: None,
                        told,
                        executing: false,
                        started: false,
                        failure: None,
                    });
                    return Ok(Outcome::Later);
                }
                Err(refused) => streams = refused,
            }
        }
        self.fork_exec((container, connection), spec, streams, told)?;
        Ok(Outcome::Later)
    }

    fn fork_exec(
        &mut self,
        (container_key, connection): (u64, u64),
        spec: ExecSpec,
        streams: Streams,
        told: Told,
    ) -> Result<()> {
        let container = self.containers.get(&container_key);
        let container =
            container.ok_or_else(|| Failure::not_found("container", &spec.container))?;
        let entry = &container.entry;
        let pidfd = container.pidfd.as_fd();
        let (line, child_line) = Line::pair().doing(|| "make a channel")?;
        setns(pidfd, ns::PID).doing(|| "join the container's PID namespace")?;
        let cloned = self.clone_back(|flags| {
            clone_process(flags, entry.at_clone()).doing(|| "clone a process")
        })?;
        let Cloned::Parent { pid, pidfd } = cloned else {
            // Or the end of the shim would not be seen on the channel.
            drop(line);
            self.become_exec(container_key, spec, streams, &child_line);
        };
        drop(child_line);
        let key = self.new_key();
        let watched = match told {
            // Its reports are read when it has ended.
            Told::AtEnd => Ok(()),
            Told::AtStart => {
                // Without a terminal there is nothing to do before its end of file, which always wakes.
                let interest = if spec.tty {
                    Interest::READ
                } else {
                    Interest::NONE
                };
                self.poller
                    .add(&line, Token::ExecSetup(key), interest)
                    .doing(|| "watch the process")
            }
        };
        let failure = watched.err();
        if failure.is_some() {
            let _ = process::pidfd_kill(&pidfd, libc::SIGKILL);
        }
        // Without a terminal the process has its own copies, and the shim keeps none.
        let (stdin, stdout) = if spec.tty {
            (streams.stdin, streams.stdout)
        } else {
            (None, None)
        };
        let exec = Exec {
            id: spec.exec,
            pid,
            container: container_key,
            connection,
            terminal: None,
            way: Way::Long { pidfd, line },
            stdin,
            stdout,
            told,
            executing: false,
            started: false,
            failure,
        };
        self.execs.insert(key, exec);
        Ok(())
    }

    /// What the process does that has been cloned. Not a part of the shim's way, whose stack is copied page by page after
    /// a clone.
    #[inline(never)]
    fn become_exec(&mut self, container: u64, spec: ExecSpec, streams: Streams, line: &Line) -> ! {
        // In this process it is needed for nothing else.
        let own = self.containers.get_mut(&container);
        let own = own.map(|c| (std::mem::take(&mut c.process), c.user.take()));
        let process = effective_process(own.unwrap_or_default(), spec.process, spec.inherit);
        if let Some(container) = self.containers.get(&container) {
            let child = Child {
                host: &self.host,
                init: container.pidfd.as_fd(),
                users: self.users.is_some(),
                root: None,
                process: &process,
                line,
                cgroups: Some(&container.entry),
                gate: None,
            };
            line.report_failure(child.run(streams, spec.tty));
        }
        exec::exit_now(1);
    }

    /// The container to exec in, which runs and has nothing of that id yet.
    fn exec_place(&self, spec: &ExecSpec) -> Result<u64> {
        let key = self.container_key(&spec.container)?;
        if !self.containers.get(&key).is_some_and(Container::is_running) {
            let message = format!("container {} does not run", spec.container);
            return Err(Failure::invalid(message));
        }
        if self.exec_key(&spec.exec).is_some() || self.container_key(&spec.exec).is_ok() {
            return Err(Failure::new(
                FailureKind::Exists,
                format!("id {:?} is taken", spec.exec),
            ));
        }
        Ok(key)
    }

    /// Takes the reports that have come from an exec's process.
    pub(crate) fn exec_setup_progress(&mut self, key: u64) {
        loop {
            let Some(exec) = self.execs.get_mut(&key).filter(|e| !e.started) else {
                return;
            };
            let Way::Long { line, .. } = &exec.way else {
                return;
            };
            match line.receive() {
                Ok(Received::Empty) => return,
                Ok(Received::Report(Report::Terminal, Some(master))) => {
                    if let Err(failure) = self.use_exec_terminal(key, master) {
                        return self.fail_exec(key, failure);
                    }
                }
                Ok(Received::Report(Report::Executing, _)) => exec.executing = true,
                Ok(Received::Report(Report::Failed { kind, message }, _)) => {
                    exec.failure.get_or_insert(Failure { kind, message });
                }
                Ok(Received::Report(..)) => {}
                Ok(Received::End) => {
                    exec.started = exec.failure.is_none() && exec.executing;
                    if exec.told == Told::AtEnd {
                        return;
                    }
                    self.poller.remove(line);
                    if exec.started {
                        let (connection, pid) = (exec.connection, exec.pid);
                        self.reply_later(connection, &Reply::Started { pid });
                    }
                    return;
                }
                Err(errno) => {
                    let failure = Failure::system(format!("cannot hear from the process: {errno}"));
                    return self.fail_exec(key, failure);
                }
            }
        }
    }

    pub(crate) fn exec_ended(&mut self, key: u64, ending: Ending) {
        let Some(mut exec) = self.execs.remove(&key) else {
            return;
        };
        let connection = exec.connection;
        if exec
            .order_mut()
            .is_some_and(|order| order.is_to_be_repeated())
        {
            match self.repeat(exec) {
                Ok(()) => return,
                Err(failure) => return self.reply_later(connection, &failure.into()),
            }
        }
        let is_short = exec.order_mut().is_some();
        let reply = match exec.into_failure(ending) {
            Some(failure) => failure.into(),
            None => {
                if is_short {
                    self.nursery.has_served();
                }
                Reply::ExecExited { code: ending.code }
            }
        };
        self.reply_later(connection, &reply);
    }

    fn fail_exec(&mut self, key: u64, failure: Failure) {
        let Some(exec) = self.execs.get_mut(&key) else {
            return;
        };
        exec.failure.get_or_insert(failure);
        if let Way::Long { pidfd, line } = &exec.way {
            self.poller.remove(line);
            let _ = process::pidfd_kill(pidfd, libc::SIGKILL);
        }
    }

    fn use_exec_terminal(&mut self, key: u64, master: OwnedFd) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&key) else {
            return Ok(());
        };
        let (stdin, stdout) = (exec.stdin.take(), exec.stdout.take());
        exec.terminal = Some(duplicate(master.as_fd())?);
        if let Some(stdin) = stdin {
            self.start_relay(stdin, duplicate(master.as_fd())?, Owner::Exec)?;
        }
        // Somebody has to read, or the process would stop at a full terminal.
        let stdout = match stdout {
            Some(stdout) => stdout,
            None => duplicate(self.host.null.as_fd())?,
        };
        self.start_relay(master, stdout, Owner::Exec).map(drop)
    }
}

/// The client's descriptors, as far as it sent them.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

impl Streams {
    fn take(named: [bool; 3], fds: Vec<OwnedFd>) -> Result<Self> {
        let count = named.iter().filter(|n| **n).count();
        if count != fds.len() {
            let message = format!("exec names {count} descriptors and came with {}", fds.len());
            return Err(Failure::invalid(message));
        }
        let mut fds = fds.into_iter();
        let mut next = |named: bool| if named { fds.next() } else { None };
        Ok(Self {
            stdin: next(named[0]),
            stdout: next(named[1]),
            stderr: next(named[2]),
        })
    }
}

fn of_run(spec: RunSpec) -> ExecSpec {
    ExecSpec {
        container: spec.container,
        exec: spec.exec,
        process: Process {
            args: spec.args,
            ..Process::default()
        },
        inherit: true,
        stdin: false,
        stdout: true,
        stderr: true,
        tty: false,
    }
}
