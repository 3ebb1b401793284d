//! `bpf(2)`: the filter that decides, on cgroup v2, which devices a cgroup may use.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::{Result, check};

/// Bytes of one instruction (`struct bpf_insn`).
pub const INSTRUCTION: usize = 8;

/// Commands and constants of linux/bpf.h.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Filters of cgroups above decide as well: a device must pass all of them.
const ALLOW_MULTI: u32 = 2;

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    prog_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
}

/// The beginning of `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

/// Loads a `BPF_PROG_TYPE_CGROUP_DEVICE` program (an array of `struct bpf_insn` in native byte order) and
/// attaches it to a cgroup v2 directory. It lives as long as the cgroup. The kernel's verifier refuses a
/// program that is not sound.
pub fn attach_device_filter(cgroup: impl AsFd, program: &[u8]) -> Result<()> {
    if program.is_empty() || !program.len().is_multiple_of(INSTRUCTION) {
        return Err(Errno::INVAL);
    }
    let count = u32::try_from(program.len() / INSTRUCTION).map_err(|_| Errno::INVAL)?;
    let load = Load {
        prog_type: PROG_TYPE_CGROUP_DEVICE,
        instruction_count: count,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buffer: 0,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: load is a prefix of bpf_attr of the given size; its pointers are to `count` instructions and a
    // string, both only read and both alive during the call.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>())
    })?;
    let fd = libc::c_int::try_from(fd).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel has just made this descriptor for us, close-on-exec, and nobody else knows it.
    let loaded = unsafe { OwnedFd::from_raw_fd(fd) };
    let number = |fd: libc::c_int| u32::try_from(fd).map_err(|_| Errno::BADF);
    let attach = Attach {
        target: number(cgroup.as_fd().as_raw_fd())?,
        program: number(loaded.as_raw_fd())?,
        attach_type: ATTACH_CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: attach is a prefix of bpf_attr of the given size and only read.
    check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_ATTACH,
            &raw const attach,
            size_of::<Attach>(),
        )
    })
    .map(drop)
}
