//! Signals: a signalfd for the shim's loop, and a clean slate for a new process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Result, check_int};

/// Bytes of `struct signalfd_siginfo`.
const RECORD: usize = size_of::<libc::signalfd_siginfo>();

/// Records taken at once: one more than the shim waits for different signals.
const AT_ONCE: usize = 2;

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
        let mut records = [[0u8; RECORD]; AT_ONCE];
        loop {
            match rustix::io::read(&self.0, records.as_flattened_mut()) {
                Ok(length) => {
                    let taken = &records[..length / RECORD];
                    // ssi_signo is the record's first field.
                    let numbers = taken.iter().map(|r| [r[0], r[1], r[2], r[3]]);
                    signals.extend(numbers.map(i32::from_ne_bytes));
                    // There was room for one more.
                    if taken.len() < AT_ONCE {
                        return Ok(signals);
                    }
                }
                Err(Errno::AGAIN) => return Ok(signals),
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

/// Gives every signal the disposition that a program expects to be started with, but for those that the standard
/// library has set itself: what this process was started with must not reach the ones that it starts.
pub fn forget_inherited() {
    for signal in 1..=libc::SIGRTMAX() {
        if !matches!(signal, libc::SIGPIPE | libc::SIGSEGV | libc::SIGBUS) {
            set_default(signal);
        }
    }
}

/// For a process that is about to exec, in a program that has [forgotten](forget_inherited) what it was started with:
/// SIGPIPE, which the standard library ignores, gets its default disposition, and all signals are unblocked. Exec
/// itself does away with handlers.
pub fn reset() -> Result<()> {
    set_default(libc::SIGPIPE);
    // SAFETY: an all-zero sigset_t is the empty set, and the call only reads it.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    check_int(unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    })
    .map(drop)
}

fn set_default(signal: libc::c_int) {
    // SAFETY: all zeroes is SIG_DFL with no flags and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: default is valid. KILL, STOP and the two that libc keeps for itself are refused by the call, which
    // leaves them as they are.
    unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
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
