//! What a process becomes between clone and exec: seccomp filter, resource limits, keyring.

use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Result, check, check_int, last_errno};

/// Bytes of one BPF instruction (`struct sock_filter`).
const INSTRUCTION: usize = 8;

/// Loads a compiled seccomp filter: an array of `struct sock_filter` in native byte order. `flags` are
/// `SECCOMP_FILTER_FLAG_*`; those that make the call return a descriptor are refused.
pub fn load_seccomp(filter: &[u8], flags: u32) -> Result<()> {
    const NEW_LISTENER: u32 = 1 << 3;
    if flags & NEW_LISTENER != 0 || !filter.len().is_multiple_of(INSTRUCTION) {
        return Err(Errno::INVAL);
    }
    // The kernel wants aligned instructions; the bytes come from the middle of a message.
    let (chunks, _) = filter.as_chunks::<INSTRUCTION>();
    let mut program: Vec<libc::sock_filter> = chunks
        .iter()
        .map(|c| libc::sock_filter {
            code: u16::from_ne_bytes([c[0], c[1]]),
            jt: c[2],
            jf: c[3],
            k: u32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
        })
        .collect();
    let header = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: header names exactly the instructions of `program`; the kernel copies and verifies them.
    let failed_thread = check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const header,
        )
    })?;
    // With TSYNC a positive value is the thread that could not be synchronised.
    if failed_thread != 0 {
        return Err(Errno::SRCH);
    }
    Ok(())
}

/// Sets a resource limit by its `RLIMIT_*` number. Where the process may not raise its hard limit (it
/// lacks `CAP_SYS_RESOURCE`), it gets as much as there is.
pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> Result<()> {
    match try_rlimit(resource, soft, hard) {
        Err(Errno::PERM) => {}
        done => return done,
    }
    let mut current = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: current is a valid place for the result.
    check_int(unsafe { libc::getrlimit64(resource, &raw mut current) })?;
    let hard = hard.min(current.rlim_max);
    try_rlimit(resource, soft.min(hard), hard)
}

fn try_rlimit(resource: u32, soft: u64, hard: u64) -> Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: limit is valid and only read; limits change no memory.
    check_int(unsafe { libc::setrlimit64(resource, &raw const limit) }).map(drop)
}

/// Leaves the session keyring inherited from the node for a fresh, anonymous one.
pub fn join_new_keyring() -> Result<()> {
    // SAFETY: a null name asks for an anonymous keyring; nothing is read or written.
    check(unsafe {
        libc::syscall(
            libc::SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            std::ptr::null::<libc::c_char>(),
        )
    })
    .map(drop)
}

/// The working directory as the kernel tells it, without libc's corrections: `(unreachable)/...` when it
/// lies outside the root.
pub fn raw_getcwd() -> Result<Vec<u8>> {
    let mut buffer = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the kernel writes at most the given number of bytes.
    let length =
        check(unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) })?;
    let length = usize::try_from(length).map_err(|_| Errno::OVERFLOW)?;
    buffer.truncate(length.saturating_sub(1));
    Ok(buffer)
}

/// The session of a process; 0 when its leader is in no PID namespace that the caller sees.
pub fn session_of(pid: i32) -> Result<i32> {
    // SAFETY: a look-up by number.
    check_int(unsafe { libc::getsid(pid) })
}

/// Sends a signal (any number, 0 to probe) to one process, or with a negative `pid` to a process group.
/// Never to 0, -1 or 1: those mean everybody, or init.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    if matches!(pid, -1..=1) {
        return Err(Errno::INVAL);
    }
    // SAFETY: signals change no memory of this process.
    if unsafe { libc::kill(pid, signal) } == 0 {
        return Ok(());
    }
    Err(last_errno())
}

/// Takes over a descriptor that this process was started with, named by its number, and marks it
/// close-on-exec. To be called before anything is opened: a number that is free then is refused (`EBADF`).
pub fn take_inherited(fd: i32) -> Result<OwnedFd> {
    // SAFETY: a query and a flag; a number that is not open is an error.
    check_int(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: it is open, and a descriptor that exec brought in has no owner in this program yet.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the execution domain (personality(2)).
pub fn set_personality(domain: u32) -> Result<()> {
    // SAFETY: changes how later execs lay out memory, nothing of the running program.
    check_int(unsafe { libc::personality(libc::c_ulong::from(domain)) }).map(drop)
}

/// Sets the NIS domain name of the UTS namespace.
pub fn set_domainname(name: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads the given number of bytes.
    check_int(unsafe { libc::setdomainname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Sends a signal to the process of a pidfd; `ESRCH` when it has ended.
pub fn pidfd_kill(pidfd: impl std::os::fd::AsFd, signal: i32) -> Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: a null siginfo asks for the one that kill(2) sends.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_fd().as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })
    .map(drop)
}
