//! epoll, level-triggered, and the tokens that say whose descriptor is ready.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::{Errno, Result};

/// Events taken from the kernel at once.
const BATCH: usize = 32;

/// Which of a container's output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Which end of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Where bytes come from.
    From,
    /// Where they go.
    To,
}

/// Whose descriptor is ready. Keys come from one counter and are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// The listening socket.
    Listener,
    /// The signalfd.
    Signals,
    /// A client.
    Connection(u64),
    /// The channel to a container's process before its exec.
    ContainerSetup(u64),
    /// The pipe by which a caller says that a container's cgroups are there.
    Cgroups(u64),
    /// The channel to an exec's process before its exec.
    ExecSetup(u64),
    /// A container's output.
    Output(u64, Stream),
    /// One end of a relay.
    Relay(u64, End),
    /// An attached client's output.
    Attached(u64, Stream),
}

/// The kind of a token is in the top byte of epoll's data, the key below.
const KIND_SHIFT: u32 = 56;

impl Token {
    fn pack(self) -> u64 {
        let (kind, key) = match self {
            Self::Listener => (0, 0),
            Self::Signals => (1, 0),
            Self::Connection(key) => (2, key),
            Self::ContainerSetup(key) => (3, key),
            Self::ExecSetup(key) => (4, key),
            Self::Output(key, Stream::Stdout) => (5, key),
            Self::Output(key, Stream::Stderr) => (6, key),
            Self::Relay(key, End::From) => (7, key),
            Self::Relay(key, End::To) => (8, key),
            Self::Attached(key, Stream::Stdout) => (9, key),
            Self::Attached(key, Stream::Stderr) => (10, key),
            Self::Cgroups(key) => (11, key),
        };
        kind << KIND_SHIFT | key
    }

    fn unpack(data: u64) -> Self {
        let key = data & ((1 << KIND_SHIFT) - 1);
        match data >> KIND_SHIFT {
            0 => Self::Listener,
            1 => Self::Signals,
            2 => Self::Connection(key),
            3 => Self::ContainerSetup(key),
            4 => Self::ExecSetup(key),
            5 => Self::Output(key, Stream::Stdout),
            6 => Self::Output(key, Stream::Stderr),
            7 => Self::Relay(key, End::From),
            8 => Self::Relay(key, End::To),
            9 => Self::Attached(key, Stream::Stdout),
            10 => Self::Attached(key, Stream::Stderr),
            _ => Self::Cgroups(key),
        }
    }
}

/// What to be woken for. Hang-ups and errors always wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
}

impl Interest {
    pub(crate) const NONE: Self = Self {
        read: false,
        write: false,
    };
    pub(crate) const READ: Self = Self {
        read: true,
        write: false,
    };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A token and what its descriptor is ready for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: Token,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other side is gone, or the descriptor failed.
    pub(crate) hangup: bool,
}

/// The epoll instance.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        })
    }

    /// Starts watching. `EPERM` for what cannot be waited for (regular files).
    pub(crate) fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<()> {
        epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(token.pack()),
            interest.flags(),
        )
    }

    pub(crate) fn modify(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<()> {
        epoll::modify(
            &self.epoll,
            fd,
            EventData::new_u64(token.pack()),
            interest.flags(),
        )
    }

    /// Stops watching. Needed before a descriptor is closed of which a child may still hold a copy.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // Only a descriptor that was not added can make this fail, and then it is in the wanted state.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for events, with a limit if one is given.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<Ready>> {
        let empty = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [empty; BATCH];
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let count = match epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()) {
            Err(Errno::INTR) => 0,
            done => done?,
        };
        Ok(events[..count].iter().map(ready).collect())
    }
}

fn ready(event: &Event) -> Ready {
    let flags = event.flags;
    Ready {
        token: Token::unpack(event.data.u64()),
        readable: flags.contains(EventFlags::IN),
        writable: flags.contains(EventFlags::OUT),
        hangup: flags.intersects(EventFlags::HUP | EventFlags::ERR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_survives_packing() {
        let key = (1 << KIND_SHIFT) - 1;
        for token in [
            Token::Listener,
            Token::Signals,
            Token::Connection(key),
            Token::ContainerSetup(1),
            Token::ExecSetup(2),
            Token::Output(3, Stream::Stdout),
            Token::Output(3, Stream::Stderr),
            Token::Relay(4, End::From),
            Token::Relay(4, End::To),
            Token::Attached(5, Stream::Stdout),
            Token::Attached(5, Stream::Stderr),
            Token::Cgroups(key),
        ] {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
