//! Devices of the host in a container: nodes to make, and rules to let them be used.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxDevice, LinuxDeviceType};

use crate::api::{ContainerConfig, DeviceMapping};
use crate::cgroup::{DeviceAccess, DeviceRule};

/// What the shim makes itself, or what belongs to this machine's own terminals and mounts.
const NOT_SHARED: [&str; 12] = [
    "pts", "shm", "fd", "mqueue", "console", "ptmx", "null", "zero", "full", "random", "urandom",
    "tty",
];

/// How deep directories of devices are looked into.
const MAX_DEPTH: usize = 4;

/// A device that cannot be given.
#[derive(Debug, thiserror::Error)]
#[error("cannot use device {path}")]
pub(crate) struct DeviceError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Nodes and rules.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    pub(crate) nodes: Vec<LinuxDevice>,
    pub(crate) rules: Vec<DeviceRule>,
}

/// What the configuration asks for: every device of the host when privileged, else the standard ones and
/// those that are named.
pub(crate) fn resolve(config: &ContainerConfig) -> Result<Devices, DeviceError> {
    let mut devices = Devices::default();
    if config.security.privileged {
        devices.rules = DeviceRule::everything();
        devices.add_directory(Path::new("/dev"), Path::new("/dev"), "rwm", 0);
        return Ok(devices);
    }
    devices.rules = DeviceRule::standard();
    for mapping in &config.devices {
        devices.add(mapping)?;
    }
    Ok(devices)
}

impl Devices {
    fn add(&mut self, mapping: &DeviceMapping) -> Result<(), DeviceError> {
        let failed = |source| DeviceError {
            path: mapping.host_path.clone(),
            source,
        };
        let target = Path::new(&mapping.container_path);
        if !target.starts_with("/dev") || mapping.container_path.contains("..") {
            let what = "its path in the container is not below /dev";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let permissions = match mapping.permissions.as_str() {
            "" => "rwm",
            given if given.bytes().all(|byte| b"rwm".contains(&byte)) => given,
            _ => {
                let what = "its permissions are not of \"rwm\"";
                return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
            }
        };
        let metadata = fs::metadata(&mapping.host_path).map_err(failed)?;
        if metadata.is_dir() {
            self.add_directory(&mapping.host_path, target, permissions, 0);
            return Ok(());
        }
        if self.add_node(target, &metadata, permissions) {
            return Ok(());
        }
        Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a device",
        )))
    }

    /// Every device in a directory; what vanishes meanwhile is not there.
    fn add_directory(&mut self, host: &Path, target: &Path, permissions: &str, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        for entry in fs::read_dir(host).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if depth == 0 && NOT_SHARED.iter().any(|skipped| *skipped == name) {
                continue;
            }
            // Links are not followed: their targets come by themselves.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                let deeper = depth + 1;
                self.add_directory(&entry.path(), &target.join(&name), permissions, deeper);
            } else {
                self.add_node(&target.join(&name), &metadata, permissions);
            }
        }
    }

    fn add_node(&mut self, target: &Path, metadata: &fs::Metadata, permissions: &str) -> bool {
        let kind = metadata.file_type();
        let number = metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let (typ, access) = if kind.is_char_device() {
            (
                LinuxDeviceType::C,
                DeviceAccess::Char(Some(major), Some(minor)),
            )
        } else if kind.is_block_device() {
            (
                LinuxDeviceType::B,
                DeviceAccess::Block(Some(major), Some(minor)),
            )
        } else {
            return false;
        };
        let mut node = LinuxDevice::default();
        node.set_path(target.to_owned())
            .set_typ(typ)
            .set_major(i64::from(major))
            .set_minor(i64::from(minor))
            .set_file_mode(Some(metadata.mode() & 0o7777))
            .set_uid(Some(metadata.uid()))
            .set_gid(Some(metadata.gid()));
        self.nodes.push(node);
        self.rules.push(DeviceRule {
            access,
            permissions: permissions.to_owned(),
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(host: &str, container: &str, permissions: &str) -> DeviceMapping {
        DeviceMapping {
            container_path: container.into(),
            host_path: host.into(),
            permissions: permissions.into(),
        }
    }

    fn resolved(mapping: DeviceMapping) -> Result<Devices, DeviceError> {
        resolve(&ContainerConfig {
            devices: vec![mapping],
            ..ContainerConfig::default()
        })
    }

    #[test]
    fn named_device_gets_a_node_and_a_rule() {
        let devices = resolved(mapping("/dev/zero", "/dev/nought", "rw")).unwrap();
        assert_eq!((devices.nodes[0].major(), devices.nodes[0].minor()), (1, 5));
        assert_eq!(devices.nodes[0].path(), Path::new("/dev/nought"));
        assert_eq!(devices.rules.last().unwrap().to_string(), "c 1:5 rw");
        assert_eq!(devices.rules.len(), DeviceRule::standard().len() + 1);
    }

    #[test]
    fn what_is_no_device_is_refused() {
        for (host, container, permissions) in [
            ("/etc/passwd", "/dev/x", "rwm"),
            ("/no/such", "/dev/x", "rwm"),
            ("/dev/zero", "/etc/x", "rwm"),
            ("/dev/zero", "/dev/../etc/x", "rwm"),
            ("/dev/zero", "/dev/x", "rwx"),
        ] {
            assert!(
                resolved(mapping(host, container, permissions)).is_err(),
                "{host} {container}"
            );
        }
    }

    #[test]
    fn privileged_container_may_use_everything() {
        let mut config = ContainerConfig::default();
        config.security.privileged = true;
        let devices = resolve(&config).unwrap();
        assert_eq!(devices.rules[0].access, DeviceAccess::All);
        assert!(
            devices
                .nodes
                .iter()
                .all(|node| node.path() != Path::new("/dev/null"))
        );
    }
}
