//! Copies bytes from one descriptor to another with a bounded buffer: an attached client's stdin into a
//! container, and both directions of an exec's terminal. When the reader is slow, the writer waits.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::failure::{Doing, Result};
use crate::poller::{End, Interest, Ready, Token};
use crate::shim::Shim;

/// Bytes on their way at most.
const CAPACITY: usize = 16 << 10;

/// Whose bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Stdin of the container with this key.
    Stdin(u64),
    /// The terminal of an exec.
    Exec,
}

/// One direction of copying.
#[derive(Debug)]
pub(crate) struct Relay {
    from: OwnedFd,
    to: OwnedFd,
    buffer: Vec<u8>,
    /// No more bytes will come.
    ended: bool,
    pub(crate) owner: Owner,
}

impl Relay {
    /// Both descriptors become non-blocking.
    fn new(from: OwnedFd, to: OwnedFd, owner: Owner) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&from, true)?;
        rustix::io::ioctl_fionbio(&to, true)?;
        Ok(Self {
            from,
            to,
            buffer: Vec::new(),
            ended: false,
            owner,
        })
    }

    /// Copies what can be copied now. False when it is over. Not a part of its caller, whose stack is copied page by page
    /// after a clone.
    #[inline(never)]
    fn copy(&mut self) -> bool {
        loop {
            if !self.flush() {
                return false;
            }
            if self.ended || !self.buffer.is_empty() {
                return !(self.ended && self.buffer.is_empty());
            }
            let mut chunk = [0; CAPACITY];
            match rustix::io::read(&self.from, &mut chunk) {
                Ok(0) => self.ended = true,
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                // EIO is the end of a terminal.
                Err(_) => self.ended = true,
            }
        }
    }

    /// False when nobody reads any more.
    fn flush(&mut self) -> bool {
        let mut done = 0;
        while done < self.buffer.len() {
            match rustix::io::write(&self.to, &self.buffer[done..]) {
                Ok(length) => done += length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        self.buffer.drain(..done);
        if self.buffer.is_empty() {
            self.buffer = Vec::new();
        }
        true
    }

    fn interest(&self, end: End) -> Interest {
        match end {
            End::From => Interest {
                read: !self.ended && self.buffer.is_empty(),
                write: false,
            },
            End::To => Interest {
                read: false,
                write: !self.buffer.is_empty(),
            },
        }
    }
}

impl Shim {
    /// Starts copying.
    pub(crate) fn start_relay(&mut self, from: OwnedFd, to: OwnedFd, owner: Owner) -> Result<u64> {
        let key = self.new_key();
        let relay = Relay::new(from, to, owner).doing(|| "copy a stream")?;
        let watch = |fd: &OwnedFd, end, interest| {
            self.poller
                .add(fd, Token::Relay(key, end), interest)
                .doing(|| "watch a stream")
        };
        watch(&relay.from, End::From, Interest::READ)?;
        if let Err(failure) = watch(&relay.to, End::To, Interest::NONE) {
            self.poller.remove(&relay.from);
            return Err(failure);
        }
        self.relays.insert(key, relay);
        Ok(key)
    }

    pub(crate) fn relay_progress(&mut self, key: u64, end: End, ready: Ready) {
        let Some(relay) = self.relays.get_mut(&key) else {
            return;
        };
        let reader_gone = end == End::To && ready.hangup;
        let source_gone = end == End::From && ready.hangup && !ready.readable;
        if source_gone && relay.buffer.is_empty() {
            // Nothing is left to read; a read would say so, or fail.
            relay.ended = true;
        }
        if reader_gone || !relay.copy() {
            return self.end_relay(key);
        }
        let ended = relay.ended;
        let Some(relay) = self.relays.get(&key) else {
            return;
        };
        for (fd, end) in [(relay.from.as_fd(), End::From), (relay.to.as_fd(), End::To)] {
            if end == End::From && (ended || (ready.hangup && !relay.interest(end).read)) {
                // A hang-up cannot be masked and would wake us without end until the buffer is empty.
                self.poller.remove(fd);
                continue;
            }
            let token = Token::Relay(key, end);
            if self.poller.modify(fd, token, relay.interest(end)) == Err(Errno::NOENT) {
                let _ = self.poller.add(fd, token, relay.interest(end));
            }
        }
    }

    pub(crate) fn end_relay(&mut self, key: u64) {
        let Some(relay) = self.relays.remove(&key) else {
            return;
        };
        self.poller.remove(&relay.from);
        self.poller.remove(&relay.to);
        let Owner::Stdin(container) = relay.owner else {
            return;
        };
        let Some(container) = self.containers.get_mut(&container) else {
            return;
        };
        if container.io.stdin_once {
            container.io.stdin = None;
        }
    }

    /// Ends the copying into a container that has exited.
    pub(crate) fn drop_stdin_relays(&mut self, container: u64) {
        let of_container =
            |(key, relay): (&u64, &Relay)| (relay.owner == Owner::Stdin(container)).then_some(*key);
        let keys: Vec<u64> = self.relays.iter().filter_map(of_container).collect();
        for key in keys {
            self.end_relay(key);
        }
    }
}
