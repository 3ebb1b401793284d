//! `pause` and `resume`: all processes of a container stand still, and go on.
//!
//! On v2 the container's cgroup is frozen. v1 has a hierarchy of its own for that, which containers are not made in,
//! as joining costs each of them some time at its start: the processes are moved there when the first pause comes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::record::{Record, Status};
use super::{OciError, Result, Runtime, cgroups};
use crate::cgroup::{CgroupError, Place, freezer_of};

/// How long freezing may take: a process in an uninterruptible call delays it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between looks. Neither version tells somebody without a descriptor in poll, and it takes less as a rule.
const PAUSE: Duration = Duration::from_millis(1);

/// v1's file.
const STATE: &str = "freezer.state";

/// v2's file.
const FREEZE: &str = "cgroup.freeze";

impl Runtime {
    /// Freezes all processes of a container.
    pub fn pause(&self, id: &str) -> Result<()> {
        let mut record = self.state(id)?;
        record.require("pause", &[Status::Created, Status::Running])?;
        let frozen = freeze(&mut record);
        if frozen.is_err() {
            // Nothing may stay half frozen.
            let _ = thaw(&record);
        }
        frozen
    }

    /// Lets the processes of a paused container go on.
    pub fn resume(&self, id: &str) -> Result<()> {
        let record = self.state(id)?;
        record.require("resume", &[Status::Paused])?;
        thaw(&record)
    }
}

/// Whether the processes stand still.
pub(super) fn is_frozen(record: &Record) -> bool {
    record.cgroups.iter().any(|directory| {
        let v1 = fs::read_to_string(directory.join(STATE));
        v1.is_ok_and(|state| state.starts_with("FR"))
            || fs::read_to_string(directory.join(FREEZE)).is_ok_and(|text| text.starts_with('1'))
    })
}

/// Lets everybody go on; nothing happens to those who do.
pub(super) fn thaw(record: &Record) -> Result<()> {
    for directory in &record.cgroups {
        for (file, value) in [(STATE, "THAWED"), (FREEZE, "0")] {
            if directory.join(file).exists() {
                Place::of(directory).write(file, value)?;
            }
        }
    }
    Ok(())
}

fn freeze(record: &mut Record) -> Result<()> {
    let unified = record.cgroups.iter().find(|dir| dir.join(FREEZE).exists());
    if let Some(directory) = unified {
        Place::of(directory).write(FREEZE, "1")?;
        return wait(directory, || {
            let events = fs::read_to_string(directory.join("cgroup.events"));
            events.is_ok_and(|text| text.lines().any(|line| line == "frozen 1"))
        });
    }
    let freezer = freezer(record)?;
    Place::of(&freezer).write(STATE, "FROZEN")?;
    move_all(record, &freezer)?;
    wait(&freezer, || {
        fs::read_to_string(freezer.join(STATE)).is_ok_and(|state| state.trim_end() == "FROZEN")
    })
}

/// The container's place in v1's freezer, from the first pause on.
fn freezer(record: &mut Record) -> Result<PathBuf> {
    if let Some(made) = record.cgroups.iter().find(|dir| dir.join(STATE).exists()) {
        return Ok(made.clone());
    }
    let above = freezer_of(record.pid)?.ok_or_else(|| {
        OciError::Option("no freezer is mounted, so containers cannot be paused".into())
    })?;
    let directory = above.join(&record.id);
    fs::create_dir(&directory).map_err(OciError::io("create", &directory))?;
    // From now on what is exec'd joins it, and delete removes it.
    record.cgroups.push(directory.clone());
    record.save()?;
    Ok(directory)
}

/// Moves everybody of the container who is somewhere else. Those who came are frozen, so this has an end: in each
/// round are only children of those who were not yet there in the one before.
fn move_all(record: &Record, freezer: &Path) -> Result<()> {
    let others = record.cgroups.iter().find(|dir| *dir != freezer);
    let Some(all) = others else {
        return Ok(());
    };
    let place = Place::of(freezer);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let there = cgroups::processes(freezer)?;
        let mut left = cgroups::processes(all)?;
        left.retain(|pid| !there.contains(pid));
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(slow(freezer));
        }
        for pid in left {
            match place.write("cgroup.procs", &pid.to_string()) {
                // It has ended meanwhile.
                Err(CgroupError::Write { source, .. })
                    if source.raw_os_error() == Some(libc::ESRCH) => {}
                moved => moved?,
            }
        }
    }
}

fn wait(directory: &Path, frozen: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !frozen() {
        if Instant::now() > deadline {
            return Err(slow(directory));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn slow(directory: &Path) -> OciError {
    OciError::io("freeze", directory)(std::io::ErrorKind::TimedOut.into())
}
