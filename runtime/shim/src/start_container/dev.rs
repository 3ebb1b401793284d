//! /dev of a container, all of it below one descriptor: the standard nodes, the links, the devices that were
//! asked for, and the console of a terminal.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use hanok_shim::devices::{LINKS, NODES};
use hanok_shim::protocol::{Device, Mount};
use rustix::fs::{
    AtFlags, Dev, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, makedev, mkdirat, mknodat,
    openat, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use super::mounts::{attach, is_bind};
use crate::failure::{Doing, Failure, Result};
use crate::resolve::{self, Kind};
use crate::users::Users;

/// Fills /dev, unless it is the node's own.
pub(super) fn fill(root: BorrowedFd<'_>, mounts: &[Mount], devices: &[Device]) -> Result<()> {
    if is_bound(mounts) {
        return Ok(());
    }
    let dev = resolve::real_dir(root, "dev")?;
    for (name, major, minor) in NODES {
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

/// Makes the nodes in a fresh filesystem that is to be /dev, by the node's root: in a user namespace nobody can. They
/// belong to the pod's users. [`fill`] finds them there.
pub(super) fn make_nodes(dev: BorrowedFd<'_>, users: &Users, devices: &[Device]) -> Result<()> {
    let own = |uid: u32, gid: u32| {
        let (uid, gid) = users.owner(uid, gid);
        (uid.as_raw(), gid.as_raw())
    };
    for (name, major, minor) in NODES {
        let (mode, device) = (Mode::from_raw_mode(0o666), makedev(major, minor));
        let kind = FileType::CharacterDevice;
        make_node(dev, name, kind, mode, device, own(0, 0))?;
    }
    for device in devices {
        let below = below_dev(device)?;
        let mut walked = PathBuf::new();
        for part in below.parent().into_iter().flat_map(Path::components) {
            walked.push(part);
            let made = mkdirat(dev, &walked, Mode::from_raw_mode(0o755));
            let doing = || format!("make a directory for {}", device.path);
            match made {
                Err(Errno::EXIST) => continue,
                done => done.doing(doing)?,
            }
            let (uid, gid) = users.root();
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            chownat(dev, &walked, Some(uid), Some(gid), flags).doing(doing)?;
        }
        let (kind, mode) = kind_and_mode(device)?;
        let number = makedev(device.major, device.minor);
        make_node(dev, below, kind, mode, number, own(device.uid, device.gid))?;
    }
    Ok(())
}

/// Whether a mount's place is /dev itself.
pub(super) fn is_dev(mount: &Mount) -> bool {
    let parts = Path::new(&mount.destination)
        .components()
        .filter(|c| matches!(c, Component::Normal(_)));
    parts.eq([Component::Normal("dev".as_ref())])
}

/// Whether a bind mount covers /dev.
fn is_bound(mounts: &[Mount]) -> bool {
    mounts
        .iter()
        .any(|mount| is_bind(&mount.source) && is_dev(mount))
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
    let path = Path::new("/dev").join(below_dev(device)?);
    let name = path.file_name().unwrap_or_default();
    let (kind, mode) = kind_and_mode(device)?;
    let parent = path.parent().unwrap_or(Path::new("/dev"));
    let parent = resolve::ensure(root, parent, Kind::Directory)?;
    let number = makedev(device.major, device.minor);
    let owner = (device.uid, device.gid);
    make_node(parent.as_fd(), name, kind, mode, number, owner)
}

/// The plain path of a device below /dev.
fn below_dev(device: &Device) -> Result<&Path> {
    let bad = || Failure::invalid(format!("device path {:?} is not below /dev", device.path));
    let below = resolve::check(&device.path)?
        .strip_prefix("/dev")
        .map_err(|_| bad())?;
    let plain = below
        .components()
        .all(|c| matches!(c, Component::Normal(_)));
    if !plain || below.file_name().is_none() {
        return Err(bad());
    }
    Ok(below)
}

fn kind_and_mode(device: &Device) -> Result<(FileType, Mode)> {
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
    Ok((kind, Mode::from_raw_mode(device.mode & 0o7777)))
}

/// Makes a node, or finds the very same one there. Nothing is followed. The process has no umask that would change the
/// mode.
fn make_node(
    dir: BorrowedFd<'_>,
    name: impl AsRef<Path>,
    kind: FileType,
    mode: Mode,
    device: Dev,
    owner: (u32, u32),
) -> Result<()> {
    let name = name.as_ref();
    let doing = || format!("make device {}", name.display());
    match mknodat(dir, name, kind, mode, device) {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).doing(doing)?;
            return same_node(&stat, kind, device).then_some(()).ok_or_else(|| {
                Failure::system(format!(
                    "/dev/{} of the root filesystem is something else",
                    name.display()
                ))
            });
        }
        Err(error) => return Err(error).doing(doing),
    }
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
    use hanok_shim::protocol::MountSource;

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
