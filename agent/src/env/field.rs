//! The downward API's fields: what `fieldRef` and `resourceFieldRef` stand for.
//!
//! Pure; used for environment variables and for downwardAPI volumes.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector, ResourceRequirements};

use crate::quantity::Amount;

/// What the node adds to what the pod object says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// The node's addresses, the primary one first.
    pub host_ips: Vec<String>,
    /// The pod's addresses, the primary one first; empty while it has none.
    pub pod_ips: Vec<String>,
    /// The node's allocatable resources: the limit of a container that has none.
    pub allocatable: BTreeMap<String, Amount>,
}

/// A reference that stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The path is none of those that there are.
    #[error("unsupported fieldPath: {0}")]
    Path(String),
    /// The resource is none of those that there are.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// The container named is not in the pod.
    #[error("container {0} not found")]
    Container(String),
    /// A quantity in the pod that does not parse.
    #[error(transparent)]
    Quantity(#[from] crate::quantity::QuantityError),
}

/// The value of a `fieldRef`.
pub fn field_value(pod: &Pod, facts: &NodeFacts, path: &str) -> Result<String, FieldError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| Ok(value.cloned().unwrap_or_default());
    match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" => text(facts.host_ips.first()),
        "status.hostIPs" => Ok(facts.host_ips.join(",")),
        "status.podIP" => text(facts.pod_ips.first()),
        "status.podIPs" => Ok(facts.pod_ips.join(",")),
        _ => match subscript(path) {
            Some(("metadata.labels", key)) => {
                text(meta.labels.as_ref().and_then(|labels| labels.get(key)))
            }
            Some(("metadata.annotations", key)) => text(
                meta.annotations
                    .as_ref()
                    .and_then(|annotations| annotations.get(key)),
            ),
            _ => Err(FieldError::Path(path.to_owned())),
        },
    }
}

/// Splits `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

/// The value of a `resourceFieldRef`; `own` is the container that asks, for references that name none.
pub fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    facts: &NodeFacts,
    selector: &ResourceFieldSelector,
) -> Result<String, FieldError> {
    let named = selector
        .container_name
        .as_deref()
        .filter(|name| !name.is_empty());
    let container = match (named, own) {
        (Some(name), Some(own)) if own.name == name => own,
        (Some(name), _) => {
            find_container(pod, name).ok_or_else(|| FieldError::Container(name.to_owned()))?
        }
        (None, Some(own)) => own,
        (None, None) => return Err(FieldError::Container(String::new())),
    };
    let unknown = || FieldError::Resource(selector.resource.clone());
    let (side, resource) = selector.resource.split_once('.').ok_or_else(unknown)?;
    if !matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        && !resource.starts_with("hugepages-")
    {
        return Err(unknown());
    }
    let amount = match side {
        "requests" => declared(container.resources.as_ref(), side, resource)?.unwrap_or_default(),
        "limits" => declared(container.resources.as_ref(), side, resource)?
            .filter(|limit| !limit.is_zero())
            .or_else(|| most(pod, own, facts, resource))
            .unwrap_or_default(),
        _ => return Err(unknown()),
    };
    let divisor = match &selector.divisor {
        Some(divisor) => Amount::try_from(divisor)?,
        None => Amount::default(),
    };
    let divisor = if divisor.is_zero() {
        Amount::units(1)
    } else {
        divisor
    };
    let (value, by) = match resource {
        "cpu" => (amount.to_millis(), divisor.to_millis()),
        _ => (amount.to_units(), divisor.to_units()),
    };
    let value = i128::from(value);
    let by = i128::from(by.max(1));
    Ok(((value + by - 1) / by).to_string())
}

/// What a container without a limit may have at most: in an environment what its pod may, or else what the node can
/// give. Huge pages are never given beyond a limit.
fn most(pod: &Pod, own: Option<&Container>, facts: &NodeFacts, resource: &str) -> Option<Amount> {
    if !matches!(resource, "cpu" | "memory" | "ephemeral-storage") {
        return None;
    }
    let of_node = facts.allocatable.get(resource).copied();
    let of_pod = pod
        .spec
        .as_ref()
        .filter(|_| own.is_some() && resource != "ephemeral-storage");
    let of_pod = of_pod.and_then(|spec| spec.resources.as_ref()?.limits.as_ref()?.get(resource));
    let of_pod = of_pod.and_then(|limit| Amount::try_from(limit).ok());
    of_pod.filter(|limit| !limit.is_zero()).or(of_node)
}

/// A request or limit as the container declares it.
fn declared(
    resources: Option<&ResourceRequirements>,
    side: &str,
    resource: &str,
) -> Result<Option<Amount>, FieldError> {
    let Some(resources) = resources else {
        return Ok(None);
    };
    let map = if side == "limits" {
        &resources.limits
    } else {
        &resources.requests
    };
    match map.as_ref().and_then(|map| map.get(resource)) {
        Some(quantity) => Ok(Some(Amount::try_from(quantity)?)),
        None => Ok(None),
    }
}

/// A container or init container by name.
fn find_container<'p>(pod: &'p Pod, name: &str) -> Option<&'p Container> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .find(|container| container.name == name)
}

/// A map as sorted lines `key="value"`, without a newline at the end.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let mut out = String::new();
    for (key, value) in map.into_iter().flatten() {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(key);
        out.push('=');
        quote(&mut out, value);
    }
    out
}

/// Quotes as the kubelet's language does: C escapes for control characters, everything printable as it is.
fn quote(out: &mut String, value: &str) {
    out.push('"');
    for c in value.chars() {
        let escape = match c {
            '"' => Some('"'),
            '\\' => Some('\\'),
            '\u{7}' => Some('a'),
            '\u{8}' => Some('b'),
            '\u{c}' => Some('f'),
            '\n' => Some('n'),
            '\r' => Some('r'),
            '\t' => Some('t'),
            '\u{b}' => Some('v'),
            _ => None,
        };
        if let Some(letter) = escape {
            out.push('\\');
            out.push(letter);
            continue;
        }
        let code = u32::from(c);
        // Writing to a String cannot fail.
        let _ = match c {
            '\0'..='\u{1f}' | '\u{7f}' => write!(out, "\\x{code:02x}"),
            '\u{80}'..='\u{a0}' | '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{feff}' => {
                write!(out, "\\u{code:04x}")
            }
            _ => write!(out, "{c}"),
        };
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u-1",
                "labels": {"app": "web", "b": "2"},
                "annotations": {"note": "line\none \"two\" ü\u{1}\\"},
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "sa",
                "containers": [{"name": "c", "resources": {
                    "limits": {"cpu": "1500m", "memory": "100Mi"},
                    "requests": {"cpu": "250m", "hugepages-2Mi": "4Mi"},
                }}, {"name": "bare"}],
            },
        }))
        .unwrap()
    }

    fn facts() -> NodeFacts {
        NodeFacts {
            host_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            pod_ips: vec!["10.244.0.9".into(), "fd01::9".into()],
            allocatable: [("cpu", "4"), ("memory", "8Gi")]
                .map(|(name, text)| (name.to_owned(), Amount::parse(text).unwrap()))
                .into(),
        }
    }

    #[test]
    fn every_field_has_its_value() {
        for (path, value) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u-1"),
            ("metadata.labels", "app=\"web\"\nb=\"2\""),
            ("metadata.labels['app']", "web"),
            ("metadata.labels['absent']", ""),
            (
                "metadata.annotations",
                "note=\"line\\none \\\"two\\\" ü\\x01\\\\\"",
            ),
            ("spec.nodeName", "n1"),
            ("spec.serviceAccountName", "sa"),
            ("status.hostIP", "10.0.0.1"),
            ("status.hostIPs", "10.0.0.1,fd00::1"),
            ("status.podIP", "10.244.0.9"),
            ("status.podIPs", "10.244.0.9,fd01::9"),
        ] {
            assert_eq!(
                field_value(&pod(), &facts(), path).as_deref(),
                Ok(value),
                "{path}"
            );
        }
        let unknown = field_value(&pod(), &facts(), "spec.hostname").unwrap_err();
        assert_eq!(unknown.to_string(), "unsupported fieldPath: spec.hostname");
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        for (container, resource, divisor, value) in [
            ("c", "limits.cpu", "0", "2"),
            ("c", "limits.cpu", "1m", "1500"),
            ("c", "requests.cpu", "1", "1"),
            ("c", "limits.memory", "1Mi", "100"),
            ("c", "limits.memory", "0", "104857600"),
            ("c", "requests.memory", "1", "0"),
            ("c", "requests.hugepages-2Mi", "1Mi", "4"),
            ("bare", "limits.cpu", "1", "4"),
            ("bare", "limits.memory", "1Gi", "8"),
        ] {
            let selector: ResourceFieldSelector = serde_json::from_value(json!({
                "containerName": container, "resource": resource, "divisor": divisor,
            }))
            .unwrap();
            let got = resource_value(&pod(), None, &facts(), &selector);
            assert_eq!(
                got.as_deref(),
                Ok(value),
                "{container} {resource} {divisor}"
            );
        }
    }

    #[test]
    fn no_limit_is_that_of_the_pod_in_an_environment_and_of_the_node_elsewhere() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "resources": {"limits": {"cpu": "2", "ephemeral-storage": "1Gi"}},
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "0"}}}],
        }}))
        .unwrap();
        let own = &pod.spec.as_ref().unwrap().containers[0];
        let mut facts = facts();
        for name in ["ephemeral-storage", "hugepages-2Mi"] {
            facts.allocatable.insert(name.to_owned(), Amount::units(7));
        }
        for (resource, in_environment, elsewhere) in [
            ("limits.cpu", "2", "4"),
            ("limits.memory", "8589934592", "8589934592"),
            ("limits.ephemeral-storage", "7", "7"),
            ("limits.hugepages-2Mi", "0", "0"),
            ("requests.cpu", "0", "0"),
        ] {
            let selector = ResourceFieldSelector {
                container_name: Some("c".into()),
                resource: resource.into(),
                ..Default::default()
            };
            let value = |own| resource_value(&pod, own, &facts, &selector);
            assert_eq!(
                value(Some(own)).as_deref(),
                Ok(in_environment),
                "{resource}"
            );
            assert_eq!(value(None).as_deref(), Ok(elsewhere), "{resource}");
        }
    }

    #[test]
    fn a_reference_without_a_name_means_the_container_that_asks() {
        let pod = pod();
        let own = &pod.spec.as_ref().unwrap().containers[0];
        let selector = ResourceFieldSelector {
            resource: "limits.cpu".into(),
            ..Default::default()
        };
        assert_eq!(
            resource_value(&pod, Some(own), &facts(), &selector).as_deref(),
            Ok("2")
        );
        assert!(resource_value(&pod, None, &facts(), &selector).is_err());
    }
}
