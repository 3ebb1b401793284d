//! Volumes of files that change as a whole.
//!
//! ```text
//! VOLUME/..2026_11_29_20_13_57.123456789/   the files
//! VOLUME/..data  ─► ..2026_11_29_20_13_57.123456789
//! VOLUME/config  ─► ..data/config            one link for each first component of a path
//! ```
//! Renaming a new `..data` over the old one changes every file at once. Files that programs watch keep these names
//! in every Kubernetes node, so they are part of the interface.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::fs::{self, FsError, failed};
use super::payload::{File, Files};

/// The link that is swapped.
const DATA: &str = "..data";
/// Its successor, for a moment.
const NEW_DATA: &str = "..data_tmp";

/// Writes `files` into the volume `dir`; `gid` may read them. Gives whether anything changed.
pub(super) fn write(dir: BorrowedFd<'_>, files: &Files, gid: Option<u32>) -> Result<bool, FsError> {
    let old = current(dir);
    if let Some((_, old)) = &old
        && holds(old.as_fd(), files, gid)
    {
        return links(dir, files).map(|()| false);
    }
    let name = new_version(dir, files, gid)?;
    swap(dir, &name)?;
    links(dir, files)?;
    remove_old_versions(dir, &name);
    Ok(true)
}

/// The directory that `..data` names. A link that leads anywhere else counts as none.
fn current(dir: BorrowedFd<'_>) -> Option<(String, OwnedFd)> {
    let target = rustix::fs::readlinkat(dir, DATA, Vec::new())
        .ok()?
        .into_string()
        .ok()?;
    if !is_version(&target) {
        return None;
    }
    let version = fs::open_dir(dir, &target).ok()?;
    Some((target, version))
}

/// A name that [`new_version`] gives.
fn is_version(name: &str) -> bool {
    name.starts_with("..2") && !name.contains('/')
}

/// The bits of a file once the group may read it.
fn file_mode(file: &File, gid: Option<u32>) -> u32 {
    if gid.is_some() {
        file.mode | 0o440
    } else {
        file.mode
    }
}

/// Whether a version holds exactly these files.
fn holds(version: BorrowedFd<'_>, files: &Files, gid: Option<u32>) -> bool {
    let same = |(path, file): (&String, &File)| {
        let Ok(fd) = open_file(version, path, OFlags::RDONLY) else {
            return false;
        };
        let mut handle = std::fs::File::from(fd);
        let Ok(stat) = rustix::fs::fstat(&handle) else {
            return false;
        };
        let mut data = Vec::new();
        stat.st_mode & 0o7777 == file_mode(file, gid)
            && stat.st_uid == file.uid.unwrap_or(0)
            && gid.is_none_or(|gid| stat.st_gid == gid)
            && usize::try_from(stat.st_size).is_ok_and(|size| size == file.data.len())
            && handle.read_to_end(&mut data).is_ok()
            && data == file.data
    };
    files.iter().all(same) && count(version) == Some(files.len())
}

/// Files in a tree that we wrote: never deep, never with links.
fn count(dir: BorrowedFd<'_>) -> Option<usize> {
    let mut sum = 0;
    for (name, is_dir) in fs::entries(dir).ok()? {
        sum += if is_dir {
            count(fs::open_dir(dir, name.to_str().ok()?).ok()?.as_fd())?
        } else {
            1
        };
    }
    Some(sum)
}

/// Opens a file below `dir` without following any link.
fn open_file(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, FsError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Some((parent, name)) = path.rsplit_once('/') else {
        return openat(dir, path, flags, Mode::RUSR | Mode::WUSR).map_err(failed("open", path));
    };
    let mut held: Option<OwnedFd> = None;
    for part in parent.split('/') {
        let at = held.as_ref().map_or(dir, AsFd::as_fd);
        held = Some(fs::open_dir(at, part)?);
    }
    let at = held.as_ref().map_or(dir, AsFd::as_fd);
    openat(at, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed("open", path))
}

/// Writes all files into a directory of its own; on failure nothing of it is left.
fn new_version(dir: BorrowedFd<'_>, files: &Files, gid: Option<u32>) -> Result<String, FsError> {
    let name = jiff::Zoned::now()
        .strftime("..%Y_%m_%d_%H_%M_%S.%9f")
        .to_string();
    rustix::fs::mkdirat(dir, &name, Mode::RWXU).map_err(failed("make", &name))?;
    let version = fs::open_dir(dir, &name)?;
    let written =
        fill(version.as_fd(), files, gid).and_then(|()| open_up(version.as_fd(), &name, gid));
    match written {
        Ok(()) => Ok(name),
        Err(error) => {
            remove_version(dir, &name);
            Err(error)
        }
    }
}

/// Bits and group of a directory of the volume.
fn open_up(dir: BorrowedFd<'_>, name: &str, gid: Option<u32>) -> Result<(), FsError> {
    fs::set_owner(dir, name, None, gid)?;
    fs::set_mode(dir, name, if gid.is_some() { 0o2755 } else { 0o755 })
}

fn fill(version: BorrowedFd<'_>, files: &Files, gid: Option<u32>) -> Result<(), FsError> {
    for (path, file) in files {
        if let Some((parent, _)) = path.rsplit_once('/') {
            make_parents(version, parent, gid)?;
        }
        let fd = open_file(
            version,
            path,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        )?;
        let mut handle = std::fs::File::from(fd);
        handle
            .write_all(&file.data)
            .map_err(failed("write", path))?;
        fs::set_owner(handle.as_fd(), path, file.uid, gid)?;
        fs::set_mode(handle.as_fd(), path, file_mode(file, gid))?;
    }
    Ok(())
}

fn make_parents(version: BorrowedFd<'_>, path: &str, gid: Option<u32>) -> Result<(), FsError> {
    let mut held: Option<OwnedFd> = None;
    for part in path.split('/') {
        let at = held.as_ref().map_or(version, AsFd::as_fd);
        let (dir, new) = fs::make_dir(at, part, 0o755)?;
        if new {
            open_up(dir.as_fd(), part, gid)?;
        }
        held = Some(dir);
    }
    Ok(())
}

/// Makes `..data` name this version.
fn swap(dir: BorrowedFd<'_>, name: &str) -> Result<(), FsError> {
    let made = match symlinkat(name, dir, NEW_DATA) {
        // An agent died here.
        Err(Errno::EXIST) => {
            unlinkat(dir, NEW_DATA, AtFlags::empty()).and_then(|()| symlinkat(name, dir, NEW_DATA))
        }
        result => result,
    };
    made.map_err(failed("make", NEW_DATA))?;
    renameat(dir, NEW_DATA, dir, DATA).map_err(failed("rename", NEW_DATA))
}

/// Makes the visible links what the files ask for.
fn links(dir: BorrowedFd<'_>, files: &Files) -> Result<(), FsError> {
    let wanted: BTreeSet<&str> = files
        .keys()
        .map(|path| path.split_once('/').map_or(path.as_str(), |(top, _)| top))
        .collect();
    for name in &wanted {
        match symlinkat(format!("{DATA}/{name}"), dir, *name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", name)(error)),
        }
    }
    for (name, is_dir) in fs::entries(dir)? {
        let stale = name
            .to_str()
            .is_ok_and(|name| !name.starts_with("..") && !wanted.contains(name));
        if stale && !is_dir {
            unlinkat(dir, &name, AtFlags::empty())
                .map_err(failed("remove", name.to_string_lossy().as_ref()))?;
        }
    }
    Ok(())
}

/// Best effort: what stays is found again by the next write.
fn remove_old_versions(dir: BorrowedFd<'_>, keep: &str) {
    for (name, is_dir) in fs::entries(dir).unwrap_or_default() {
        if let Ok(name) = name.to_str()
            && is_dir
            && is_version(name)
            && name != keep
        {
            remove_version(dir, name);
        }
    }
}

/// A version that nobody sees any more.
fn remove_version(dir: BorrowedFd<'_>, name: &str) {
    let Ok(c_name) = std::ffi::CString::new(name) else {
        return;
    };
    if let Err(errors) = fs::remove_tree(dir, &c_name) {
        for error in errors {
            tracing::warn!(
                version = name,
                "an old version of a volume stays: {}",
                error.story()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    fn file(data: &str) -> File {
        File {
            data: data.into(),
            mode: 0o644,
            uid: None,
        }
    }

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter()
            .map(|(path, data)| ((*path).to_owned(), file(data)))
            .collect()
    }

    fn write_at(path: &Path, files: &Files) -> bool {
        write(fs::open_trusted(path).unwrap().as_fd(), files, None).unwrap()
    }

    fn visible(path: &Path) -> Vec<String> {
        let names = std::fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with("..")).collect();
        names.sort();
        names
    }

    #[test]
    fn every_file_changes_at_once_and_nothing_old_stays() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write_at(
            dir.path(),
            &files(&[("a", "1"), ("sub/b", "2"), ("old", "x")])
        ));
        assert_eq!(
            std::fs::read_to_string(dir.path().join("sub/b")).unwrap(),
            "2"
        );
        assert!(write_at(dir.path(), &files(&[("a", "3"), ("sub/c", "4")])));
        assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "3");
        assert_eq!(visible(dir.path()), ["a", "sub"]);
        assert!(!dir.path().join("sub/b").exists());
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            4,
            "one version, ..data, two links"
        );
    }

    #[test]
    fn the_same_files_again_touch_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let payload = files(&[("a", "1"), ("x/y/z", "2")]);
        assert!(write_at(dir.path(), &payload));
        let before = std::fs::read_link(dir.path().join("..data")).unwrap();
        assert!(!write_at(dir.path(), &payload));
        assert_eq!(
            std::fs::read_link(dir.path().join("..data")).unwrap(),
            before
        );
        let mut changed = payload.clone();
        changed.get_mut("a").unwrap().mode = 0o600;
        assert!(write_at(dir.path(), &changed));
    }

    #[test]
    fn a_write_that_was_cut_short_is_done_again() {
        let dir = tempfile::tempdir().unwrap();
        symlink("..2020_nowhere", dir.path().join("..data_tmp")).unwrap();
        std::fs::create_dir(dir.path().join("..2020_left")).unwrap();
        assert!(write_at(dir.path(), &files(&[("a", "1")])));
        assert!(!dir.path().join("..2020_left").exists());
        assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "1");
    }

    #[test]
    fn a_data_link_that_leads_out_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), dir.path().join("..data")).unwrap();
        assert!(write_at(dir.path(), &files(&[("a", "1")])));
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn modes_do_not_depend_on_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut payload = files(&[("a", "1")]);
        payload.get_mut("a").unwrap().mode = 0o666;
        write_at(dir.path(), &payload);
        assert_eq!(
            std::fs::metadata(dir.path().join("a")).unwrap().mode() & 0o777,
            0o666
        );
    }
}
