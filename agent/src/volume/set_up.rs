//! Carries plans out: directories, files, mounts. Blocking; runs away from the async threads.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use super::fs::{self, FsError};
use super::gather::{EMPTY_DIR, Plan};
use super::payload::Files;
use super::{atomic, error, host_path};
use crate::sinks::{MountedVolumes, VolumeError};

/// Sets up all volumes of a pod; tells of every one that failed.
pub(super) fn all(
    pods: &Path,
    uid: &str,
    plans: Vec<(String, Result<Plan, String>)>,
    group: Option<u32>,
) -> Result<MountedVolumes, Vec<VolumeError>> {
    let mut mounted = MountedVolumes::new();
    let mut errors = Vec::new();
    let volumes = pods.join(uid).join("volumes");
    for (name, plan) in plans {
        match plan.and_then(|plan| one(&volumes, &name, &plan, group)) {
            Ok(path) => {
                mounted.insert(name, path);
            }
            Err(message) => errors.push(error(&name, message)),
        }
    }
    if errors.is_empty() {
        Ok(mounted)
    } else {
        Err(errors)
    }
}

/// Sets one volume up and gives its path.
fn one(volumes: &Path, name: &str, plan: &Plan, group: Option<u32>) -> Result<PathBuf, String> {
    let story = |error: FsError| error.story();
    match plan {
        Plan::HostPath(path, kind) => host_path::prepare(path, kind).map(|()| path.clone()),
        Plan::EmptyDir => {
            let parent = volumes.join(EMPTY_DIR);
            empty_dir(&parent, name, group).map_err(story)?;
            Ok(parent.join(name))
        }
        Plan::Memory(bytes) => {
            let parent = volumes.join(EMPTY_DIR);
            memory_dir(&parent, name, *bytes, group).map_err(story)?;
            Ok(parent.join(name))
        }
        Plan::Files(plugin, files) => {
            let parent = volumes.join(plugin);
            write_files(&parent, name, files, group).map_err(story)?;
            Ok(parent.join(name))
        }
    }
}

/// Directories above volumes are the agent's alone.
fn open_parent(parent: &Path) -> Result<OwnedFd, FsError> {
    use std::os::unix::fs::DirBuilderExt;
    match fs::open_trusted(parent) {
        Ok(dir) => Ok(dir),
        Err(_) => {
            let made = std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o750)
                .create(parent);
            made.map_err(fs::failed("make", parent))?;
            fs::open_trusted(parent)
        }
    }
}

/// Bits of a volume's own directory: everybody may write, and new files belong to the pod's group.
fn dir_mode(group: Option<u32>) -> u32 {
    if group.is_some() { 0o2777 } else { 0o777 }
}

/// Makes the directory; one that is there stays as its containers have made it.
fn empty_dir(parent: &Path, name: &str, group: Option<u32>) -> Result<OwnedFd, FsError> {
    let (dir, new) = fs::make_dir(open_parent(parent)?.as_fd(), name, 0o777)?;
    if new {
        fs::set_owner(dir.as_fd(), name, None, group)?;
        fs::set_mode(dir.as_fd(), name, dir_mode(group))?;
    }
    Ok(dir)
}

/// The same with a tmpfs on it.
fn memory_dir(
    parent: &Path,
    name: &str,
    bytes: Option<u64>,
    group: Option<u32>,
) -> Result<(), FsError> {
    empty_dir(parent, name, group)?;
    let path = parent.join(name);
    if is_mount_point(&path) {
        return Ok(());
    }
    let mut options = format!("mode={:o}", dir_mode(group));
    if let Some(bytes) = bytes {
        options.push_str(&format!(",size={bytes}"));
    }
    if let Some(group) = group {
        options.push_str(&format!(",gid={group}"));
    }
    let options = std::ffi::CString::new(options).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", &path, "tmpfs", flags, options.as_c_str())
        .map_err(fs::failed("mount a tmpfs on", &path))
}

fn write_files(
    parent: &Path,
    name: &str,
    files: &Files,
    group: Option<u32>,
) -> Result<(), FsError> {
    let dir = empty_dir(parent, name, group)?;
    atomic::write(dir.as_fd(), files, group).map(|_| ())
}

/// Whether something is mounted exactly there.
fn is_mount_point(path: &Path) -> bool {
    rustix::fs::statx(
        rustix::fs::CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::empty(),
    )
    .is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// A volume may have been mounted more than once, by an agent that died in between; never this often.
const MOST_MOUNTS: usize = 16;

/// Unmounts a pod's volumes that are mounts. The directories above them are ours alone, so the paths can be trusted.
pub(super) fn unmount_all(pod: &Path) -> Vec<VolumeError> {
    let mut errors = Vec::new();
    let plugins = std::fs::read_dir(pod.join("volumes"))
        .into_iter()
        .flatten()
        .flatten();
    let volumes = plugins.flat_map(|plugin| std::fs::read_dir(plugin.path()).into_iter().flatten());
    for volume in volumes.flatten() {
        let path = volume.path();
        for _ in 0..MOST_MOUNTS {
            if !is_mount_point(&path) {
                break;
            }
            let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            if let Err(source) = rustix::mount::unmount(&path, flags) {
                let name = volume.file_name().to_string_lossy().into_owned();
                errors.push(error(&name, fs::failed("unmount", &path)(source).story()));
                break;
            }
        }
    }
    errors
}
