//! The launcher on the caller's side: `hanok-shim oci FD DIR`, started for one order.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};

use hanok_shim::frame::{self, Decoder};
use hanok_shim::launch::{Message, Order};
use hanok_shim::protocol::FailureKind;
use hanok_shim::sys::mount::{ATTR_RDONLY, Attributes, mount_setattr};
use hanok_shim::sys::socket;
use rustix::fs::CWD;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::{OciError, Result};

/// Bytes asked from the socket at once.
const CHUNK: usize = 4096;

/// A launcher at work.
#[derive(Debug)]
pub(super) struct Launcher {
    child: Child,
    socket: UnixStream,
    decoder: Decoder,
    fds: Vec<OwnedFd>,
    ordered: bool,
}

impl Launcher {
    /// Starts it with our standard streams, for containers that share a directory. It comes to life while its order is
    /// made ready.
    pub(super) fn start(shim: &Path, shared_dir: &Path) -> Result<Self> {
        let (socket, child) = start(shim, shared_dir).map_err(OciError::io("start", shim))?;
        Ok(Self {
            child,
            socket,
            decoder: Decoder::new(),
            fds: Vec::new(),
            ordered: false,
        })
    }

    /// Gives it its order, and `fds` beside it.
    pub(super) fn order(&mut self, order: &Order, fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.ordered = true;
        let bytes = frame::encode(order).map_err(|error| OciError::Config(error.to_string()))?;
        socket::send_all(&self.socket, &bytes, fds).map_err(broken)
    }

    /// What it tells next, with the descriptor beside it. A failure of the container is the error.
    pub(super) fn next(&mut self) -> Result<(Message, Option<OwnedFd>)> {
        let mut chunk = [0; CHUNK];
        loop {
            let message = self.decoder.next_message().map_err(broken)?;
            match message {
                Some(Message::Failed { kind, message }) => {
                    return Err(OciError::Process { kind, message });
                }
                Some(Message::Terminal) => return Ok((Message::Terminal, self.fds.pop())),
                Some(message) => return Ok((message, None)),
                None => {}
            }
            match socket::receive(&self.socket, &mut chunk, &mut self.fds).map_err(broken)? {
                0 => return Err(broken("it ended")),
                length => self.decoder.feed(&chunk[..length]),
            }
        }
    }

    /// Lets it go on: once the cgroups are there, if it does not wait for them to begin, and after [`Message::Prepared`].
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.socket.write_all(&[1]).map_err(broken)
    }

    /// Ends a container that it has begun with; returns its process, a child of ours, or 0.
    pub(super) fn give_up(mut self) -> i32 {
        // It takes that for our end, and kills what it has made.
        let _ = self.socket.shutdown(Shutdown::Write);
        let mut begun = 0;
        while let Ok((message, _)) = self.next() {
            if let Message::Cloned { pid } = message {
                begun = pid;
            }
        }
        let _ = self.child.wait();
        begun
    }

    /// Waits for its end, which is at hand.
    pub(super) fn finish(mut self) {
        // Its exit code says nothing that it has not told.
        let _ = self.child.wait();
    }
}

impl Drop for Launcher {
    /// One without an order ends at once, and must not hold our streams longer than we do.
    fn drop(&mut self) {
        if !self.ordered {
            let _ = self.socket.shutdown(Shutdown::Both);
            let _ = self.child.wait();
        }
    }
}

/// Reads what comes by a connection to a created container: nothing when its program runs.
pub(super) fn outcome(mut connection: &UnixStream) -> Result<()> {
    match frame::read::<Message>(&mut connection).map_err(broken)? {
        Some(Message::Failed { kind, message }) => Err(OciError::Process { kind, message }),
        _ => Ok(()),
    }
}

fn start(shim: &Path, shared_dir: &Path) -> io::Result<(UnixStream, Child)> {
    let (socket, theirs) = UnixStream::pair()?;
    let program = sealed(shim)?;
    // Both are inherited; the launcher hands none of them on.
    for fd in [theirs.as_fd(), program.as_fd()] {
        fcntl_setfd(fd, FdFlags::empty())?;
    }
    let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .args(["oci", &theirs.as_raw_fd().to_string()])
        .arg(shared_dir)
        .spawn()?;
    Ok((socket, child))
}

/// A clone of the program's mount, read-only and attached nowhere, so that nobody in a container can write to the
/// program through /proc/PID/exe (CVE-2019-5736).
fn sealed(program: &Path) -> io::Result<File> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let program = open_tree(CWD, program, flags)?;
    let attributes = Attributes {
        set: ATTR_RDONLY,
        ..Attributes::default()
    };
    mount_setattr(&program, false, attributes)?;
    Ok(program.into())
}

fn broken(error: impl std::fmt::Display) -> OciError {
    OciError::Process {
        kind: FailureKind::System,
        message: format!("cannot hear from the container's process: {error}"),
    }
}
