//! How much a directory holds, by walking it.
//!
//! What is below may be written by a container: names are followed by descriptor and never through a link,
//! and the depth is bounded. A walk costs what the container has written, so its result is kept, the longer
//! the dearer it was; and nobody waits long for one: the figure is there at the next question.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;

use crate::api::DiskUsage;

/// How long a result is kept at least.
const FRESH: Duration = Duration::from_secs(10);

/// A walk may take this part of the time: one that took a second is not repeated for half a minute.
const DUTY: u32 = 30;

/// How long a question waits for a walk.
const PATIENCE: Duration = Duration::from_secs(2);

/// Results of directories that nobody has asked for in this time are forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Directories below each other that are looked into; each costs a descriptor during the walk.
const MAX_DEPTH: usize = 256;

/// Usage of directories, with what is known of them.
#[derive(Debug, Default)]
pub struct DiskCache {
    known: Arc<Mutex<HashMap<PathBuf, Known>>>,
}

#[derive(Debug)]
struct Known {
    usage: Option<DiskUsage>,
    /// When the result is too old.
    until: Instant,
    asked: Instant,
    walking: bool,
}

impl DiskCache {
    /// What a directory holds; none when that is not known yet. A directory that is not there holds nothing.
    pub async fn usage(&self, directory: PathBuf) -> Option<DiskUsage> {
        let now = Instant::now();
        {
            let mut known = lock(&self.known);
            known.retain(|_, one| one.walking || now.duration_since(one.asked) < FORGOTTEN);
            let one = known.entry(directory.clone()).or_insert(Known {
                usage: None,
                until: now,
                asked: now,
                walking: false,
            });
            one.asked = now;
            if one.walking || now < one.until {
                return one.usage;
            }
            one.walking = true;
        }
        let (known, path) = (self.known.clone(), directory.clone());
        let walk = tokio::task::spawn_blocking(move || {
            let begin = Instant::now();
            let usage = walk(&path).ok();
            let took = begin.elapsed();
            if let Some(one) = lock(&known).get_mut(&path) {
                one.walking = false;
                one.usage = usage.or(one.usage);
                one.until = Instant::now() + FRESH.max(took.saturating_mul(DUTY));
            }
        });
        // It goes on when nobody waits any more.
        let _ = tokio::time::timeout(PATIENCE, walk).await;
        lock(&self.known).get(&directory).and_then(|one| one.usage)
    }
}

fn lock(known: &Mutex<HashMap<PathBuf, Known>>) -> MutexGuard<'_, HashMap<PathBuf, Known>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Walks a directory; what is mounted in it does not count. Blocks.
pub fn walk(directory: &Path) -> std::io::Result<DiskUsage> {
    let mut usage = DiskUsage::default();
    let root = match open_directory(CWD, directory) {
        Err(Errno::NOENT) => return Ok(usage),
        other => other?,
    };
    let stat = rustix::fs::fstat(&root)?;
    let mut linked = HashSet::new();
    count(&stat, &mut usage, &mut linked);
    let mut open = vec![Dir::new(root)?];
    while let Some(dir) = open.last_mut() {
        let Some(entry) = dir.read() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        // It may have gone since it was listed.
        let parent = dir.fd()?;
        let Ok(found) = statat(parent, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if found.st_dev != stat.st_dev {
            continue;
        }
        count(&found, &mut usage, &mut linked);
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let below = is_directory.then(|| open_directory(parent, entry.file_name()));
        if let Some(Ok(below)) = below
            && open.len() < MAX_DEPTH
        {
            open.push(Dir::new(below)?);
        }
    }
    Ok(usage)
}

fn open_directory(at: impl AsFd, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// A file with several names counts once.
fn count(stat: &Stat, usage: &mut DiskUsage, linked: &mut HashSet<u64>) {
    let is_file = FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
    if is_file && stat.st_nlink > 1 && !linked.insert(stat.st_ino) {
        return;
    }
    /// Of `st_blocks`, whatever the filesystem's own block is.
    const BLOCK: u64 = 512;
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    usage.bytes = usage.bytes.saturating_add(blocks.saturating_mul(BLOCK));
    usage.inodes = usage.inodes.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_counted_once_and_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert_eq!(walk(&path("missing")).unwrap(), DiskUsage::default());
        fs::create_dir_all(path("a/b")).unwrap();
        fs::write(path("a/file"), vec![1; 100_000]).unwrap();
        fs::hard_link(path("a/file"), path("a/b/same")).unwrap();
        let before = walk(dir.path()).unwrap();
        assert_eq!(before.inodes, 4);
        assert!((100_000..200_000).contains(&before.bytes), "{before:?}");
        symlink("/", path("a/root")).unwrap();
        symlink("..", path("a/b/up")).unwrap();
        assert_eq!(walk(dir.path()).unwrap().inodes, 6);
        assert!(
            walk(&path("a/root")).is_err(),
            "the directory itself is no link"
        );
    }

    #[test]
    fn depth_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = open_directory(CWD, dir.path()).unwrap();
        for _ in 0..MAX_DEPTH + 50 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_directory(&at, "d").unwrap();
        }
        let found = walk(dir.path()).unwrap().inodes;
        assert_eq!(found, MAX_DEPTH as u64 + 1);
    }

    #[tokio::test]
    async fn a_result_is_kept_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::default();
        let first = cache.usage(dir.path().to_owned()).await.unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        assert_eq!(cache.usage(dir.path().to_owned()).await, Some(first));
        assert_eq!(walk(dir.path()).unwrap().inodes, first.inodes + 1);
    }
}
