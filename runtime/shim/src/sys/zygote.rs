//! A process that waits to make others: programs in containers, again and again.
//!
//! A fork of the shim costs more than the program that a probe runs: memory is copied for the child, and once more, page by
//! page, as both go on. So a shim that is asked often forks a zygote, once, and has it make the processes with
//! `CLONE_VM | CLONE_VFORK`: they borrow the zygote's memory and copy nothing, and the zygote sleeps until they exec. They
//! are children of the shim (`CLONE_PARENT`).
//!
//! It is not the shim's own memory that they borrow, because the kernel ends everybody who shares memory with what the
//! OOM killer ends; with `memory.oom.group` that is any process of a container at its limit. And a process that hangs before its
//! exec holds up the zygote and not the shim, which goes the long way then.
//!
//! Who is asked for the same container again and again moves in ([`Stay`]): it becomes once what its children have to be, up to
//! the filter, whose loading is the dearest step of all. It holds the container's namespaces then and has to end with it.
//!
//! What the process does is an [`Order`], which the shim has worked out to the last pointer. It lies on a board, which is
//! all that shim and zygote share. Zygote and child take no lock, allocate nothing and make system calls only. A step that fails
//! fails without a word: the shim does it again with a fork, which tells. Descriptors are sent beside it ([`parcel`]).

mod birth;
mod child;
mod home;
mod order;
mod parcel;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::clone::require_single_thread;
use super::{Result, check};
pub use home::allows_home;
pub use order::{Ids, Order, Stay};

/// Its name among the processes: who looks for shims must not take it for one.
pub const NAME: &CStr = c"hanok-zygote";

/// Bytes of the board. What does not fit goes the long way; pages that are never written cost nothing.
const BOARD: usize = 256 << 10;

/// Bytes of stack for a child, who needs less than half.
const STACK: usize = 32 << 10;

/// Bytes of a page, of which one guards the stack.
const PAGE: usize = 4096;

/// The zygote may be given an order.
const IDLE: u32 = 0;
/// There is one, which it has not seen.
const ORDERED: u32 = 1;
/// It makes the process, which has not exec'd.
const TAKEN: u32 = 2;

/// What shim and zygote share, at the same address in both.
struct Board {
    state: AtomicU32,
    /// The process that was made; 0 until there is one. The kernel writes it before that process runs.
    child: AtomicI32,
    /// A step failed, and the process ends without a program.
    failed: AtomicU32,
    /// How many descriptors are sent beside the plan.
    sent: AtomicUsize,
    /// The shim writes it while the state is idle, and the zygote and its child read it while it is not.
    plan: UnsafeCell<order::Plan>,
}

/// A zygote, by its maker. Dropped, it is not ended.
#[derive(Debug)]
pub struct Zygote {
    pid: i32,
    /// Its bounding set.
    bounding: u64,
    board: NonNull<Board>,
    /// Where the descriptors of orders go.
    socket: OwnedFd,
}

/// How far an order has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The zygote may have another order.
    pub idle: bool,
    /// The process, once there is one: a child of the shim.
    pub child: Option<i32>,
    /// It has not come to its program, and will not.
    pub failed: bool,
}

impl Zygote {
    /// Forks one, which keeps of its bounding set what is in `bounding` (bit n = capability n), so that those whom it makes
    /// need not drop the rest one by one. `EINVAL` when the calling process has more than one thread, `ENOSYS` where nobody has written how.
    pub fn start(bounding: u64) -> Result<Self> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Errno::NOSYS);
        }
        require_single_thread()?;
        let (socket, far) = parcel::socket()?;
        let board = map_board()?;
        let maker = std::process::id();
        // SAFETY: clone_args is plain data for which all zeroes mean "not used".
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.exit_signal = libc::SIGCHLD as u64;
        // SAFETY: without CLONE_VM and CLONE_FILES the child goes on with a copy of all, as after fork, and there is one
        // thread.
        let pid = check(unsafe {
            libc::syscall(
                libc::SYS_clone3,
                &raw mut args,
                size_of::<libc::clone_args>(),
            )
        });
        match pid {
            Ok(0) => serve(board, &far, maker, bounding),
            Ok(pid) => Ok(Self {
                pid: i32::try_from(pid).map_err(|_| Errno::OVERFLOW)?,
                bounding,
                board,
                socket,
            }),
            Err(errno) => {
                unmap_board(board);
                Err(errno)
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether those whom it makes can have this bounding set.
    pub fn can_bear(&self, bounding: u64) -> bool {
        bounding & !self.bounding == 0
    }

    /// Hands it an order. `EBUSY` while it has another one, `E2BIG` when the order is longer than the board, `EPERM` when it
    /// has lost what the order wants.
    pub fn order(&mut self, order: &Order<'_>) -> Result<()> {
        if self.shared().state.load(Ordering::Acquire) != IDLE {
            return Err(Errno::BUSY);
        }
        let keeps_users = order.namespaces & libc::CLONE_NEWUSER as u64 == 0;
        if keeps_users && !self.can_bear(order.ids.bounding) {
            return Err(Errno::PERM);
        }
        let start = self.board.as_ptr();
        // SAFETY: the board is BOARD bytes, of which the head is the Board.
        let free = unsafe { start.add(1).cast::<u8>() };
        let length = BOARD - size_of::<Board>();
        // SAFETY: nobody reads the rest of the board while it is idle.
        let (plan, parcel) = unsafe { order.write(free, length, self.bounding)? };
        parcel.send(&self.socket)?;
        let board = self.shared();
        // SAFETY: nor the plan.
        unsafe { board.plan.get().write(plan) };
        board.sent.store(parcel.count(), Ordering::Relaxed);
        board.child.store(0, Ordering::Relaxed);
        board.failed.store(0, Ordering::Relaxed);
        board.state.store(ORDERED, Ordering::Release);
        wake(&board.state);
        Ok(())
    }

    /// What has become of the last order.
    pub fn progress(&self) -> Progress {
        let board = self.shared();
        let idle = board.state.load(Ordering::Acquire) == IDLE;
        Progress {
            idle,
            child: Some(board.child.load(Ordering::Acquire)).filter(|pid| *pid > 1),
            failed: board.failed.load(Ordering::Acquire) != 0,
        }
    }

    fn shared(&self) -> &Board {
        // SAFETY: it is mapped as long as self lives, and was made of zeroes, which are a Board. What changes beside us
        // is atomic, or in a cell.
        unsafe { self.board.as_ref() }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        unmap_board(self.board);
    }
}

fn map_board() -> Result<NonNull<Board>> {
    let place = map(BOARD, libc::MAP_SHARED)?;
    NonNull::new(place.cast()).ok_or(Errno::NOMEM)
}

fn map(length: usize, kind: libc::c_int) -> Result<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_ANONYMOUS | kind;
    // SAFETY: a new mapping where the kernel finds room.
    let place = unsafe { libc::mmap(null_mut(), length, protection, flags, -1, 0) };
    match place == libc::MAP_FAILED {
        true => Err(super::last_errno()),
        false => Ok(place),
    }
}

fn unmap_board(board: NonNull<Board>) {
    // SAFETY: it was mapped with this length by map_board, and its owner is about to forget it.
    unsafe { libc::munmap(board.as_ptr().cast(), BOARD) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word is valid, and the call does not write it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

fn wait_while(word: &AtomicU32, value: u32) {
    // SAFETY: as above; without a timeout the next argument is null.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            null::<libc::timespec>(),
        )
    };
}

/// The zygote's life. It ends by a signal, with its maker, or when it could not make a process.
fn serve(board: NonNull<Board>, socket: &OwnedFd, maker: u32, bounding: u64) -> ! {
    // SAFETY: mapped for as long as this process lives; see Zygote::shared.
    let shared = unsafe { board.as_ref() };
    if let Some(stack) = prepare(maker)
        && child::drop_capabilities(!bounding)
        && parcel::keep(socket).is_ok()
    {
        let mut score = None;
        loop {
            match shared.state.load(Ordering::Acquire) {
                ORDERED => {
                    shared.state.store(TAKEN, Ordering::Relaxed);
                    // SAFETY: the shim has written it, and does not while the board is not idle.
                    let plan = unsafe { &*shared.plan.get() };
                    if parcel::receive(shared.sent.load(Ordering::Relaxed)).is_err()
                        || !plan.make(board, stack, &mut score, maker)
                        || parcel::close_received().is_err()
                    {
                        break;
                    }
                    shared.state.store(IDLE, Ordering::Release);
                }
                other => wait_while(&shared.state, other),
            }
        }
    }
    super::exec::exit_now(1)
}

/// Signals, the bond to the maker, and the end of a stack for children.
fn prepare(maker: u32) -> Option<*mut c_void> {
    // SAFETY: signals, name and bond of this process alone; the calls read valid memory.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, null_mut());
        // The standard library ignores it, and a program must not.
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, &raw const default, null_mut());
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid().cast_unsigned() != maker {
            return None;
        }
    }
    let low = map(PAGE + STACK, libc::MAP_PRIVATE).ok()?;
    // SAFETY: both places lie in the new mapping, which nobody else knows.
    unsafe {
        if libc::mprotect(low, PAGE, libc::PROT_NONE) != 0 {
            return None;
        }
        // What a child would touch first would count as its container's memory, and outlive it here.
        low.byte_add(PAGE).write_bytes(1, STACK);
        Some(low.byte_add(PAGE + STACK))
    }
}
