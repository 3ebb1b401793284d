//! Gives a volume of a pod the label of its containers' files.
//!
//! What is in a volume is the pod's, and may change while this looks at it: every entry is opened by its directory's
//! descriptor and labelled by its own, so that no link is followed and no other filesystem is entered.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, XattrFlags, fstat, getxattr, openat, setxattr};
use rustix::io::Errno;

/// The attribute that is the label.
const ATTRIBUTE: &str = "security.selinux";

/// Directories within each other; a tree that goes deeper was made to hurt.
const DEEPEST: usize = 256;

/// A label that a volume could not be given.
#[derive(Debug, thiserror::Error)]
#[error("relabel {path:?} with {label:?} failed")]
pub(crate) struct RelabelError {
    path: PathBuf,
    label: String,
    #[source]
    source: io::Error,
}

/// Labels everything at and below `path`, itself last: what has the label is whole. Filesystems without labels stay as
/// they are. Blocks.
pub(crate) fn relabel(path: &Path, label: &str) -> Result<(), RelabelError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let done = openat(CWD, path, flags, Mode::empty()).and_then(|top| {
        let device = fstat(&top)?.st_dev;
        tree(&top, label.as_bytes(), device, DEEPEST)
    });
    match done {
        Ok(()) | Err(Errno::NOTSUP) => Ok(()),
        Err(errno) => Err(RelabelError {
            path: path.to_owned(),
            label: label.to_owned(),
            source: errno.into(),
        }),
    }
}

fn tree(entry: &OwnedFd, label: &[u8], device: u64, depth: usize) -> rustix::io::Result<()> {
    let stat = fstat(entry)?;
    if stat.st_dev != device || has(entry, label) {
        return Ok(());
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
        let directory = open(entry.as_fd(), c".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        for found in Dir::read_from(&directory)? {
            let found = found?;
            let name = found.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match open(directory.as_fd(), name, OFlags::PATH) {
                // It has gone meanwhile.
                Err(Errno::NOENT) => {}
                opened => tree(&opened?, label, device, depth)?,
            }
        }
    }
    setxattr(link(entry), ATTRIBUTE, label, XattrFlags::empty())
}

fn open(at: BorrowedFd<'_>, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Whether it has the label already. The kernel may give it with a byte that ends it.
fn has(entry: &OwnedFd, label: &[u8]) -> bool {
    let mut value = [0_u8; 512];
    let length = getxattr(link(entry), ATTRIBUTE, &mut value[..]).unwrap_or(0);
    let value = value.get(..length).unwrap_or_default();
    value.strip_suffix(b"\0").unwrap_or(value) == label
}

/// The one name of what a descriptor is open on, also of a link and a socket.
fn link(entry: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", entry.as_raw_fd())
}
