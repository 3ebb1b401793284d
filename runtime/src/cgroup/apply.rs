//! Carrying out writes: on a new cgroup just so, on one that is in use all or none.
//!
//! A lower memory limit is the one change that can do harm: on v2 the kernel kills when it cannot reclaim
//! enough. So the limit is first tried as `memory.high`, which reclaims and never kills, and set only when
//! what is left fits. On v1 the kernel itself refuses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::values::{V1_MEMORY_LIMIT, V2_MEMORY_LIMIT, Write};
use super::{CgroupError, write_file};

/// The v2 file by which memory is reclaimed without killing anybody.
const HIGH: &str = "memory.high";

/// What the files held before a change.
#[derive(Debug, Default)]
#[must_use = "dropping it keeps the change"]
pub struct Undo(Vec<(PathBuf, String)>);

impl Undo {
    /// Takes the change back, the last write first. What cannot be taken back is logged.
    pub fn undo(self) {
        for (file, value) in self.0.into_iter().rev() {
            if let Err(error) = write_file(&file, &value) {
                tracing::warn!(file = %file.display(), value, %error, "limit cannot be set back");
            }
        }
    }

    /// Whether nothing was different.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keeps the change.
    pub fn keep(self) {}
}

/// Sets the limits of a new cgroup.
pub(super) fn set(directory: &Path, writes: Vec<Write>) -> Result<(), CgroupError> {
    in_order(writes, |write| {
        match write_file(&directory.join(&write.file), &write.value) {
            Err(CgroupError::Write { source, .. })
                if write.optional && source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            done => done,
        }
    })
}

/// Changes what differs, and notes what was there. After an error the caller undoes.
pub(super) fn change(
    directory: &Path,
    writes: Vec<Write>,
    undo: &mut Undo,
) -> Result<(), CgroupError> {
    let high = high_to_restore(directory, &writes);
    let changed = in_order(writes, |write| change_one(directory, write, undo));
    match high {
        // Also after an error: nothing may stay throttled by a limit that was only tried.
        Some(high) => changed.and(write_file(&directory.join(HIGH), &high)),
        None => changed,
    }
}

/// What `memory.high` must hold at the end, if a memory limit is among the writes and the file is not: it
/// is ours, so it holds something else only while a limit is tried, or after somebody died over it.
fn high_to_restore(directory: &Path, writes: &[Write]) -> Option<String> {
    let planned = |file: &str| writes.iter().any(|write| write.file == file);
    let ours = planned(V2_MEMORY_LIMIT) && !planned(HIGH) && directory.join(HIGH).exists();
    ours.then(|| "max".to_owned())
}

fn change_one(directory: &Path, write: &Write, undo: &mut Undo) -> Result<(), CgroupError> {
    if skipped(directory, write) {
        return Ok(());
    }
    let file = directory.join(&write.file);
    let before = read(&file)?;
    if before == write.value {
        return Ok(());
    }
    let limit = lower_memory_limit(&write.file, &before, &write.value);
    if let Some(limit) = limit {
        make_room(directory, limit)?;
    }
    match (write_file(&file, &write.value), limit) {
        (Err(CgroupError::Write { source, .. }), Some(limit))
            if source.raw_os_error() == Some(libc::EBUSY) =>
        {
            return Err(in_use(directory, usage(directory)?, limit));
        }
        (written, _) => written?,
    }
    // An empty write is no write; a line end clears a cpuset.
    let before = if before.is_empty() {
        "\n".to_owned()
    } else {
        before
    };
    undo.0.push((file, before));
    Ok(())
}

/// Writes one after the other; what the kernel finds invalid and may be valid later is tried again once.
fn in_order(
    writes: Vec<Write>,
    mut apply: impl FnMut(&Write) -> Result<(), CgroupError>,
) -> Result<(), CgroupError> {
    let mut postponed: Option<Write> = None;
    for write in writes {
        match apply(&write) {
            Err(CgroupError::Write { source, .. })
                if write.retry && source.raw_os_error() == Some(libc::EINVAL) =>
            {
                postponed = Some(write);
                continue;
            }
            other => other?,
        }
        if let Some(write) = postponed.take() {
            apply(&write)?;
        }
    }
    Ok(())
}

fn skipped(directory: &Path, write: &Write) -> bool {
    write.optional && !directory.join(&write.file).exists()
}

/// The new memory limit, when it is one and lower than the old one.
fn lower_memory_limit(file: &str, before: &str, after: &str) -> Option<u64> {
    if file != V1_MEMORY_LIMIT && file != V2_MEMORY_LIMIT {
        return None;
    }
    let limit: u64 = after.parse().ok()?;
    // "max" is no number, and above every limit.
    let before = before.parse().unwrap_or(u64::MAX);
    (limit < before).then_some(limit)
}

/// Refuses a limit below what is in use, and reclaims what can be.
fn make_room(directory: &Path, limit: u64) -> Result<(), CgroupError> {
    let used = usage(directory)?;
    if used <= limit {
        return Ok(());
    }
    let working_set = used.saturating_sub(inactive_file(directory)?);
    if working_set > limit {
        return Err(in_use(directory, working_set, limit));
    }
    let high = directory.join(HIGH);
    if !high.exists() {
        return Ok(());
    }
    write_file(&high, &limit.to_string())?;
    match usage(directory)? {
        used if used > limit => Err(in_use(directory, used, limit)),
        _ => Ok(()),
    }
}

fn in_use(directory: &Path, usage: u64, limit: u64) -> CgroupError {
    CgroupError::InUse {
        path: directory.to_owned(),
        usage,
        limit,
    }
}

/// Bytes that are charged to the cgroup.
fn usage(directory: &Path) -> Result<u64, CgroupError> {
    let v2 = directory.join("memory.current");
    let file = if v2.exists() {
        v2
    } else {
        directory.join("memory.usage_in_bytes")
    };
    read(&file)?.parse().map_err(|_| CgroupError::Io {
        verb: "read",
        path: file,
        source: io::ErrorKind::InvalidData.into(),
    })
}

/// Bytes of page cache that nobody has used lately. v1's own name counts the cgroup without those below it.
fn inactive_file(directory: &Path) -> Result<u64, CgroupError> {
    let text = read(&directory.join("memory.stat"))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.parse().ok())
    };
    Ok(value("total_inactive_file ")
        .or_else(|| value("inactive_file "))
        .unwrap_or(0))
}

fn read(file: &Path) -> Result<String, CgroupError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(source) => Err(CgroupError::Io {
            verb: "read",
            path: file.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &str, value: &str, retry: bool) -> Write {
        Write {
            file: file.to_owned(),
            value: value.to_owned(),
            optional: false,
            retry,
        }
    }

    #[test]
    fn what_is_invalid_before_another_is_written_after_it() {
        let writes = vec![
            write("limit", "2", true),
            write("both", "2", false),
            write("x", "", false),
        ];
        let mut done = Vec::new();
        let invalid = |write: &Write| CgroupError::Write {
            file: write.file.clone().into(),
            value: String::new(),
            source: io::Error::from_raw_os_error(libc::EINVAL),
        };
        let applied = in_order(writes.clone(), |write| {
            if write.file == "limit" && !done.contains(&"both".to_owned()) {
                return Err(invalid(write));
            }
            done.push(write.file.clone());
            Ok(())
        });
        applied.unwrap();
        assert_eq!(done, ["both", "limit", "x"]);
        let refused = in_order(writes, |write| match write.file.as_str() {
            "limit" => Err(invalid(write)),
            _ => Ok(()),
        });
        assert!(refused.is_err(), "invalid before and after");
    }

    #[test]
    fn only_a_lower_memory_limit_needs_room() {
        for (file, before, after, needed) in [
            ("memory.max", "max", "4096", Some(4096)),
            ("memory.max", "8192", "4096", Some(4096)),
            ("memory.max", "4096", "8192", None),
            ("memory.max", "4096", "max", None),
            (V1_MEMORY_LIMIT, "9223372036854771712", "4096", Some(4096)),
            ("pids.max", "9", "4", None),
        ] {
            assert_eq!(lower_memory_limit(file, before, after), needed, "{file}");
        }
    }

    #[test]
    fn a_change_is_taken_back_from_the_last_write_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a", "b"] {
            fs::write(path(name), "1").unwrap();
        }
        let mut undo = Undo::default();
        let writes = ["a", "b", "missing"].map(|name| write(name, "2", false));
        assert!(change(dir.path(), writes.into(), &mut undo).is_err());
        assert_eq!(fs::read_to_string(path("b")).unwrap(), "2");
        undo.undo();
        assert_eq!(fs::read_to_string(path("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(path("b")).unwrap(), "1");
    }
}
