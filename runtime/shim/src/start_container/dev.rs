//! /dev of a container, all of it below one descriptor: the standard nodes, the links, the devices that were
//! asked for, and the console of a terminal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use hanok_shim::protocol::{Device, Mount, MountSource};
use rustix::fs::{
    AtFlags, Dev, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, makedev, mknodat,
    openat, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::mounts::attach;
use crate::failure::{Doing, Failure, Result};
use crate::resolve::{self, Kind};

/// Nodes that every container has: name, major, minor.
const STANDARD: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Links that every container has.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Fills /dev, unless it is the node's own.
pub(super) fn fill(root: BorrowedFd<'_>, mounts: &[Mount], devices: &[Device]) -> Result<()> {
    if is_bound(mounts) {
        return Ok(());
    }
    let dev = resolve::real_dir(root, "dev")?;
    for (name, major, minor) in STANDARD {
        let mode = Mode::from_raw_mode(0o666);
        let device = makedev(major, minor);
        make_node(
            dev.as_fd(),
            name,
            FileType::CharacterDevice,
            mode,
            device,
            (0, 0),
        )?;
    }
    for (name, target) in LINKS {
        make_link(&dev, name, target)?;
    }
    for device in devices {
        make_device(root, device)?;
    }
    Ok(())
}

/// Whether a bind mount covers /dev.
fn is_bound(mounts: &[Mount]) -> bool {
    let is_dev = |path: &str| {
        let parts = Path::new(path)
            .components()
            .filter(|c| matches!(c, Component::Normal(_)));
        parts.eq([Component::Normal("dev".as_ref())])
    };
    mounts
        .iter()
        .any(|m| matches!(m.source, MountSource::Bind { .. }) && is_dev(&m.destination))
}

/// Binds the terminal to /dev/console.
pub(super) fn bind_console(root: BorrowedFd<'_>, terminal: &OwnedFd) -> Result<()> {
    let dev = resolve::real_dir(root, "dev")?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
    match openat(&dev, "console", flags, Mode::from_raw_mode(0o600)) {
        Ok(_) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error).doing(|| "make /dev/console"),
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let console = openat(&dev, "console", flags, Mode::empty()).doing(|| "open /dev/console")?;
    let stat = rustix::fs::fstat(&console).doing(|| "stat /dev/console")?;
    if matches!(
        FileType::from_raw_mode(stat.st_mode),
        FileType::Symlink | FileType::Directory
    ) {
        return Err(Failure::system(
            "/dev/console of the root filesystem is not a file",
        ));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let source = open_tree(terminal, "", flags).doing(|| "clone the terminal")?;
    attach(source.as_fd(), console.as_fd()).doing(|| "mount /dev/console")
}

fn make_device(root: BorrowedFd<'_>, device: &Device) -> Result<()> {
    let path = resolve::check(&device.path)?;
    let bad = || Failure::invalid(format!("device path {:?} is not below /dev", device.path));
    let below = path.strip_prefix("/dev").map_err(|_| bad())?;
    if !below
        .components()
        .all(|c| matches!(c, Component::Normal(_)))
    {
        return Err(bad());
    }
    let name = below.file_name().and_then(|n| n.to_str()).ok_or_else(bad)?;
    let kind = FileType::from_raw_mode(device.mode);
    if !matches!(
        kind,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo
    ) {
        return Err(Failure::invalid(format!(
            "mode {:#o} of device {}",
            device.mode, device.path
        )));
    }
    let parent = path.parent().unwrap_or(Path::new("/dev"));
    let parent = resolve::ensure(root, parent, Kind::Directory)?;
    let mode = Mode::from_raw_mode(device.mode & 0o7777);
    let number = makedev(device.major, device.minor);
    make_node(
        parent.as_fd(),
        name,
        kind,
        mode,
        number,
        (device.uid, device.gid),
    )
}

/// Makes a node, or finds the very same one there. Nothing is followed.
fn make_node(
    dir: BorrowedFd<'_>,
    name: &str,
    kind: FileType,
    mode: Mode,
    device: Dev,
    owner: (u32, u32),
) -> Result<()> {
    let doing = || format!("make device {name}");
    match mknodat(dir, name, kind, mode, device) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).doing(doing)?;
            return same_node(&stat, kind, device).then_some(()).ok_or_else(|| {
                Failure::system(format!(
                    "/dev/{name} of the root filesystem is something else"
                ))
            });
        }
        Err(error) => return Err(error).doing(doing),
    }
    // The umask took bits away.
    chmodat(dir, name, mode, AtFlags::empty()).doing(doing)?;
    if owner != (0, 0) {
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).doing(doing)?;
    }
    Ok(())
}

fn same_node(stat: &Stat, kind: FileType, device: Dev) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
        && (kind == FileType::Fifo || stat.st_rdev == device)
}

fn make_link(dev: &OwnedFd, name: &str, target: &str) -> Result<()> {
    let doing = || format!("make link /dev/{name}");
    match symlinkat(target, dev, name) {
        Err(Errno::EXIST) => {}
        done => return done.doing(doing),
    }
    let same = readlinkat(dev, name, Vec::new()).is_ok_and(|t| t.as_bytes() == target.as_bytes());
    if same {
        return Ok(());
    }
    // Only a name below a directory of the container is removed, whatever it is.
    unlinkat(dev, name, AtFlags::empty()).doing(doing)?;
    symlinkat(target, dev, name).doing(doing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_own_dev_is_left_alone() {
        let mount = |destination: &str| Mount {
            destination: destination.to_owned(),
            source: MountSource::Bind {
                path: "/dev".to_owned(),
                recursive: true,
            },
            attr_set: 0,
            attr_clear: 0,
            attr_recursive: false,
            propagation: 0,
        };
        assert!(is_bound(&[mount("/dev/")]));
        assert!(!is_bound(&[mount("/dev/shm")]));
        assert!(!is_bound(&[]));
    }
}
