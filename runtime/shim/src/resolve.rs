//! Paths of a container, resolved with its root as a wall (`openat2` with `RESOLVE_IN_ROOT`), to descriptors.
//!
//! A path is never looked at first and used later: what is found is held by a descriptor, and mounts, nodes
//! and permissions are applied to that. Links inside the root are followed within it; links of procfs
//! (`/proc/self/fd/...`) never.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, readlinkat,
};
use rustix::io::Errno;

use crate::failure::{Doing, Failure, Result};

/// Links followed while a path is made; as many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Longest path (`PATH_MAX` with its NUL).
const MAX_PATH: usize = 4095;

/// What is to be at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory.
    Directory,
    /// Anything else; an empty file is made when there is nothing.
    File,
}

/// The path as components below the root; `Invalid` for one that is no absolute path.
pub(crate) fn check(path: &str) -> Result<&Path> {
    if !path.starts_with('/') || path.len() > MAX_PATH || path.contains('\0') {
        return Err(Failure::invalid(format!(
            "{path:?} is not an absolute path"
        )));
    }
    Ok(Path::new(path))
}

/// Opens what is at `path`, with `O_PATH`. `ENOENT` when there is nothing.
pub(crate) fn lookup(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    open(root, path, OFlags::PATH)
}

/// Opens what is at `path`.
pub(crate) fn open(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    resolved(
        root,
        path,
        flags,
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Opens, with `O_PATH`, what is at a relative path below a directory of the node; `EXDEV` when ".." or a link leads out
/// of it, whoever made the link and whenever.
pub(crate) fn beneath(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    resolved(
        root,
        path,
        OFlags::PATH,
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
    )
}

fn resolved(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    rules: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    // EAGAIN: something was renamed during the walk, and the kernel could not prove that ".." stayed inside.
    loop {
        match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), rules) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Opens `path`, and makes it when it is missing: directories step by step, each below the descriptor of
/// the one before. Dangling links are followed within the root.
pub(crate) fn ensure(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> Result<OwnedFd> {
    let mut path = path.to_path_buf();
    for _ in 0..=MAX_LINKS {
        match try_ensure(root, &path, kind).doing(|| format!("make {}", path.display()))? {
            Made::Found(fd) => return Ok(fd),
            Made::Dangling(target) => path = target,
        }
    }
    Err(Errno::LOOP).doing(|| format!("make {}", path.display()))
}

/// Where something can be mounted.
#[derive(Debug)]
pub(crate) enum Target {
    /// It was there.
    Found(OwnedFd),
    /// It is new: a name in a directory, and no link.
    New(OwnedFd, OsString),
}

/// As [`ensure`], for a mount, which need not open what is new.
pub(crate) fn ensure_target(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> Result<Target> {
    let found = match lookup(root, path) {
        Err(Errno::NOENT) => create_last(root, path, kind),
        done => done.map(|found| Some(Target::Found(found))),
    };
    match found.doing(|| format!("make {}", path.display()))? {
        Some(place) => Ok(place),
        None => ensure(root, path, kind).map(Target::Found),
    }
}

enum Made {
    Found(OwnedFd),
    /// On the way is a link to nothing; this is the path with the link replaced by its target.
    Dangling(PathBuf),
}

fn try_ensure(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> rustix::io::Result<Made> {
    match lookup(root, path) {
        Ok(found) => return Ok(Made::Found(found)),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    if let Some(made) = make_last(root, path, kind)? {
        return Ok(Made::Found(made));
    }
    let parts: Vec<_> = path
        .components()
        .filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir))
        .collect();
    let mut walked = PathBuf::from("/");
    let mut current = lookup(root, &walked)?;
    for (index, part) in parts.iter().enumerate() {
        let parent = walked.clone();
        walked.push(part);
        let last = index + 1 == parts.len();
        match lookup(root, &walked) {
            Ok(next) => {
                current = next;
                continue;
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let name = Path::new(part.as_os_str());
        let kind = if last { kind } else { Kind::Directory };
        current = match make(current.as_fd(), name, kind) {
            Ok(next) => next,
            Err(Errno::EXIST) => {
                let link = readlinkat(&current, name, Vec::new())?;
                let target = Path::new(std::ffi::OsStr::from_bytes(link.as_bytes()));
                let rest: PathBuf = parts[index + 1..].iter().collect();
                return Ok(Made::Dangling(parent.join(target).join(rest)));
            }
            Err(error) => return Err(error),
        };
    }
    Ok(Made::Found(current))
}

/// Makes what is missing at the end of a path whose directory is there, as it usually is. None when it is not, or when
/// there is a link, which takes a closer look.
fn make_last(root: BorrowedFd<'_>, path: &Path, kind: Kind) -> rustix::io::Result<Option<OwnedFd>> {
    match create_last(root, path, kind)? {
        Some(Target::New(dir, name)) => open_made(dir.as_fd(), Path::new(&name), kind).map(Some),
        _ => Ok(None),
    }
}

/// The same without a look at it afterwards.
fn create_last(
    root: BorrowedFd<'_>,
    path: &Path,
    kind: Kind,
) -> rustix::io::Result<Option<Target>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    let made = lookup(root, parent).and_then(|dir| {
        create(dir.as_fd(), Path::new(name), kind)?;
        Ok(Target::New(dir, name.to_owned()))
    });
    match made {
        Err(Errno::NOENT | Errno::EXIST) => Ok(None),
        done => done.map(Some),
    }
}

/// Makes a directory or an empty file and opens it; `EEXIST` when something is there.
fn make(parent: BorrowedFd<'_>, name: &Path, kind: Kind) -> rustix::io::Result<OwnedFd> {
    create(parent, name, kind)?;
    open_made(parent, name, kind)
}

fn create(parent: BorrowedFd<'_>, name: &Path, kind: Kind) -> rustix::io::Result<()> {
    if kind == Kind::Directory {
        return mkdirat(parent, name, Mode::from_raw_mode(0o755));
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
    openat(parent, name, flags, Mode::from_raw_mode(0o644)).map(drop)
}

fn open_made(parent: BorrowedFd<'_>, name: &Path, kind: Kind) -> rustix::io::Result<OwnedFd> {
    let mut flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    flags.set(OFlags::DIRECTORY, kind == Kind::Directory);
    openat(parent, name, flags, Mode::empty())
}

/// Opens a directory directly below the root that must not be a link (`/proc`, `/sys`, `/dev`), and makes it
/// when it is missing.
pub(crate) fn real_dir(root: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    let path = format!("/{name}");
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let opened = openat2(
        root,
        path.as_str(),
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    );
    let dir = match opened {
        Err(Errno::NOENT) => make(root, Path::new(name), Kind::Directory),
        done => done,
    };
    let dir = dir.doing(|| format!("open {path}, which must be a real directory"))?;
    if kind_of(&dir)? != Kind::Directory {
        return Err(Failure::system(format!(
            "{path} of the root filesystem must be a directory"
        )));
    }
    Ok(dir)
}

/// Whether a descriptor is on a directory.
pub(crate) fn kind_of(fd: impl AsFd) -> Result<Kind> {
    let stat = fstat(fd).doing(|| "stat a file of the container")?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Kind::Directory),
        _ => Ok(Kind::File),
    }
}

/// Opens a path of the node.
pub(crate) fn open_host(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root(dir: &tempfile::TempDir) -> OwnedFd {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap()
    }

    #[test]
    fn missing_paths_are_made_inside_the_root_through_any_link() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let base = dir.path();
        symlink(outside.path(), base.join("absolute")).unwrap();
        symlink("../../../../up", base.join("relative")).unwrap();
        symlink("/run", base.join("var")).unwrap();
        let root = root(&dir);
        for path in [
            "/absolute/a/b",
            "/relative/c",
            "/var/run/d",
            "/plain/../e/f",
            "/../../g",
        ] {
            let made = ensure(root.as_fd(), Path::new(path), Kind::Directory).unwrap();
            assert_eq!(kind_of(&made).unwrap(), Kind::Directory);
            ensure(root.as_fd(), &Path::new(path).join("file"), Kind::File).unwrap();
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        assert!(base.join("up/c/file").is_file());
        assert!(base.join("run/run/d/file").is_file());
        assert!(base.join("e/f/file").is_file());
        assert!(base.join("g/file").is_file());
    }

    #[test]
    fn a_place_is_new_by_its_name_or_found_and_always_inside() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path().join("nothing"), dir.path().join("link")).unwrap();
        let root = root(&dir);
        let place = |path: &str| ensure_target(root.as_fd(), Path::new(path), Kind::Directory);
        assert!(matches!(place("/new"), Ok(Target::New(_, name)) if name == "new"));
        assert!(dir.path().join("new").is_dir());
        for found in ["/new", "/link", "/deep/er", "/new/.."] {
            assert!(matches!(place(found), Ok(Target::Found(_))), "{found}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(place("/file/below").is_err());
    }

    #[test]
    fn a_link_to_itself_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        let root = root(&dir);
        assert!(ensure(root.as_fd(), Path::new("/a/x"), Kind::Directory).is_err());
    }

    #[test]
    fn proc_must_be_a_real_directory() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/tmp", dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("sys"), "").unwrap();
        let root = root(&dir);
        assert!(real_dir(root.as_fd(), "proc").is_err());
        assert!(real_dir(root.as_fd(), "sys").is_err());
        assert!(real_dir(root.as_fd(), "dev").is_ok());
    }

    #[test]
    fn paths_are_absolute_short_and_without_nul() {
        assert!(check("/a/b").is_ok());
        for bad in ["", "a", "/a\0b", &format!("/{}", "x".repeat(MAX_PATH))] {
            assert!(check(bad).is_err());
        }
    }
}
