//! How a zygote's child is born: on a stack of its own, in the zygote's memory.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::Board;
use super::child::begin;
use super::home::FLAGS;

/// clone3 with a stack for the child, which begins in [`begin`] there. Gives what clone3 gives to the caller.
///
/// # Safety
/// The arguments name a stack that is free, and the caller is held up until the child is done with its memory.
pub(super) unsafe fn clone_onto(
    args: &mut libc::clone_args,
    board: NonNull<Board>,
) -> libc::c_long {
    let args = std::ptr::from_mut(args).expose_provenance();
    let arguments = [args, size_of::<libc::clone_args>(), 0];
    // SAFETY: by the caller.
    unsafe { clone_by(libc::SYS_clone3, arguments, board) }
}

/// As [`clone_onto`], by the older call, whose flags a filter can look at: those of containers allow no other.
///
/// # Safety
/// As there, and `child` is where the kernel may write the number of the process.
pub(super) unsafe fn clone_at_home(
    stack: *mut c_void,
    child: *mut i32,
    board: NonNull<Board>,
) -> libc::c_long {
    let (stack, child) = (stack.expose_provenance(), child.expose_provenance());
    // SAFETY: by the caller.
    unsafe { clone_by(libc::SYS_clone, [FLAGS as usize, stack, child], board) }
}

/// # Safety
/// As for [`clone_onto`], of the call's own arguments.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_by(
    call: libc::c_long,
    arguments: [usize; 3],
    board: NonNull<Board>,
) -> libc::c_long {
    let entry: extern "C" fn(*const Board) -> ! = begin;
    let result: libc::c_long;
    // SAFETY: the call changes rax, rcx and r11 for the caller. The child has the caller's registers and another stack,
    // whose end is aligned; it does not come out of the block.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") call => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            // Of clone alone: no number told to the child, no thread's storage.
            in("r10") 0,
            in("r8") 0,
            in("r12") board.as_ptr(),
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Nobody has written it.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn clone_by(_: libc::c_long, _: [usize; 3], _: NonNull<Board>) -> libc::c_long {
    -1
}
