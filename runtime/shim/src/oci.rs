//! `hanok-shim oci FD DIR`: the launcher of one container or exec for `hanok oci`, without a daemon.
//!
//! It goes the same way to exec as the shim ([`start_container`](crate::start_container),
//! [`exec`](crate::exec), [`process`](crate::process)); but the process is a child of the launcher's caller,
//! has the launcher's own standard streams, and stands still at a [`Gate`] until `hanok oci start` comes.
//! The protocol is [`hanok_shim::launch`].

mod create;
mod exec;
mod gate;

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hanok_shim::frame;
use hanok_shim::launch::{Message, Order};
use hanok_shim::protocol::Namespace;
use hanok_shim::sys::clone::{Cloned, clone_sibling, ns, setns};
use hanok_shim::sys::process::{pidfd_kill, take_inherited};
use hanok_shim::sys::socket;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::channel::{Line, Received, Report};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::process::{Stdio, duplicate};
use crate::resolve::open_host;

pub(crate) use create::Bundle;
pub(crate) use gate::Gate;

/// Longest piece of an order that is read at once; most are no longer.
const CHUNK: usize = 8 << 10;

/// Serves the one order that comes by the inherited descriptor, if one comes: the caller may fail before. What fails is
/// told there; the error is for when even that is not possible.
pub(crate) fn run(fd: i32, shared_dir: &Path) -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).doing(|| "forbid dumps")?;
    let socket = take_inherited(fd).doing(|| format!("take descriptor {fd}"))?;
    let caller = Caller(UnixStream::from(socket));
    // While the caller makes the order ready.
    let host = open_host_side(shared_dir);
    let Some((order, fds)) = caller.order()? else {
        return Ok(());
    };
    let done = host.and_then(|host| match order {
        Order::Create(order) => create::create(&caller, &host, *order, fds),
        Order::Exec(order) => exec::exec(&caller, &host, *order),
    });
    match done {
        Ok(()) => Ok(()),
        Err(Failure { kind, message }) => caller.tell(&Message::Failed { kind, message }, None),
    }
}

/// The other end of the launcher's socket.
#[derive(Debug)]
struct Caller(UnixStream);

impl Caller {
    /// None when the caller has left.
    fn order(&self) -> Result<Option<(Order, Vec<OwnedFd>)>> {
        let mut decoder = frame::Decoder::new();
        let mut fds = Vec::new();
        let mut chunk = vec![0; CHUNK];
        let mut begun = false;
        loop {
            let bad = |error| Failure::invalid(format!("cannot read the order: {error}"));
            if let Some(order) = decoder.next_message().map_err(bad)? {
                return Ok(Some((order, fds)));
            }
            let length =
                socket::receive(&self.0, &mut chunk, &mut fds).doing(|| "read the order")?;
            match length {
                0 if begun => return Err(Failure::invalid("the order ended early")),
                0 => return Ok(None),
                _ => begun = true,
            }
            decoder.feed(&chunk[..length]);
        }
    }

    fn tell(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let bytes = frame::encode(message).map_err(|error| Failure::system(error.to_string()))?;
        socket::send_all(&self.0, &bytes, fd.as_slice()).doing(|| "answer")
    }

    fn wait_for_byte(&self) -> Result<()> {
        let mut byte = [0];
        (&self.0)
            .read_exact(&mut byte)
            .doing(|| "wait for the caller")
    }

    /// Puts a new process into its cgroups by `join`, wakes it, and tells what comes from it. It may go on with its
    /// mounts meanwhile.
    fn follow(
        &self,
        line: &Line,
        join: impl FnOnce(i32) -> Result<()>,
        (pid, pidfd): (i32, OwnedFd),
        last: Last,
    ) -> Result<()> {
        let joined = self
            .tell(&Message::Cloned { pid }, None)
            .and_then(|()| line.set_blocking().doing(|| "make a channel"))
            .and_then(|()| join(pid))
            .and_then(|()| line.permit().doing(|| "wake the process"));
        if let Err(failure) = joined {
            let _ = pidfd_kill(&pidfd, libc::SIGKILL);
            // The process knows best why it is not there any more.
            return Err(last_words(line).unwrap_or(failure));
        }
        self.relay(line, pidfd, last)
    }

    /// Tells what comes from the process until it stands at its gate or has its program. When the caller is
    /// gone, so is the process.
    fn relay(&self, line: &Line, mut pidfd: OwnedFd, last: Last) -> Result<()> {
        let relayed = self.try_relay(line, &mut pidfd, last);
        if relayed.is_err() {
            // Already ended is as good.
            let _ = pidfd_kill(&pidfd, libc::SIGKILL);
        }
        relayed
    }

    fn try_relay(&self, line: &Line, pidfd: &mut OwnedFd, last: Last) -> Result<()> {
        let mut executing = false;
        loop {
            match line.receive().doing(|| "hear from the process")? {
                Received::Report(Report::Resolved(_), _) | Received::Empty => {}
                Received::Report(Report::Terminal, fd) => {
                    self.tell(&Message::Terminal, fd.as_ref().map(AsFd::as_fd))?;
                }
                Received::Report(Report::Succeeded { pid }, Some(other)) => {
                    *pidfd = other;
                    self.tell(&Message::Cloned { pid }, None)?;
                    line.permit().doing(|| "wake the process")?;
                }
                Received::Report(Report::Succeeded { .. }, None) => {}
                Received::Report(Report::Prepared, _) => {
                    self.tell(&Message::Prepared, None)?;
                    self.wait_for_byte()?;
                    line.permit().doing(|| "wake the process")?;
                }
                Received::Report(Report::Executing, _) if last == Last::Gate => {
                    return self.tell(&Message::Ready, None);
                }
                Received::Report(Report::Executing, _) => executing = true,
                Received::Report(Report::Failed { kind, message }, _) => {
                    return Err(Failure { kind, message });
                }
                Received::End if executing => return self.tell(&Message::Ready, None),
                Received::End => return Err(Failure::system("it ended during its set-up")),
            }
        }
    }
}

/// Why a process has ended, if it has said so; it has ended, or will at once.
fn last_words(line: &Line) -> Option<Failure> {
    loop {
        match line.receive() {
            Ok(Received::Report(Report::Failed { kind, message }, _)) => {
                return Some(Failure { kind, message });
            }
            Ok(Received::Report(..)) => {}
            Ok(Received::End | Received::Empty) | Err(_) => return None,
        }
    }
}

/// The last that is heard of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// That it stands at its gate.
    Gate,
    /// That its channel is closed by execve.
    Exec,
}

/// Clones a child of the caller into the PID namespace that is asked for.
fn clone_into(pid: &Namespace, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    let mut flags = 0;
    match pid {
        Namespace::Host => {}
        Namespace::New => flags = ns::PID,
        Namespace::Path(path) => {
            let file = open_host(path, rustix::fs::OFlags::RDONLY)
                .doing(|| format!("open PID namespace {path}"))?;
            setns(&file, ns::PID).doing(|| format!("join PID namespace {path}"))?;
        }
        Namespace::Pod => return Err(Failure::invalid("there is no pod")),
    }
    clone_sibling(flags, cgroup).doing(|| "clone a process")
}

/// The launcher's own streams.
fn own_stdio() -> Result<Stdio> {
    Ok(Stdio {
        stdin: duplicate(std::io::stdin().as_fd())?,
        stdout: duplicate(std::io::stdout().as_fd())?,
        stderr: duplicate(std::io::stderr().as_fd())?,
        terminal: false,
    })
}

/// What the launcher takes from the node.
fn open_host_side(shared_dir: &Path) -> Result<Host> {
    let born = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    Host::open(shared_dir, born.trim().parse().unwrap_or(0))
}

/// Sends a message to whoever reads a stream; nobody may be left.
fn write_failure(mut stream: &UnixStream, failure: &Failure) {
    let message = Message::Failed {
        kind: failure.kind,
        message: failure.message.clone(),
    };
    if let Ok(bytes) = frame::encode(&message) {
        let _ = stream.write_all(&bytes);
    }
}
