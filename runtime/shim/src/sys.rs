//! System calls that the standard library and rustix do not offer in a safe form. The only `unsafe` code
//! of the project.
//!
//! Every function here is safe to call: what could break memory or descriptors of the caller (a thread
//! beside a clone, a filter of odd length) is checked and refused, not left to a comment.
#![expect(unsafe_code, reason = "raw system calls live here and nowhere else")]

pub mod bpf;
pub mod clone;
pub mod exec;
pub mod memory;
pub mod mount;
pub mod net;
pub mod process;
pub mod signal;
pub mod socket;
pub mod zygote;

use rustix::io::Errno;

/// Result with the kernel's error number.
pub type Result<T> = std::result::Result<T, Errno>;

/// The value of a raw system call, or `errno`.
fn check(value: libc::c_long) -> Result<libc::c_long> {
    if value >= 0 {
        return Ok(value);
    }
    Err(last_errno())
}

/// As [`check`], for C functions with an `int` result.
fn check_int(value: libc::c_int) -> Result<libc::c_int> {
    if value >= 0 {
        return Ok(value);
    }
    Err(last_errno())
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
