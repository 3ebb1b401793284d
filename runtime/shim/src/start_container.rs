//! StartContainer: clones the container's process and follows it to its exec.
//!
//! The shim opens what it needs, clones, and writes the child into its v1 cgroups while the child already
//! mounts ([`setup`]), or once the caller has made them ([`ahead`]). Then it goes back to its loop: what the
//! child does depends on bytes of the image and may block, and other requests must not wait for that. The
//! child's reports come by the channel; its end of file is the exec.

mod ahead;
mod cgroup_view;
mod copy_up;
mod dev;
mod hide;
mod home;
mod mounts;
mod namespaces;
mod place;
mod rootfs;
mod setup;
mod source;
pub(crate) mod users;

pub(crate) use home::Home;
pub(crate) use setup::receive_only;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use hanok_shim::protocol::{ContainerSpec, FailureKind, MountSource, Namespace, Reply};
use hanok_shim::sys::clone::{Cloned, clone_process, ns, setns};
use hanok_shim::sys::{exec, process};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::cgroup::{Cgroups, Entry, OomCounter};
use crate::channel::{Line, Received, Report};
use crate::container::{Container, Io, Phase, Start};
use crate::failure::{Doing, Failure, Result};
use crate::log::LogFile;
use crate::poller::{Interest, Stream, Token};
use crate::process::{Stdio, duplicate};
use crate::resolve::open_host;
use crate::shim::{Outcome, Shim};
use crate::start_sandbox::MAX_HOSTNAME;
pub(crate) use setup::Child;

/// Longest id; it is part of paths.
const MAX_ID: usize = 128;

impl Shim {
    #[inline(never)]
    pub(crate) fn start_container(
        &mut self,
        connection: u64,
        spec: ContainerSpec,
        label: Option<&str>,
        cgroups_later: Option<OwnedFd>,
    ) -> Result<Outcome> {
        self.check_new(&spec)?;
        self.nursery
            .admit(&spec.process.capabilities, self.users.is_some());
        self.make_home(&spec, label)?;
        let (mut io, stdio) = open_io(self, &spec)?;
        let cgroups = Cgroups::new(&spec.cgroups);
        let (entry, oom) = match &cgroups_later {
            None => (cgroups.entry()?, cgroups.oom_counter()),
            Some(_) => (Entry::default(), OomCounter::default()),
        };
        let oom_kills_before = oom.read();
        let (line, child_line) = Line::pair().doing(|| "make a channel")?;
        let cloned = self.clone_into(&spec.namespaces.pid, entry.at_clone())?;
        let Cloned::Parent { pid, pidfd } = cloned else {
            // Or the end of the shim would not be seen on the channel.
            drop(line);
            self.become_container(&spec, label, &child_line, stdio);
        };
        drop((child_line, stdio));
        let key = self.new_key();
        let watched = self
            .let_in(key, pid, &line, &entry, cgroups_later.as_ref())
            .and_then(|()| self.watch_reports(key, &line, spec.tty));
        io.stdin_once = spec.stdin_once;
        let start = Start {
            line,
            connection,
            cgroups: cgroups_later,
            executing: false,
            failure: watched.err(),
        };
        let failed = start.failure.is_some();
        self.containers.insert(
            key,
            Container {
                id: spec.id,
                pid,
                pidfd,
                state_dir: PathBuf::from(spec.state_dir),
                cgroups,
                entry,
                owns_pids: spec.namespaces.pid == Namespace::New,
                oom,
                oom_kills_before,
                process: spec.process,
                user: None,
                io,
                phase: Phase::Starting(start),
            },
        );
        if failed {
            self.kill_failed_start(key);
        }
        Ok(Outcome::Later)
    }

    fn check_new(&self, spec: &ContainerSpec) -> Result<()> {
        check(spec)?;
        if self.containers.values().any(|c| c.id == spec.id) {
            let message = format!("container {:?} exists already", spec.id);
            return Err(Failure::new(FailureKind::Exists, message));
        }
        Ok(())
    }

    /// The child's part.
    fn become_container(
        &self,
        spec: &ContainerSpec,
        label: Option<&str>,
        line: &Line,
        stdio: Option<Stdio>,
    ) -> ! {
        let child = Child {
            host: &self.host,
            home: self.home.as_ref(),
            users: self.users.as_ref(),
            sandbox: self.sandbox.as_ref(),
            spec,
            label,
            line,
            bundle: None,
        };
        line.report_failure(child.run(stdio));
        exec::exit_now(1)
    }

    /// Takes what a container's process reports. A terminal is opened and a user namespace entered with us; anybody else
    /// has nothing to say that could not wait for the end of file, which always wakes, and goes on sooner when each report
    /// need not wake us.
    fn watch_reports(&self, key: u64, line: &Line, tty: bool) -> Result<()> {
        let interest = match tty || self.users.is_some() {
            true => Interest::READ,
            false => Interest::NONE,
        };
        self.poller
            .add(line, Token::ContainerSetup(key), interest)
            .doing(|| "watch the container")
    }

    /// Clones with the PID namespace that is asked for: it cannot be joined afterwards.
    pub(crate) fn clone_into(
        &self,
        pid: &Namespace,
        cgroup: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<Cloned> {
        let clone = |flags| clone_process(flags, cgroup).doing(|| "clone a process");
        match pid {
            // Otherwise it must be owned by the user namespace, and comes when that is entered.
            Namespace::New if self.users.is_none() => return clone(ns::PID),
            Namespace::New => return clone(0),
            Namespace::Host => return clone(0),
            Namespace::Pod if self.sandbox.as_ref().is_some_and(|s| !s.has(ns::PID)) => {
                return clone(0);
            }
            Namespace::Pod => {
                let sandbox = self.sandbox.as_ref().ok_or_else(no_sandbox)?;
                setns(sandbox.pidfd(), ns::PID).doing(|| "join the pod's PID namespace")?;
            }
            Namespace::Path(path) => {
                let file = open_host(path, rustix::fs::OFlags::RDONLY)
                    .doing(|| format!("open PID namespace {path}"))?;
                setns(&file, ns::PID).doing(|| format!("join PID namespace {path}"))?;
            }
        }
        self.clone_back(clone)
    }

    /// Clones and makes the shim's next children the node's again, in the shim as in the child.
    pub(crate) fn clone_back(&self, clone: impl FnOnce(u64) -> Result<Cloned>) -> Result<Cloned> {
        let cloned = clone(0);
        if !matches!(cloned, Ok(Cloned::Child)) {
            setns(&self.host.pid_namespace, ns::PID).doing(|| "leave a PID namespace")?;
        }
        cloned
    }

    /// The pod's mount namespace, if the container needs one. One without a /dev/shm gives way to one that has it.
    fn make_home(&mut self, spec: &ContainerSpec, label: Option<&str>) -> Result<()> {
        let shm = spec.mounts.iter().find_map(|mount| match mount.source {
            MountSource::Shm { size } => Some(size),
            _ => None,
        });
        let users = self.users.as_ref();
        let serves = |home: &Home| home.serves(shm.is_some());
        // With a user namespace, a container begins in a copy of the node's, and takes only /dev/shm from here.
        let needed = shm.is_some() || users.is_none();
        if needed && !self.home.as_ref().is_some_and(serves) {
            self.home = Some(Home::make(&self.host, users, shm, label)?);
        }
        Ok(())
    }

    /// Takes the reports that have come from a container's process.
    pub(crate) fn container_setup_progress(&mut self, key: u64) {
        loop {
            let Some(container) = self.containers.get_mut(&key) else {
                return;
            };
            let Phase::Starting(start) = &mut container.phase else {
                return;
            };
            match start.line.receive() {
                Ok(Received::Empty) => return,
                Ok(Received::Report(Report::Resolved(user), _)) => container.user = Some(user),
                Ok(Received::Report(Report::Succeeded { pid }, Some(pidfd))) => {
                    (container.pid, container.pidfd) = (pid, pidfd);
                    let alive = process::pidfd_kill(&container.pidfd, 0)
                        .and_then(|()| start.line.permit())
                        .doing(|| "wake the container");
                    let ending = match self.shutdown {
                        Some(_) => Err(Failure::invalid("the shim is shutting down")),
                        None => alive,
                    };
                    if let Err(failure) = ending {
                        start.failure.get_or_insert(failure);
                        return self.kill_failed_start(key);
                    }
                }
                Ok(Received::Report(Report::Succeeded { .. }, None)) => {}
                Ok(Received::Report(Report::Terminal, Some(master))) => {
                    if let Err(failure) = use_terminal(&mut container.io, master) {
                        start.failure.get_or_insert(failure);
                        return self.kill_failed_start(key);
                    }
                }
                // Only `hanok oci` wants to hear of the latter.
                Ok(
                    Received::Report(Report::Terminal, None)
                    | Received::Report(Report::Prepared, _),
                ) => {}
                Ok(Received::Report(Report::Executing, _)) => start.executing = true,
                // The process knows best.
                Ok(Received::Report(Report::Failed { kind, message }, _)) => {
                    start.failure = Some(Failure { kind, message });
                }
                Ok(Received::End) => return self.container_channel_closed(key),
                Err(errno) => {
                    let failed = Err::<(), _>(errno).doing(|| "hear from the container's process");
                    start.failure = start.failure.take().or(failed.err());
                    return self.kill_failed_start(key);
                }
            }
        }
    }

    /// The channel's end: either execve has succeeded, or the process is gone and will be reaped.
    pub(crate) fn container_channel_closed(&mut self, key: u64) {
        let Some(container) = self.containers.get_mut(&key) else {
            return;
        };
        let Phase::Starting(start) = &container.phase else {
            return;
        };
        self.poller.remove(&start.line);
        if start.failure.is_some() || !start.executing {
            return;
        }
        let connection = start.connection;
        container.phase = Phase::Running;
        let pid = container.pid;
        self.watch_output(key);
        self.reply_later(connection, &Reply::Started { pid });
    }

    fn kill_failed_start(&mut self, key: u64) {
        let Some(container) = self.containers.get(&key) else {
            return;
        };
        if let Phase::Starting(start) = &container.phase {
            self.poller.remove(&start.line);
            if let Some(pipe) = &start.cgroups {
                self.poller.remove(pipe);
            }
        }
        // The answer follows when it is reaped.
        let _ = process::pidfd_kill(&container.pidfd, libc::SIGKILL);
    }

    fn watch_output(&mut self, key: u64) {
        let Some(container) = self.containers.get(&key) else {
            return;
        };
        let streams = [
            (&container.io.stdout, Stream::Stdout),
            (&container.io.stderr, Stream::Stderr),
        ];
        for (fd, stream) in streams {
            if let Some(fd) = fd {
                // Pipes and terminals can always be watched.
                let _ = self
                    .poller
                    .add(fd, Token::Output(key, stream), Interest::READ);
            }
        }
    }
}

fn no_sandbox() -> Failure {
    Failure::invalid("the sandbox is not started")
}

/// What can be wrong with an order before anything is done.
pub(crate) fn check(spec: &ContainerSpec) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let id = &spec.id;
    if id.is_empty() || id.len() > MAX_ID || !id.chars().all(plain) || id.starts_with('.') {
        return Err(Failure::invalid(format!("container id {id:?}")));
    }
    if !spec.state_dir.starts_with('/') {
        return Err(Failure::invalid(format!(
            "state directory {:?} is not absolute",
            spec.state_dir
        )));
    }
    if spec
        .hostname
        .as_ref()
        .is_some_and(|h| h.len() > MAX_HOSTNAME)
    {
        return Err(Failure::invalid("the host name is too long"));
    }
    Ok(())
}

/// The streams on both sides. With a terminal there is none yet: the container's process opens it.
fn open_io(shim: &Shim, spec: &ContainerSpec) -> Result<(Io, Option<Stdio>)> {
    let mut io = Io::default();
    if let Some(log) = &spec.log {
        io.log = Some(LogFile::open(log).doing(|| format!("open log {}", log.path))?);
    }
    if spec.tty {
        return Ok((io, None));
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC).doing(|| "make a pipe");
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe()?;
    let stdin = if spec.stdin {
        let (child_stdin, stdin) = pipe()?;
        rustix::io::ioctl_fionbio(&stdin, true).doing(|| "make a pipe")?;
        io.stdin = Some(stdin);
        child_stdin
    } else {
        duplicate(shim.host.null.as_fd())?
    };
    for fd in [&stdout, &stderr] {
        rustix::io::ioctl_fionbio(fd, true).doing(|| "make a pipe")?;
    }
    if let Some(users) = &shim.users {
        for fd in [&stdin, &child_stdout, &child_stderr] {
            users.hand_over(fd)?;
        }
    }
    io.stdout = Some(stdout);
    io.stderr = Some(stderr);
    let stdio = Stdio {
        stdin,
        stdout: child_stdout,
        stderr: child_stderr,
        terminal: false,
    };
    Ok((io, Some(stdio)))
}

/// The master side serves as the container's output and, if it has one, its stdin.
fn use_terminal(io: &mut Io, master: OwnedFd) -> Result<()> {
    rustix::io::ioctl_fionbio(&master, true).doing(|| "use the terminal")?;
    io.stdout = Some(duplicate(master.as_fd())?);
    io.stdin = Some(duplicate(master.as_fd())?);
    io.terminal = Some(master);
    Ok(())
}
