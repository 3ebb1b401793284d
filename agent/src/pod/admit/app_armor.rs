//! AppArmor: a pod that asks for a profile does not run where none is enforced.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};

use super::failure;
use crate::pod::spec;
use crate::pod::status::Failure;

/// Prefix of the annotations that named profiles before there was a field.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Refuses a pod with a profile on a node without AppArmor, and a profile without a name.
pub(super) fn check(pod: &Pod, enforced: bool) -> Result<(), Failure> {
    let of_pod = spec::spec(pod)
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|security| security.app_armor_profile.clone());
    let of_containers = spec::all_containers(pod)
        .into_iter()
        .filter_map(|(_, container)| container.security_context?.app_armor_profile);
    let profiles: Vec<AppArmorProfile> = of_pod.into_iter().chain(of_containers).collect();
    let annotations = pod.metadata.annotations.iter().flatten();
    let annotated = annotations
        .filter(|(key, _)| key.starts_with(ANNOTATION))
        .any(|(_, value)| value != "unconfined");
    let confined = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    if !annotated && !profiles.iter().any(confined) {
        return Ok(());
    }
    let refuse = |why: &str| failure("AppArmor", format!("Cannot enforce AppArmor: {why}"));
    if !enforced {
        return Err(refuse("AppArmor is not enabled on the host"));
    }
    let nameless = |profile: &AppArmorProfile| {
        let name = profile.localhost_profile.as_deref().unwrap_or_default();
        profile.type_ == "Localhost" && name.trim().is_empty()
    };
    if profiles.iter().any(nameless) {
        return Err(refuse("invalid empty AppArmor profile name"));
    }
    Ok(())
}
