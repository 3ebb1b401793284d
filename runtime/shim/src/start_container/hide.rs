//! Masked and read-only paths: kernel knobs that a container must not see or turn.
//!
//! A masked file is covered by a null device of the mount namespace that the container began in, the pod's or a copy of
//! the node's, verified by its number, never by the container's own /dev/null; a masked directory by one empty read-only
//! directory, the same for all.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hanok_shim::sys::mount::{ATTR_RDONLY, Attributes, PRIVATE, mount_setattr};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::home;
use super::mounts::attach;
use crate::failure::{Doing, Result};
use crate::host::{Host, open_null_at};
use crate::resolve::{self, Kind};

const READONLY: Attributes = Attributes {
    set: ATTR_RDONLY,
    clear: 0,
    propagation: PRIVATE,
};

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// What covers masked paths, of the process's own mount namespace.
#[derive(Debug)]
pub(super) struct Covers {
    null: OwnedFd,
    empty: OwnedFd,
    /// Both are read-only and private, and so are their clones.
    are_sealed: bool,
}

impl Covers {
    /// Opens them in a copy of the node's mount namespace; the null device that the host holds is of that itself.
    pub(super) fn open(host: &Host) -> Result<Self> {
        Self::open_at("/dev/null", &host.empty_dir, false)
    }

    /// Opens them in a copy of the pod's.
    pub(super) fn open_at_home() -> Result<Self> {
        Self::open_at(home::NULL, Path::new(home::EMPTY), true)
    }

    fn open_at(null: &str, directory: &Path, are_sealed: bool) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self {
            null: open_null_at(null, OFlags::PATH)?,
            empty: rustix::fs::open(directory, flags, Mode::empty())
                .doing(|| format!("open {}", directory.display()))?,
            are_sealed,
        })
    }

    /// Covers every path that exists.
    pub(super) fn mask(&self, root: BorrowedFd<'_>, paths: &[String]) -> Result<()> {
        for path in paths {
            let Some(target) = existing(root, path)? else {
                continue;
            };
            let doing = || format!("mask {path}");
            let cover = match resolve::kind_of(&target)? {
                Kind::File => &self.null,
                Kind::Directory => &self.empty,
            };
            let flags = CLONE | OpenTreeFlags::AT_EMPTY_PATH;
            let cover = open_tree(cover, "", flags).doing(doing)?;
            if !self.are_sealed {
                mount_setattr(&cover, false, READONLY).doing(doing)?;
            }
            attach(cover.as_fd(), target.as_fd()).doing(doing)?;
        }
        Ok(())
    }
}

/// Makes every path that exists read-only, with all that is mounted below it.
pub(super) fn make_readonly(root: BorrowedFd<'_>, paths: &[String]) -> Result<()> {
    for path in paths {
        let Some(target) = existing(root, path)? else {
            continue;
        };
        let doing = || format!("make {path} read-only");
        let flags = CLONE | OpenTreeFlags::AT_EMPTY_PATH | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(&target, "", flags).doing(doing)?;
        mount_setattr(&tree, true, READONLY).doing(doing)?;
        attach(tree.as_fd(), target.as_fd()).doing(doing)?;
    }
    Ok(())
}

fn existing(root: BorrowedFd<'_>, path: &str) -> Result<Option<OwnedFd>> {
    match resolve::lookup(root, resolve::check(path)?) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error).doing(|| format!("open {path}")),
    }
}
