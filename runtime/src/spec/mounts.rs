//! What is mounted where in a container, in the order in which it is mounted.

use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::Mount;

use super::{HostFacts, ImageFacts, SpecError};
use crate::api::{ContainerConfig, NamespaceMode, PodSandboxConfig, Propagation};

/// Mount type of the pod's shared /dev/shm, which the shim holds. Not a filesystem of the kernel's.
pub const POD_SHM: &str = "hanok-pod-shm";

/// Begins the mount option that names the part of the source that is mounted. Not an option of the kernel's.
pub const SUB_PATH: &str = "x-hanok-sub-path=";

/// Size of /dev/shm, bytes.
pub const SHM_SIZE: u64 = 64 << 20;

/// Most volumes that an image may ask for.
const MAX_IMAGE_VOLUMES: usize = 64;

/// Every mount, parents before children. A volume of the pod replaces a standard mount and a volume of the
/// image at the same place.
pub(super) fn mounts(
    sandbox: &PodSandboxConfig,
    config: &ContainerConfig,
    image: &ImageFacts,
    host: &HostFacts,
) -> Result<Vec<Mount>, SpecError> {
    let mut list = standard(sandbox, config);
    if let Some(file) = &host.hostname_file {
        let access = match config.security.readonly_rootfs {
            true => "ro",
            false => "rw",
        };
        list.push(mount(
            "/etc/hostname",
            "bind",
            file,
            &["bind", "rprivate", access],
        ));
    }
    for (destination, index) in image_volumes(image)? {
        let source = host.volumes.join(index.to_string());
        replace(
            &mut list,
            mount(destination, "bind", source, &["rbind", "rprivate", "rw"]),
        );
    }
    for volume in &config.mounts {
        let destination = destination("mount path", &volume.container_path)?;
        if Path::new(&destination).starts_with("/proc") {
            return Err(SpecError::Invalid {
                field: "mount path",
                value: destination,
                reason: "nothing may be mounted over /proc, which confines the container",
            });
        }
        let mode = match (volume.readonly, volume.recursive_readonly) {
            (_, true) => "rro",
            (true, false) => "ro",
            (false, false) => "rw",
        };
        let propagation = match volume.propagation {
            Propagation::Private => "rprivate",
            Propagation::HostToContainer => "rslave",
            Propagation::Bidirectional => "rshared",
        };
        let mut options = vec!["rbind", propagation, mode];
        let sub_path = format!("{SUB_PATH}{}", volume.sub_path);
        if !volume.sub_path.is_empty() {
            options.push(&sub_path);
        }
        replace(
            &mut list,
            mount(destination, "bind", &volume.host_path, &options),
        );
    }
    if sandbox.user_namespace.is_some() {
        list.iter_mut().for_each(map_ids);
    }
    // Stable: mounts of the same depth keep their order.
    list.sort_by_key(|mount| mount.destination().components().count());
    Ok(list)
}

/// Files on disk have the ids that the container sees. Not the host name's: it lies in a tmpfs, which has no id-mapped
/// mounts before Linux 6.3, and everybody may read it whoever owns it.
fn map_ids(mount: &mut Mount) {
    let is_ours = mount.destination() == Path::new("/etc/hostname");
    if mount.typ().as_deref() == Some("bind") && !is_ours {
        let mut options = mount.options().clone().unwrap_or_default();
        options.push("idmap".to_owned());
        mount.set_options(Some(options));
    }
}

/// Destinations of the image's volumes with their numbers. Untrusted: normal absolute paths only, and none
/// where a mount of ours decides what the container may do.
pub fn image_volumes(image: &ImageFacts) -> Result<Vec<(String, usize)>, SpecError> {
    let invalid = |value: &str, reason| SpecError::Invalid {
        field: "image volume",
        value: value.into(),
        reason,
    };
    if image.volumes.len() > MAX_IMAGE_VOLUMES {
        return Err(invalid(
            &image.volumes[MAX_IMAGE_VOLUMES],
            "the image has more than 64",
        ));
    }
    let mut found = Vec::new();
    for (index, volume) in image.volumes.iter().enumerate() {
        let destination = destination("image volume", volume)?;
        let walled = ["/proc", "/sys", "/dev"];
        if destination == "/"
            || walled
                .iter()
                .any(|wall| Path::new(&destination).starts_with(wall))
        {
            return Err(invalid(volume, "an image cannot have a volume there"));
        }
        found.push((destination, index));
    }
    Ok(found)
}

/// Propagation of the root filesystem: what a volume passes to the host must be allowed to leave.
pub(super) fn rootfs_propagation(config: &ContainerConfig) -> Option<String> {
    let any = |kind| config.mounts.iter().any(|mount| mount.propagation == kind);
    if any(Propagation::Bidirectional) {
        return Some("rshared".to_owned());
    }
    any(Propagation::HostToContainer).then(|| "rslave".to_owned())
}

fn standard(sandbox: &PodSandboxConfig, config: &ContainerConfig) -> Vec<Mount> {
    let privileged = config.security.privileged;
    let access = if privileged { "rw" } else { "ro" };
    let quiet = ["nosuid", "noexec", "nodev"];
    let size = format!("size={SHM_SIZE}");
    let shm = if sandbox.ipc == NamespaceMode::Node {
        // Shared memory of the node, as its IPC namespace.
        mount(
            "/dev/shm",
            "bind",
            "/dev/shm",
            &["rbind", "rprivate", "rw", "nosuid", "noexec", "nodev"],
        )
    } else {
        mount(
            "/dev/shm",
            POD_SHM,
            "shm",
            &["nosuid", "noexec", "nodev", "mode=1777", &size],
        )
    };
    vec![
        mount("/proc", "proc", "proc", &quiet),
        mount(
            "/dev",
            "tmpfs",
            "tmpfs",
            &["nosuid", "strictatime", "mode=755", "size=65536k"],
        ),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &[
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
            ],
        ),
        shm,
        mount("/dev/mqueue", "mqueue", "mqueue", &quiet),
        mount(
            "/sys",
            "sysfs",
            "sysfs",
            &["nosuid", "noexec", "nodev", access],
        ),
        mount(
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            &["nosuid", "noexec", "nodev", "relatime", access],
        ),
    ]
}

fn mount(
    destination: impl Into<PathBuf>,
    typ: &str,
    source: impl Into<PathBuf>,
    options: &[&str],
) -> Mount {
    let mut mount = Mount::default();
    mount
        .set_destination(destination.into())
        .set_typ(Some(typ.to_owned()))
        .set_source(Some(source.into()))
        .set_options(Some(options.iter().map(ToString::to_string).collect()));
    mount
}

fn replace(list: &mut Vec<Mount>, mount: Mount) {
    list.retain(|other| other.destination() != mount.destination());
    list.push(mount);
}

/// An absolute path without "." and "..", double or trailing slashes.
fn destination(field: &'static str, path: &str) -> Result<String, SpecError> {
    let invalid = |reason| SpecError::Invalid {
        field,
        value: path.to_owned(),
        reason,
    };
    if !path.starts_with('/') {
        return Err(invalid("not an absolute path"));
    }
    if path.contains('\0') || path.len() >= 4096 {
        return Err(invalid("not a path"));
    }
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => return Err(invalid("contains \"..\"")),
            other => clean.push(other),
        }
    }
    Ok(clean.to_string_lossy().into_owned())
}
