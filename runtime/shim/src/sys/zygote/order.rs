//! An order, and how it lies on the board.

use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::null;

use rustix::io::Errno;

use super::super::Result;
use super::parcel::Parcel;

/// Where the zygote is when it makes a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// On the node: the process does everything by itself.
    Away,
    /// It moves in, for good: it becomes itself what the process has to be, and has the container's filter, so that this
    /// one and all after it are born so. Its cgroups stay its own, and it is in no PID namespace of the container's. For
    /// orders without a cgroup of v2, labels, a user namespace and a working directory that may be another one later, if
    /// [`allows_home`](super::allows_home) says so.
    MovesIn,
    /// It has moved in, for the container of this order.
    Home,
}

/// What a process is to become. All of it is what the long way does too, in the same order.
#[derive(Debug)]
pub struct Order<'a> {
    /// Who does what of it.
    pub stay: Stay,
    /// Pidfd of the container's init.
    pub init: BorrowedFd<'a>,
    /// Namespaces to join, as the bits of [`ns`](crate::sys::clone::ns), beside PID. With USER it becomes root there.
    pub namespaces: u64,
    /// The cgroup v2 to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// `tasks` of v1, where it writes itself into.
    pub lists: Vec<BorrowedFd<'a>>,
    /// The verified procfs.
    pub procfs: BorrowedFd<'a>,
    /// `oom_score_adj`; best effort.
    pub score: i32,
    /// What is written below the procfs, at the first place or else the second.
    pub labels: Vec<([&'static str; 2], String)>,
    /// `RLIMIT_*` number, soft, hard.
    pub rlimits: &'a [(u32, u64, u64)],
    /// File mode creation mask.
    pub umask: u32,
    /// Working directory, which exists. Empty for `/`.
    pub cwd: &'a str,
    /// What is to be descriptor 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// As whom, and with which rights.
    pub ids: Ids<'a>,
    /// Compiled filter, an array of `struct sock_filter`; empty for none.
    pub seccomp: &'a [u8],
    /// `SECCOMP_FILTER_FLAG_*`.
    pub seccomp_flags: u32,
    /// Files to try, in this order.
    pub candidates: Vec<String>,
    /// Arguments.
    pub args: &'a [String],
    /// Environment.
    pub env: Vec<&'a str>,
}

/// User, groups and capabilities (bit n = capability n).
#[derive(Debug)]
pub struct Ids<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Bounding set.
    pub bounding: u64,
    /// Effective set.
    pub effective: u64,
    /// Permitted set.
    pub permitted: u64,
    /// Inheritable set.
    pub inheritable: u64,
    /// Ambient set.
    pub ambient: u64,
    /// `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
}

/// An order as the zygote reads it. Pointers are to the rest of the board.
pub(super) struct Plan {
    pub(super) stay: Stay,
    pub(super) init: RawFd,
    pub(super) namespaces: u64,
    pub(super) cgroup: RawFd,
    pub(super) lists: Many<RawFd>,
    pub(super) procfs: RawFd,
    pub(super) score: i32,
    pub(super) score_text: Many<u8>,
    pub(super) labels: Many<([Text; 2], Many<u8>)>,
    pub(super) rlimits: Many<(u32, u64, u64)>,
    pub(super) umask: u32,
    pub(super) cwd: Text,
    pub(super) stdio: [RawFd; 3],
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Many<u32>,
    /// What is not in the bounding set, and is in the zygote's.
    pub(super) dropped: u64,
    pub(super) effective: u64,
    pub(super) permitted: u64,
    pub(super) inheritable: u64,
    pub(super) ambient: u64,
    pub(super) no_new_privileges: bool,
    pub(super) seccomp: Many<libc::sock_filter>,
    pub(super) seccomp_flags: u32,
    pub(super) candidates: Many<Text>,
    /// Both with a null pointer behind the last.
    pub(super) args: Many<Text>,
    pub(super) env: Many<Text>,
}

/// A C string on the board.
pub(super) type Text = *const libc::c_char;

/// Some of a kind on the board.
#[derive(Clone, Copy)]
pub(super) struct Many<T> {
    pub(super) first: *const T,
    pub(super) count: usize,
}

/// Free bytes of the board.
struct Room {
    next: *mut u8,
    left: usize,
}

impl<'a> Order<'a> {
    /// Writes it, for a zygote with this bounding set, which is to get the descriptors beside it.
    ///
    /// # Safety
    /// `free` is `length` bytes that nobody else uses, also not while the plan is.
    pub(super) unsafe fn write(
        &self,
        free: *mut u8,
        length: usize,
        bounding: u64,
    ) -> Result<(Plan, Parcel<'a>)> {
        let mut room = Room {
            next: free,
            left: length,
        };
        let mut parcel = Parcel::default();
        let lists = self.lists.iter().map(|list| parcel.add(*list));
        let lists = lists.collect::<Result<Vec<RawFd>>>()?;
        let cgroup = self.cgroup.map(|fd| parcel.add(fd)).transpose()?;
        let [stdin, stdout, stderr] = self.stdio;
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let candidates: Vec<&str> = self.candidates.iter().map(String::as_str).collect();
        if args.is_empty() || candidates.is_empty() {
            return Err(Errno::INVAL);
        }
        let ids = &self.ids;
        // SAFETY: the promise about `free`.
        unsafe {
            let plan = Plan {
                stay: self.stay,
                init: parcel.add(self.init)?,
                namespaces: self.namespaces,
                cgroup: cgroup.unwrap_or(-1),
                lists: room.many(&lists)?,
                procfs: parcel.add(self.procfs)?,
                score: self.score,
                score_text: room.many(self.score.to_string().as_bytes())?,
                labels: room.labels(&self.labels)?,
                rlimits: room.many(self.rlimits)?,
                umask: self.umask,
                cwd: room.text(self.cwd)?,
                stdio: [parcel.add(stdin)?, parcel.add(stdout)?, parcel.add(stderr)?],
                uid: ids.uid,
                gid: ids.gid,
                groups: room.many(ids.groups)?,
                dropped: bounding & !ids.bounding,
                effective: ids.effective,
                permitted: ids.permitted,
                inheritable: ids.inheritable,
                ambient: ids.ambient,
                no_new_privileges: ids.no_new_privileges,
                seccomp: room.many(&instructions(self.seccomp)?)?,
                seccomp_flags: self.seccomp_flags,
                candidates: room.texts(&candidates)?,
                args: room.texts(&args)?,
                env: room.texts(&self.env)?,
            };
            Ok((plan, parcel))
        }
    }
}

/// `struct sock_filter`.
pub(super) type Instruction = libc::sock_filter;

/// The instructions of a filter.
pub(super) fn instructions(bytes: &[u8]) -> Result<Vec<Instruction>> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || u16::try_from(chunks.len()).is_err() {
        return Err(Errno::INVAL);
    }
    let instructions = chunks.iter().map(|c| libc::sock_filter {
        code: u16::from_ne_bytes([c[0], c[1]]),
        jt: c[2],
        jf: c[3],
        k: u32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
    });
    Ok(instructions.collect())
}

impl Room {
    /// # Safety
    /// `next` is `left` bytes that are free.
    unsafe fn many<T: Copy>(&mut self, items: &[T]) -> Result<Many<T>> {
        let padding = self.next.align_offset(align_of::<T>());
        let needed = padding
            .checked_add(size_of_val(items))
            .filter(|needed| *needed <= self.left);
        let needed = needed.ok_or(Errno::TOOBIG)?;
        // SAFETY: the items end within the free bytes, and begin aligned.
        unsafe {
            let first = self.next.add(padding).cast::<T>();
            first.copy_from_nonoverlapping(items.as_ptr(), items.len());
            self.next = self.next.add(needed);
            self.left -= needed;
            Ok(Many {
                first,
                count: items.len(),
            })
        }
    }

    /// # Safety
    /// As [`Room::many`].
    unsafe fn text(&mut self, text: &str) -> Result<Text> {
        if text.contains('\0') {
            return Err(Errno::INVAL);
        }
        // SAFETY: as our own. The NUL is right behind, for bytes are aligned everywhere.
        unsafe {
            let first = self.many(text.as_bytes())?.first;
            self.many(&[0_u8])?;
            Ok(first.cast())
        }
    }

    /// # Safety
    /// As [`Room::many`].
    unsafe fn labels(
        &mut self,
        labels: &[([&'static str; 2], String)],
    ) -> Result<Many<([Text; 2], Many<u8>)>> {
        let mut written = Vec::new();
        for ([first, second], text) in labels {
            // SAFETY: as our own.
            unsafe {
                let places = [self.text(first)?, self.text(second)?];
                written.push((places, self.many(text.as_bytes())?));
            }
        }
        // SAFETY: as our own.
        unsafe { self.many(&written) }
    }

    /// Pointers to texts, with a null pointer behind them that is not counted.
    ///
    /// # Safety
    /// As [`Room::many`].
    unsafe fn texts(&mut self, texts: &[&str]) -> Result<Many<Text>> {
        let mut pointers = Vec::with_capacity(texts.len() + 1);
        for text in texts {
            // SAFETY: as our own.
            pointers.push(unsafe { self.text(text)? });
        }
        pointers.push(null());
        // SAFETY: as our own.
        let many = unsafe { self.many(&pointers)? };
        Ok(Many {
            count: texts.len(),
            ..many
        })
    }
}

impl<T> Many<T> {
    /// What it names.
    pub(super) fn all(&self) -> &[T] {
        // SAFETY: Room::many has written so many there, and nobody changes them as long as the plan is in use.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}
