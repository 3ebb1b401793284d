//! AppArmor: a pod that asks for a profile does not run where none is enforced.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};

use super::failure;
use crate::pod::app_armor::{ANNOTATION, UNCONFINED, profile};
use crate::pod::spec;
use crate::pod::status::Failure;

/// Refuses a pod with a profile on a node without AppArmor, and a profile without a name.
pub(super) fn check(pod: &Pod, enforced: bool) -> Result<(), Failure> {
    if !is_required(pod) {
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
    let mut effective = spec::all_containers(pod)
        .into_iter()
        .filter_map(|(_, container)| profile(pod, &container));
    match effective.find(nameless) {
        None => Ok(()),
        Some(profile) => Err(refuse(&format!(
            "invalid empty AppArmor profile name: {:?}",
            in_go(&profile)
        ))),
    }
}

/// Whether anything but Unconfined is said anywhere.
fn is_required(pod: &Pod) -> bool {
    let of_pod = spec::spec(pod)
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|security| security.app_armor_profile.clone());
    let of_containers = spec::all_containers(pod)
        .into_iter()
        .filter_map(|(_, container)| container.security_context?.app_armor_profile);
    let mut profiles = of_pod.into_iter().chain(of_containers);
    let mut annotations = pod.metadata.annotations.iter().flatten();
    profiles.any(|profile| profile.type_ != "Unconfined")
        || annotations.any(|(key, value)| key.starts_with(ANNOTATION) && value != UNCONFINED)
}

/// As a kubelet writes a profile into a message.
fn in_go(profile: &AppArmorProfile) -> String {
    let name = match &profile.localhost_profile {
        Some(name) => format!("*{name}"),
        None => "nil".to_owned(),
    };
    let type_ = &profile.type_;
    format!("&AppArmorProfile{{Type:{type_},LocalhostProfile:{name},}}")
}
