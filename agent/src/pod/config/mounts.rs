//! Mounts of volumes into containers. Looks at paths of subPaths, so it blocks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use hanok_runtime::api::{Mount, Propagation};
use k8s_openapi::api::core::v1::{Container, VolumeMount};

use crate::env::expand::expand;
use crate::sinks::MountedVolumes;
use crate::volume::holds_objects;

/// Where the container's volumes go. The error is what the user reads.
pub fn volume_mounts(
    container: &Container,
    volumes: &MountedVolumes,
    envs: &[(String, String)],
) -> Result<Vec<Mount>, String> {
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .map(|mount| volume_mount(mount, volumes, envs))
        .collect()
}

/// Whether one of the container's mounts takes that path.
pub fn takes(container: &Container, path: &str) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.mount_path.trim_end_matches('/') == path)
}

/// One mount.
fn volume_mount(
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
    let expression = mount
        .sub_path_expr
        .as_deref()
        .filter(|text| !text.is_empty());
    let sub_path = match expression {
        Some(text) => {
            let lookup = |name: &str| {
                envs.iter()
                    .find(|(key, _)| key == name)
                    .map(|(_, value)| value.as_str())
            };
            Some(expand(text, lookup).into_owned())
        }
        None => mount.sub_path.clone().filter(|text| !text.is_empty()),
    };
    let host_path = match sub_path {
        Some(sub_path) => resolve_sub_path(volume, &sub_path).map_err(|cause| {
            format!(
                "failed to prepare subPath for volumeMount {:?}: {cause}",
                mount.name
            )
        })?,
        None => volume.clone(),
    };
    let readonly = mount.read_only.unwrap_or(false) || holds_objects(volume);
    let container_path = match mount.mount_path.starts_with('/') {
        true => mount.mount_path.clone(),
        false => format!("/{}", mount.mount_path),
    };
    Ok(Mount {
        container_path,
        host_path,
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
    })
}

/// The path of a subPath, made as a directory when it is absent. What lies in the volume was written by
/// containers: no link may lead out of it.
fn resolve_sub_path(volume: &Path, sub_path: &str) -> Result<PathBuf, String> {
    let relative = Path::new(sub_path);
    let inside = relative
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(format!(
            "{sub_path:?} must be a relative path without \"..\""
        ));
    }
    let root = fs::canonicalize(volume).map_err(|error| error.to_string())?;
    let wanted = root.join(relative);
    if let Ok(found) = fs::canonicalize(&wanted) {
        return match found.starts_with(&root) {
            true => Ok(found),
            false => Err(format!("{sub_path:?} leads out of the volume")),
        };
    }
    let mode = fs::metadata(&root)
        .map_err(|error| error.to_string())?
        .permissions()
        .mode();
    let mut path = root.clone();
    for part in relative.components() {
        path.push(part);
        if fs::symlink_metadata(&path).is_err() {
            fs::create_dir(&path).map_err(|error| error.to_string())?;
            let mode = fs::Permissions::from_mode(mode & 0o7777);
            fs::set_permissions(&path, mode).map_err(|error| error.to_string())?;
        }
        path = fs::canonicalize(&path).map_err(|error| error.to_string())?;
        if !path.starts_with(&root) {
            return Err(format!("{sub_path:?} leads out of the volume"));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::os::unix::fs::symlink;

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
            readonly: true,
            recursive_readonly: true,
            propagation: Propagation::HostToContainer,
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
        let volume = dir.path().join("v");
        fs::create_dir(&volume).expect("a directory");
        let root = fs::canonicalize(&volume).expect("a path");
        let sub = |path: &str| {
            mounted(
                json!({"name": "v", "mountPath": "/d", "subPath": path}),
                &volume,
            )
        };
        assert_eq!(sub("a/b").expect("a mount").host_path, root.join("a/b"));
        assert!(root.join("a/b").is_dir());
        let expression = json!({"name": "v", "mountPath": "/d", "subPathExpr": "$(POD)/x"});
        assert_eq!(
            mounted(expression, &volume).expect("a mount").host_path,
            root.join("web/x")
        );
        symlink("/etc", volume.join("out")).expect("a link");
        symlink(dir.path(), volume.join("up")).expect("a link");
        for path in ["../x", "/etc", "out", "out/passwd", "up/new", "a/../../x"] {
            assert!(sub(path).is_err(), "{path}");
        }
        assert!(!dir.path().join("new").exists());
    }
}
