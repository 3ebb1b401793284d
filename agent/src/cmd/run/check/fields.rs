//! Fields of a pod that have bounds or a form. Pure.

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Complaint, label};

/// Largest id of a user or group.
const MAX_ID: i64 = i32::MAX as i64;
/// Longest UID; it is part of paths.
const MAX_UID: usize = 64;

/// The UID, which a manifest rarely gives: it names directories.
pub(super) fn metadata(metadata: &ObjectMeta) -> Result<(), Complaint> {
    let Some(uid) = metadata.uid.as_deref() else {
        return Ok(());
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !uid.is_empty() && uid.len() <= MAX_UID && uid.bytes().all(fits) {
        return Ok(());
    }
    let message = format!("{uid:?}: at most {MAX_UID} letters, digits and '-' are expected");
    Err(Complaint::new("metadata.uid", message))
}

/// Fields of the pod itself.
pub(super) fn spec(spec: &PodSpec) -> Result<(), Complaint> {
    let seconds = i64::from(i32::MAX);
    range(
        "terminationGracePeriodSeconds",
        spec.termination_grace_period_seconds,
        0..=seconds,
    )?;
    range(
        "activeDeadlineSeconds",
        spec.active_deadline_seconds,
        1..=seconds,
    )?;
    for (field, name) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            label(field, name)?;
        }
    }
    if let Some(security) = &spec.security_context {
        let at = |field: &str| format!("securityContext.{field}");
        range(&at("runAsUser"), security.run_as_user, 0..=MAX_ID)?;
        range(&at("runAsGroup"), security.run_as_group, 0..=MAX_ID)?;
        range(&at("fsGroup"), security.fs_group, 0..=MAX_ID)?;
        for (index, group) in security.supplemental_groups.iter().flatten().enumerate() {
            let field = at(&format!("supplementalGroups[{index}]"));
            range(&field, Some(*group), 0..=MAX_ID)?;
        }
    }
    Ok(())
}

/// One volume: one source, and no way up.
pub(super) fn volume(volume: &Volume) -> Result<(), Complaint> {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let sources = value.as_object().into_iter().flat_map(|map| map.keys());
    let sources: Vec<_> = sources.filter(|key| *key != "name").cloned().collect();
    if sources.len() > 1 {
        let message = format!("has {}: one source is expected", sources.join(" and "));
        return Err(Complaint::new("", message));
    }
    match &volume.host_path {
        Some(source) => no_way_up("hostPath.path", &source.path),
        None => Ok(()),
    }
}

/// Fields of a container.
pub(super) fn container(container: &Container) -> Result<(), Complaint> {
    for (list, words) in [("command", &container.command), ("args", &container.args)] {
        for (index, word) in words.iter().flatten().enumerate() {
            no_zero(&format!("{list}[{index}]"), word)?;
        }
    }
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let value = variable.value.as_deref().unwrap_or_default();
        no_zero(&format!("env[{index}].name"), &variable.name)?;
        no_zero(&format!("env[{index}].value"), value)?;
    }
    no_zero(
        "workingDir",
        container.working_dir.as_deref().unwrap_or_default(),
    )?;
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let at = |field: &str| format!("ports[{index}].{field}");
        let (inside, outside) = (port.container_port, port.host_port);
        range(&at("containerPort"), Some(inside.into()), 1..=65535)?;
        range(&at("hostPort"), outside.map(i64::from), 0..=65535)?;
    }
    if let Some(security) = &container.security_context {
        let (user, group) = (security.run_as_user, security.run_as_group);
        range("securityContext.runAsUser", user, 0..=MAX_ID)?;
        range("securityContext.runAsGroup", group, 0..=MAX_ID)?;
    }
    Ok(())
}

/// Paths of a mount.
pub(super) fn mount(mount: &VolumeMount) -> Result<(), Complaint> {
    no_zero("mountPath", &mount.mount_path)?;
    for (field, path) in [
        ("subPath", &mount.sub_path),
        ("subPathExpr", &mount.sub_path_expr),
    ] {
        let path = path.as_deref().unwrap_or_default();
        if path.starts_with('/') {
            let message = format!("{path:?}: a relative path is expected");
            return Err(Complaint::new(field, message));
        }
        no_way_up(field, path)?;
    }
    Ok(())
}

fn range(
    field: &str,
    value: Option<i64>,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<(), Complaint> {
    match value {
        Some(value) if !allowed.contains(&value) => {
            let (low, high) = allowed.into_inner();
            let message = format!("{value}: a number from {low} to {high} is expected");
            Err(Complaint::new(field, message))
        }
        _ => Ok(()),
    }
}

/// A path without `..`, and without what no path holds.
fn no_way_up(field: &str, path: &str) -> Result<(), Complaint> {
    if path.split('/').any(|part| part == "..") {
        let message = format!("{path:?}: a path without \"..\" is expected");
        return Err(Complaint::new(field, message));
    }
    no_zero(field, path)
}

/// The kernel's texts end at the first zero byte.
fn no_zero(field: &str, text: &str) -> Result<(), Complaint> {
    match text.contains('\0') {
        true => Err(Complaint::new(field, format!("{text:?}: has a zero byte"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    /// The complaint about a pod with these fields in its specification and in its container.
    fn complaint(of_pod: Value, of_container: Value) -> String {
        let mut container = json!({"name": "c", "image": "i:1"});
        let mut spec = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
        for (target, extra) in [(&mut container, of_container), (&mut spec, of_pod)] {
            let target = target.as_object_mut().expect("a map");
            target.extend(extra.as_object().expect("a map").clone());
        }
        spec["containers"] = json!([container]);
        refused(json!({"metadata": {"name": "p"}, "spec": spec}))
    }

    fn refused(pod: Value) -> String {
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        super::super::pod(&pod).expect_err("refused").to_string()
    }

    #[test]
    fn fields_of_a_pod_are_kept_within_their_bounds() {
        for (fields, want) in [
            (
                json!({"terminationGracePeriodSeconds": -5}),
                "spec.terminationGracePeriodSeconds: -5",
            ),
            (
                json!({"activeDeadlineSeconds": 0}),
                "spec.activeDeadlineSeconds: 0",
            ),
            (json!({"hostname": "A B"}), "spec.hostname: \"A B\""),
            (
                json!({"securityContext": {"fsGroup": 4294967295_i64}}),
                "spec.securityContext.fsGroup: 4294967295",
            ),
            (
                json!({"securityContext": {"supplementalGroups": [1, -1]}}),
                "spec.securityContext.supplementalGroups[1]: -1",
            ),
            (
                json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}),
                "spec.volumes[0]: has emptyDir and hostPath",
            ),
            (
                json!({"volumes": [{"name": "v", "hostPath": {"path": "/a/../b"}}]}),
                "spec.volumes[0].hostPath.path: \"/a/../b\"",
            ),
        ] {
            let found = complaint(fields, json!({}));
            assert!(found.starts_with(want), "{found} is not {want}");
        }
        let uid = json!({"metadata": {"name": "p", "uid": "../../x"}, "spec": {"containers": []}});
        let found = refused(uid);
        assert!(found.starts_with("metadata.uid: \"../../x\""), "{found}");
    }

    #[test]
    fn fields_of_a_container_are_kept_within_their_bounds() {
        for (fields, want) in [
            (
                json!({"command": ["a\0b"]}),
                "command[0]: \"a\\0b\": has a zero",
            ),
            (
                json!({"env": [{"name": "A", "value": "\0"}]}),
                "env[0].value: ",
            ),
            (
                json!({"ports": [{"containerPort": 99999}]}),
                "ports[0].containerPort: 99999",
            ),
            (
                json!({"securityContext": {"runAsUser": -1}}),
                "securityContext.runAsUser: -1",
            ),
            (
                json!({"resources": {"limits": {"cpu": "-1"}}}),
                "resources.limits.cpu: \"-1\": must not be negative",
            ),
            (
                json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "../../etc"}]}),
                "volumeMounts[0].subPath: ",
            ),
            (
                json!({"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "/etc"}]}),
                "volumeMounts[0].subPath: \"/etc\": a relative",
            ),
        ] {
            let found = complaint(json!({}), fields);
            let want = format!("spec.containers[0].{want}");
            assert!(found.starts_with(&want), "{found} is not {want}");
        }
    }
}
