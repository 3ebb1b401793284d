//! The pod's /dev/shm: one tmpfs that its containers share and nobody else sees.
//!
//! It is the root of a mount namespace that has nothing else, which the shim holds by descriptor. A
//! container's process visits that namespace to clone the mount. (A detached mount would do without the
//! visit, but cannot be cloned before Linux 6.15; a mount in the node's namespace would be everybody's.)

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hanok_shim::sys::clone::{Cloned, clone_process, ns, setns, unshare};
use hanok_shim::sys::exec::exit_now;
use hanok_shim::sys::mount::{
    ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, Attributes, PRIVATE, mount_setattr,
};
use rustix::fs::{CWD, OFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::process::{WaitOptions, chroot, fchdir, waitpid};

use super::mounts::new_filesystem;
use super::rootfs;
use crate::channel::{Line, Received, Report};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::resolve::open_host;
use crate::users::Users;

/// Makes the filesystem; the result is a descriptor on its mount namespace. It takes a process of its own,
/// since the shim must not leave the node's mount namespace.
pub(super) fn make(
    host: &Host,
    users: Option<&Users>,
    size: u64,
    label: Option<&str>,
) -> Result<OwnedFd> {
    let (line, child_line) = Line::pair().doing(|| "make a channel")?;
    line.set_blocking().doing(|| "make a channel")?;
    let cloned = clone_process(0, None).doing(|| "clone a process for /dev/shm")?;
    let Cloned::Parent { pid, .. } = cloned else {
        // Or the end of the shim would not be seen on the channel.
        drop(line);
        match populate(&host.rootfs_mount, users, size, label) {
            // The namespace lives as long as this process, so it waits until the shim has opened it.
            Ok(()) => {
                let _ = child_line.report(&Report::Executing, None);
                let _ = child_line.wait_for_permit();
            }
            Err(failure) => child_line.report_failure(failure),
        }
        exit_now(0);
    };
    drop(child_line);
    let namespace = match line.receive() {
        Ok(Received::Report(Report::Executing, _)) => {
            open_host(&format!("/proc/{pid}/ns/mnt"), OFlags::RDONLY)
                .doing(|| "open the mount namespace of /dev/shm")
        }
        Ok(Received::Report(Report::Failed { kind, message }, _)) => Err(Failure { kind, message }),
        _ => Err(Failure::system("cannot make /dev/shm")),
    };
    drop(line);
    let child = rustix::process::Pid::from_raw(pid);
    // It ends as soon as the channel does. Already reaped is as good.
    let _ = waitpid(child, WaitOptions::empty());
    namespace
}

fn populate(target: &Path, users: Option<&Users>, size: u64, label: Option<&str>) -> Result<()> {
    unshare(ns::MNT).doing(|| "unshare the mount namespace")?;
    let root = open_host("/", OFlags::PATH).doing(|| "open /")?;
    let private = Attributes {
        propagation: PRIVATE,
        ..Attributes::default()
    };
    mount_setattr(&root, true, private).doing(|| "make mounts private")?;
    let option = |key: &str, value: String| (key.to_owned(), value);
    let mut options = vec![
        option("mode", "1777".to_owned()),
        option("size", size.to_string()),
    ];
    if let Some((uid, gid)) = users.map(Users::root) {
        options.push(option("uid", uid.as_raw().to_string()));
        options.push(option("gid", gid.as_raw().to_string()));
    }
    let restricted = ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC;
    let shm = new_filesystem("tmpfs", &options, restricted, label)?;
    move_mount(
        &shm,
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .doing(|| "mount /dev/shm")?;
    rootfs::enter(shm.as_fd())
}

/// In a container's process, before it has its own mount namespace: a clone of the mount, detached.
pub(super) fn open(shm: BorrowedFd<'_>) -> Result<OwnedFd> {
    let home = open_host("/proc/self/ns/mnt", OFlags::RDONLY).doing(|| "open own namespace")?;
    let root = open_host("/", OFlags::PATH).doing(|| "open /")?;
    setns(shm, ns::MNT).doing(|| "visit the namespace of /dev/shm")?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let clone = open_tree(CWD, "/", flags).doing(|| "clone /dev/shm");
    setns(&home, ns::MNT).doing(|| "come back from the namespace of /dev/shm")?;
    // The way back ends in the namespace's root, which need not be where the shim's root is.
    fchdir(&root).doing(|| "enter /")?;
    chroot(".").doing(|| "enter /")?;
    clone
}
