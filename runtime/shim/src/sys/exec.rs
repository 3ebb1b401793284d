//! `execve`, `execveat` and the descriptors that must not survive them.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::{Result, check, last_errno};

/// Replaces the process by the program at `path`. Returns only on failure.
pub fn execve(path: &CStr, argv: &[CString], envp: &[CString]) -> Errno {
    let argv = pointers(argv);
    let envp = pointers(envp);
    // SAFETY: path and every element are NUL-terminated, both arrays end with a null pointer, and all of
    // them live until the call returns.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    last_errno()
}

/// Replaces the process by the program that `fd` is open on. Returns only on failure.
pub fn execve_fd(fd: impl AsFd, argv: &[CString], envp: &[CString]) -> Errno {
    let argv = pointers(argv);
    let envp = pointers(envp);
    // SAFETY: as in execve; the empty path with AT_EMPTY_PATH means the descriptor itself.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    last_errno()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Marks every descriptor from `first` on close-on-exec.
pub fn close_on_exec_from(first: u32) -> Result<()> {
    // SAFETY: sets a flag on descriptors; none is closed, so nobody's ownership is touched.
    check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })
    .map(drop)
}

/// Ends the process without running destructors or exit handlers: the end of a cloned child.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit does not return and touches no memory.
    unsafe { libc::_exit(code) }
}
