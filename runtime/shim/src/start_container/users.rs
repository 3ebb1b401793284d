//! What the node's root prepares for a container in a user namespace: volumes, layers and /dev, as detached mounts.
//!
//! Files on disk have the ids that the container sees; the mounts translate. So a volume can be used by any pod, and an
//! image's layers by all of them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use hanok_shim::protocol::{ContainerSpec, Mount, MountSource, Rootfs};
use hanok_shim::sys::mount::{ATTR_IDMAP, SHARED};
use rustix::fs::{CWD, Mode, mkdirat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::{dev, mounts, rootfs};
use crate::failure::{Doing, Failure, Result};
use crate::users::Users;

/// Sources that the node's root opens; `early` are those that are open already.
pub(super) fn open_sources(
    users: &Users,
    spec: &ContainerSpec,
    label: Option<&str>,
    early: Vec<Option<OwnedFd>>,
) -> Result<Vec<Option<OwnedFd>>> {
    let open = |(mount, early): (&Mount, Option<OwnedFd>)| {
        if early.is_some() {
            return Ok(early);
        }
        match &mount.source {
            MountSource::Bind { recursive, .. } | MountSource::BindBelow { recursive, .. } => {
                refuse_shared(mount)?;
                let source = mounts::open_bind(&mount.source)?;
                if mount.attr_set & ATTR_IDMAP != 0 {
                    users.map(&source, *recursive, &mounts::name_of(&mount.source))?;
                }
                Ok(Some(source))
            }
            MountSource::Filesystem { fstype, options }
                if fstype == "tmpfs" && dev::is_dev(mount) =>
            {
                let source = mounts::new_filesystem(fstype, &owned(users, options), 0, label)?;
                dev::make_nodes(source.as_fd(), users, &spec.devices)?;
                Ok(Some(source))
            }
            _ => Ok(None),
        }
    };
    spec.mounts.iter().zip(early).map(open).collect()
}

/// A mount that is made in a user namespace must not show on the node.
fn refuse_shared(mount: &Mount) -> Result<()> {
    if mount.propagation != SHARED {
        return Ok(());
    }
    let destination = &mount.destination;
    Err(Failure::invalid(format!(
        "mount {destination}: mounts of a pod with a user namespace (hostUsers: false) cannot propagate to the node"
    )))
}

/// Options of a tmpfs that belongs to the pod's root.
fn owned(users: &Users, options: &[(String, String)]) -> Vec<(String, String)> {
    let (uid, gid) = users.root();
    let owner = [
        ("uid".to_owned(), uid.as_raw().to_string()),
        ("gid".to_owned(), gid.as_raw().to_string()),
    ];
    options.iter().cloned().chain(owner).collect()
}

/// The root filesystem, detached. A directory is taken as it is: whoever made it has given it its owners.
pub(crate) fn rootfs(
    users: &Users,
    rootfs: &Rootfs,
    label: Option<&str>,
    scratch: &Path,
) -> Result<OwnedFd> {
    match rootfs {
        Rootfs::Overlay { lower, upper, work } => {
            overlay(users, (lower, upper, work), label, scratch)
        }
        Rootfs::Dir(dir) => {
            let flags = OpenTreeFlags::OPEN_TREE_CLONE
                | OpenTreeFlags::OPEN_TREE_CLOEXEC
                | OpenTreeFlags::AT_RECURSIVE;
            open_tree(CWD, dir.as_str(), flags).doing(|| format!("open root filesystem {dir}"))
        }
    }
}

/// An overlay of id-mapped layers. Overlayfs wants them attached, so they are, below a tmpfs on `scratch`, in the mount
/// namespace of the calling process; it takes clones of its own.
fn overlay(
    users: &Users,
    (lower, upper, work): (&[String], &str, &str),
    label: Option<&str>,
    scratch: &Path,
) -> Result<OwnedFd> {
    rootfs::check_layers(lower)?;
    rootfs::forget_volatile(work);
    let mode = ("mode".to_owned(), "700".to_owned());
    let base = mounts::new_filesystem("tmpfs", &[mode], 0, None)?;
    rootfs::attach_tree(&base, scratch)?;
    let place = |name: String, source: &Path| -> Result<PathBuf> {
        let what = source.display().to_string();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, source, flags).doing(|| format!("open layer {what}"))?;
        users.map(&tree, false, &what)?;
        let doing = || format!("attach layer {what}");
        mkdirat(&base, &name, Mode::from_raw_mode(0o700)).doing(doing)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", &base, &name, flags).doing(doing)?;
        Ok(scratch.join(name))
    };
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let lower = lower
        .iter()
        .enumerate()
        .map(|(index, layer)| place(index.to_string(), Path::new(layer)).map(text))
        .collect::<Result<Vec<_>>>()?;
    // Both must be on one mount.
    let (upper, work) = (Path::new(upper), Path::new(work));
    let parent = upper
        .parent()
        .filter(|parent| work.parent() == Some(parent));
    let parent = parent.ok_or_else(|| {
        Failure::invalid("the writable layer and its work directory are not side by side")
    })?;
    let place = place("writable".to_owned(), parent)?;
    let inside = |path: &Path| text(place.join(path.file_name().unwrap_or_default()));
    let (upper, work) = (inside(upper), inside(work));
    // Overlayfs writes as whoever has mounted it, and only the pod's users are mapped there.
    match users.as_root(|| rootfs::overlay(&lower, &upper, &work, label))? {
        Some(root) => Ok(root),
        None => {
            let target = scratch.join("root");
            let doing = || format!("make {}", target.display());
            mkdirat(&base, "root", Mode::from_raw_mode(0o700)).doing(doing)?;
            users.as_root(|| rootfs::overlay_by_mount(&lower, (&upper, &work), label, &target))?;
            // Detached again, to be moved by the pod's root.
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            open_tree(CWD, &target, flags).doing(|| "clone the overlay")
        }
    }
}
