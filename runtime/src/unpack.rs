//! Unpacks a layer: compressed bytes in, a directory in overlayfs' form out.
//!
//! ```text
//! source ─► sha256 and store ─► inflate ─► sha256 (diff id) and tar ─► tree
//!   async        a thread        a thread            a thread
//! ```
//! [`pipe`] has the stages, which are joined by short queues, so that memory stays bounded. This file has
//! the last one: [`apply`] makes the tree, [`settle`] fits it onto the layers below once they are there.

pub mod tar;

pub(crate) mod extract;
pub(crate) mod lower;
pub mod pipe;
pub(crate) mod tree;

use std::io::{self, BufRead};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Timestamps};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use extract::Extractor;
use lower::{Below, Lower, open_beneath};
use tree::{Tree, adopt, times_of};

/// Why a layer cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The tar stream is bad.
    #[error("failed to read the layer's archive")]
    Tar(#[from] tar::TarError),
    /// An entry with a name that is not accepted.
    #[error("refused entry {path:?}: {why}")]
    UnsafePath {
        /// The entry's path.
        path: String,
        /// Why not.
        why: &'static str,
    },
    /// A hard link to nothing, or to something that cannot have two names.
    #[error("hard link {path:?}: its target {target:?} is not a file of this layer")]
    LinkTarget {
        /// The entry's path.
        path: String,
        /// Its target.
        target: String,
    },
    /// The layer has too many entries.
    #[error("the layer has more than {0} entries")]
    TooMany(u64),
    /// The layer is too large, or expands beyond reason.
    #[error("the layer expands to more than {0} bytes")]
    TooLarge(u64),
    /// The disk is nearly full.
    #[error("no space left for the layer: {free} bytes free, {keep} bytes are kept free")]
    NoSpace {
        /// Free bytes.
        free: u64,
        /// Bytes that unpacking leaves alone.
        keep: u64,
    },
    /// The filesystem said no.
    #[error("failed to {verb} {path:?}")]
    Tree {
        /// What was tried.
        verb: &'static str,
        /// Path in the layer.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl UnpackError {
    pub(crate) fn tree(verb: &'static str, path: &[u8], errno: Errno) -> Self {
        let path = String::from_utf8_lossy(path).into_owned();
        Self::Tree {
            verb,
            path,
            source: errno.into(),
        }
    }

    pub(crate) fn os(source: &io::Error) -> Self {
        let source = io::Error::new(source.kind(), source.to_string());
        Self::Tree {
            verb: "use",
            path: ".".to_owned(),
            source,
        }
    }

    pub(crate) fn unsafe_path(path: &[u8], why: &'static str) -> Self {
        let path = String::from_utf8_lossy(&path[..path.len().min(256)]).into_owned();
        Self::UnsafePath { path, why }
    }
}

/// What one layer may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Entries.
    pub entries: u64,
    /// Bytes of the uncompressed stream.
    pub bytes: u64,
    /// Bytes of the disk that stay free.
    pub keep_free: u64,
}

impl Default for Limits {
    /// A million entries and 128 GiB, more than any image in use has; 256 MiB of the disk stay free.
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            bytes: 128 << 30,
            keep_free: 256 << 20,
        }
    }
}

/// What something takes on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes of file content.
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

/// A tree that is not yet fitted onto the layers below.
#[derive(Debug)]
pub struct Unpacked {
    root: OwnedFd,
    implicit: Vec<(PathBuf, bool)>,
    times: Vec<(PathBuf, Timestamps)>,
    /// What it takes on disk.
    pub usage: Usage,
}

/// How fitting a tree onto the layers below went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is done.
    Done,
    /// A parent that this layer only implies is a symbolic link below, so that its entries belong
    /// elsewhere: unpack again, with the layers below given to [`apply`].
    NeedsBelow,
}

/// Unpacks `tar` (uncompressed) into the empty directory `root`, which nobody else touches. `below` has the
/// roots of the layers below, topmost first, when they are there already.
pub fn apply(
    tar: impl BufRead,
    root: &Path,
    limits: Limits,
    below: Option<&[PathBuf]>,
) -> Result<Unpacked, UnpackError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::open(root, flags, Mode::empty());
    let fail = |e: Errno| UnpackError::os(&e.into());
    let lower = below.map(Lower::open).transpose().map_err(fail)?;
    let mut tree = Tree::new(open().map_err(fail)?, lower);
    let mut reader = tar::Reader::new(tar);
    let usage = Extractor::new(&mut tree, limits).run(&mut reader)?;
    Ok(Unpacked {
        root: open().map_err(fail)?,
        implicit: tree.implicit.into_iter().collect(),
        times: tree.times.into_iter().collect(),
        usage,
    })
}

/// Gives directories without an entry of their own the looks they have below, and all their times.
/// `below` has the roots of the layers below, topmost first.
pub fn settle(unpacked: &Unpacked, below: &[PathBuf]) -> Result<Settled, UnpackError> {
    let fail = |e: Errno| UnpackError::os(&e.into());
    let mut lower = Lower::open(below).map_err(fail)?;
    let mut inherited = Vec::new();
    for (path, hidden) in &unpacked.implicit {
        let root = unpacked.root.as_fd();
        let Some(dir) = own_dir(root, path) else {
            continue;
        };
        let found = match hidden {
            true => Below::Nothing,
            false => lower.find(root, path).map_err(fail)?,
        };
        match found {
            Below::Symlink(_) => return Ok(Settled::NeedsBelow),
            Below::Dir(stat) => {
                adopt(dir.as_fd(), &stat).map_err(fail)?;
                inherited.push((path, times_of(&stat)));
            }
            Below::Nothing | Below::Other => {}
        }
        if path.as_os_str().is_empty() && below.is_empty() {
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o755)).map_err(fail)?;
        }
    }
    let explicit = unpacked
        .times
        .iter()
        .map(|(path, times)| (path, times.clone()));
    for (path, times) in explicit.chain(inherited) {
        if let Some(dir) = own_dir(unpacked.root.as_fd(), path) {
            rustix::fs::futimens(&dir, &times).map_err(fail)?;
        }
    }
    Ok(Settled::Done)
}

/// A directory of the tree; none when a later entry has replaced it.
fn own_dir(root: std::os::fd::BorrowedFd<'_>, path: &Path) -> Option<OwnedFd> {
    open_beneath(root, path, OFlags::RDONLY | OFlags::DIRECTORY).ok()
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
