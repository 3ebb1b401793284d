//! What a volume of files holds: from its source and the objects to paths, bytes and modes. Pure.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, Secret};

use crate::env::field::{NodeFacts, field_value, resource_value};

/// Mode of files whose source names none.
pub(super) const DEFAULT_MODE: i32 = 0o644;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// Its contents.
    pub(super) data: Vec<u8>,
    /// Permission bits.
    pub(super) mode: u32,
    /// Its owner, when it is not root.
    pub(super) uid: Option<u32>,
}

/// Files by relative path.
pub(super) type Files = BTreeMap<String, File>;

/// Bits of a mode that the API allows.
fn bits(mode: Option<i32>, default: i32) -> u32 {
    mode.unwrap_or(default).unsigned_abs() & 0o777
}

/// Adds a file, when its path stays inside the volume.
pub(super) fn add(files: &mut Files, path: &str, file: File) -> Result<(), String> {
    check_path(path)?;
    files.insert(path.to_owned(), file);
    Ok(())
}

/// A relative path of ordinary names, none of which is one of the volume's own (they begin with two dots).
fn check_path(path: &str) -> Result<(), String> {
    let ordinary =
        |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    let fits = path.len() < 4096 && !path.contains('\0') && path.split('/').all(ordinary);
    if !fits || path.starts_with("..") {
        return Err(format!(
            "invalid path {path:?}: it must be relative, without \"..\""
        ));
    }
    Ok(())
}

/// Chooses keys: all of them, or those that `items` names, under other paths and modes if it says so.
fn choose<'d>(
    data: BTreeMap<&'d str, &'d [u8]>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
    missing: &str,
) -> Result<Files, String> {
    let mut files = Files::new();
    let file = |data: &[u8], mode| File {
        data: data.to_vec(),
        mode,
        uid: None,
    };
    let items = items.unwrap_or_default();
    if items.is_empty() {
        for (key, value) in data {
            add(&mut files, key, file(value, bits(None, mode)))?;
        }
        return Ok(files);
    }
    for item in items {
        match data.get(item.key.as_str()) {
            Some(value) => add(&mut files, &item.path, file(value, bits(item.mode, mode)))?,
            None if optional => {}
            None => return Err(format!("{missing}: {}", item.key)),
        }
    }
    Ok(files)
}

/// The files of a ConfigMap; none of it (an optional one that does not exist) gives none.
pub(super) fn config_map(
    object: Option<&ConfigMap>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
) -> Result<Files, String> {
    let mut data: BTreeMap<&str, &[u8]> = BTreeMap::new();
    if let Some(object) = object {
        let text = object.data.iter().flatten();
        data.extend(text.map(|(key, value)| (key.as_str(), value.as_bytes())));
        let binary = object.binary_data.iter().flatten();
        data.extend(binary.map(|(key, ByteString(value))| (key.as_str(), value.as_slice())));
    }
    choose(
        data,
        items,
        mode,
        optional,
        "configmap references non-existent config key",
    )
}

/// The files of a Secret.
pub(super) fn secret(
    object: Option<&Secret>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
) -> Result<Files, String> {
    let data = object
        .iter()
        .flat_map(|object| object.data.iter().flatten());
    let data = data
        .map(|(key, ByteString(value))| (key.as_str(), value.as_slice()))
        .collect();
    choose(
        data,
        items,
        mode,
        optional,
        "references non-existent secret key",
    )
}

/// The files of the downward API.
pub(super) fn downward_api(
    pod: &Pod,
    facts: &NodeFacts,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: i32,
) -> Result<Files, String> {
    let mut files = Files::new();
    for item in items.unwrap_or_default() {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(pod, facts, &field.field_path),
            (None, Some(field)) => resource_value(pod, None, facts, field),
            (None, None) => continue,
        };
        let data = value.map_err(|error| error.to_string())?.into_bytes();
        add(
            &mut files,
            &item.path,
            File {
                data,
                mode: bits(item.mode, mode),
                uid: None,
            },
        )?;
    }
    Ok(files)
}

/// A service account's token, or the like. Readable by everybody in the pod, unless the pod says who its users are: then by its
/// one user or by its group only.
pub(super) fn of_users(pod: &Pod, data: Vec<u8>, mode: i32) -> File {
    let uid = common_user(pod);
    let private = uid.is_some() || fs_group(pod).is_some();
    let mode = if private { 0o600 } else { bits(None, mode) };
    File { data, mode, uid }
}

/// The group that owns the pod's volumes.
pub(super) fn fs_group(pod: &Pod) -> Option<u32> {
    let security = pod.spec.as_ref()?.security_context.as_ref()?;
    // The API server takes no other.
    u32::try_from(i32::try_from(security.fs_group?).ok()?).ok()
}

/// The one user that every container of the pod runs as.
fn common_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|security| security.run_as_user);
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let contexts = containers.map(|container| container.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let contexts = contexts.chain(ephemeral.map(|container| container.security_context.as_ref()));
    let mut users = contexts.map(|security| security.and_then(|s| s.run_as_user).or(of_pod));
    let first = users.next()??;
    users
        .all(|user| user == Some(first))
        .then(|| u32::try_from(first).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn items(value: Value) -> Vec<KeyToPath> {
        serde_json::from_value(value).unwrap()
    }

    fn object() -> ConfigMap {
        serde_json::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AP8="}}))
            .unwrap()
    }

    #[test]
    fn without_items_every_key_is_a_file() {
        let files = config_map(Some(&object()), None, DEFAULT_MODE, false).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(files["c"].data, [0, 255]);
        assert_eq!(files["a"].mode, 0o644);
    }

    #[test]
    fn items_choose_paths_and_modes() {
        let chosen =
            items(json!([{"key": "a", "path": "x/y", "mode": 0o400}, {"key": "b", "path": "z"}]));
        let files = config_map(Some(&object()), Some(&chosen), 0o640, false).unwrap();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["x/y", "z"]);
        assert_eq!((files["x/y"].mode, files["z"].mode), (0o400, 0o640));
    }

    #[test]
    fn a_missing_key_fails_unless_the_source_is_optional() {
        let chosen = items(json!([{"key": "nope", "path": "x"}]));
        let error = config_map(Some(&object()), Some(&chosen), 0o644, false).unwrap_err();
        assert_eq!(error, "configmap references non-existent config key: nope");
        let error = secret(None, Some(&chosen), 0o644, false).unwrap_err();
        assert_eq!(error, "references non-existent secret key: nope");
        assert!(
            config_map(None, Some(&chosen), 0o644, true)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn no_path_leaves_the_volume() {
        for path in [
            "", "/x", "../x", "a/../b", "..data", "..2026", "a//b", ".", "a/./b", "a\0b",
        ] {
            let chosen = items(json!([{"key": "a", "path": path}]));
            let error = config_map(Some(&object()), Some(&chosen), 0o644, false).unwrap_err();
            assert!(error.starts_with("invalid path"), "{path:?} gave {error}");
        }
        for path in ["a", ".a", "a/b/c", "a..b", "a/..b"] {
            let chosen = items(json!([{"key": "a", "path": path}]));
            assert!(
                config_map(Some(&object()), Some(&chosen), 0o644, false).is_ok(),
                "{path}"
            );
        }
    }

    #[test]
    fn a_token_belongs_to_the_pods_only_user() {
        for (spec, mode, uid) in [
            (json!({"containers": [{"name": "a"}]}), 0o644, None),
            (
                json!({"containers": [{"name": "a"}], "securityContext": {"fsGroup": 5}}),
                0o600,
                None,
            ),
            (
                json!({"containers": [{"name": "a"}], "securityContext": {"runAsUser": 7}}),
                0o600,
                Some(7),
            ),
            (
                json!({"containers": [{"name": "a", "securityContext": {"runAsUser": 8}}, {"name": "b"}],
                       "securityContext": {"runAsUser": 7}}),
                0o644,
                None,
            ),
            (
                json!({"containers": [{"name": "a", "securityContext": {"runAsUser": 8}}]}),
                0o600,
                Some(8),
            ),
        ] {
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            let file = of_users(&pod, Vec::new(), DEFAULT_MODE);
            assert_eq!((file.mode, file.uid), (mode, uid), "{spec}");
        }
    }

    #[test]
    fn the_downward_api_names_fields_and_resources() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"memory": "2Mi"}}}]},
        }))
        .unwrap();
        let items: Vec<DownwardAPIVolumeFile> = serde_json::from_value(json!([
            {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
            {"path": "mem", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
        ]))
        .unwrap();
        let files = downward_api(&pod, &NodeFacts::default(), Some(&items), 0o644).unwrap();
        assert_eq!(files["labels"].data, b"a=\"b\"");
        assert_eq!(files["mem"].data, b"2");
    }
}
