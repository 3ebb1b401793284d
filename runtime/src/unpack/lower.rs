//! Looks into the layers below the one being unpacked, as overlayfs would merge them.
//!
//! Layers are unpacked side by side, each into a tree of its own. Where a layer has a file and no entry
//! for one of the file's parents (`tmp/x` without `tmp`), that parent must look as it does below; this
//! module finds it. Only directories that are ours are looked at, by descriptor, never through a link.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// The attribute by which overlayfs knows a directory that hides what is below.
pub(crate) const OPAQUE: &str = "trusted.overlay.opaque";
/// How many looks into lower layers one layer may cost: some seconds' worth.
const MAX_LOOKS: u32 = 4_000_000;

/// What the merged lower layers have at a path.
#[derive(Debug)]
pub(crate) enum Below {
    /// Nothing, or it is hidden.
    Nothing,
    /// A directory.
    Dir(Stat),
    /// A symbolic link and its target.
    Symlink(OsString),
    /// Anything else.
    Other,
}

/// Layers below, topmost first, and a memory of the directory looked at last.
#[derive(Debug)]
pub(crate) struct Lower {
    layers: Vec<OwnedFd>,
    /// For every component of the last directory: its name, and the layers that still show there.
    trail: VecDeque<(OsString, Vec<usize>)>,
    looks: u32,
}

impl Lower {
    /// Opens the layers' root directories, topmost first.
    pub(crate) fn open(roots: &[PathBuf]) -> rustix::io::Result<Self> {
        let layers = roots
            .iter()
            .map(|root| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::open(root, flags, Mode::empty())
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            layers,
            trail: VecDeque::new(),
            looks: 0,
        })
    }

    /// What is below `path`, given the tree `own` that lies above. `path` is real: no links, no dots.
    pub(crate) fn find(&mut self, own: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Below> {
        let mut names: Vec<&OsStr> = path.iter().collect();
        let Some(last) = names.pop() else {
            return Ok(match self.layers.first() {
                Some(top) => Below::Dir(rustix::fs::fstat(top)?),
                None => Below::Nothing,
            });
        };
        let same = self
            .trail
            .iter()
            .zip(&names)
            .take_while(|((have, _), want)| have == *want)
            .count();
        self.trail.truncate(same);
        for depth in same..names.len() {
            let dir: PathBuf = names[..=depth].iter().collect();
            let (_, mut showing) = self.step(own, &dir)?;
            if is_opaque(own, &dir)? {
                showing.clear();
            }
            self.trail.push_back((names[depth].to_owned(), showing));
        }
        let parent: PathBuf = names.iter().collect();
        Ok(self.step(own, &parent.join(last))?.0)
    }

    /// What is at `path`, and which layers show there, given the trail of its parent.
    fn step(
        &mut self,
        own: BorrowedFd<'_>,
        path: &Path,
    ) -> rustix::io::Result<(Below, Vec<usize>)> {
        let above = match self.trail.back() {
            Some((_, showing)) => showing.clone(),
            None => self.showing_at_root(own)?,
        };
        let mut found = Below::Nothing;
        let mut showing = Vec::new();
        for index in above {
            self.looks += 1;
            if self.looks > MAX_LOOKS {
                return Err(Errno::TOOBIG);
            }
            let layer = self.layers[index].as_fd();
            let file = match open_beneath(layer, path, OFlags::PATH) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                if showing.is_empty() {
                    found = not_a_directory(&file, &stat)?;
                }
                break;
            }
            if showing.is_empty() {
                found = Below::Dir(stat);
            }
            showing.push(index);
            if is_opaque(layer, path)? {
                break;
            }
        }
        Ok((found, showing))
    }

    fn showing_at_root(&self, own: BorrowedFd<'_>) -> rustix::io::Result<Vec<usize>> {
        let mut showing = Vec::new();
        if is_opaque(own, Path::new(""))? {
            return Ok(showing);
        }
        for (index, layer) in self.layers.iter().enumerate() {
            showing.push(index);
            if is_opaque(layer.as_fd(), Path::new(""))? {
                break;
            }
        }
        Ok(showing)
    }
}

fn not_a_directory(file: &OwnedFd, stat: &Stat) -> rustix::io::Result<Below> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(file, "", Vec::new())?;
            Ok(Below::Symlink(OsString::from_vec(target.into_bytes())))
        }
        _ if is_whiteout(stat) => Ok(Below::Nothing),
        _ => Ok(Below::Other),
    }
}

/// Opens what is at `path` below `root`; fails at any symbolic link. Empty is the root.
pub(crate) fn open_beneath(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    // With O_PATH and O_NOFOLLOW a link as the last component is opened itself.
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Whether the directory at `path` below `root` hides what is below; absent and not a directory is no.
pub(crate) fn is_opaque(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<bool> {
    let dir = match open_beneath(root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        other => other?,
    };
    let mut value = [0_u8; 8];
    match rustix::fs::fgetxattr(&dir, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether it is overlayfs' mark for "removed": a character device 0:0.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}
