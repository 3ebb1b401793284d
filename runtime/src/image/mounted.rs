//! Images as volumes: an image's files, mounted read-only on a directory of the node.
//!
//! ```text
//! ROOT/image-mounts/KEY     the directory that an image is mounted on; KEY is made from it
//! ```
//! The layers stay for as long as the record, under the same key, as a container's do under its id. An agent that
//! comes back finds both, and the mount is its own record.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hanok_shim::protocol::Rootfs;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
};
use tracing::Instrument;

use super::{Core, ImageError, Images};
use crate::content::Digest;
use crate::snapshot::{Key, SnapshotError};

/// Directory of the records.
const RECORDS: &str = "image-mounts";

/// Mounts on one directory, after an agent that died between two steps; never this many.
const MOST_MOUNTS: usize = 16;

impl Images {
    /// Mounts an image read-only on `target`, which is made, unless an image is mounted there: then that one stays. Goes on
    /// when nobody waits for it any more, so that whoever unmounts finds all of it done, or nothing.
    ///
    /// # Errors
    /// When there is no such image, or it cannot be unpacked or mounted.
    pub async fn mount_on(&self, image: &str, target: &Path) -> Result<(), ImageError> {
        let (images, image, target) = (self.clone(), image.to_owned(), target.to_owned());
        let work = async move { images.mount_in_turn(&image, target).await };
        tokio::spawn(work.in_current_span()).await?
    }

    async fn mount_in_turn(&self, image: &str, target: PathBuf) -> Result<(), ImageError> {
        // Two containers that start at once may want the same one.
        let _turn = self.core.mounting.lock().await;
        let (key, at) = (key_of(&target), target.clone());
        let name = key.clone();
        let mounted = self.query(move |core| {
            if is_mount_point(&at) {
                return Ok(true);
            }
            // What an earlier boot has left may be of another image.
            core.snapshotter.remove(Key::Container(&name))?;
            Ok(record(core, &name, &at).map(|()| false)?)
        });
        if mounted.await? {
            return Ok(());
        }
        let rootfs = self.prepare_rootfs(&key, image).await?;
        self.query(move |_| Ok(mount(&rootfs, &target)?)).await
    }

    /// Unmounts every image that is mounted on a directory below `dir`, and lets its layers go. None is success.
    ///
    /// # Errors
    /// At the first that cannot be unmounted or forgotten.
    pub async fn unmount_below(&self, dir: &Path) -> Result<(), ImageError> {
        let _turn = self.core.mounting.lock().await;
        let dir = dir.to_owned();
        self.query(move |core| {
            for (key, target) in records(core)? {
                if target.starts_with(&dir) {
                    unmount(&target)?;
                    core.snapshotter.remove(Key::Container(&key))?;
                    let record = core.root.join(RECORDS).join(&key);
                    fs::remove_file(&record).map_err(fail("remove", &record))?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// A snapshot's id that is no container's: those are hexadecimal throughout.
fn key_of(target: &Path) -> String {
    let digest = Digest::of(target.as_os_str().as_bytes());
    format!("v{}", &digest.hex()[..63])
}

fn record(core: &Core, key: &str, target: &Path) -> Result<(), SnapshotError> {
    let dir = core.root.join(RECORDS);
    make_dir(&dir, 0o700)?;
    // A short file of one write: whole, or of a boot whose mounts are gone.
    let file = dir.join(key);
    fs::write(&file, target.as_os_str().as_bytes()).map_err(fail("write", &file))
}

/// Key and directory of each mounted image.
fn records(core: &Core) -> Result<Vec<(String, PathBuf)>, SnapshotError> {
    let dir = core.root.join(RECORDS);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(fail("read", &dir))?,
    };
    let mut records = Vec::new();
    for entry in entries.flatten() {
        let target = fs::read(entry.path()).map_err(fail("read", &entry.path()))?;
        let target = PathBuf::from(std::ffi::OsString::from_vec(target));
        if let Ok(key) = entry.file_name().into_string() {
            records.push((key, target));
        }
    }
    Ok(records)
}

fn mount(rootfs: &Rootfs, target: &Path) -> Result<(), SnapshotError> {
    make_dir(target, 0o750)?;
    let mut layers: Vec<&str> = Vec::new();
    match rootfs {
        // overlayfs wants two layers or more; the writable one is empty, and lies below the others.
        Rootfs::Overlay { lower, upper, .. } => {
            layers.extend(lower.iter().map(String::as_str));
            layers.push(upper);
        }
        Rootfs::Dir(dir) => layers.extend([dir.as_str(), dir.as_str()]),
    }
    let failed = |source: Errno| fail("mount an image on", target)(source.into());
    if let Some(root) = layered(&layers).map_err(failed)? {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        return rustix::mount::move_mount(&root, "", CWD, target, flags).map_err(failed);
    }
    let options = std::ffi::CString::new(format!("lowerdir={}", layers.join(":")));
    let options = options.map_err(|_| failed(Errno::INVAL))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("overlay", target, "overlay", flags, options.as_c_str()).map_err(failed)
}

/// A detached read-only overlay; none when this kernel does not take layers one by one (before 6.8).
fn layered(layers: &[&str]) -> rustix::io::Result<Option<OwnedFd>> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (index, layer) in layers.iter().enumerate() {
        match rustix::mount::fsconfig_set_string(&context, "lowerdir+", *layer) {
            Err(Errno::INVAL) if index == 0 => return Ok(None),
            done => done?,
        }
    }
    rustix::mount::fsconfig_set_string(&context, "source", "overlay")?;
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map(Some)
}

fn unmount(target: &Path) -> Result<(), SnapshotError> {
    for _ in 0..MOST_MOUNTS {
        if !is_mount_point(target) {
            break;
        }
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(target, flags)
            .map_err(|source| fail("unmount", target)(source.into()))?;
    }
    Ok(())
}

/// Whether something is mounted exactly there.
fn is_mount_point(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::statx(CWD, path, flags, StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn make_dir(path: &Path, mode: u32) -> Result<(), SnapshotError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(mode);
    builder.create(path).map_err(fail("create", path))
}

fn fail<'a>(verb: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SnapshotError + 'a {
    move |source| SnapshotError::Io {
        verb,
        path: path.to_owned(),
        source,
    }
}
