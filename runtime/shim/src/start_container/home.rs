//! The pod's own mount namespace, in which the mount namespaces of its containers begin.
//!
//! A copy of the node's would have every mount of the node, each of which takes time to copy and to let go of again, and
//! is busy meanwhile. This one has a place for a root filesystem, what covers masked paths, and the pod's /dev/shm: one
//! tmpfs that its containers share and nobody else sees. What a container's process needs of the node it
//! opens before it goes there, or comes back for.
//!
//! The shim holds it by descriptor. (A detached /dev/shm would do without, but cannot be cloned before Linux 6.15; a
//! mount in the node's namespace would be everybody's.)

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use hanok_shim::sys::clone::{Cloned, clone_process, ns, setns, unshare};
use hanok_shim::sys::exec::exit_now;
use hanok_shim::sys::mount::{
    ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, Attributes, PRIVATE, mount_setattr,
};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::mounts::{TMPFS, attach, new_filesystem};
use super::place::Place;
use super::rootfs;
use crate::channel::{Line, Received, Report};
use crate::failure::{Doing, Failure, Result};
use crate::host::{Host, open_null};
use crate::resolve::open_host;
use crate::users::Users;

/// Where a root filesystem is attached in it.
pub(super) const ROOTFS: &str = "/rootfs";
/// The empty directory that covers masked ones.
pub(super) const EMPTY: &str = "/empty";
/// The node's null device.
pub(super) const NULL: &str = "/null";
/// The pod's /dev/shm, if it has one.
const SHM: &str = "/shm";

const RESTRICTED: u64 = ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC;

/// The namespace.
#[derive(Debug)]
pub(crate) struct Home {
    namespace: OwnedFd,
    has_shm: bool,
}

impl Home {
    /// Makes it, with a /dev/shm of that many bytes. It takes a process of its own, since the shim must not leave the
    /// node's mount namespace.
    pub(super) fn make(
        host: &Host,
        users: Option<&Users>,
        shm: Option<u64>,
        label: Option<&str>,
    ) -> Result<Self> {
        let (line, child_line) = Line::pair().doing(|| "make a channel")?;
        line.set_blocking().doing(|| "make a channel")?;
        let cloned =
            clone_process(0, None).doing(|| "clone a process for the pod's mount namespace")?;
        let Cloned::Parent { pid, .. } = cloned else {
            // Or the end of the shim would not be seen on the channel.
            drop(line);
            match populate(&host.rootfs_mount, users, shm, label) {
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
            Ok(Received::Report(Report::Executing, _)) => host.open_namespace(pid, "mnt"),
            Ok(Received::Report(Report::Failed { kind, message }, _)) => {
                Err(Failure { kind, message })
            }
            _ => Err(Failure::system("cannot make the pod's mount namespace")),
        };
        drop(line);
        // It ends as soon as the channel does. Already reaped is as good.
        let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
        Ok(Self {
            namespace: namespace?,
            has_shm: shm.is_some(),
        })
    }

    /// Whether a container can begin here that wants /dev/shm, or none.
    pub(super) fn serves(&self, wants_shm: bool) -> bool {
        self.has_shm || !wants_shm
    }

    /// Enters it for good, in a container's process. Paths mean something else from then on.
    pub(super) fn enter(&self) -> Result<()> {
        setns(&self.namespace, ns::MNT).doing(|| "join the pod's mount namespace")
    }

    /// In a container's process that goes on in another mount namespace: a clone of /dev/shm, detached.
    pub(super) fn visit_for_shm(&self, host: &Host) -> Result<OwnedFd> {
        let back = Place::here(host)?;
        self.enter()?;
        let clone = clone_shm();
        back.enter()?;
        clone
    }
}

/// A clone of /dev/shm for whoever has entered.
pub(super) fn clone_shm() -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, SHM, flags).doing(|| "clone /dev/shm")
}

fn populate(
    target: &Path,
    users: Option<&Users>,
    shm: Option<u64>,
    label: Option<&str>,
) -> Result<()> {
    unshare(ns::MNT).doing(|| "unshare the mount namespace")?;
    let private = Attributes {
        propagation: PRIVATE,
        ..Attributes::default()
    };
    let root = open_host("/", OFlags::PATH).doing(|| "open /")?;
    mount_setattr(&root, true, private).doing(|| "make mounts private")?;
    let options = [option("mode", "755"), option("size", "64k")];
    let base = new_filesystem(TMPFS, &options, RESTRICTED, label)?;
    rootfs::attach_tree(&base, target)?;
    make_null(&base)?;
    for name in [ROOTFS, EMPTY] {
        make_dir(&base, name).doing(|| format!("make {name}"))?;
    }
    if let Some(size) = shm {
        let mut options = vec![option("mode", "1777"), option("size", &size.to_string())];
        if let Some((uid, gid)) = users.map(Users::root) {
            options.push(option("uid", &uid.as_raw().to_string()));
            options.push(option("gid", &gid.as_raw().to_string()));
        }
        let shm = new_filesystem(TMPFS, &options, RESTRICTED, label)?;
        make_dir(&base, SHM)
            .and_then(|place| attach(shm.as_fd(), place.as_fd()))
            .doing(|| "mount /dev/shm")?;
    }
    let sealed = Attributes {
        set: ATTR_RDONLY,
        ..Attributes::default()
    };
    mount_setattr(&base, false, sealed).doing(|| "seal the pod's mount namespace")?;
    rootfs::enter(base.as_fd())
}

fn option(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

fn make_dir(base: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    let name = path.trim_start_matches('/');
    mkdirat(base, name, Mode::from_raw_mode(0o755))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(base, name, flags, Mode::empty())
}

/// What covers masked files: a mount of its own, read-only, so that it can be cloned there as it is.
fn make_null(base: &OwnedFd) -> Result<()> {
    let null = open_null(OFlags::PATH)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = open_tree(&null, "", flags).doing(|| "clone the null device")?;
    let sealed = Attributes {
        set: ATTR_RDONLY,
        propagation: PRIVATE,
        ..Attributes::default()
    };
    mount_setattr(&clone, false, sealed).doing(|| "seal the null device")?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let place = openat(
        base,
        NULL.trim_start_matches('/'),
        flags,
        Mode::from_raw_mode(0o644),
    );
    place
        .and_then(|place| attach(clone.as_fd(), place.as_fd()))
        .doing(|| "mount the null device")
}
