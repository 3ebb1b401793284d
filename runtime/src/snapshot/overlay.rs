//! Snapshots for overlayfs.
//!
//! ```text
//! snapshots/overlay/layers/CHAIN/fs            the layer in overlayfs' form
//!                               /layer.json    diff usage; a layer without it is not one
//!                               /unsynced      boot id: written in that boot and not yet synced to disk
//! snapshots/overlay/active/ID/{fs,work}        a container's upper and work directories
//!                            /layers.json      the chain ids it lies on, topmost first
//! snapshots/overlay/ingest/…                   being unpacked
//! snapshots/overlay/trash/…                    being deleted
//! snapshots/overlay/empty                      the lower directory of an image without layers
//! ```
//! A rename into `layers` or `active` is the commit. The page cache outlives the agent but not the boot:
//! an unsynced layer of an earlier boot may have empty files in it and is thrown away at open.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hanok_shim::protocol::Rootfs;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::{ChainId, Draft, Holdings, Key, Settled, SnapshotError, Snapshotter, Usage};
use crate::content::{self, Digest};
use crate::unpack::{self, Limits};

/// Deepest directory that is counted; layers cannot be deeper, containers can make them so.
const MAX_DEPTH: usize = 512;

/// The overlayfs snapshotter.
#[derive(Debug)]
pub struct Overlay {
    root: PathBuf,
    limits: Limits,
    boot_id: String,
}

/// A directory that is deleted on drop unless it has been renamed.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        // Renamed away in the usual case; what cannot be deleted now goes at the next open.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fail<'a>(verb: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SnapshotError + 'a {
    move |source| SnapshotError::Io {
        verb,
        path: path.to_owned(),
        source,
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), SnapshotError> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(fail("create", path))
}

impl Overlay {
    /// Opens the snapshots at `root`, making its directories.
    pub fn open(root: &Path, limits: Limits) -> Result<Self, SnapshotError> {
        for dir in ["layers", "active", "ingest", "trash"] {
            make_dir(&root.join(dir), 0o700)?;
        }
        make_dir(&root.join("empty"), 0o755)?;
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(path).map_err(fail("read", path))?;
        Ok(Self {
            root: root.to_owned(),
            limits,
            boot_id: boot_id.trim().to_owned(),
        })
    }

    /// Deletes what interrupted work left, and layers that a power cut may have damaged; returns those.
    /// Only for a caller that knows that nobody else works here.
    pub fn sweep(&self) -> Result<Vec<PathBuf>, SnapshotError> {
        let mut damaged = Vec::new();
        for path in entries(&self.root.join("layers"))? {
            let unsynced = fs::read_to_string(path.join("unsynced")).ok();
            let torn = unsynced.is_some_and(|boot| boot.trim() != self.boot_id);
            if torn || !path.join("layer.json").is_file() || !path.join("fs").is_dir() {
                if let Err(error) = self.discard(&path) {
                    let error = crate::service::chain(&error);
                    tracing::warn!(path = %path.display(), error, "cannot remove a damaged layer");
                }
                damaged.push(path);
            }
        }
        for dir in ["ingest", "trash"] {
            for path in entries(&self.root.join(dir))? {
                content::remove_left_over(&path);
            }
        }
        Ok(damaged)
    }

    fn temp(&self) -> Result<TempDir, SnapshotError> {
        let path = self.root.join("ingest").join(unique());
        make_dir(&path, 0o700)?;
        Ok(TempDir(path))
    }

    fn layer(&self, layer: &ChainId) -> PathBuf {
        self.root.join("layers").join(layer.hex())
    }

    fn active(&self, container: &str) -> Result<PathBuf, SnapshotError> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if container.is_empty() || container.len() > 64 || !container.bytes().all(fits) {
            return Err(SnapshotError::InvalidId(
                container.chars().take(100).collect(),
            ));
        }
        Ok(self.root.join("active").join(container))
    }

    /// The directories of committed layers.
    fn dirs(&self, layers: &[ChainId]) -> Result<Vec<PathBuf>, SnapshotError> {
        layers
            .iter()
            .map(|layer| {
                let dir = self.layer(layer).join("fs");
                match dir.is_dir() {
                    true => Ok(dir),
                    false => Err(SnapshotError::MissingLayer(*layer)),
                }
            })
            .collect()
    }

    /// Takes a directory out of sight in one step, then deletes it.
    fn discard(&self, path: &Path) -> Result<(), SnapshotError> {
        let trash = self.root.join("trash").join(unique());
        match fs::rename(path, &trash) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(fail("remove", path))?,
        }
        match fs::symlink_metadata(&trash).is_ok_and(|meta| meta.is_dir()) {
            true => fs::remove_dir_all(&trash),
            // A file in the place of a layer.
            false => fs::remove_file(&trash),
        }
        .map_err(fail("remove", &trash))
    }
}

impl Snapshotter for Overlay {
    fn unpack(
        &self,
        tar: &mut dyn BufRead,
        below: Option<&[ChainId]>,
    ) -> Result<Draft, SnapshotError> {
        let below = below.map(|layers| self.dirs(layers)).transpose()?;
        let temp = self.temp()?;
        let root = temp.0.join("fs");
        make_dir(&root, 0o755)?;
        let unpacked = unpack::apply(tar, &root, self.limits, below.as_deref())?;
        Ok(Draft { temp, unpacked })
    }

    fn commit(
        &self,
        draft: Draft,
        layer: &ChainId,
        below: &[ChainId],
    ) -> Result<Settled, SnapshotError> {
        if unpack::settle(&draft.unpacked, &self.dirs(below)?)? == Settled::NeedsBelow {
            return Ok(Settled::NeedsBelow);
        }
        write_json(&draft.temp.0.join("layer.json"), &draft.unpacked.usage)?;
        let mark = draft.temp.0.join("unsynced");
        fs::write(&mark, &self.boot_id).map_err(fail("write", &mark))?;
        let path = self.layer(layer);
        match fs::rename(&draft.temp.0, &path) {
            // Another process unpacked the same layer meanwhile; the two are alike.
            Err(e) if is_taken(&e) => {}
            other => other.map_err(fail("rename to", &path))?,
        }
        Ok(Settled::Done)
    }

    fn sync(&self) -> Result<(), SnapshotError> {
        let layers = self.root.join("layers");
        let marks: Vec<PathBuf> = entries(&layers)?
            .into_iter()
            .map(|path| path.join("unsynced"))
            .filter(|mark| mark.exists())
            .collect();
        if marks.is_empty() {
            return Ok(());
        }
        let dir = fs::File::open(&layers).map_err(fail("open", &layers))?;
        rustix::fs::syncfs(&dir).map_err(|e| fail("sync", &layers)(e.into()))?;
        for mark in marks {
            match fs::remove_file(&mark) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(fail("remove", &mark)(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn prepare(&self, container: &str, layers: &[ChainId]) -> Result<(), SnapshotError> {
        let path = self.active(container)?;
        if path.is_dir() {
            return Ok(());
        }
        let dirs = self.dirs(layers)?;
        let temp = self.temp()?;
        let upper = temp.0.join("fs");
        make_dir(&upper, 0o755)?;
        make_dir(&temp.0.join("work"), 0o700)?;
        write_json(&temp.0.join("layers.json"), layers)?;
        // The merged root has the looks of the upper directory.
        if let Some(top) = dirs.first() {
            let like = rustix::fs::stat(top).map_err(|e| fail("look at", top)(e.into()))?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(&upper, flags, Mode::empty())
                .and_then(|dir| unpack::tree::adopt(std::os::fd::AsFd::as_fd(&dir), &like))
                .map_err(|e| fail("set the owner of", &upper)(e.into()))?;
        }
        match fs::rename(&temp.0, &path) {
            Err(e) if is_taken(&e) => Ok(()),
            other => other.map_err(fail("rename to", &path)),
        }
    }

    fn mounts(&self, container: &str) -> Result<Rootfs, SnapshotError> {
        let path = self.active(container)?;
        let layers =
            read_layers(&path).ok_or_else(|| SnapshotError::NotFound(container.to_owned()))?;
        let mut lower = self.dirs(&layers)?;
        if lower.is_empty() {
            lower.push(self.root.join("empty"));
        }
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Ok(Rootfs::Overlay {
            lower: lower.iter().map(|dir| text(dir)).collect(),
            upper: text(&path.join("fs")),
            work: text(&path.join("work")),
        })
    }

    fn remove(&self, key: Key<'_>) -> Result<(), SnapshotError> {
        match key {
            Key::Layer(layer) => self.discard(&self.layer(layer)),
            Key::Container(container) => self.discard(&self.active(container)?),
        }
    }

    fn usage(&self, key: Key<'_>) -> Result<Usage, SnapshotError> {
        match key {
            Key::Layer(layer) => fs::read(self.layer(layer).join("layer.json"))
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .ok_or(SnapshotError::MissingLayer(*layer)),
            Key::Container(container) => {
                let upper = self.active(container)?.join("fs");
                if !upper.is_dir() {
                    return Err(SnapshotError::NotFound(container.to_owned()));
                }
                disk_usage(&upper).map_err(|e| fail("measure", &upper)(e.into()))
            }
        }
    }

    fn list(&self) -> Result<Holdings, SnapshotError> {
        let name = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
        let layers = entries(&self.root.join("layers"))?
            .iter()
            .filter_map(|path| Digest::from_hex(&name(path)?).ok())
            .collect();
        let containers = entries(&self.root.join("active"))?
            .iter()
            .filter_map(|path| Some((name(path)?, read_layers(path)?)))
            .collect();
        Ok(Holdings { layers, containers })
    }
}

fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!("{}-{number}-{time:x}", std::process::id())
}

fn is_taken(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
    )
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, SnapshotError> {
    let list = fs::read_dir(dir).map_err(fail("list", dir))?;
    Ok(list.flatten().map(|entry| entry.path()).collect())
}

fn write_json(path: &Path, value: &(impl serde::Serialize + ?Sized)) -> Result<(), SnapshotError> {
    let bytes = serde_json::to_vec(value).map_err(|e| fail("write", path)(e.into()))?;
    fs::write(path, bytes).map_err(fail("write", path))
}

fn read_layers(active: &Path) -> Option<Vec<ChainId>> {
    serde_json::from_slice(&fs::read(active.join("layers.json")).ok()?).ok()
}

/// Blocks and files below a directory that a running container may be changing: by descriptors only.
fn disk_usage(path: &Path) -> rustix::io::Result<Usage> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut usage = Usage::default();
    let mut stack = vec![rustix::fs::Dir::new(rustix::fs::open(
        path,
        flags,
        Mode::empty(),
    )?)?];
    while let Some(dir) = stack.last_mut() {
        let Some(entry) = dir.read().transpose()? else {
            stack.pop();
            continue;
        };
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        let here = dir.fd()?;
        let Ok(stat) = rustix::fs::statat(here, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
        else {
            continue;
        };
        usage.inodes += 1;
        usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stack_has_room(&stack) {
            let here = stack.last().map(|dir| dir.fd()).transpose()?;
            let child =
                here.map(|here| rustix::fs::openat(here, entry.file_name(), flags, Mode::empty()));
            if let Some(Ok(child)) = child {
                stack.push(rustix::fs::Dir::new(child)?);
            }
        }
    }
    Ok(usage)
}

fn stack_has_room(stack: &[rustix::fs::Dir]) -> bool {
    stack.len() < MAX_DEPTH
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
