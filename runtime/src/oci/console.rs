//! Terminals: where the master side goes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hanok_shim::sys::socket;
use oci_spec::runtime::Process;
use rustix::termios::{
    OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use super::{OciError, Result};

/// What runc sends beside the descriptor; the name of what it is.
const NAME: &[u8] = b"/dev/ptmx";

/// Sets the size that the specification wants and hands the master to whoever listens at `socket`.
pub(super) fn send(master: &OwnedFd, socket: &Path) -> Result<()> {
    let stream = UnixStream::connect(socket).map_err(OciError::io("connect to", socket))?;
    socket::send_all(&stream, NAME, &[master.as_fd()])
        .map_err(|error| OciError::io("send to", socket)(error.into()))
}

/// The size of the specification, none when it has none.
pub(super) fn size(process: &Process) -> Option<Winsize> {
    let size = process.console_size()?;
    Some(Winsize {
        ws_row: u16::try_from(size.height()).ok()?,
        ws_col: u16::try_from(size.width()).ok()?,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

/// Sets a terminal's size.
pub(super) fn resize(master: impl AsFd, size: Winsize) {
    // A terminal without the right size is still one.
    let _ = tcsetwinsize(master, size);
}

/// Gives a terminal the size of our own.
pub(super) fn follow_own_size(master: impl AsFd) {
    if let Ok(size) = tcgetwinsize(io::stdin()) {
        resize(master, size);
    }
}

/// Our own terminal in raw mode, until this is dropped.
#[derive(Debug)]
pub(super) struct Raw(Option<Termios>);

impl Raw {
    /// Does nothing when standard input is no terminal.
    pub(super) fn enter() -> Self {
        let Ok(before) = tcgetattr(io::stdin()) else {
            return Self(None);
        };
        let mut raw = before.clone();
        raw.make_raw();
        let done = tcsetattr(io::stdin(), OptionalActions::Now, &raw);
        Self(done.is_ok().then_some(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // Nobody is left to tell.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
