//! `clone3`, `setns` and `unshare`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Result, check, check_int};

/// Kinds of namespaces, as the `CLONE_NEW*` bits.
pub mod ns {
    /// Mounts.
    pub const MNT: u64 = libc::CLONE_NEWNS as u64;
    /// Host name.
    pub const UTS: u64 = libc::CLONE_NEWUTS as u64;
    /// System V IPC and message queues.
    pub const IPC: u64 = libc::CLONE_NEWIPC as u64;
    /// Network.
    pub const NET: u64 = libc::CLONE_NEWNET as u64;
    /// Processes.
    pub const PID: u64 = libc::CLONE_NEWPID as u64;
    /// View of the cgroups.
    pub const CGROUP: u64 = libc::CLONE_NEWCGROUP as u64;
    /// Users and groups, and the owner of the other namespaces.
    pub const USER: u64 = libc::CLONE_NEWUSER as u64;
    /// All of the above.
    pub const ALL: u64 = MNT | UTS | IPC | NET | PID | CGROUP | USER;
}

/// `CLONE_INTO_CGROUP` of clone3(2); it does not fit into libc's `c_int` constants.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a [`clone_process`] the caller is on.
#[derive(Debug)]
pub enum Cloned {
    /// The caller.
    Parent {
        /// The child's process id in the caller's PID namespace.
        pid: i32,
        /// The child's pidfd, close-on-exec.
        pidfd: OwnedFd,
    },
    /// The new process, with a copy of the caller's memory and descriptors.
    Child,
}

/// Makes a process as fork(2) does, in new namespaces ([`ns`] bits) and, on cgroup v2, born into `cgroup`
/// (a directory of it), which spares the later migration and its RCU grace period.
///
/// Refused with `EINVAL` when the calling process has more than one thread: the child would have only
/// the calling one, with whatever locks the others held.
pub fn clone_process(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    clone_as(libc::SIGCHLD as u64, namespaces, cgroup)
}

/// As [`clone_process`], but the new process is a child of the caller's parent, which hears of its end.
pub fn clone_sibling(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    // The signal is the one that the caller's own end has; clone3 wants none named.
    clone_as(0, namespaces | libc::CLONE_PARENT as u64, cgroup)
}

fn clone_as(signal: u64, flags: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned> {
    require_single_thread()?;
    let mut pidfd: libc::c_int = -1;
    // SAFETY: clone_args is plain data for which all zeroes mean "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (flags & (ns::ALL | libc::CLONE_PARENT as u64)) | libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = signal;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::BADF)?;
    }
    let size = size_of::<libc::clone_args>();
    // SAFETY: without CLONE_VM the child continues on a copy of this stack, exactly as after fork; the
    // process has one thread, so no lock of the allocator or of stdio is held by anybody else. args and
    // pidfd outlive the call.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel stored a fresh descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Parent {
        pid: i32::try_from(pid).map_err(|_| Errno::OVERFLOW)?,
        pidfd,
    })
}

/// `EINVAL` unless the process has one thread: unshare(2) of CLONE_THREAD is allowed then only, and does
/// nothing.
pub(super) fn require_single_thread() -> Result<()> {
    // SAFETY: the call has no effect on memory or descriptors.
    check_int(unsafe { libc::unshare(libc::CLONE_THREAD) }).map(drop)
}

/// Moves the calling thread into new namespaces ([`ns`] bits; PID counts for its next children only).
pub fn unshare(namespaces: u64) -> Result<()> {
    let flags = ns_flags(namespaces)?;
    // SAFETY: only namespace bits get through, none that unshares memory or descriptors.
    check_int(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into the namespaces of a descriptor: a pidfd (any [`ns`] bits) or a namespace
/// file (its one bit).
pub fn setns(fd: impl AsFd, namespaces: u64) -> Result<()> {
    let flags = ns_flags(namespaces)?;
    // SAFETY: setns changes no memory; the descriptor is borrowed for the call.
    check_int(unsafe { libc::setns(fd.as_fd().as_raw_fd(), flags) }).map(drop)
}

fn ns_flags(namespaces: u64) -> Result<libc::c_int> {
    if namespaces & !ns::ALL != 0 {
        return Err(Errno::INVAL);
    }
    libc::c_int::try_from(namespaces).map_err(|_| Errno::INVAL)
}
