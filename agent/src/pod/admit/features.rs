//! Features that a pod needs of its node, by the names under which nodes declare them.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::failure;
use crate::pod::spec;
use crate::pod::status::Failure;

/// Whether a pod needs a feature.
type Needs = fn(&PodSpec) -> bool;

/// The features that matter to pods, sorted.
const FEATURES: [(&str, Needs); 2] = [
    ("RestartAllContainersOnContainerExits", restarts_all),
    (
        "UserNamespacesHostNetworkSupport",
        maps_users_on_host_network,
    ),
];

/// Refuses a pod that needs what the node does not declare.
pub(super) fn check(pod: &Pod, declared: &[String]) -> Result<(), Failure> {
    let Some(spec) = spec::spec(pod) else {
        return Ok(());
    };
    let missing: Vec<&str> = FEATURES
        .iter()
        .filter(|(name, needs)| needs(spec) && !declared.iter().any(|known| known == name))
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(failure(
        "PodFeatureUnsupported",
        format!("Pod requires node features that are not available: {missing}"),
    ))
}

fn restarts_all(spec: &PodSpec) -> bool {
    let init = spec.init_containers.iter().flatten();
    let rules = |container: &Container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    };
    init.chain(&spec.containers).any(rules)
}

fn maps_users_on_host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true) && spec.host_users == Some(false)
}
