//! `hanok-pause`: holds a pod's namespaces for as long as the pod lives.
//!
//! Started by the shim, as nobody, without any capability. Where the pod shares a PID namespace it is PID 1
//! there: it reaps what its containers leave behind, and no signal of theirs ends it: PID 1 gets none from its own
//! namespace that it has not asked for. No allocation, no standard or C library: a few pages of memory in all, once
//! per pod.
//!
//! SIGCHLD is blocked and waited for with rt_sigtimedwait, so that there is no handler, and an end that comes between
//! reaping and waiting is not missed: it stays pending.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;

const SYS_RT_SIGPROCMASK: usize = 14;
const SYS_EXIT_GROUP: usize = 231;
const SYS_WAIT4: usize = 61;
const SYS_PRCTL: usize = 157;
const SYS_RT_SIGTIMEDWAIT: usize = 128;

const SIG_BLOCK: usize = 0;
const SIGCHLD: usize = 17;
/// Bytes of the kernel's signal set.
const SIGSET_SIZE: usize = 8;

const PR_SET_DUMPABLE: usize = 4;
const PR_SET_NAME: usize = 15;
const WNOHANG: usize = 1;

// The stack pointer is 16-byte aligned at the entry and the call pushes the return address, as the ABI of
// `main_loop` wants it. The frame pointer is zero in the outermost frame.
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "call {main}", "ud2", main = sym main_loop);

extern "C" fn main_loop() -> ! {
    // Nobody of the pod may look into it, whoever they are.
    syscall(SYS_PRCTL, [PR_SET_DUMPABLE, 0, 0, 0]);
    syscall(SYS_PRCTL, [PR_SET_NAME, c"pause".as_ptr() as usize, 0, 0]);
    let waited: u64 = 1 << (SIGCHLD - 1);
    let set = (&raw const waited) as usize;
    syscall(SYS_RT_SIGPROCMASK, [SIG_BLOCK, set, 0, SIGSET_SIZE]);
    loop {
        // Children may have come by inheritance before anything was blocked.
        while syscall(SYS_WAIT4, [usize::MAX, 0, WNOHANG, 0]) > 0 {}
        // Returns for SIGCHLD, or interrupted by a stop and continue.
        syscall(SYS_RT_SIGTIMEDWAIT, [set, 0, 0, SIGSET_SIZE]);
    }
}

fn exit(code: usize) -> ! {
    loop {
        syscall(SYS_EXIT_GROUP, [code, 0, 0, 0]);
    }
}

/// A system call of up to four arguments; negative results are errors.
fn syscall(number: usize, args: [usize; 4]) -> isize {
    let result: isize;
    // SAFETY: the calls of this program read or write no memory but `waited` and a string, which outlive them;
    // the kernel changes rcx and r11 beside the result.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(255)
}
