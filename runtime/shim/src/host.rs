//! What the shim takes from the node before any container runs, to be used while one is set up: verified
//! descriptors, and what it may hand on.

use std::ffi::CStr;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, major, minor, open, openat2};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::failure::{Doing, Failure, Result};

/// Bytes that a file of procfs seldom exceeds.
const ROOM: usize = 2 << 10;

/// The node's side of every container.
#[derive(Debug)]
pub(crate) struct Host {
    /// A procfs of our own, mounted nowhere: no container can mount over it.
    pub(crate) procfs: OwnedFd,
    /// The node's /dev/null, open for reading and writing.
    pub(crate) null: OwnedFd,
    /// The PID namespace that children are born into when they share the node's.
    pub(crate) pid_namespace: OwnedFd,
    /// The oom_score_adj that the shim was started with, and hands to a process that asks for none.
    pub(crate) oom_score_adj: i32,
    /// Where a root filesystem is attached, in the container's own mount namespace.
    pub(crate) rootfs_mount: PathBuf,
    /// The empty directory that covers masked ones.
    pub(crate) empty_dir: PathBuf,
}

impl Host {
    /// `state_dir` is the shim's own directory.
    pub(crate) fn open(state_dir: &Path, oom_score_adj: i32) -> Result<Self> {
        let procfs = new_procfs()?;
        let pid_namespace = openat2(
            &procfs,
            "self/ns/pid",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::empty(),
        )
        .doing(|| "open the PID namespace")?;
        let rootfs_mount = state_dir.join("rootfs");
        let empty_dir = state_dir.join("empty");
        for dir in [&rootfs_mount, &empty_dir] {
            make_dir(dir)?;
        }
        Ok(Self {
            procfs,
            null: open_null(OFlags::RDWR)?,
            pid_namespace,
            oom_score_adj,
            rootfs_mount,
            empty_dir,
        })
    }

    /// Writes a file of the verified procfs, e.g. `sys/kernel/shm_rmid_forced` or
    /// `thread-self/attr/exec`. No link and no other mount is followed on the way, but for `self`.
    pub(crate) fn write_proc(&self, path: &str, value: &str) -> Result<()> {
        write_beneath(&self.procfs, path, value)
    }

    /// Reads a file of the verified procfs.
    pub(crate) fn read_proc(&self, path: &str) -> Result<String> {
        let file = open_beneath(&self.procfs, path, OFlags::RDONLY)?;
        // procfs tells no size, so a file is not asked for one, and into a small buffer little is read at once.
        let mut text = String::with_capacity(ROOM);
        fs::File::from(file)
            .take(u64::MAX)
            .read_to_string(&mut text)
            .doing(|| format!("read /proc/{path}"))?;
        Ok(text)
    }

    /// Opens a namespace of a process.
    pub(crate) fn open_namespace(&self, pid: i32, name: &str) -> Result<OwnedFd> {
        let path = format!("{pid}/ns/{name}");
        // The one kind of link of procfs that is followed: to what the shim has made itself.
        openat2(
            &self.procfs,
            path.as_str(),
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::empty(),
        )
        .doing(|| format!("open /proc/{path}"))
    }

    /// Writes a sysctl of the calling process's namespaces.
    pub(crate) fn write_sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.write_proc(&format!("sys/{}", sysctl_path(name)?), value)
    }
}

/// The node's /dev/null, known by its device number.
pub(crate) fn open_null(flags: OFlags) -> Result<OwnedFd> {
    open_null_at("/dev/null", flags)
}

/// The same where it is mounted elsewhere.
pub(crate) fn open_null_at(path: &str, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let null = open(path, flags, Mode::empty()).doing(|| format!("open {path}"))?;
    let stat = fstat(&null).doing(|| format!("stat {path}"))?;
    let is_char = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_char || (major(stat.st_rdev), minor(stat.st_rdev)) != (1, 3) {
        let message = format!("{path} of the node is not the null device");
        return Err(Failure::system(message));
    }
    Ok(null)
}

/// A detached filesystem of its own.
fn new_procfs() -> Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).doing(|| "open a procfs")?;
    fsconfig_create(&context).doing(|| "create a procfs")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).doing(|| "mount a procfs")
}

fn open_beneath(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(
        root,
        path,
        flags | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        resolve,
    )
    .doing(|| format!("open /proc/{path}"))
}

fn write_beneath(root: impl AsFd, path: &str, value: &str) -> Result<()> {
    let file = open_beneath(root, path, OFlags::WRONLY)?;
    fs::File::from(file)
        .write_all(value.as_bytes())
        .doing(|| format!("write {value:?} to /proc/{path}"))
}

/// The path of a sysctl below /proc/sys. As sysctl(8): the separator that comes first is the separator, so
/// that interface names with dots can be written `net/ipv4/conf/eth0.1/forwarding`.
fn sysctl_path(name: &str) -> Result<String> {
    let slashes_first = name
        .find(['.', '/'])
        .is_some_and(|at| name[at..].starts_with('/'));
    let path: String = if slashes_first {
        name.to_owned()
    } else {
        name.chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect()
    };
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    if path.split('/').any(bad) {
        return Err(Failure::invalid(format!(
            "{name:?} is not the name of a sysctl"
        )));
    }
    Ok(path)
}

fn make_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        done => done.doing(|| format!("make directory {}", dir.display())),
    }
}

/// A clone of a program's mount, read-only and attached nowhere. A process that execs it cannot have its
/// binary overwritten through /proc/PID/exe, whatever happens to be running (CVE-2019-5736).
pub(crate) fn sealed_program(path: &CStr) -> Result<OwnedFd> {
    use hanok_shim::sys::mount::{ATTR_RDONLY, Attributes, mount_setattr};
    use rustix::mount::{OpenTreeFlags, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let name = || path.to_string_lossy();
    let program = open_tree(CWD, path, flags).doing(|| format!("open program {}", name()))?;
    let attributes = Attributes {
        set: ATTR_RDONLY,
        ..Attributes::default()
    };
    mount_setattr(&program, false, attributes).doing(|| format!("seal program {}", name()))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_name_is_a_path_below_proc_sys() {
        for (name, want) in [
            ("kernel.shm_rmid_forced", "kernel/shm_rmid_forced"),
            (
                "net.ipv4.conf.eth0/1.forwarding",
                "net/ipv4/conf/eth0.1/forwarding",
            ),
            (
                "net/ipv4/conf/eth0.1/forwarding",
                "net/ipv4/conf/eth0.1/forwarding",
            ),
        ] {
            assert_eq!(sysctl_path(name).unwrap(), want);
        }
        for name in [
            "",
            "a..b",
            ".a",
            "a.",
            "/etc/passwd",
            "net/../../etc/passwd",
            "a.\0",
        ] {
            assert!(sysctl_path(name).is_err(), "{name:?}");
        }
    }
}
