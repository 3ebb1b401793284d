//! Attach: clients that see a container's output and may feed its stdin.
//!
//! Each has a bounded buffer; who reads too slowly is let go. The log must not wait for a client, and the
//! container must not stop because somebody's terminal did.

use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::protocol::Reply;
use rustix::io::Errno;

use crate::failure::{Doing, Failure, Result};
use crate::poller::{Interest, Ready, Stream, Token};
use crate::process::duplicate;
use crate::relay::Owner;
use crate::shim::{Outcome, Shim};

/// Unread bytes at which a client is let go.
const MAX_BACKLOG: usize = 256 << 10;

/// A client.
#[derive(Debug)]
pub(crate) struct Attached {
    container: u64,
    stdout: Option<Outlet>,
    stderr: Option<Outlet>,
    /// The container has exited: what waits is delivered, then the client is let go.
    closing: bool,
}

/// One descriptor of a client, with what it has not taken yet.
#[derive(Debug)]
struct Outlet {
    fd: OwnedFd,
    backlog: Vec<u8>,
}

impl Outlet {
    /// False when the client is gone or too slow.
    fn push(&mut self, bytes: &[u8]) -> bool {
        if self.backlog.len() + bytes.len() > MAX_BACKLOG {
            return false;
        }
        self.backlog.extend_from_slice(bytes);
        self.flush()
    }

    fn flush(&mut self) -> bool {
        let mut done = 0;
        while done < self.backlog.len() {
            match rustix::io::write(&self.fd, &self.backlog[done..]) {
                Ok(length) => done += length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        self.backlog.drain(..done);
        if self.backlog.is_empty() {
            self.backlog = Vec::new();
        }
        true
    }

    fn interest(&self) -> Interest {
        Interest {
            read: false,
            write: !self.backlog.is_empty(),
        }
    }
}

impl Attached {
    fn outlet(&mut self, stream: Stream) -> &mut Option<Outlet> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn is_done(&self) -> bool {
        let waits = |outlet: &Option<Outlet>| {
            outlet
                .as_ref()
                .is_some_and(|o| !self.closing || !o.backlog.is_empty())
        };
        !waits(&self.stdout) && !waits(&self.stderr)
    }
}

impl Shim {
    pub(crate) fn attach(&mut self, id: &str, stdin: bool, fds: Vec<OwnedFd>) -> Result<Outcome> {
        let container_key = self.container_key(id)?;
        let container = self
            .containers
            .get(&container_key)
            .filter(|c| c.is_running());
        let container =
            container.ok_or_else(|| Failure::invalid(format!("container {id} does not run")))?;
        if fds.len() != 2 + usize::from(stdin) {
            return Err(Failure::invalid(format!(
                "attach came with {} descriptors",
                fds.len()
            )));
        }
        let mut fds = fds.into_iter();
        let input = if stdin { fds.next() } else { None };
        let input = match (input, &container.io.stdin) {
            (Some(from), Some(to)) => Some((from, duplicate(to.as_fd())?)),
            // A container without stdin reads nothing; what the client sends goes nowhere.
            (_, _) => None,
        };
        let key = self.new_key();
        let stdout = self.outlet(key, Stream::Stdout, fds.next())?;
        let stderr = self.outlet(key, Stream::Stderr, fds.next())?;
        let attached = Attached {
            container: container_key,
            stdout,
            stderr,
            closing: false,
        };
        self.attached.insert(key, attached);
        if let Some((from, to)) = input
            && let Err(failure) = self.start_relay(from, to, Owner::Stdin(container_key))
        {
            self.detach(key);
            return Err(failure);
        }
        Ok(Outcome::Done(Reply::Ok))
    }

    fn outlet(&self, key: u64, stream: Stream, fd: Option<OwnedFd>) -> Result<Option<Outlet>> {
        let Some(fd) = fd else { return Ok(None) };
        rustix::io::ioctl_fionbio(&fd, true).doing(|| "use an attached descriptor")?;
        self.poller
            .add(&fd, Token::Attached(key, stream), Interest::NONE)
            .doing(|| "watch an attached descriptor")?;
        Ok(Some(Outlet {
            fd,
            backlog: Vec::new(),
        }))
    }

    /// Gives output to every client of a container.
    pub(crate) fn copy_to_attached(&mut self, container: u64, stream: Stream, bytes: &[u8]) {
        let of_container = |(key, a): (&u64, &crate::attach::Attached)| {
            (a.container == container && !a.closing).then_some(*key)
        };
        let keys: Vec<u64> = self.attached.iter().filter_map(of_container).collect();
        for key in keys {
            let Some(attached) = self.attached.get_mut(&key) else {
                continue;
            };
            let Some(outlet) = attached.outlet(stream) else {
                continue;
            };
            if outlet.push(bytes) {
                let interest = outlet.interest();
                let _ = self
                    .poller
                    .modify(&outlet.fd, Token::Attached(key, stream), interest);
            } else {
                self.detach(key);
            }
        }
    }

    pub(crate) fn attached_progress(&mut self, key: u64, stream: Stream, ready: Ready) {
        let Some(attached) = self.attached.get_mut(&key) else {
            return;
        };
        let Some(outlet) = attached.outlet(stream) else {
            return;
        };
        if ready.hangup || !outlet.flush() {
            // One stream that nobody reads does not end the other.
            let fd = attached.outlet(stream).take().map(|o| o.fd);
            if let Some(fd) = fd {
                self.poller.remove(&fd);
            }
        } else {
            let interest = outlet.interest();
            let _ = self
                .poller
                .modify(&outlet.fd, Token::Attached(key, stream), interest);
        }
        if self.attached.get(&key).is_some_and(Attached::is_done) {
            self.detach(key);
        }
    }

    /// The container has exited: its clients get what waits, then the end.
    pub(crate) fn detach_all(&mut self, container: u64) {
        let mut done = Vec::new();
        for (key, attached) in &mut self.attached {
            if attached.container == container {
                attached.closing = true;
                if attached.is_done() {
                    done.push(*key);
                }
            }
        }
        for key in done {
            self.detach(key);
        }
    }

    fn detach(&mut self, key: u64) {
        let Some(attached) = self.attached.remove(&key) else {
            return;
        };
        for outlet in [attached.stdout, attached.stderr].into_iter().flatten() {
            self.poller.remove(&outlet.fd);
        }
    }
}
