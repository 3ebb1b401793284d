//! Rotated log files: their names, and how many of them stay.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::timestamp;

const SECOND: i64 = 1_000_000_000;

/// Files that may be rotated within one second before the name is given up.
const MAX_BUMPS: i64 = 600;

/// Renames `path` to `path.YYYYMMDD-HHMMSS` and returns that second. When the name is taken, or not after
/// `last`, a later second is used: names must differ and sort by age.
pub(super) fn set_aside(path: &Path, last: i64) -> io::Result<i64> {
    let first = (timestamp::now_ns() / SECOND).max(last + 1);
    for second in first..first + MAX_BUMPS {
        let target = rotated(path, &timestamp::compact(second));
        if !target.try_exists()? {
            return fs::rename(path, target).map(|()| second);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes the oldest rotated files until `max_files` are left, the current one among them.
pub(super) fn prune(path: &Path, max_files: u32) {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return;
    };
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let mut old: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|file| file.strip_prefix(name).is_some_and(is_rotated_suffix))
        .collect();
    old.sort_unstable();
    let keep = usize::try_from(max_files.saturating_sub(1)).unwrap_or(usize::MAX);
    for file in old.iter().take(old.len().saturating_sub(keep)) {
        // A file that somebody else removed first is as good as removed.
        let _ = fs::remove_file(dir.join(file));
    }
}

fn rotated(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// `.YYYYMMDD-HHMMSS`, also compressed.
fn is_rotated_suffix(suffix: &str) -> bool {
    let Some(time) = suffix.strip_prefix('.') else {
        return false;
    };
    let time = time.strip_suffix(".gz").unwrap_or(time);
    time.len() == 15
        && time.bytes().enumerate().all(|(i, b)| {
            if i == 8 {
                b == b'-'
            } else {
                b.is_ascii_digit()
            }
        })
}
