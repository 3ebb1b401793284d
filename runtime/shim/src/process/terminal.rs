//! A terminal from the container's own devpts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};

use super::{Stdio, duplicate};
use crate::channel::{Line, Report};
use crate::failure::{Doing, Failure, Result};
use crate::resolve;

/// `DEVPTS_SUPER_MAGIC` of statfs(2).
const DEVPTS_MAGIC: i64 = 0x1cd1;

/// Opens a terminal, passes its master side to the shim and returns the slave side as all three streams. The
/// slave is opened through the master, not by a name that the container could have prepared.
pub(crate) fn open(root: BorrowedFd<'_>, line: &Line) -> Result<Stdio> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let master = resolve::open(root, Path::new("/dev/pts/ptmx"), flags)
        .doing(|| "open a terminal at /dev/pts/ptmx")?;
    let statfs = rustix::fs::fstatfs(&master).doing(|| "stat the terminal")?;
    if statfs.f_type != DEVPTS_MAGIC {
        return Err(Failure::system("/dev/pts/ptmx is not of a devpts"));
    }
    unlockpt(&master).doing(|| "unlock the terminal")?;
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, peer).doing(|| "open the terminal's other side")?;
    line.report(&Report::Terminal, Some(master.as_fd()))
        .doing(|| "pass the terminal")?;
    stdio(slave)
}

fn stdio(slave: OwnedFd) -> Result<Stdio> {
    Ok(Stdio {
        stdout: duplicate(slave.as_fd())?,
        stderr: duplicate(slave.as_fd())?,
        stdin: slave,
        terminal: true,
    })
}
