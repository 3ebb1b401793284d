//! One client of the shim: bytes in, frames out, one request at a time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hanok_shim::frame::{self, Decoder};
use hanok_shim::protocol::Request;
use hanok_shim::sys::socket;
use rustix::io::Errno;
use serde::Serialize;

use crate::poller::Interest;

/// Bytes taken from the socket at once. What the loop writes to after a clone is copied page by page, so little is
/// taken: only the request that starts a container is longer.
const CHUNK: usize = 4 << 10;

/// Unsent bytes at which a subscriber is dropped. Events are doorbells: who comes back asks for the state.
const MAX_BACKLOG: usize = 256 << 10;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has said hello yet.
    New,
    /// A request may come.
    Idle,
    /// A request is being worked on; the next one stays in the socket.
    Busy,
    /// Events go out, nothing comes in.
    Subscribed,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    decoder: Decoder,
    /// Descriptors that came beside the frame that is not whole yet.
    fds: Vec<OwnedFd>,
    unsent: Vec<u8>,
    pub(crate) phase: Phase,
    /// What the poller wakes for.
    watched: Interest,
}

/// The connection is of no use any more.
#[derive(Debug)]
pub(crate) struct Broken;

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            decoder: Decoder::new(),
            fds: Vec::new(),
            unsent: Vec::new(),
            phase: Phase::New,
            watched: Interest::READ,
        }
    }

    /// What to tell the poller; none when that can stay as it is. A request that is being worked on is no reason: the
    /// next one seldom comes before its answer, and does no harm when it `woke` us once.
    pub(crate) fn rewatch(&mut self, woke: bool) -> Option<Interest> {
        let wanted = self.interest();
        let interest = Interest {
            read: wanted.read || (self.watched.read && !woke),
            write: wanted.write,
        };
        let changed = interest != self.watched;
        self.watched = interest;
        changed.then_some(interest)
    }

    pub(crate) fn interest(&self) -> Interest {
        Interest {
            read: matches!(self.phase, Phase::New | Phase::Idle),
            write: !self.unsent.is_empty(),
        }
    }

    /// Takes what the socket has. Its stack is gone again before a request is worked on.
    #[inline(never)]
    pub(crate) fn fill(&mut self) -> Result<(), Broken> {
        let mut chunk = [0; CHUNK];
        match socket::receive(&self.socket, &mut chunk, &mut self.fds) {
            Ok(0) => Err(Broken),
            Ok(_) if self.fds.len() > socket::MAX_FDS => Err(Broken),
            Ok(length) => {
                self.decoder.feed(&chunk[..length]);
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(_) => Err(Broken),
        }
    }

    /// The next whole request with its descriptors, unless one is being worked on.
    pub(crate) fn next_request(&mut self) -> Result<Option<(Request, Vec<OwnedFd>)>, Broken> {
        if !matches!(self.phase, Phase::New | Phase::Idle) {
            return Ok(None);
        }
        let request = self.decoder.next_message::<Request>().map_err(|_| Broken)?;
        Ok(request.map(|request| (request, std::mem::take(&mut self.fds))))
    }

    /// Sends a message, or keeps it until the socket takes it.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), Broken> {
        let frame = frame::encode(message).map_err(|_| Broken)?;
        if self.unsent.len() + frame.len() > MAX_BACKLOG.max(frame.len()) {
            return Err(Broken);
        }
        self.unsent.extend_from_slice(&frame);
        self.flush()
    }

    /// Sends what waits.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match socket::send(&self.socket, &self.unsent[sent..], &[]) {
                Ok(length) => sent += length,
                Err(Errno::AGAIN) => break,
                Err(_) => return Err(Broken),
            }
        }
        self.unsent.drain(..sent);
        if self.unsent.is_empty() {
            self.unsent = Vec::new();
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
