//! Mounts of volumes into containers. Makes what subPaths name, so it blocks.

use std::cell::RefCell;

use hanok_runtime::api::{Mount, Propagation};
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use crate::env::expand::{TooLong, expand};
use crate::sinks::MountedVolumes;
use crate::volume::{holds_objects, is_pods_own, sub_path};

/// Longest path that the kernel takes, bytes: PATH_MAX without the NUL behind it.
const LONGEST_PATH: usize = 4095;

/// Where the container's volumes go. The error is what the user reads.
pub fn volume_mounts(
    container: &Container,
    volumes: &MountedVolumes,
    envs: &[(String, String)],
) -> Result<Vec<Mount>, String> {
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .map(|mount| volume_mount(&container.name, mount, volumes, envs))
        .collect()
}

/// Whether one of the container's mounts takes that path.
pub fn takes(container: &Container, path: &str) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.mount_path.trim_end_matches('/') == path)
}

/// One mount.
fn volume_mount(
    container: &str,
    mount: &VolumeMount,
    volumes: &MountedVolumes,
    envs: &[(String, String)],
) -> Result<Mount, String> {
    let volume = volumes.get(&mount.name).ok_or_else(|| {
        format!(
            "cannot find volume {:?} to mount into container",
            mount.name
        )
    })?;
    let sub_path = sub_path_of(mount, envs)?;
    if let Some(sub_path) = &sub_path {
        sub_path::prepare(volume, sub_path).map_err(|cause| {
            tracing::warn!(container, volume = mount.name, cause, "no subPath");
            format!(
                "failed to prepare subPath for volumeMount {:?} of container {container:?}",
                mount.name
            )
        })?;
    }
    let readonly = mount.read_only.unwrap_or(false) || holds_objects(volume);
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    Ok(Mount {
        container_path,
        host_path: volume.clone(),
        sub_path: sub_path.unwrap_or_default(),
        readonly,
        recursive_readonly: readonly
            && matches!(
                mount.recursive_read_only.as_deref(),
                Some("Enabled" | "IfPossible")
            ),
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            _ => Propagation::Private,
        },
        selinux_relabel: is_pods_own(volume),
    })
}

/// Which part of the volume is mounted; none for all of it. Variables of a subPathExpr must be there.
fn sub_path_of(mount: &VolumeMount, envs: &[(String, String)]) -> Result<Option<String>, String> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let path = match given(&mount.sub_path_expr) {
        None => given(&mount.sub_path),
        Some(text) => {
            let missing = RefCell::new(None);
            let lookup = |name: &str| {
                let found = envs.iter().find(|(key, _)| key == name);
                if found.is_none() {
                    missing.borrow_mut().get_or_insert_with(|| name.to_owned());
                }
                found.map(|(_, value)| value.as_str())
            };
            let path = expand(&text, lookup, LONGEST_PATH);
            if let Some(name) = missing.take() {
                return Err(format!("missing value for {name}"));
            }
            let path = path.map_err(|TooLong| {
                format!("the subPathExpr of volumeMount {:?} is longer than a path can be, {LONGEST_PATH} bytes", mount.name)
            })?;
            Some(path.into_owned()).filter(|path| !path.is_empty())
        }
    };
    match &path {
        Some(path) if path.starts_with('/') => Err(format!(
            "error SubPath `{path}` must not be an absolute path"
        )),
        Some(path) if path.split('/').any(|part| part == "..") => Err(format!(
            "unable to provision SubPath `{path}`: must not contain '..'"
        )),
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::path::Path;

    fn mounted(mount: Value, volume: &Path) -> Result<Mount, String> {
        let container = serde_json::from_value(json!({"name": "c", "volumeMounts": [mount]}));
        let volumes = [("v".to_owned(), volume.to_owned())].into();
        let envs = [("POD".to_owned(), "web".to_owned())];
        volume_mounts(&container.expect("a container"), &volumes, &envs)
            .map(|mut list| list.remove(0))
    }

    #[test]
    fn a_mount_is_mapped_with_its_flags() {
        let mount = mounted(
            json!({"name": "v", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": "Enabled",
                   "mountPropagation": "HostToContainer"}),
            Path::new("/vol"),
        );
        let want = Mount {
            container_path: "/data".into(),
            host_path: "/vol".into(),
            sub_path: String::new(),
            readonly: true,
            recursive_readonly: true,
            propagation: Propagation::HostToContainer,
            selinux_relabel: false,
        };
        assert_eq!(mount, Ok(want));
        assert!(
            mounted(
                json!({"name": "other", "mountPath": "/data"}),
                Path::new("/vol")
            )
            .is_err()
        );
    }

    #[test]
    fn a_volume_of_an_objects_contents_is_read_only_whatever_the_container_asks_for() {
        let mount = json!({"name": "v", "mountPath": "/d"});
        for (path, readonly) in [
            ("/r/pods/u/volumes/kubernetes.io~secret/v", true),
            ("/r/pods/u/volumes/kubernetes.io~projected/v", true),
            ("/r/pods/u/volumes/kubernetes.io~empty-dir/v", false),
            ("/", false),
        ] {
            let found = mounted(mount.clone(), Path::new(path)).expect("a mount");
            assert_eq!(found.readonly, readonly, "{path}");
        }
    }

    #[test]
    fn a_sub_path_is_made_and_stays_inside() {
        let dir = tempfile::tempdir().expect("a directory");
        let volume = dir.path();
        let sub = |path: &str| {
            mounted(
                json!({"name": "v", "mountPath": "/d", "subPath": path}),
                volume,
            )
        };
        let mount = sub("a/b").expect("a mount");
        assert_eq!(
            (mount.host_path.as_path(), mount.sub_path.as_str()),
            (volume, "a/b")
        );
        assert!(volume.join("a/b").is_dir());
        let expression = json!({"name": "v", "mountPath": "/d", "subPathExpr": "$(POD)/x"});
        assert_eq!(
            mounted(expression, volume).expect("a mount").sub_path,
            "web/x"
        );
        for (text, want) in [
            ("$(NO)/x", "missing value for NO"),
            (
                "/$(POD)",
                "error SubPath `/web` must not be an absolute path",
            ),
            (
                "a/../$(POD)",
                "unable to provision SubPath `a/../web`: must not contain '..'",
            ),
        ] {
            let expression = json!({"name": "v", "mountPath": "/d", "subPathExpr": text});
            assert_eq!(mounted(expression, volume), Err(want.to_owned()));
        }
        std::os::unix::fs::symlink("/etc", volume.join("out")).expect("a link");
        let error = sub("out").expect_err("outside");
        assert!(
            error.starts_with("failed to prepare subPath for volumeMount \"v\""),
            "{error}"
        );
    }
}
