//! The tree that a layer is unpacked into: finding an entry's parent without ever leaving the root.
//!
//! Names from a layer are taken apart into components; `..` is refused. Symbolic links of the layer are
//! followed as they would be inside the root, component by component, by descriptors that never follow
//! one themselves. Missing parents are made and remembered, see [`super::lower`].

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, Dev, FileType, Gid, Mode, OFlags, Stat, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::UnpackError;
use super::lower::{Below, Lower, OPAQUE, is_whiteout, open_beneath};

/// Deepest directory; every level of a walk costs a descriptor.
const MAX_DEPTH: usize = 256;
/// Most symbolic links followed for one path, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Longest name of one component.
const MAX_NAME: usize = 255;
/// How many parents are kept open.
const CACHED: usize = 32;

/// An open directory and its real path below the root.
#[derive(Debug)]
pub(crate) struct Dir {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
}

/// Whether a walk makes what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Fail,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Rc<Dir>,
    /// Layers below, when they are known while unpacking (the slow, serial way).
    lower: Option<Lower>,
    cache: HashMap<Vec<u8>, Rc<Dir>>,
    /// Directories made without an entry of their own; true when nothing of the layers below shows there.
    pub(crate) implicit: BTreeMap<PathBuf, bool>,
    /// Times of directories, set last because every new name in a directory changes them.
    pub(crate) times: HashMap<PathBuf, Timestamps>,
}

impl Tree {
    /// A tree in an empty directory that nobody else touches.
    pub(crate) fn new(root: OwnedFd, lower: Option<Lower>) -> Self {
        Self {
            root: Rc::new(Dir {
                fd: root,
                path: PathBuf::new(),
            }),
            lower,
            cache: HashMap::new(),
            implicit: BTreeMap::from([(PathBuf::new(), false)]),
            times: HashMap::new(),
        }
    }

    /// The root directory.
    pub(crate) fn root(&self) -> &Rc<Dir> {
        &self.root
    }

    /// The directory at `path` (from [`components`]), following links inside the root.
    pub(crate) fn dir(&mut self, path: &[&[u8]], missing: Missing) -> Result<Rc<Dir>, UnpackError> {
        if path.is_empty() {
            return Ok(Rc::clone(&self.root));
        }
        let key = path.join(&b'/');
        if let Some(dir) = self.cache.get(&key) {
            return Ok(Rc::clone(dir));
        }
        let lexical = Path::new(OsStr::from_bytes(&key));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = match open_beneath(self.root.fd.as_fd(), lexical, flags) {
            Ok(fd) => Dir {
                fd,
                path: lexical.to_owned(),
            },
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.walk(path, missing)?,
            Err(e) => return Err(UnpackError::tree("open", &key, e)),
        };
        if self.cache.len() >= CACHED {
            self.cache.clear();
        }
        let dir = Rc::new(dir);
        self.cache.insert(key, Rc::clone(&dir));
        Ok(dir)
    }

    /// Forgets open directories; after anything was removed or replaced.
    pub(crate) fn forget(&mut self) {
        self.cache.clear();
    }

    fn walk(&mut self, path: &[&[u8]], missing: Missing) -> Result<Dir, UnpackError> {
        let shown = path.join(&b'/');
        let fail = |verb, e| UnpackError::tree(verb, &shown, e);
        let mut todo: Vec<OsString> = path.iter().rev().map(|name| owned(name)).collect();
        let mut stack: Vec<(OwnedFd, OsString)> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == ".." {
                stack.pop();
                continue;
            }
            let here = stack
                .last()
                .map_or(self.root.fd.as_fd(), |(fd, _)| fd.as_fd());
            let target = match look(here, &name).map_err(|e| fail("look up", e))? {
                Found::Dir(fd) => {
                    stack.push((fd, name));
                    None
                }
                Found::Symlink(target) => Some(target),
                Found::Other => return Err(fail("enter", Errno::NOTDIR)),
                Found::Nothing | Found::Whiteout if missing == Missing::Fail => {
                    return Err(fail("find", Errno::NOENT));
                }
                found => {
                    let real: PathBuf = stack.iter().map(|(_, name)| name).collect();
                    let hidden = matches!(found, Found::Whiteout);
                    let real = real.join(&name);
                    let here = here.try_clone_to_owned().map_err(|e| UnpackError::os(&e))?;
                    match self.make(&here, &real, hidden)? {
                        Made::Dir(fd) => {
                            stack.push((fd, name));
                            None
                        }
                        Made::LinkBelow(target) => Some(target),
                    }
                }
            };
            if let Some(target) = target {
                links += 1;
                if target.as_bytes().starts_with(b"/") {
                    stack.clear();
                }
                todo.extend(link_components(&target).rev());
            }
            if links > MAX_LINKS || stack.len() > MAX_DEPTH {
                return Err(fail("follow links of", Errno::LOOP));
            }
        }
        let real = stack.iter().map(|(_, name)| name).collect();
        let fd = match stack.pop() {
            Some((fd, _)) => fd,
            None => self.root.fd.try_clone().map_err(|e| UnpackError::os(&e))?,
        };
        Ok(Dir { fd, path: real })
    }

    /// Makes a parent that has no entry of its own, looking as it does below.
    fn make(&mut self, here: &OwnedFd, real: &Path, hidden: bool) -> Result<Made, UnpackError> {
        let shown = real.as_os_str().as_bytes();
        let fail = |verb, e| UnpackError::tree(verb, shown, e);
        let name = real.file_name().unwrap_or_default();
        let mut below = Below::Nothing;
        if let (Some(lower), false) = (&mut self.lower, hidden) {
            below = lower
                .find(self.root.fd.as_fd(), real)
                .map_err(|e| fail("look below", e))?;
            if let Below::Symlink(target) = below {
                return Ok(Made::LinkBelow(target));
            }
        }
        if hidden {
            rustix::fs::unlinkat(here, name, AtFlags::empty()).map_err(|e| fail("remove", e))?;
        }
        rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o700)).map_err(|e| fail("make", e))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            rustix::fs::openat(here, name, flags, Mode::empty()).map_err(|e| fail("open", e))?;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o755)).map_err(|e| fail("chmod", e))?;
        if hidden {
            set_opaque(fd.as_fd()).map_err(|e| fail("mark", e))?;
        }
        match (below, &self.lower) {
            (Below::Dir(stat), _) => {
                adopt(fd.as_fd(), &stat).map_err(|e| fail("set the owner of", e))?;
                self.times.insert(real.to_owned(), times_of(&stat));
            }
            (_, None) => drop(self.implicit.insert(real.to_owned(), hidden)),
            _ => {}
        }
        Ok(Made::Dir(fd))
    }
}

enum Made {
    Dir(OwnedFd),
    LinkBelow(OsString),
}

enum Found {
    Nothing,
    Whiteout,
    Dir(OwnedFd),
    Symlink(OsString),
    Other,
}

fn look(here: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Found> {
    let stat = match rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        other => other?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(here, name, flags, Mode::empty()).map(Found::Dir)
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(here, name, Vec::new())?;
            Ok(Found::Symlink(OsString::from_vec(target.into_bytes())))
        }
        _ if is_whiteout(&stat) => Ok(Found::Whiteout),
        _ => Ok(Found::Other),
    }
}

/// Takes a path of a layer apart. Absolute is relative to the root; `..` is refused.
pub(crate) fn components(path: &[u8]) -> Result<Vec<&[u8]>, UnpackError> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(UnpackError::unsafe_path(path, "it has a .. component")),
            _ if name.len() > MAX_NAME => {
                return Err(UnpackError::unsafe_path(
                    path,
                    "a component is longer than 255 bytes",
                ));
            }
            _ => names.push(name),
        }
    }
    if names.len() > MAX_DEPTH {
        return Err(UnpackError::unsafe_path(
            path,
            "it is deeper than 256 directories",
        ));
    }
    Ok(names)
}

fn link_components(target: &OsStr) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    target
        .as_bytes()
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(owned)
}

fn owned(name: &[u8]) -> OsString {
    OsString::from_vec(name.to_vec())
}

/// Marks a directory as hiding what is below.
pub(crate) fn set_opaque(dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::fs::fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty())
}

/// Marks a name as removed.
pub(crate) fn make_whiteout(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let mode = Mode::empty();
    rustix::fs::mknodat(dir, name, FileType::CharacterDevice, mode, Dev::default())
}

/// Gives a directory the mode and owner of another.
pub(crate) fn adopt(dir: BorrowedFd<'_>, like: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    rustix::fs::fchown(dir, Some(uid), Some(gid))?;
    rustix::fs::fchmod(dir, Mode::from_raw_mode(like.st_mode & 0o7777))
}

/// The modification time of another file, as access and modification time.
pub(crate) fn times_of(like: &Stat) -> Timestamps {
    timestamps(
        like.st_mtime,
        u32::try_from(like.st_mtime_nsec).unwrap_or(0),
    )
}

/// Access and modification time.
pub(crate) fn timestamps(seconds: i64, nanos: u32) -> Timestamps {
    let time = rustix::fs::Timespec {
        tv_sec: seconds,
        tv_nsec: nanos.into(),
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
