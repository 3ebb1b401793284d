//! Checks of a pod that the API server would have made. Pure.

mod fields;

use std::collections::BTreeSet;

use hanok_runtime::image::reference::Reference;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::manifest::Complaint;
use crate::config::text::is_dns_subdomain;
use crate::quantity::Amount;

/// Longest name of a container.
const LABEL_MAX: usize = 63;

/// Checks a pod.
pub(crate) fn pod(pod: &Pod) -> Result<(), Complaint> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        return Err(Complaint::new("metadata.name", "is missing"));
    }
    if !is_dns_subdomain(name) {
        let message = format!("{name:?}: lower case letters, digits, '-' and '.' are expected");
        return Err(Complaint::new("metadata.name", message));
    }
    if let Some(namespace) = pod
        .metadata
        .namespace
        .as_deref()
        .filter(|name| !name.is_empty() && !is_label(name))
    {
        let message = format!("{namespace:?}: lower case letters, digits and '-' are expected");
        return Err(Complaint::new("metadata.namespace", message));
    }
    fields::metadata(&pod.metadata)?;
    let Some(spec) = &pod.spec else {
        return Err(Complaint::new("spec", "is missing"));
    };
    self::spec(spec).map_err(|complaint| complaint.below("spec"))
}

/// Checks a specification.
fn spec(spec: &PodSpec) -> Result<(), Complaint> {
    if spec.containers.is_empty() {
        return Err(Complaint::new(
            "containers",
            "is empty: a pod has at least one container",
        ));
    }
    one_of(
        "restartPolicy",
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    )?;
    fields::spec(spec)?;
    let mut volumes = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let field = format!("volumes[{index}].name");
        label(&field, &volume.name)?;
        fields::volume(volume)
            .map_err(|complaint| complaint.below(&format!("volumes[{index}]")))?;
        if !volumes.insert(volume.name.as_str()) {
            return Err(Complaint::new(
                field,
                format!("{:?} is there twice", volume.name),
            ));
        }
    }
    let mut names = BTreeSet::new();
    let lists = [
        (
            "initContainers",
            spec.init_containers.as_deref().unwrap_or_default(),
        ),
        ("containers", spec.containers.as_slice()),
    ];
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let at = |complaint: Complaint| complaint.below(&format!("{list}[{index}]"));
            self::container(container, &volumes).map_err(at)?;
            if !names.insert(container.name.as_str()) {
                let message = format!("{:?} is the name of another container, too", container.name);
                return Err(at(Complaint::new("name", message)));
            }
        }
    }
    Ok(())
}

/// Checks a container.
fn container(container: &Container, volumes: &BTreeSet<&str>) -> Result<(), Complaint> {
    label("name", &container.name)?;
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        return Err(Complaint::new("image", "is missing"));
    }
    image
        .parse::<Reference>()
        .map_err(|error| Complaint::new("image", format!("{image:?}: {error}")))?;
    let policies = ["Always", "IfNotPresent", "Never"];
    one_of(
        "imagePullPolicy",
        container.image_pull_policy.as_deref(),
        &policies,
    )?;
    resources(container.resources.as_ref()).map_err(|complaint| complaint.below("resources"))?;
    for (index, variable) in container.env.iter().flatten().enumerate() {
        if variable.name.is_empty() || variable.name.contains('=') {
            let message = format!("{:?} is no name of a variable", variable.name);
            return Err(Complaint::new(format!("env[{index}].name"), message));
        }
    }
    fields::container(container)?;
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let field = |name: &str| format!("volumeMounts[{index}].{name}");
        if !volumes.contains(mount.name.as_str()) {
            let message = format!("{:?}: the pod has no volume of this name", mount.name);
            return Err(Complaint::new(field("name"), message));
        }
        if mount.mount_path.is_empty() || mount.mount_path.contains(':') {
            let message = format!("{:?} is no path without ':'", mount.mount_path);
            return Err(Complaint::new(field("mountPath"), message));
        }
        fields::mount(mount)
            .map_err(|complaint| complaint.below(&format!("volumeMounts[{index}]")))?;
        if !paths.insert(mount.mount_path.as_str()) {
            let message = format!("{:?} is there twice", mount.mount_path);
            return Err(Complaint::new(field("mountPath"), message));
        }
    }
    Ok(())
}

/// Every quantity must be one, and no request above its limit.
fn resources(resources: Option<&ResourceRequirements>) -> Result<(), Complaint> {
    let Some(resources) = resources else {
        return Ok(());
    };
    let lists = [
        ("limits", &resources.limits),
        ("requests", &resources.requests),
    ];
    for (list, quantities) in lists {
        for (name, quantity) in quantities.iter().flatten() {
            let field = format!("{list}.{name}");
            let amount = Amount::try_from(quantity)
                .map_err(|error| Complaint::new(&field, error.to_string()))?;
            if amount < Amount::default() {
                let message = format!("{:?}: must not be negative", quantity.0);
                return Err(Complaint::new(field, message));
            }
        }
    }
    for (name, request) in resources.requests.iter().flatten() {
        let limit = resources
            .limits
            .as_ref()
            .and_then(|limits| limits.get(name));
        let above = limit
            .is_some_and(|limit| Amount::try_from(request).ok() > Amount::try_from(limit).ok());
        if above {
            let message = format!("{:?}: must not be more than the limit", request.0);
            return Err(Complaint::new(format!("requests.{name}"), message));
        }
    }
    Ok(())
}

/// A value of a list.
fn one_of(field: &str, value: Option<&str>, allowed: &[&str]) -> Result<(), Complaint> {
    match value {
        Some(value) if !allowed.contains(&value) => {
            let message = format!("{value:?}: one of {} is expected", allowed.join(", "));
            Err(Complaint::new(field, message))
        }
        _ => Ok(()),
    }
}

/// A name that is one DNS label.
fn label(field: &str, name: &str) -> Result<(), Complaint> {
    match is_label(name) {
        true => Ok(()),
        false if name.is_empty() => Err(Complaint::new(field, "is missing")),
        false => {
            let message = format!("{name:?}: lower case letters, digits and '-' are expected");
            Err(Complaint::new(field, message))
        }
    }
}

fn is_label(name: &str) -> bool {
    is_dns_subdomain(name) && !name.contains('.') && name.len() <= LABEL_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_the_api_server_would_refuse_is_refused() {
        let container = |extra: Value| {
            let mut container = json!({"name": "c", "image": "i:1"});
            container
                .as_object_mut()
                .expect("a map")
                .extend(extra.as_object().expect("a map").clone());
            json!({"containers": [container], "volumes": [{"name": "v"}]})
        };
        let table = [
            (container(json!({})), None),
            (
                container(json!({"name": "A_b"})),
                Some("spec.containers[0].name: \"A_b\""),
            ),
            (
                container(json!({"name": "a/../b"})),
                Some("spec.containers[0].name"),
            ),
            (
                container(json!({"image": "UPPER"})),
                Some("spec.containers[0].image: \"UPPER\""),
            ),
            (
                container(json!({"imagePullPolicy": "Sometimes"})),
                Some("spec.containers[0].imagePullPolicy: \"Sometimes\": one of Always"),
            ),
            (
                container(json!({"resources": {"limits": {"memory": "64MB!"}}})),
                Some("spec.containers[0].resources.limits.memory: \"64MB!\" is not a quantity"),
            ),
            (
                container(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})),
                Some("spec.containers[0].resources.requests.cpu: \"2\": must not be more"),
            ),
            (
                container(json!({"volumeMounts": [{"name": "w", "mountPath": "/x"}]})),
                Some("spec.containers[0].volumeMounts[0].name: \"w\": the pod has no volume"),
            ),
            (
                container(json!({"env": [{"name": "A=B"}]})),
                Some("spec.containers[0].env[0].name"),
            ),
            (
                json!({"containers": [], "restartPolicy": "Never"}),
                Some("spec.containers: is empty"),
            ),
            (
                json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Maybe"}),
                Some("spec.restartPolicy: \"Maybe\""),
            ),
            (
                json!({"containers": [{"name": "c", "image": "i"}], "initContainers": [{"name": "c", "image": "i"}]}),
                Some("spec.containers[0].name: \"c\" is the name of another"),
            ),
        ];
        for (spec, want) in table {
            let value = json!({"metadata": {"name": "p"}, "spec": spec});
            let pod: Pod = serde_json::from_value(value).expect("a pod");
            let found = self::pod(&pod).err().map(|complaint| complaint.to_string());
            match want {
                None => assert_eq!(found, None, "{spec}"),
                Some(want) => assert!(
                    found.clone().is_some_and(|text| text.starts_with(want)),
                    "{found:?} {spec}"
                ),
            }
        }
    }
}
