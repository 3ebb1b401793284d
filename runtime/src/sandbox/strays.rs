//! Shims whose files somebody has removed. By no file can they be found again, nor what they hold; so they are looked for
//! among the processes.
//!
//! The command line of a process is in its memory, and who reads it waits for whoever changes the memory's map. So it is
//! read of shims only, by [`aside`].

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hanok_shim::command_line::{NAME, SERVE, STATE_DIR};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long to wait for a look at the processes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How often to look for more descendants of a shim before it is killed all the same.
const ROUNDS: u32 = 100;

/// Does what may wait for a process to let itself be looked at. After the patience it goes on by itself, unheard.
pub(crate) async fn aside<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::time::timeout(patience, tokio::task::spawn_blocking(work)).await {
        Ok(done) => done.map_err(io::Error::other)?,
        Err(_) => Err(ErrorKind::TimedOut.into()),
    }
}

/// Kills every shim of our mount namespace whose state directory is meant, with all that it has started. Returns the
/// directories.
///
/// An agent of another mount namespace, such as one in a container, may have directories of the same names.
pub(crate) fn end(is_meant: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    let mut ended = Vec::new();
    for pid in processes()? {
        if !has_name(pid)? {
            continue;
        }
        // Before it is looked at: the process behind a descriptor cannot become another one.
        let Some(handle) = unless_gone(pidfd_open(pid, PidfdFlags::empty()))? else {
            continue;
        };
        // Before its command line: a container can take any name, and keep its memory busy.
        let theirs = fs::read_link(format!("/proc/{}/ns/mnt", pid.as_raw_nonzero()));
        if !theirs.is_ok_and(|theirs| theirs == own) {
            continue;
        }
        let Some(dir) = state_dir(pid)?.filter(|dir| is_meant(dir)) else {
            continue;
        };
        // The shim last: with it, nobody's children are its.
        kill_descendants(pid)?;
        let _ = pidfd_send_signal(handle, Signal::KILL);
        ended.push(dir);
    }
    Ok(ended)
}

/// The state directory of a shim, by its name and command line; none of anything else.
pub(super) fn state_dir(pid: Pid) -> io::Result<Option<PathBuf>> {
    if !has_name(pid)? {
        return Ok(None);
    }
    let line = unless_gone(fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())))?;
    Ok(line.and_then(|line| {
        let mut words = line.split(|byte| *byte == 0).skip(1);
        let is_daemon =
            words.next() == Some(SERVE.as_bytes()) && words.next() == Some(STATE_DIR.as_bytes());
        let dir = words.next().filter(|_| is_daemon)?;
        Some(PathBuf::from(OsStr::from_bytes(dir)))
    }))
}

/// Whether a process has the name of a shim, which the kernel tells without a look at its memory.
fn has_name(pid: Pid) -> io::Result<bool> {
    let name = unless_gone(fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())))?;
    Ok(name.is_some_and(|name| name.strip_suffix(b"\n") == Some(NAME.as_bytes())))
}

/// Kills all below a process, until nobody is left who could bear another: who has a deadly signal does not.
fn kill_descendants(root: Pid) -> io::Result<()> {
    let mut signalled = HashSet::new();
    for _ in 0..ROUNDS {
        let all = births()?;
        let family = family(root, &all);
        let of_the_dead = |birth: &Birth| birth.parent.is_some_and(|one| !all.contains_key(&one));
        // Who was a child of somebody that ended during the look may belong to it.
        let mut is_last = !all.values().any(of_the_dead);
        for pid in family.iter().filter(|pid| **pid != root) {
            let then = all[pid];
            if signalled.contains(&(*pid, then.time)) {
                continue;
            }
            is_last = false;
            let Some(handle) = unless_gone(pidfd_open(*pid, PidfdFlags::empty()))? else {
                continue;
            };
            // Its number may have been given to somebody else.
            let now = birth(*pid)?.filter(|now| now.time == then.time);
            let parent = now.and_then(|now| now.parent);
            if parent.is_some_and(|parent| family.contains(&parent)) {
                let _ = pidfd_send_signal(handle, Signal::KILL);
                signalled.insert((*pid, then.time));
            }
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// A process and all below it.
fn family(root: Pid, all: &HashMap<Pid, Birth>) -> HashSet<Pid> {
    let mut children: HashMap<Pid, Vec<Pid>> = HashMap::new();
    for (pid, birth) in all {
        if let Some(parent) = birth.parent {
            children.entry(parent).or_default().push(*pid);
        }
    }
    let mut family = HashSet::from([root]);
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if family.insert(*child) {
                next.push(*child);
            }
        }
    }
    family
}

fn processes() -> io::Result<Vec<Pid>> {
    let entries = fs::read_dir("/proc")?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(numbers.filter_map(Pid::from_raw).collect())
}

/// Whose child a process is, none of who has no parent here, and when it began.
#[derive(Debug, Clone, Copy)]
struct Birth {
    parent: Option<Pid>,
    /// In ticks since the machine's start.
    time: u64,
}

fn births() -> io::Result<HashMap<Pid, Birth>> {
    let mut all = HashMap::new();
    for pid in processes()? {
        if let Some(birth) = birth(pid)? {
            all.insert(pid, birth);
        }
    }
    Ok(all)
}

/// By the text of `/proc/PID/stat`, proc_pid_stat(5).
fn birth(pid: Pid) -> io::Result<Option<Birth>> {
    let text = unless_gone(fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())))?;
    Ok(text.and_then(|text| parse(&String::from_utf8_lossy(&text))))
}

fn parse(stat: &str) -> Option<Birth> {
    // The second field is the program's name in brackets, with anything in it.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(1);
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    let time = fields.nth(17)?.parse().ok()?;
    Some(Birth { parent, time })
}

/// None when there is no such file or process.
pub(super) fn unless_gone<T, E: Into<io::Error>>(result: Result<T, E>) -> io::Result<Option<T>> {
    match result.map_err(Into::into) {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
