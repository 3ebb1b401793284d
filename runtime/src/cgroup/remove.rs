//! Removing a cgroup with everything in it.
//!
//! A cgroup can be removed when no process and no child is in it. What is left is killed and waited for
//! through pidfds; everything is bounded, so one process that does not die costs its own cgroup only.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, timeout_at};

use super::{CgroupError, subdirectories, write_file};

/// How long killed processes may take to go. They are gone within a millisecond unless they sit in an
/// uninterruptible system call.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause between attempts when the cgroup has no process any more and is still busy: the kernel drops a
/// dead task from its cgroup only after its last context switch, and v1 announces that to nobody.
const AFTERMATH: Duration = Duration::from_micros(500);

/// Kills and removes. Absent is success.
pub(super) async fn remove_tree(directory: &Path, unified: bool) -> Result<(), CgroupError> {
    // Usually the processes are gone and nothing is below.
    if try_remove(directory)? {
        return Ok(());
    }
    if unified {
        // One write kills the whole tree and cannot miss a fork.
        ignore_absent(write_file(&directory.join("cgroup.kill"), "1"))?;
    }
    let deadline = Instant::now() + PATIENCE;
    for directory in bottom_up(directory)? {
        remove_one(&directory, deadline).await?;
    }
    Ok(())
}

/// Kills what is in the cgroup and below it, and removes nothing: that is for somebody else to do.
pub(super) async fn empty_tree(directory: &Path, unified: bool) -> Result<(), CgroupError> {
    if unified {
        ignore_absent(write_file(&directory.join("cgroup.kill"), "1"))?;
    }
    let deadline = Instant::now() + PATIENCE;
    for directory in bottom_up(directory)? {
        loop {
            let pids = pids(&directory)?;
            if pids.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                return Err(busy(&directory, &pids));
            }
            kill_and_wait(&pids, deadline).await;
        }
    }
    Ok(())
}

/// The directory and all below it, children first.
fn bottom_up(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut order = vec![directory.to_owned()];
    let mut next = 0;
    while next < order.len() {
        let below = subdirectories(&order[next])?;
        order.extend(below);
        next += 1;
    }
    order.reverse();
    Ok(order)
}

async fn remove_one(directory: &Path, deadline: Instant) -> Result<(), CgroupError> {
    while !try_remove(directory)? {
        let pids = pids(directory)?;
        if Instant::now() >= deadline {
            return Err(busy(directory, &pids));
        }
        if pids.is_empty() {
            sleep(AFTERMATH).await;
        }
        kill_and_wait(&pids, deadline).await;
    }
    Ok(())
}

fn busy(directory: &Path, pids: &[Pid]) -> CgroupError {
    CgroupError::Busy {
        path: directory.to_owned(),
        pids: pids.iter().map(|pid| pid.as_raw_nonzero().get()).collect(),
    }
}

/// Whether the cgroup is gone; false when it is busy.
fn try_remove(directory: &Path) -> Result<bool, CgroupError> {
    match fs::remove_dir(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        // Children make it ENOTEMPTY on some kernels.
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(source) => Err(CgroupError::Io {
            verb: "remove",
            path: directory.to_owned(),
            source,
        }),
    }
}

fn pids(directory: &Path) -> Result<Vec<Pid>, CgroupError> {
    let path = directory.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
            .collect()),
        // ENODEV: removed between opening and reading.
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || error.raw_os_error() == Some(libc::ENODEV) =>
        {
            Ok(Vec::new())
        }
        Err(source) => Err(CgroupError::Io {
            verb: "read",
            path,
            source,
        }),
    }
}

/// Kills all first, then waits for each. A pid that was reused meanwhile is never hit: the list was read a
/// moment ago, and the pidfd is checked against it no later than the kill.
async fn kill_and_wait(pids: &[Pid], deadline: Instant) {
    let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::NONBLOCK).ok();
    let handles: Vec<OwnedFd> = pids.iter().filter_map(open).collect();
    for handle in &handles {
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
    for handle in handles {
        #[expect(
            deprecated,
            reason = "the other one is unsafe; an OwnedFd is what it wants to be promised"
        )]
        let Ok(handle) = AsyncFd::with_interest(handle, Interest::READABLE) else {
            continue;
        };
        if timeout_at(deadline, handle.readable()).await.is_err() {
            return;
        }
    }
}

fn ignore_absent(result: Result<(), CgroupError>) -> Result<(), CgroupError> {
    match result {
        Err(CgroupError::Write { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
