//! The mounts of a container, each by descriptor: the source is opened or created detached, gets its
//! attributes, and is moved onto a destination that was resolved inside the root.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use hanok_shim::protocol::{Mount, MountSource};
use hanok_shim::sys::mount::{
    ATTR_ATIME, ATTR_IDMAP, Attributes, PRIVATE, SHARED, SLAVE, UNBINDABLE, mount_setattr,
};
use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, XattrFlags, fsetxattr, fstatfs, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree, unmount,
};

use super::copy_up::copy_up;
use super::home::Home;
use super::rootfs::log_of;
use super::source::Source;
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::resolve::{self, Kind, Target, open_host};

/// The filesystem of [`MountSource::CopyUp`].
pub(super) const TMPFS: &str = "tmpfs";

/// The mount option that gives one SELinux label to everything of a filesystem.
pub(super) const CONTEXT: &str = "context";

/// Filesystems that take it. There is one mqueue for all mounts of an IPC namespace, which takes it only as an
/// attribute; what the kernel shows by procfs, sysfs and cgroups has labels of its own.
const LABELLED: [&str; 3] = [TMPFS, "ramfs", "devpts"];

/// The attribute of a file that is its label.
const LABEL: &str = "security.selinux";

/// Files of procfs that may be covered, one by one: lxcfs serves them.
const PROC_FILES: [&str; 10] = [
    "cpuinfo",
    "diskstats",
    "meminfo",
    "stat",
    "swaps",
    "uptime",
    "loadavg",
    "slabinfo",
    "net/dev",
    "sys/kernel/ns_last_pid",
];

/// The pod's /dev/shm, for a container that goes on in another mount namespace than the pod's.
pub(super) fn open_shm(
    host: &Host,
    mounts: &[Mount],
    home: Option<&Home>,
) -> Result<Vec<Option<OwnedFd>>> {
    let open = |mount: &Mount| match &mount.source {
        MountSource::Shm { .. } => {
            let home = home.ok_or_else(|| Failure::system("the shim holds no /dev/shm"))?;
            home.visit_for_shm(host).map(Some)
        }
        _ => Ok(None),
    };
    mounts.iter().map(open).collect()
}

/// All that is of the node, before its mount namespace is left, but what is [opened in its turn](propagates).
pub(super) fn open_binds(mounts: &[Mount]) -> Result<Vec<Option<OwnedFd>>> {
    let open = |mount: &Mount| match is_bind(&mount.source) && !propagates(mount) {
        true => open_bind(&mount.source).map(Some),
        false => Ok(None),
    };
    mounts.iter().map(open).collect()
}

/// Whether a mount takes what the node mounts below it. Detached, it would miss that, so it is opened at the last
/// moment.
pub(super) fn propagates(mount: &Mount) -> bool {
    is_bind(&mount.source) && matches!(mount.propagation, SLAVE | SHARED)
}

/// Whether it also sends mounts to the node, which needs a clone of what is mounted there, and not of a slave.
pub(super) fn sends(mount: &Mount) -> bool {
    is_bind(&mount.source) && mount.propagation == SHARED
}

/// Whether a source is a path of the node.
pub(super) fn is_bind(source: &MountSource) -> bool {
    matches!(
        source,
        MountSource::Bind { .. } | MountSource::BindBelow { .. }
    )
}

/// A clone of what is mounted at a path of the node.
pub(super) fn open_bind(source: &MountSource) -> Result<OwnedFd> {
    match source {
        MountSource::Bind { path, recursive } => {
            let flags = clone_flags(*recursive);
            let path = resolve::check(path)?;
            open_tree(CWD, path, flags).doing(|| format!("open mount source {}", path.display()))
        }
        MountSource::BindBelow {
            root,
            path,
            recursive,
        } => {
            let doing = || format!("open {path:?} below {root}");
            let directory = open_host(root, OFlags::PATH).doing(doing)?;
            let found = resolve::beneath(directory.as_fd(), Path::new(path)).doing(doing)?;
            let flags = clone_flags(*recursive) | OpenTreeFlags::AT_EMPTY_PATH;
            open_tree(&found, "", flags).doing(doing)
        }
        _ => Err(Failure::system("not a bind mount")),
    }
}

fn clone_flags(recursive: bool) -> OpenTreeFlags {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    flags
}

/// A new filesystem, detached and private, with `MOUNT_ATTR_*` bits, all of it with the SELinux label if it is one that
/// can have labels.
pub(crate) fn new_filesystem(
    fstype: &str,
    options: &[(String, String)],
    attributes: u64,
    label: Option<&str>,
) -> Result<OwnedFd> {
    let context = fsopen(fstype, FsOpenFlags::FSOPEN_CLOEXEC)
        .doing(|| format!("open filesystem {fstype:?}"))?;
    if !options.iter().any(|(key, _)| key == "source") {
        // A name for mountinfo; some filesystems refuse to have one.
        let _ = fsconfig_set_string(&context, "source", fstype);
    }
    for (key, value) in options {
        let set = if value.is_empty() {
            fsconfig_set_flag(&context, key.as_str())
        } else {
            fsconfig_set_string(&context, key.as_str(), value.as_str())
        };
        set.doing(|| format!("set {key}={value} on {fstype} ({})", log_of(&context)))?;
    }
    if let Some(label) = label.filter(|_| LABELLED.contains(&fstype)) {
        fsconfig_set_string(&context, CONTEXT, label)
            .doing(|| format!("label {fstype} {label:?}"))?;
    }
    fsconfig_create(&context).doing(|| format!("create {fstype} ({})", log_of(&context)))?;
    // Truncated, a bit that this call does not know would be lost.
    let attributes = u32::try_from(attributes).unwrap_or(u32::MAX);
    let attributes = MountAttrFlags::from_bits_retain(attributes);
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .doing(|| format!("mount {fstype}"))?;
    if let Some(label) = label.filter(|_| fstype == "mqueue") {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&mounted, ".", flags, Mode::empty())
            .and_then(|root| fsetxattr(root, LABEL, label.as_bytes(), XattrFlags::empty()))
            .doing(|| format!("label {fstype} {label:?}"))?;
    }
    Ok(mounted)
}

/// Attributes and propagation, then the move onto the destination.
pub(super) fn place(
    root: BorrowedFd<'_>,
    host: &Host,
    mount: &Mount,
    source: &Source,
) -> Result<()> {
    let tree = &source.tree;
    let destination = destination(root, mount, tree)?;
    let name = || format!("mount {}", mount.destination);
    if let (MountSource::CopyUp { .. }, Target::Found(destination)) = (&mount.source, &destination)
    {
        let doing = || format!("copy what is at {}", mount.destination);
        copy_up(host, destination, tree).doing(doing)?;
    }
    if !source.is_complete {
        apply_attributes(mount, tree).doing(name)?;
    }
    match destination {
        Target::Found(found) => attach(tree.as_fd(), found.as_fd()),
        // Whatever another container puts in its place meanwhile, a link is not followed.
        Target::New(dir, name) => {
            move_mount(tree, "", dir, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        }
    }
    .doing(name)
}

/// Mounts once more what was [placed](place) from a source that was opened early, so that the list of mounts has the
/// order in which they were asked for: the kernel sorts it by age.
pub(super) fn renew(root: BorrowedFd<'_>, mount: &Mount) -> Result<()> {
    let name = || format!("mount {} in its turn", mount.destination);
    let path = resolve::check(&mount.destination)?;
    let placed = resolve::lookup(root, path).doing(name)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let clone = open_tree(&placed, "", flags).doing(name)?;
    let link = format!("/proc/self/fd/{}", placed.as_raw_fd());
    unmount(link, UnmountFlags::DETACH).doing(name)?;
    let destination = resolve::lookup(root, path).doing(name)?;
    attach(clone.as_fd(), destination.as_fd()).doing(name)
}

/// Moves a detached mount onto what a descriptor is open on.
pub(super) fn attach(
    source: BorrowedFd<'_>,
    destination: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(source, "", destination, "", flags)
}

/// What a bind mount is called in a failure.
pub(super) fn name_of(source: &MountSource) -> String {
    match source {
        MountSource::Bind { path, .. } => path.clone(),
        MountSource::BindBelow { root, path, .. } => format!("{root}/{path}"),
        MountSource::Filesystem { fstype, .. } => fstype.clone(),
        MountSource::CopyUp { .. } => TMPFS.to_owned(),
        MountSource::Cgroup => "cgroup".to_owned(),
        MountSource::Shm { .. } => "/dev/shm".to_owned(),
    }
}

fn apply_attributes(mount: &Mount, source: &OwnedFd) -> rustix::io::Result<()> {
    let propagation = Attributes {
        propagation: match mount.propagation {
            0 => PRIVATE,
            other => other,
        },
        ..Attributes::default()
    };
    let attributes = Attributes {
        // Ids are mapped by the node's root, before this.
        set: mount.attr_set & !ATTR_IDMAP,
        clear: mount.attr_clear | to_clear(mount.attr_set),
        ..propagation
    };
    // Propagation is of the whole tree, attributes only where that is asked for.
    if is_tree(&mount.source) && !mount.attr_recursive {
        mount_setattr(source, true, propagation)?;
    }
    mount_setattr(source, mount.attr_recursive, attributes)
}

/// What must be cleared for attributes to be set: those of the access time are a field and not bits, so all of it for one.
pub(super) fn to_clear(set: u64) -> u64 {
    match set & ATTR_ATIME {
        0 => 0,
        _ => ATTR_ATIME,
    }
}

/// Whether a source may be more than one mount.
fn is_tree(source: &MountSource) -> bool {
    matches!(
        source,
        MountSource::Bind {
            recursive: true,
            ..
        } | MountSource::BindBelow {
            recursive: true,
            ..
        }
    )
}

/// The destination, made when it is missing, as what the source is.
fn destination(root: BorrowedFd<'_>, mount: &Mount, source: &OwnedFd) -> Result<Target> {
    let path = resolve::check(&mount.destination)?;
    if !matches!(mount.propagation, 0 | SLAVE | SHARED | UNBINDABLE) {
        let message = format!(
            "propagation {:#x} of mount {}",
            mount.propagation, mount.destination
        );
        return Err(Failure::invalid(message));
    }
    if let Some(name) = real_place(mount) {
        return resolve::real_dir(root, name).map(Target::Found);
    }
    let kind = match mount.source {
        MountSource::Filesystem { .. } => Kind::Directory,
        _ => resolve::kind_of(source)?,
    };
    let target = resolve::ensure_target(root, path, kind)?;
    // Nothing can be made in procfs; in an empty /proc of the image it can, and is refused as well.
    match &target {
        Target::Found(found) => refuse_proc(mount, path, source, found)?,
        Target::New(dir, _) if path.starts_with("/proc") => refuse_proc(mount, path, source, dir)?,
        Target::New(..) => {}
    }
    Ok(target)
}

/// Whether what is mounted goes to a directory directly below the root that must not be a link, and is this one.
pub(super) fn is_real(mount: &Mount, name: &str) -> bool {
    real_place(mount) == Some(name)
}

/// The one component of where procfs or sysfs goes.
fn real_place(mount: &Mount) -> Option<&str> {
    match &mount.source {
        MountSource::Filesystem { fstype, .. } if matches!(fstype.as_str(), "proc" | "sysfs") => {
            top_level(Path::new(&mount.destination))
        }
        _ => None,
    }
}

/// The one component of a path like `/proc`.
fn top_level(path: &Path) -> Option<&str> {
    let mut parts = path
        .components()
        .filter(|c| matches!(c, Component::Normal(_)));
    match (parts.next(), parts.next()) {
        (Some(name), None) => name.as_os_str().to_str(),
        _ => None,
    }
}

/// Nothing may cover procfs or parts of it, but procfs itself and a few files: labels and sysctls are
/// written there, and what is masked there must be the real thing.
fn refuse_proc(mount: &Mount, path: &Path, source: &OwnedFd, destination: &OwnedFd) -> Result<()> {
    let is_procfs = |fd: &OwnedFd| {
        fstatfs(fd)
            .map(|s| s.f_type == PROC_SUPER_MAGIC)
            .doing(|| "stat a mount")
    };
    let below = path.strip_prefix("/proc").ok();
    let covers = below.is_some() || is_procfs(destination)?;
    let allowed = match below.and_then(Path::to_str) {
        Some("") => is_procfs(source)?,
        Some(file) => PROC_FILES.contains(&file),
        None => false,
    };
    if covers && !allowed {
        let message = format!("mount {} would cover a part of /proc", mount.destination);
        return Err(Failure::invalid(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_component_is_top_level() {
        for (path, want) in [
            ("/proc", Some("proc")),
            ("/proc/", Some("proc")),
            ("/a/b", None),
            ("/", None),
        ] {
            assert_eq!(top_level(Path::new(path)), want);
        }
    }
}
