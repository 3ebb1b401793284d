//! The working directory: inside the root, proven.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hanok_shim::sys::process::raw_getcwd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{chdir, fchdir};

use super::root;
use crate::failure::{Doing, Failure, Result};
use crate::resolve::{self, Kind};

/// Makes `path` below a root that this process has not entered, while it is still writable.
pub(crate) fn make(root: BorrowedFd<'_>, path: &str) -> Result<()> {
    let path = if path.is_empty() { "/" } else { path };
    resolve::ensure(root, resolve::check(path)?, Kind::Directory).map(drop)
}

/// Enters `path`, making it when it is missing. A link of procfs to a directory of the node (`/proc/self/fd/7`)
/// is not followed, and the kernel is asked afterwards where we are (CVE-2024-21626).
pub(super) fn enter(path: &str) -> Result<()> {
    if matches!(path, "" | "/") {
        // Which nothing can lead out of.
        return chdir("/").doing(|| "enter working directory /");
    }
    let root = root()?;
    let path = resolve::check(path)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let doing = || format!("enter working directory {}", path.display());
    let directory = match resolve::open(root.as_fd(), path, flags) {
        Err(Errno::NOENT) => {
            resolve::ensure(root.as_fd(), path, Kind::Directory)?;
            resolve::open(root.as_fd(), path, flags)
        }
        done => done,
    };
    let directory = directory.doing(doing)?;
    fchdir(&directory).doing(doing)?;
    verify(path)
}

fn verify(path: &Path) -> Result<()> {
    let now = raw_getcwd().doing(|| "read the working directory")?;
    if now.first() != Some(&b'/') {
        let message = format!("working directory {} lies outside the root", path.display());
        return Err(Failure::invalid(message));
    }
    Ok(())
}
