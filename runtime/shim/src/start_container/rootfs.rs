//! The root filesystem: mounted in the container's own mount namespace, and entered by pivot_root.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hanok_shim::protocol::Rootfs;
use hanok_shim::sys::clone::{ns, unshare};
use hanok_shim::sys::mount::{ATTR_RDONLY, Attributes, PRIVATE, mount_setattr};
use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount,
    move_mount, open_tree, unmount,
};
use rustix::process::{chdir, chroot, fchdir, pivot_root};

use super::mounts::CONTEXT;
use super::receive_only;
use crate::failure::{Doing, Failure, Result};
use crate::resolve::open_host;

/// Most layers that overlayfs stacks (`OVL_MAX_STACK`).
const MAX_LAYERS: usize = 500;

/// The root filesystem as a detached mount. Where overlayfs must be mounted somewhere, that is on `scratch`, in a mount
/// namespace of its own.
pub(super) fn open(rootfs: &Rootfs, label: Option<&str>, scratch: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match rootfs {
        Rootfs::Overlay { lower, upper, work } => {
            check_layers(lower)?;
            forget_volatile(work);
            if let Some(root) = overlay(lower, upper, work, label)? {
                return Ok(root);
            }
            unshare(ns::MNT).doing(|| "make a mount namespace")?;
            receive_only()?;
            overlay_by_mount(lower, (upper, work), label, scratch)?;
            open_tree(CWD, scratch, flags).doing(|| "clone the overlay")
        }
        Rootfs::Dir(dir) => {
            let flags = flags | OpenTreeFlags::AT_RECURSIVE;
            let root = open_tree(CWD, dir.as_str(), flags)
                .doing(|| format!("open root filesystem {dir}"))?;
            let private = Attributes {
                propagation: PRIVATE,
                ..Attributes::default()
            };
            mount_setattr(&root, true, private).doing(|| "make the root filesystem private")?;
            Ok(root)
        }
    }
}

/// As many layers as overlayfs stacks.
pub(super) fn check_layers(lower: &[String]) -> Result<()> {
    if lower.is_empty() || lower.len() > MAX_LAYERS {
        let message = format!("{} layers: overlayfs takes 1 to {MAX_LAYERS}", lower.len());
        return Err(Failure::invalid(message));
    }
    Ok(())
}

/// Attaches a detached root filesystem to a directory.
pub(super) fn attach_tree(root: &OwnedFd, target: &Path) -> Result<()> {
    move_mount(
        root,
        "",
        CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .doing(|| format!("attach the root filesystem to {}", target.display()))
}

/// An overlay as a detached mount; none when this kernel does not take layers one by one: before 6.8, and
/// before 6.5 it says so only at the end, and takes every option until then.
pub(super) fn overlay(
    lower: &[String],
    upper: &str,
    work: &str,
    label: Option<&str>,
) -> Result<Option<OwnedFd>> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).doing(|| "open overlayfs")?;
    for (index, layer) in lower.iter().enumerate() {
        match fsconfig_set_string(&context, "lowerdir+", layer.as_str()) {
            Err(Errno::INVAL) if index == 0 => return Ok(None),
            done => done.doing(|| format!("stack layer {layer} ({})", log_of(&context)))?,
        }
    }
    let set = |key: &str, value: &str| fsconfig_set_string(&context, key, value);
    set("upperdir", upper).doing(|| format!("use {upper} as writable layer"))?;
    set("workdir", work).doing(|| format!("use {work} as work directory"))?;
    set("source", "overlay").doing(|| "name the overlay")?;
    if let Some(label) = label {
        set(CONTEXT, label).doing(|| format!("label the overlay {label:?}"))?;
    }
    // Without it the end of the container's mount namespace syncs the whole filesystem of the writable
    // layer, and its exit waits for that. The layer is never used again after a crash of the node.
    fsconfig_set_flag(&context, "volatile").doing(|| "make the overlay volatile")?;
    let created = fsconfig_create(&context);
    if let Err(error) = created {
        let reason = log_of(&context);
        if error == Errno::INVAL && reason == NO_DETAILS {
            return Ok(None);
        }
        return created
            .doing(|| format!("mount the overlay ({reason})"))
            .map(|()| None);
    }
    let root = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    );
    root.doing(|| "mount the overlay").map(Some)
}

/// The same by mount(2), whose options must fit into a page: layers are named by descriptor.
pub(super) fn overlay_by_mount(
    lower: &[String],
    (upper, work): (&str, &str),
    label: Option<&str>,
    target: &Path,
) -> Result<OwnedFd> {
    let open = |path: &str| {
        open_host(path, OFlags::PATH | OFlags::DIRECTORY).doing(|| format!("open {path}"))
    };
    let layers = lower.iter().map(|l| open(l)).collect::<Result<Vec<_>>>()?;
    let (upper, work) = (open(upper)?, open(work)?);
    let name = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let stack = layers.iter().map(name).collect::<Vec<_>>().join(":");
    // A label has commas, and so is quoted here.
    let context = label.map(|label| format!(",{CONTEXT}=\"{label}\""));
    let options = format!(
        "lowerdir={stack},upperdir={},workdir={},volatile{}",
        name(&upper),
        name(&work),
        context.unwrap_or_default()
    );
    let options = std::ffi::CString::new(options)
        .map_err(|_| Failure::invalid("overlay options have a NUL byte"))?;
    mount(
        "overlay",
        target,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .doing(|| format!("mount an overlay of {} layers", lower.len()))?;
    rustix::fs::open(
        target,
        OFlags::PATH | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .doing(|| "open the overlay")
}

/// Removes the mark of an earlier volatile mount, which would forbid the next one. Its purpose is to warn of
/// a writable layer that a crash may have torn; ours does not outlive the boot.
pub(super) fn forget_volatile(work: &str) {
    // Usually there is none.
    let _ = fs::remove_dir_all(Path::new(work).join("work/incompat/volatile"));
}

/// In place of a reason that the filesystem does not give.
const NO_DETAILS: &str = "no details";

/// What the filesystem says about its last failure, in place of nothing.
pub(super) fn log_of(context: impl AsFd) -> String {
    let mut text = [0; 512];
    let message = rustix::io::read(context, &mut text).map_or("", |length| {
        std::str::from_utf8(&text[..length])
            .unwrap_or_default()
            .trim()
    });
    // "e overlay: text": the level first.
    message
        .get(2..)
        .filter(|m| !m.is_empty())
        .unwrap_or(NO_DETAILS)
        .to_owned()
}

/// Sets `/` read-only; what is mounted below stays as it is.
pub(super) fn make_readonly(root: BorrowedFd<'_>) -> Result<()> {
    let attributes = Attributes {
        set: ATTR_RDONLY,
        ..Attributes::default()
    };
    mount_setattr(root, false, attributes).doing(|| "make the root filesystem read-only")
}

/// Makes `root` the root of this mount namespace and lets go of what the namespace began with.
pub(super) fn enter(root: BorrowedFd<'_>) -> Result<()> {
    fchdir(root).doing(|| "enter the root filesystem")?;
    // The old root ends up on top of the new one, where it can be detached without a directory for it.
    pivot_root(".", ".").doing(|| "pivot into the root filesystem")?;
    unmount(".", UnmountFlags::DETACH).doing(|| "detach the old root")?;
    chdir("/").doing(|| "enter /")
}

/// Makes `root` the root of this process alone, in a mount namespace that others use too.
pub(super) fn change_root(root: BorrowedFd<'_>) -> Result<()> {
    fchdir(root).doing(|| "enter the root filesystem")?;
    chroot(".").doing(|| "change the root")?;
    chdir("/").doing(|| "enter /")
}
