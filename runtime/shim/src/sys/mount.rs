//! `mount_setattr`, the one call of the mount API that rustix lacks, and the constants around it.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::{Result, check};

/// `MOUNT_ATTR_RDONLY`.
pub const ATTR_RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
/// `MOUNT_ATTR_NOSUID`.
pub const ATTR_NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
/// `MOUNT_ATTR_NODEV`.
pub const ATTR_NODEV: u64 = libc::MOUNT_ATTR_NODEV;
/// `MOUNT_ATTR_NOEXEC`.
pub const ATTR_NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;
/// `MOUNT_ATTR_IDMAP`: owners are shown and stored through the mapping of a user namespace. See [`map_ids`].
pub const ATTR_IDMAP: u64 = libc::MOUNT_ATTR_IDMAP;
/// The mask over the access time attributes, to be cleared when one of them is set.
pub const ATTR_ATIME: u64 = libc::MOUNT_ATTR__ATIME;

/// `MS_PRIVATE`: no propagation.
pub const PRIVATE: u64 = libc::MS_PRIVATE;
/// `MS_SLAVE`: receives.
pub const SLAVE: u64 = libc::MS_SLAVE;
/// `MS_SHARED`: receives and sends.
pub const SHARED: u64 = libc::MS_SHARED;
/// `MS_UNBINDABLE`: no propagation, and not to be cloned.
pub const UNBINDABLE: u64 = libc::MS_UNBINDABLE;

/// What [`mount_setattr`] changes; all zeroes change nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `MOUNT_ATTR_*` bits to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` bits to clear.
    pub clear: u64,
    /// `MS_PRIVATE`, `MS_SLAVE` or `MS_SHARED`; 0 leaves it.
    pub propagation: u64,
}

/// Changes the mount that `fd` is on the root of, with `recursive` the whole tree below it.
pub fn mount_setattr(fd: impl AsFd, recursive: bool, attributes: Attributes) -> Result<()> {
    let args = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: attributes.clear,
        propagation: attributes.propagation,
        userns_fd: 0,
    };
    call(fd, recursive, &args)
}

/// Shows the owners of a detached mount's files through the mapping of a user namespace: what is 0 on disk is the
/// namespace's root. `EINVAL` when its filesystem cannot do that.
pub fn map_ids(fd: impl AsFd, recursive: bool, user_namespace: impl AsFd) -> Result<()> {
    let users = user_namespace.as_fd().as_raw_fd();
    let args = libc::mount_attr {
        attr_set: ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users).map_err(|_| Errno::BADF)?,
    };
    call(fd, recursive, &args)
}

fn call(fd: impl AsFd, recursive: bool, args: &libc::mount_attr) -> Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let size = size_of::<libc::mount_attr>();
    // SAFETY: args is a valid mount_attr of the given size and is only read.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const *args,
            size,
        )
    })
    .map(drop)
}
