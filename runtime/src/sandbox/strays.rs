//! Shims whose files somebody has removed. By no file can they be found again, nor what they hold; so they are looked for
//! among the processes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Kills every shim of our mount namespace whose state directory is meant, with all that it has started. Returns the
/// directories.
///
/// An agent of another mount namespace, such as one in a container, may have directories of the same names.
pub(crate) fn end(is_meant: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let own = fs::read_link("/proc/self/ns/mnt")?;
    let mut ended = Vec::new();
    for pid in processes()? {
        // Before it is looked at: the process behind a descriptor cannot become another one.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let Some(dir) = state_dir(pid).filter(|dir| is_meant(dir)) else {
            continue;
        };
        let theirs = fs::read_link(format!("/proc/{}/ns/mnt", pid.as_raw_nonzero()));
        if !theirs.is_ok_and(|theirs| theirs == own) {
            continue;
        }
        // The shim last: with it, nobody's children are its.
        kill_descendants(pid)?;
        let _ = pidfd_send_signal(handle, Signal::KILL);
        ended.push(dir);
    }
    Ok(ended)
}

/// The state directory of a shim, by its command line; none of anything else.
fn state_dir(pid: Pid) -> Option<PathBuf> {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    let mut words = line.split(|byte| *byte == 0).skip(1);
    if words.next()? != b"serve" || words.next()? != b"--state-dir" {
        return None;
    }
    words
        .next()
        .map(|dir| PathBuf::from(OsStr::from_bytes(dir)))
}

/// Those that end meanwhile are as good as killed.
fn kill_descendants(root: Pid) -> io::Result<()> {
    let parents: Vec<(Pid, Pid)> = processes()?
        .into_iter()
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut family = HashSet::from([root]);
    loop {
        let before = family.len();
        for (pid, parent) in &parents {
            if family.contains(parent) {
                family.insert(*pid);
            }
        }
        if family.len() == before {
            break;
        }
    }
    for (pid, parent_then) in parents {
        if pid == root || !family.contains(&pid) {
            continue;
        }
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        // Its number may have been given to somebody else; an orphan's parent is the shim.
        let parent_now = parent(pid);
        if parent_now == Some(parent_then) || parent_now == Some(root) {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
    Ok(())
}

fn processes() -> io::Result<Vec<Pid>> {
    let entries = fs::read_dir("/proc")?.flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(numbers.filter_map(Pid::from_raw).collect())
}

/// The parent in the text of `/proc/PID/stat`, proc_pid_stat(5).
fn parent(pid: Pid) -> Option<Pid> {
    let text = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The second field is the program's name in brackets, with anything in it.
    let (_, rest) = text.rsplit_once(')')?;
    Pid::from_raw(rest.split_whitespace().nth(1)?.parse().ok()?)
}
