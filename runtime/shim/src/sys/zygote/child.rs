//! From the zygote to a program: what zygote and child do with a plan. The child borrows the zygote's memory, which must
//! be fit for use when it is gone: nothing here allocates, locks or panics, and all that it calls is the kernel.

use std::ffi::c_void;
use std::ptr::{NonNull, null};
use std::sync::atomic::Ordering;

use super::Board;
use super::birth::{clone_at_home, clone_onto};
use super::home::FLAGS;
use super::order::{Plan, Stay, Text};

/// A step failed. Which one, the long way tells.
struct Failed;

type Step = Result<(), Failed>;

/// `CLONE_INTO_CGROUP` of clone3(2).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITIES: u32 = 0x2008_0522;

/// Bytes of the kernel's set of signals.
const SIGNAL_SET: usize = 8;

/// An argument of a system call, as wide as the kernel takes it.
trait Word {
    fn word(self) -> libc::c_long;
}

macro_rules! words {
    ($($kind:ty),*) => { $(impl Word for $kind {
        #[expect(clippy::allow_attributes, reason = "not every width has the casts")]
        #[allow(clippy::cast_possible_wrap, clippy::cast_lossless, reason = "bits for the kernel")]
        fn word(self) -> libc::c_long {
            self as libc::c_long
        }
    })* };
}

words!(i32, u32, i64, u64, usize);

impl<T> Word for *const T {
    fn word(self) -> libc::c_long {
        self.expose_provenance().cast_signed() as libc::c_long
    }
}

/// Makes a system call. For calls and arguments that are valid, which is said where it is not plain.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: descriptors, numbers and addresses of what lives on the board, in the program or on this stack, with
        // their lengths. What is written is a buffer that is named as such.
        check(unsafe { libc::syscall(libc::$number $(, Word::word($argument))*) })
    };
}

fn check(value: libc::c_long) -> Result<libc::c_long, Failed> {
    if value < 0 { Err(Failed) } else { Ok(value) }
}

impl Plan {
    /// In the zygote: makes the process and returns when it has exec'd or ended. False when there is none. `score` is the
    /// oom_score_adj of the zygote, which its children are born with.
    pub(super) fn make(
        &self,
        board: NonNull<Board>,
        stack: *mut c_void,
        score: &mut Option<i32>,
        maker: u32,
    ) -> bool {
        let stays = self.stay != Stay::Away;
        if self.stay != Stay::Home && !self.set_out(score) {
            return false;
        }
        if self.stay == Stay::MovesIn && self.settle(maker).is_err() {
            return false;
        }
        if stays {
            // SAFETY: the board is mapped, and the rest is as below.
            return unsafe {
                let child = (*board.as_ptr()).child.as_ptr();
                clone_at_home(stack, child, board) > 0
            };
        }
        // SAFETY: clone_args is plain data for which all zeroes mean "not used".
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = FLAGS.into();
        // SAFETY: the board is mapped, and this is the address of an atomic in it.
        args.parent_tid = unsafe { (*board.as_ptr()).child.as_ptr() } as u64;
        args.stack = (stack as u64).saturating_sub(super::STACK as u64);
        args.stack_size = super::STACK as u64;
        if let Ok(cgroup) = u64::try_from(self.cgroup) {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = cgroup;
        }
        // SAFETY: the child runs `begin` on a stack of its own, which nobody uses meanwhile: this process sleeps until
        // the child has a program, and other memory, or is gone.
        unsafe { clone_onto(&mut args, board) > 0 }
    }

    /// In the zygote: what every child of this container is born with.
    fn set_out(&self, score: &mut Option<i32>) -> bool {
        if *score != Some(self.score) {
            // Best effort, as everywhere.
            let _ = self.write_proc(c"self/oom_score_adj".as_ptr(), self.score_text.all());
            *score = Some(self.score);
        }
        // Its next child is born there.
        call!(SYS_setns, self.init, libc::CLONE_NEWPID).is_ok()
    }

    /// In the zygote: becomes what its children have to be.
    fn settle(&self, maker: u32) -> Step {
        self.move_in()?;
        self.change_user()?;
        // A change of the user has ended the bond to the maker.
        call!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)?;
        if u32::try_from(call!(SYS_getppid)?) != Ok(maker) {
            return Err(Failed);
        }
        self.confine()
    }

    fn write_proc(&self, path: Text, text: &[u8]) -> Step {
        // SAFETY: all zeroes are valid.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = (libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
        how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_XDEV;
        let size = size_of::<libc::open_how>();
        let file = call!(SYS_openat2, self.procfs, path, &raw const how, size)?;
        let written = call!(SYS_write, file, text.as_ptr(), text.len()).map(drop);
        call!(SYS_close, file)?;
        written
    }

    /// In the child: all the way. Returns when a step failed.
    fn follow(&self) -> Result<std::convert::Infallible, Failed> {
        call!(SYS_setsid)?;
        self.join_cgroups()?;
        self.move_in()?;
        self.take_streams()?;
        self.change_user()?;
        unblock_signals()?;
        self.confine()?;
        self.execute()
    }

    /// In a child of a zygote that has moved in: what is left.
    fn follow_at_home(&self) -> Result<std::convert::Infallible, Failed> {
        call!(SYS_setsid)?;
        self.join_cgroups()?;
        self.take_streams()?;
        unblock_signals()?;
        self.execute()
    }

    fn join_cgroups(&self) -> Step {
        for list in self.lists.all() {
            call!(SYS_write, *list, c"0".as_ptr(), 1)?;
        }
        Ok(())
    }

    /// Limits, labels, namespaces, directory and keyring.
    fn move_in(&self) -> Step {
        for (resource, soft, hard) in self.rlimits.all() {
            let limit = libc::rlimit64 {
                rlim_cur: *soft,
                rlim_max: *hard,
            };
            let old = null::<libc::rlimit64>();
            call!(SYS_prlimit64, 0, *resource, &raw const limit, old)?;
        }
        for ([first, second], label) in self.labels.all() {
            self.write_proc(*first, label.all())
                .or_else(|Failed| self.write_proc(*second, label.all()))?;
        }
        call!(SYS_setns, self.init, self.namespaces)?;
        if self.namespaces & libc::CLONE_NEWUSER as u64 != 0 {
            become_user(0, 0, &[])?;
        }
        call!(SYS_umask, self.umask)?;
        self.enter_cwd()?;
        // No name asks for an anonymous keyring. Not every kernel has them.
        let _ = call!(
            SYS_keyctl,
            libc::KEYCTL_JOIN_SESSION_KEYRING,
            null::<libc::c_char>()
        );
        Ok(())
    }

    fn take_streams(&self) -> Step {
        for (place, fd) in self.stdio.iter().enumerate() {
            // The table of descriptors is the child's alone, and owned by nobody.
            call!(SYS_dup3, *fd, place, 0)?;
        }
        call!(
            SYS_close_range,
            3,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC as u64
        )?;
        Ok(())
    }

    fn execute(&self) -> Result<std::convert::Infallible, Failed> {
        for candidate in self.candidates.all() {
            // It returns when it fails.
            let _ = call!(SYS_execve, *candidate, self.args.first, self.env.first);
        }
        Err(Failed)
    }

    /// As the long way: with the root as a wall, no link of procfs, and a look where that is (CVE-2024-21626).
    fn enter_cwd(&self) -> Step {
        call!(SYS_chdir, c"/".as_ptr())?;
        // SAFETY: a C string.
        if unsafe { *self.cwd } == 0 {
            return Ok(());
        }
        // SAFETY: all zeroes are valid.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
        let size = size_of::<libc::open_how>();
        let here = libc::AT_FDCWD;
        let directory = call!(SYS_openat2, here, self.cwd, &raw const how, size)?;
        call!(SYS_fchdir, directory)?;
        let mut path = [0_u8; libc::PATH_MAX as usize];
        call!(SYS_getcwd, path.as_mut_ptr().cast_const(), path.len())?;
        match path.first() {
            Some(b'/') => Ok(()),
            _ => Err(Failed),
        }
    }

    fn change_user(&self) -> Step {
        if !drop_capabilities(self.dropped) {
            return Err(Failed);
        }
        call!(SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0)?;
        become_user(self.uid, self.gid, self.groups.all())?;
        call!(SYS_prctl, libc::PR_SET_KEEPCAPS, 0, 0, 0, 0)?;
        Ok(())
    }

    /// The long way's order: without no_new_privs the filter needs CAP_SYS_ADMIN and comes first.
    fn confine(&self) -> Step {
        let held = permitted()?;
        if self.no_new_privileges {
            self.set_capabilities(held)?;
            call!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?;
            return self.load_filter();
        }
        capset(held, held, 0)?;
        self.load_filter()?;
        self.set_capabilities(held)
    }

    fn set_capabilities(&self, held: u64) -> Step {
        let permitted = self.permitted & held;
        let inheritable = self.inheritable & held;
        let clear = libc::PR_CAP_AMBIENT_CLEAR_ALL;
        call!(SYS_prctl, libc::PR_CAP_AMBIENT, clear, 0, 0, 0)?;
        capset(self.effective & permitted, permitted, inheritable)?;
        let ambient = self.ambient & permitted & inheritable;
        for capability in (0..u64::BITS).filter(|bit| ambient & (1 << bit) != 0) {
            let raise = libc::PR_CAP_AMBIENT_RAISE;
            call!(SYS_prctl, libc::PR_CAP_AMBIENT, raise, capability, 0, 0)?;
        }
        Ok(())
    }

    fn load_filter(&self) -> Step {
        if self.seccomp.count == 0 {
            return Ok(());
        }
        let program = libc::sock_fprog {
            len: u16::try_from(self.seccomp.count).map_err(|_| Failed)?,
            filter: self.seccomp.first.cast_mut(),
        };
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, self.seccomp_flags);
        let other = call!(SYS_seccomp, mode, flags, &raw const program)?;
        // With TSYNC a positive value is the thread that could not be synchronised.
        if other == 0 { Ok(()) } else { Err(Failed) }
    }
}

fn unblock_signals() -> Step {
    let (none, old) = ([0_u8; SIGNAL_SET], null::<u8>());
    call!(
        SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        none.as_ptr(),
        old,
        SIGNAL_SET
    )?;
    Ok(())
}

/// Takes the bits of a mask from the bounding set of the caller. False when that failed.
pub(super) fn drop_capabilities(mask: u64) -> bool {
    for capability in (0..u64::BITS).filter(|bit| mask & (1 << bit) != 0) {
        if call!(SYS_prctl, libc::PR_CAPBSET_DROP, capability, 0, 0, 0).is_err() {
            // The kernel counts them without gaps: this one and all after it are none.
            return errno() == libc::EINVAL;
        }
    }
    true
}

/// System calls of the kernel's, which mean the one thread that makes them.
fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Step {
    call!(SYS_setgroups, groups.len(), groups.as_ptr())?;
    call!(SYS_setresgid, gid, gid, gid)?;
    call!(SYS_setresuid, uid, uid, uid)?;
    Ok(())
}

fn errno() -> libc::c_int {
    // SAFETY: the zygote's, which sleeps.
    unsafe { *libc::__errno_location() }
}

/// Effective, permitted and inheritable, the lower halves first.
type Sets = [[u32; 3]; 2];

/// The permitted set.
fn permitted() -> Result<u64, Failed> {
    let header = [CAPABILITIES, 0];
    let mut sets: Sets = [[0; 3]; 2];
    call!(SYS_capget, header.as_ptr(), sets.as_mut_ptr().cast_const())?;
    let [[_, low, _], [_, high, _]] = sets;
    Ok(u64::from(low) | (u64::from(high) << 32))
}

fn capset(effective: u64, permitted: u64, inheritable: u64) -> Step {
    let header = [CAPABILITIES, 0];
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a set")]
    let half = |shift: u32| [effective, permitted, inheritable].map(|set| (set >> shift) as u32);
    let sets: Sets = [half(0), half(32)];
    call!(SYS_capset, header.as_ptr(), sets.as_ptr())?;
    Ok(())
}

/// Where the child begins.
#[cfg(target_arch = "x86_64")]
pub(super) extern "C" fn begin(board: *const Board) -> ! {
    // SAFETY: the zygote's board, which is mapped in the memory that this process borrows.
    let board = unsafe { &*board };
    // SAFETY: nobody writes it before this process is done with the zygote's memory.
    let plan = unsafe { &*board.plan.get() };
    let Err(Failed) = match plan.stay {
        Stay::Away => plan.follow(),
        Stay::MovesIn | Stay::Home => plan.follow_at_home(),
    };
    board.failed.store(1, Ordering::Release);
    loop {
        // This process alone, without anything that is left to be done at an exit.
        let _ = call!(SYS_exit_group, 1);
    }
}
