//! A container's cgroup directories: one on v2, one per controller on v1.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hanok_shim::sys::process;
use rustix::fs::{Mode, OFlags, fstatfs, open, openat};

use crate::failure::{Doing, Failure, Result};

/// `CGROUP2_SUPER_MAGIC` of statfs(2).
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// Rounds of [`Cgroups::kill_all`]; a fork bomb may need several, nothing needs this many.
const KILL_ROUNDS: usize = 64;

/// Longest text with a count of OOM kills: a few short lines.
const MAX_COUNTER: usize = 512;

/// How deep cgroups below the container's own are looked into.
const MAX_DEPTH: usize = 8;

/// The directories.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cgroups {
    dirs: Vec<PathBuf>,
}

/// The way into the cgroups, open for every process that is still to come: the lists that it must be written into
/// after clone, and the directory for clone itself.
///
/// Of the lists of v1 it is that of threads. What is moved has one thread, and one that moves itself is the one case in which
/// the kernel (5.5 and later) asks nobody else to wait: for a list of processes, it stops all forks and exits of the
/// machine, and waits for an RCU grace period first when the last time is long ago, some 15 ms.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    v2: Option<OwnedFd>,
    v1: Vec<File>,
}

impl Entry {
    /// For `CLONE_INTO_CGROUP`.
    pub(crate) fn at_clone(&self) -> Option<BorrowedFd<'_>> {
        self.v2.as_ref().map(AsFd::as_fd)
    }

    /// The lists of v1.
    pub(crate) fn lists(&self) -> Vec<BorrowedFd<'_>> {
        self.v1.iter().map(AsFd::as_fd).collect()
    }

    /// Moves a process into what clone could not put it into. The first write after a quiet time waits for
    /// an RCU grace period, the others do not.
    pub(crate) fn join(&self, pid: i32) -> Result<()> {
        self.write(&pid.to_string())
    }

    /// The same for the calling process, which has one thread. Nobody waits.
    pub(crate) fn enter(&self) -> Result<()> {
        self.write("0")
    }

    fn write(&self, pid: &str) -> Result<()> {
        for mut tasks in &self.v1 {
            tasks
                .write_all(pid.as_bytes())
                .doing(|| format!("write {}", path_of(tasks)))?;
        }
        Ok(())
    }
}

impl Cgroups {
    pub(crate) fn new(dirs: &[String]) -> Self {
        Self {
            dirs: dirs.iter().map(PathBuf::from).collect(),
        }
    }

    /// Opens the directories for new processes.
    pub(crate) fn entry(&self) -> Result<Entry> {
        let mut entry = Entry::default();
        for dir in &self.dirs {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = open(dir, flags, Mode::empty())
                .doing(|| format!("open cgroup {}", dir.display()))?;
            let statfs = fstatfs(&fd).doing(|| format!("stat cgroup {}", dir.display()))?;
            if statfs.f_type == CGROUP2_MAGIC && entry.v2.is_none() {
                entry.v2 = Some(fd);
            } else {
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let tasks = openat(&fd, "tasks", flags, Mode::empty())
                    .doing(|| format!("open tasks of {}", dir.display()))?;
                entry.v1.push(tasks.into());
            }
        }
        Ok(entry)
    }

    /// The same for a process that is there already, which v2 does not take.
    pub(crate) fn late_entry(&self) -> Result<Entry> {
        let entry = self.entry()?;
        if entry.v2.is_some() {
            let message = "a process is born in a cgroup of v2, which has to be there before";
            return Err(Failure::invalid(message));
        }
        Ok(entry)
    }

    /// Processes in the first directory and below it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        if let Some(dir) = self.dirs.first() {
            collect(dir, MAX_DEPTH, &mut pids);
        }
        pids
    }

    /// Sends a signal to every process, once.
    pub(crate) fn signal_all(&self, signal: i32) {
        for pid in self.processes() {
            // It may have ended since; a number is not used again within microseconds.
            let _ = process::kill(pid, signal);
        }
    }

    /// Kills every process, also those that are being forked meanwhile.
    pub(crate) fn kill_all(&self) {
        // v2, Linux 5.14: one write, atomic.
        if self
            .dirs
            .iter()
            .any(|dir| fs::write(dir.join("cgroup.kill"), "1").is_ok())
        {
            return;
        }
        for _ in 0..KILL_ROUNDS {
            let pids = self.processes();
            // What is dying stays listed until its exit is done, so look for somebody who can be killed.
            let mut hit = false;
            for pid in pids {
                hit |= is_alive(pid) && process::kill(pid, libc::SIGKILL).is_ok();
            }
            if !hit {
                return;
            }
        }
    }

    /// Opens where the OOM killer's strikes are counted.
    pub(crate) fn oom_counter(&self) -> OomCounter {
        let open = |dir: &Path, name| File::open(dir.join(name)).ok();
        let mut counter = OomCounter::default();
        for dir in &self.dirs {
            counter.own = open(dir, "memory.oom_control");
            if counter.own.is_some() {
                break;
            }
            counter.own = open(dir, "memory.events");
            if counter.own.is_some() {
                counter.around = dir.parent().and_then(|dir| open(dir, "memory.events"));
                break;
            }
        }
        counter
    }
}

/// The files that count the OOM killer's strikes, open from the start of a container to its end.
#[derive(Debug, Default)]
pub(crate) struct OomCounter {
    own: Option<File>,
    /// Of the cgroup around it; v2 only.
    around: Option<File>,
}

impl OomCounter {
    /// How often it has struck so far.
    pub(crate) fn read(&self) -> OomKills {
        OomKills {
            own: self.own.as_ref().and_then(count),
            around: self.around.as_ref().and_then(count).unwrap_or(0),
        }
    }
}

/// None when the cgroup is gone.
fn count(file: &File) -> Option<u64> {
    let mut text = [0; MAX_COUNTER];
    let length = file.read_at(&mut text, 0).ok()?;
    Some(oom_kills(&String::from_utf8_lossy(&text[..length])))
}

/// How often the OOM killer has struck.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OomKills {
    /// In the container's cgroup; none when that is gone.
    own: Option<u64>,
    /// In the cgroup around it, with all below; 0 on v1, where a cgroup counts only for itself.
    pub(crate) around: u64,
}

impl OomKills {
    /// Whether it has since then, in a container that was `killed`. systemd removes a cgroup once it is empty, so it
    /// may be gone when we hear of the end; then the pod's tells, where what other containers lost is known.
    pub(crate) fn since(self, before: Self, killed: bool) -> bool {
        match self.own {
            Some(own) => own > before.own.unwrap_or(0),
            None => killed && self.around > before.around,
        }
    }
}

/// Where a file is, for whoever reads of it.
fn path_of(file: &File) -> String {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::read_link(link).map_or_else(|_| "tasks".into(), |path| path.display().to_string())
}

/// The value of `oom_kill` in memory.events (v2) or memory.oom_control (v1).
fn oom_kills(text: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    value.and_then(|v| v.trim().parse().ok()).unwrap_or(0)
}

fn collect(dir: &Path, depth: usize, pids: &mut Vec<i32>) {
    if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    if depth == 0 {
        return;
    }
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            collect(&entry.path(), depth - 1, pids);
        }
    }
}

/// Whether a process has no fatal signal yet and is no zombie.
fn is_alive(pid: i32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    let pending = |name: &str| {
        let hex = status
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap_or("0")
            .trim();
        u64::from_str_radix(hex, 16).unwrap_or(0) & (1 << (libc::SIGKILL - 1)) != 0
    };
    let state = status
        .lines()
        .find_map(|l| l.strip_prefix("State:"))
        .unwrap_or("X")
        .trim();
    !state.starts_with(['Z', 'X']) && !pending("SigPnd:") && !pending("ShdPnd:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_that_is_gone_leaves_the_answer_to_the_one_around_it() {
        let kills = |own, around| OomKills { own, around };
        let before = kills(Some(0), 2);
        assert!(!kills(Some(0), 3).since(before, true), "another's");
        assert!(kills(Some(1), 3).since(before, true));
        assert!(kills(None, 3).since(before, true));
        assert!(!kills(None, 3).since(before, false));
        assert!(!kills(None, 3).since(kills(Some(0), 3), true));
    }

    #[test]
    fn oom_kills_are_counted_where_the_kernel_has_a_file_for_them() {
        let pod = tempfile::tempdir().unwrap();
        let dirs = ["pids", "v1", "v2"].map(|name| pod.path().join(name));
        dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
        fs::write(dirs[1].join("memory.oom_control"), "oom_kill 2\n").unwrap();
        for (dir, kills) in [(&dirs[2], 3), (&pod.path().to_owned(), 4)] {
            fs::write(dir.join("memory.events"), format!("oom_kill {kills}\n")).unwrap();
        }
        let read = |dirs: &[PathBuf]| {
            let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            let OomKills { own, around } = Cgroups::new(&dirs).oom_counter().read();
            (own, around)
        };
        assert_eq!(read(&dirs[..2]), (Some(2), 0));
        assert_eq!(read(&dirs[2..]), (Some(3), 4));
        assert_eq!(read(&dirs[..1]), (None, 0));
    }

    #[test]
    fn oom_kills_are_read_in_both_layouts() {
        assert_eq!(
            oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            3
        );
        assert_eq!(
            oom_kills("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n"),
            2
        );
        assert_eq!(oom_kills("oom_kill many\n"), 0);
        assert_eq!(oom_kills(""), 0);
    }
}
