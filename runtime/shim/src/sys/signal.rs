//! Signals: a signalfd for the shim's loop, and a clean slate for a new process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Result, check_int};

/// Bytes of `struct signalfd_siginfo`.
const RECORD: usize = size_of::<libc::signalfd_siginfo>();

/// Blocked signals, delivered as readable records of a descriptor.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks `signals` in the calling thread and opens a non-blocking descriptor for them.
    pub fn new(signals: &[libc::c_int]) -> Result<Self> {
        let set = block(signals)?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: -1 asks for a new descriptor; set is valid.
        let fd = check_int(unsafe { libc::signalfd(-1, &raw const set, flags) })?;
        // SAFETY: the descriptor is fresh and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Takes the signals that have arrived; several of one number may have become one.
    pub fn drain(&self) -> Result<Vec<libc::c_int>> {
        let mut signals = Vec::new();
        let mut record = [0u8; RECORD];
        loop {
            match rustix::io::read(&self.0, &mut record) {
                // ssi_signo is the record's first field.
                Ok(RECORD) => signals.push(i32::from_ne_bytes([
                    record[0], record[1], record[2], record[3],
                ])),
                Ok(_) | Err(Errno::AGAIN) => return Ok(signals),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for SignalFd {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// Gives every signal its default disposition and unblocks all, for a process that is about to exec: the
/// standard library ignores SIGPIPE, and the shim blocks SIGCHLD.
pub fn reset() -> Result<()> {
    // SAFETY: all zeroes is SIG_DFL with no flags and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: default is valid. KILL, STOP and the two that libc keeps for itself are refused by the
        // call, which leaves them as they are.
        unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
    }
    // SAFETY: an all-zero sigset_t is the empty set, and the call only reads it.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check_int(unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    })
    .map(drop)
}

/// Blocks signals in the calling thread and returns them as a set; [`reset`] undoes it.
pub fn block(signals: &[libc::c_int]) -> Result<libc::sigset_t> {
    // SAFETY: an all-zero sigset_t is the empty set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for &signal in signals {
        // SAFETY: set is valid; the call refuses numbers out of range.
        check_int(unsafe { libc::sigaddset(&raw mut set, signal) })?;
    }
    // SAFETY: set is valid and only read.
    check_int(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) })?;
    Ok(set)
}
