//! Which AppArmor profile a container asks for. Pure.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};

use crate::pod::spec;

/// Prefix of the annotations that named profiles before there was a field. The container's name follows.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The value of such an annotation for no profile.
pub const UNCONFINED: &str = "unconfined";

/// The container's own field, its annotation, the pod's field: the first that is there. None is whatever the node
/// gives to those who ask for nothing.
pub fn profile(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let own = container.security_context.as_ref();
    let of_pod = spec::spec(pod).and_then(|spec| spec.security_context.as_ref());
    own.and_then(|own| own.app_armor_profile.clone())
        .or_else(|| annotated(pod, &container.name))
        .or_else(|| of_pod.and_then(|of_pod| of_pod.app_armor_profile.clone()))
}

/// As a kubelet, it takes no notice of a value that it does not know: the API server has refused it.
fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let key = format!("{ANNOTATION}{container}");
    let value = pod.metadata.annotations.as_ref()?.get(&key)?;
    let profile = |type_: &str, name: Option<&str>| AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match value.as_str() {
        "runtime/default" => Some(profile("RuntimeDefault", None)),
        UNCONFINED => Some(profile("Unconfined", None)),
        other => other
            .strip_prefix("localhost/")
            .map(|name| profile("Localhost", Some(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::{Value, json};

    fn asked(of_pod: Value, own: Value, annotation: Option<&str>) -> Option<(String, String)> {
        let mut pod = sample::from(json!({
            "securityContext": {"appArmorProfile": of_pod},
            "containers": [{"name": "c", "image": "i", "securityContext": {"appArmorProfile": own}}],
        }));
        if let Some(value) = annotation {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(format!("{ANNOTATION}c"), value.to_owned());
        }
        let found = profile(&pod, &spec::app_containers(&pod)[0])?;
        Some((found.type_, found.localhost_profile.unwrap_or_default()))
    }

    #[test]
    fn the_containers_field_beats_its_annotation_and_that_the_pods_field() {
        let local = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
        let named = |name: &str| Some(("Localhost".to_owned(), name.to_owned()));
        let plain = |type_: &str| Some((type_.to_owned(), String::new()));
        let none = || Value::Null;
        assert_eq!(asked(none(), none(), None), None);
        assert_eq!(asked(local("p"), none(), None), named("p"));
        assert_eq!(
            asked(local("p"), local("c"), Some("localhost/a")),
            named("c")
        );
        assert_eq!(asked(local("p"), none(), Some("localhost/a")), named("a"));
        assert_eq!(asked(none(), none(), Some("localhost/")), named(""));
        assert_eq!(
            asked(local("p"), none(), Some("unconfined")),
            plain("Unconfined")
        );
        assert_eq!(
            asked(none(), none(), Some("runtime/default")),
            plain("RuntimeDefault")
        );
        assert_eq!(asked(local("p"), none(), Some("odd")), named("p"));
    }
}
