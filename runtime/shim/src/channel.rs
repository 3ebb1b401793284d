//! The channel between the shim and a process it has cloned, until that process execs.
//!
//! A pair of `SOCK_SEQPACKET` sockets, close-on-exec: the child's [`Report`]s end with the end of file that
//! a successful execve causes. In the other direction goes one byte, the [`Line::permit`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hanok_shim::frame;
use hanok_shim::protocol::FailureKind;
use hanok_shim::sys::socket;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Longest report; the socket's buffer takes as much at once. [`process::user`](crate::process::user)
/// limits the groups so that they fit.
const MAX_REPORT: usize = 64 << 10;

/// What the child tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// Whom it runs as; exec inherits that.
    Resolved(ResolvedUser),
    /// The master side of its terminal is beside this message.
    Terminal,
    /// Another process goes on in the place of the one that was cloned, in the user namespace and with a PID
    /// namespace of its own. Its pidfd is beside this message; it waits for a second permit.
    Succeeded {
        /// Its process id, as the shim sees it.
        pid: i32,
    },
    /// Namespaces and mounts are there; it waits for a permit before it enters its root.
    Prepared,
    /// All is set up, execve comes next. Without it, an end of file is the death of the child.
    Executing,
    /// A step failed, and the child ends.
    Failed {
        /// Kind.
        kind: FailureKind,
        /// Text.
        message: String,
    },
}

/// A user after look-up in the container's passwd and group files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResolvedUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups, the primary one first.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Line(OwnedFd);

/// What [`Line::receive`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// A report, with the descriptor beside it.
    Report(Report, Option<OwnedFd>),
    /// The other end is closed.
    End,
    /// Nothing yet.
    Empty,
}

impl Line {
    /// Both ends; the first one, the shim's, does not block.
    pub(crate) fn pair() -> rustix::io::Result<(Self, Self)> {
        let (mine, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::io::ioctl_fionbio(&mine, true)?;
        Ok((Self(mine), Self(theirs)))
    }

    /// Child: reports, with an optional descriptor.
    pub(crate) fn report(
        &self,
        report: &Report,
        fd: Option<BorrowedFd<'_>>,
    ) -> rustix::io::Result<()> {
        let bytes = frame::encode(report).map_err(|_| Errno::MSGSIZE)?;
        socket::send(&self.0, &bytes, fd.as_slice()).map(drop)
    }

    /// Child: reports the end of the attempt.
    pub(crate) fn report_failure(&self, failure: Failure) {
        let Failure { kind, mut message } = failure;
        if message.len() > MAX_REPORT / 2 {
            let cut = message.floor_char_boundary(MAX_REPORT / 2);
            message.truncate(cut);
        }
        // When the shim is gone there is nobody to tell.
        let _ = self.report(&Report::Failed { kind, message }, None);
    }

    /// Child: waits until the shim permits to go on. `ECONNRESET` when it is gone.
    pub(crate) fn wait_for_permit(&self) -> rustix::io::Result<()> {
        let mut byte = [0; 1];
        match socket::receive(&self.0, &mut byte, &mut Vec::new())? {
            0 => Err(Errno::CONNRESET),
            _ => Ok(()),
        }
    }

    /// Shim: lets the child go on. One that has ended already says by its reports why.
    pub(crate) fn permit(&self) -> rustix::io::Result<()> {
        match socket::send(&self.0, &[1], &[]) {
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Shim: the next report.
    pub(crate) fn receive(&self) -> rustix::io::Result<Received> {
        // Most are a few bytes, and a buffer for the longest would be memory that a clone makes dear.
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
        let length = match past_reset(|| recv(&self.0, &mut [0; 0], flags)) {
            Ok((_, length)) => length,
            Err(Errno::AGAIN) => return Ok(Received::Empty),
            Err(Errno::CONNRESET) => return Ok(Received::End),
            Err(error) => return Err(error),
        };
        let mut buffer = vec![0; length.clamp(1, MAX_REPORT)];
        let mut fds = Vec::new();
        match past_reset(|| socket::receive(&self.0, &mut buffer, &mut fds)) {
            Ok(0) | Err(Errno::CONNRESET) => Ok(Received::End),
            Ok(length) => {
                let body = buffer.get(frame::HEADER..length).unwrap_or_default();
                let report = frame::decode(body).map_err(|_| Errno::BADMSG)?;
                Ok(Received::Report(report, fds.pop()))
            }
            Err(Errno::AGAIN) => Ok(Received::Empty),
            Err(error) => Err(error),
        }
    }

    /// Shim: makes [`Line::receive`] wait, for the sandbox's short and trusted set-up.
    pub(crate) fn set_blocking(&self) -> rustix::io::Result<()> {
        rustix::io::ioctl_fionbio(&self.0, false)
    }
}

/// A child that died with the permit unread resets the connection. The kernel says so once, and before what the child has
/// reported.
fn past_reset<T>(mut receive: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match receive() {
        Err(Errno::CONNRESET) => receive(),
        done => done,
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_heard_of_a_child_that_left_its_permit_unread() {
        for blocking in [false, true] {
            let (mine, theirs) = Line::pair().unwrap();
            if blocking {
                mine.set_blocking().unwrap();
            }
            mine.permit().unwrap();
            theirs.report_failure(Failure::system("no room"));
            drop(theirs);
            match mine.receive().unwrap() {
                Received::Report(Report::Failed { message, .. }, _) => {
                    assert_eq!(message, "no room");
                }
                other => panic!("{other:?}"),
            }
            assert!(matches!(mine.receive().unwrap(), Received::End));
        }
    }
}
