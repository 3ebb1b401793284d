//! A new tmpfs that begins with what it is to cover: runc's mount option `tmpcopyup`.
//!
//! What is copied is an image's: nothing of it is followed, opened or waited for but directories and regular files,
//! each below the descriptor of its directory. How much it is, the size of the tmpfs limits. Extended attributes stay
//! behind, so that no file capability comes along.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Uid, chownat, fchmod, fchown, fstat,
    ftruncate, mkdirat, openat, readlinkat, seek, sendfile, statat, symlinkat,
};
use rustix::io::Errno;

use crate::host::Host;

/// Directories within each other: far more than an image has there.
const DEEPEST: usize = 64;
/// Bytes that are copied by one call.
const CHUNK: usize = 1 << 20;

/// Copies what a directory has into a detached mount. What is no directory has nothing.
pub(super) fn copy_up(host: &Host, from: &OwnedFd, to: &OwnedFd) -> rustix::io::Result<()> {
    let from = match directory(from.as_fd(), c".") {
        Err(Errno::NOTDIR) => return Ok(()),
        opened => opened?,
    };
    entries(host, &from, &directory(to.as_fd(), c".")?, DEEPEST)
}

fn directory(at: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

fn entries(host: &Host, from: &OwnedFd, to: &OwnedFd, depth: usize) -> rustix::io::Result<()> {
    let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
    for entry in Dir::read_from(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                mkdirat(to, name, Mode::RWXU)?;
                let below = directory(to.as_fd(), name)?;
                entries(host, &directory(from.as_fd(), name)?, &below, depth)?;
                keep_owner(&below, &stat)?;
            }
            FileType::RegularFile => file(host, from, to, name)?,
            FileType::Symlink => {
                let target = readlinkat(from, name, Vec::new())?;
                symlinkat(target.as_c_str(), to, name)?;
                let (uid, gid) = owner(&stat);
                chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            // Nobody is at the other end of a pipe or a socket of an image, and devices are the document's.
            _ => {}
        }
    }
    Ok(())
}

fn file(host: &Host, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    // Opened only when it is known what it is, and not to be exchanged any more: to open a device is to use it.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(from, name, flags, Mode::empty())?;
    let stat = fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(());
    }
    // By the shim's own procfs: there is no /proc where a container begins.
    let link = format!("self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let from = openat(&host.procfs, link, flags, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let to = openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
    data(&from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
    keep_owner(&to, &stat)
}

/// Copies the first `size` bytes, however the file grows meanwhile; what is a hole stays one, and takes no memory.
fn data(from: &OwnedFd, to: &OwnedFd, size: u64) -> rustix::io::Result<()> {
    let mut at = 0;
    while at < size {
        at = match seek(from, SeekFrom::Data(at)) {
            // Nothing but a hole is left, or somebody has cut it off.
            Err(Errno::NXIO) => break,
            found => found?,
        };
        let end = seek(from, SeekFrom::Hole(at))?.min(size);
        seek(to, SeekFrom::Start(at))?;
        while at < end {
            let chunk = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            if sendfile(to, from, Some(&mut at), chunk)? == 0 {
                return ftruncate(to, size);
            }
        }
    }
    ftruncate(to, size)
}

/// The mode last: it loses bits with a change of the owner.
fn keep_owner(to: &OwnedFd, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = owner(stat);
    fchown(to, Some(uid), Some(gid))?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode))
}

fn owner(stat: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}
