//! Files and directories below a directory that is held open: no step follows a symbolic link, since containers
//! write in most of these directories.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, openat, openat2, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;

/// A step on a file that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {name:?}")]
pub(super) struct FsError {
    /// What was tried.
    pub(super) action: &'static str,
    /// On what.
    pub(super) name: String,
    /// Why it failed.
    #[source]
    pub(super) source: io::Error,
}

impl FsError {
    /// The whole story in one line.
    pub(super) fn story(&self) -> String {
        format!("{self}: {}", self.source)
    }
}

/// Gives an error its action and name.
pub(super) fn failed<E: Into<io::Error>>(
    action: &'static str,
    name: impl AsRef<Path>,
) -> impl FnOnce(E) -> FsError {
    let name = name.as_ref().display().to_string();
    move |source| FsError {
        action,
        name,
        source: source.into(),
    }
}

/// How directories are opened here.
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY);

/// Opens a directory by a path that only root can change.
pub(super) fn open_trusted(path: &Path) -> Result<OwnedFd, FsError> {
    rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(failed("open", path))
}

/// Opens a directory inside another one.
pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, FsError> {
    openat(parent, name, DIRECTORY, Mode::empty()).map_err(failed("open", name))
}

/// Makes a directory inside another one, with exactly these bits, and opens it. One that is there already is opened.
pub(super) fn make_dir(
    parent: BorrowedFd<'_>,
    name: &str,
    mode: u32,
) -> Result<(OwnedFd, bool), FsError> {
    let new = match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode & 0o777)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(failed("make", name)(error)),
    };
    let dir = open_dir(parent, name)?;
    if new {
        set_mode(dir.as_fd(), name, mode)?;
    }
    Ok((dir, new))
}

/// Sets permission bits, whatever the process's file mode creation mask is.
pub(super) fn set_mode(file: BorrowedFd<'_>, name: &str, mode: u32) -> Result<(), FsError> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed("set the mode of", name))
}

/// Sets owner and group, where given.
pub(super) fn set_owner(
    file: BorrowedFd<'_>,
    name: &str,
    uid: Option<u32>,
    gid: Option<u32>,
) -> Result<(), FsError> {
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    rustix::fs::fchown(file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
        .map_err(failed("set the owner of", name))
}

/// The names in a directory, with whether each is a directory itself.
pub(super) fn entries(dir: BorrowedFd<'_>) -> Result<Vec<(std::ffi::CString, bool)>, FsError> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir).map_err(failed("list", "."))? {
        let entry = entry.map_err(failed("list", "."))?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let is_dir = match entry.file_type() {
            FileType::Unknown => is_dir(dir, name),
            kind => kind == FileType::Directory,
        };
        found.push((name.to_owned(), is_dir));
    }
    Ok(found)
}

/// Not every filesystem tells an entry's type.
fn is_dir(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Deeper directories are moved up before they are emptied: a container may nest them without end, and every level
/// costs a descriptor and a stack frame here.
const DEEPEST: usize = 48;

/// Removes a file or a directory with everything in it. Absent is success. What is mounted below is not entered.
pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Vec<FsError>> {
    let shown = name.to_string_lossy().into_owned();
    let dir = match enter(parent, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let removed = unlinkat(parent, name, AtFlags::empty());
            return removed.map_err(|error| vec![failed("remove", &shown)(error)]);
        }
        Err(Errno::XDEV) => return Err(vec![mounted(&shown)]),
        Err(error) => return Err(vec![failed("open", &shown)(error)]),
    };
    let mut sweep = Sweep {
        top: dir.as_fd(),
        moved: 0,
        errors: Vec::new(),
    };
    loop {
        let moved = sweep.moved;
        sweep.clear(dir.as_fd(), 0);
        // What was moved up lies in the top directory now, and needs another pass.
        if sweep.moved == moved || !sweep.errors.is_empty() {
            break;
        }
    }
    if !sweep.errors.is_empty() {
        return Err(sweep.errors);
    }
    let removed = unlinkat(parent, name, AtFlags::REMOVEDIR);
    removed.map_err(|error| vec![failed("remove", &shown)(error)])
}

/// Opens a directory; refuses links and mount points.
fn enter(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    resolved(parent, name, DIRECTORY, resolve)
}

/// Opens what is there, by these rules.
pub(super) fn resolved(
    parent: BorrowedFd<'_>,
    path: impl Arg + Copy,
    flags: OFlags,
    rules: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(parent, path, flags, Mode::empty(), rules) {
            // A rename somewhere below made the kernel give up; nothing is wrong.
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
}

fn mounted(name: &str) -> FsError {
    let source = io::Error::other("something is mounted there, unmount it first");
    FsError {
        action: "remove",
        name: name.to_owned(),
        source,
    }
}

/// One removal of a tree.
struct Sweep<'t> {
    top: BorrowedFd<'t>,
    moved: u64,
    errors: Vec<FsError>,
}

impl Sweep<'_> {
    /// Empties a directory.
    fn clear(&mut self, dir: BorrowedFd<'_>, depth: usize) {
        let entries = match entries(dir) {
            Ok(entries) => entries,
            Err(error) => return self.errors.push(error),
        };
        for (name, is_dir) in entries {
            let result = if is_dir {
                self.clear_dir(dir, &name, depth)
            } else {
                unlinkat(dir, &name, AtFlags::empty())
            };
            if let Err(error) = result
                && error != Errno::NOENT
            {
                let shown = name.to_string_lossy().into_owned();
                self.errors.push(match error {
                    Errno::XDEV => mounted(&shown),
                    error => failed("remove", &shown)(error),
                });
            }
        }
    }

    /// Empties and removes a directory, or moves it up.
    fn clear_dir(&mut self, dir: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Errno> {
        if depth >= DEEPEST {
            let up = format!("..deep-{}-{}", std::process::id(), self.moved);
            self.moved += 1;
            return rustix::fs::renameat(dir, name, self.top, up);
        }
        let errors = self.errors.len();
        self.clear(enter(dir, name)?.as_fd(), depth + 1);
        // With a failure below, the directory cannot go; that one has been told.
        if self.errors.len() > errors {
            return Ok(());
        }
        unlinkat(dir, name, AtFlags::REMOVEDIR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn remove(path: &Path) -> Result<(), Vec<FsError>> {
        let parent = open_trusted(path.parent().unwrap()).unwrap();
        let name = std::ffi::CString::new(path.file_name().unwrap().as_encoded_bytes()).unwrap();
        remove_tree(parent.as_fd(), &name)
    }

    #[test]
    fn removal_takes_links_and_never_what_they_point_to() {
        let dir = tempfile::tempdir().unwrap();
        let canary = dir.path().join("canary");
        std::fs::create_dir(&canary).unwrap();
        std::fs::write(canary.join("file"), "alive").unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        symlink(&canary, tree.join("a/b/link")).unwrap();
        symlink(canary.join("file"), tree.join("a/file-link")).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
        assert_eq!(
            std::fs::read_to_string(canary.join("file")).unwrap(),
            "alive"
        );
    }

    #[test]
    fn a_tree_that_is_a_link_itself_is_only_unlinked() {
        let dir = tempfile::tempdir().unwrap();
        let canary = dir.path().join("canary");
        std::fs::create_dir(&canary).unwrap();
        let tree = dir.path().join("tree");
        symlink(&canary, &tree).unwrap();
        remove(&tree).unwrap();
        assert!(canary.exists() && std::fs::symlink_metadata(&tree).is_err());
    }

    #[test]
    fn absent_is_success() {
        let dir = tempfile::tempdir().unwrap();
        remove(&dir.path().join("nothing")).unwrap();
    }

    #[test]
    fn directories_nested_without_end_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        let mut fd = open_trusted(&tree).unwrap();
        for _ in 0..3000 {
            fd = make_dir(fd.as_fd(), "d", 0o755).unwrap().0;
        }
        drop(fd);
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }
}
