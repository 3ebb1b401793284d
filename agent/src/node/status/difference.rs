//! The status against the server's copy: whether that says it, and the patch that makes it say it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use crate::quantity::Amount;

/// Whether the server's copy says what we would say, but for the times of heartbeats. What it has beside that is
/// somebody else's; a field that an older server does not know is no difference.
pub fn tells(server: &NodeStatus, ours: &NodeStatus) -> bool {
    let unknown_or = |same: bool, known: bool| same || !known;
    server.addresses == ours.addresses
        && tells_resources(server.capacity.as_ref(), ours.capacity.as_ref())
        && tells_resources(server.allocatable.as_ref(), ours.allocatable.as_ref())
        && tells_conditions(server, ours)
        && server.daemon_endpoints == ours.daemon_endpoints
        && server.node_info == ours.node_info
        && (server.images == ours.images
            || is_empty(server.images.as_ref()) && is_empty(ours.images.as_ref()))
        && unknown_or(server.features == ours.features, server.features.is_some())
        && unknown_or(
            server.declared_features == ours.declared_features,
            server.declared_features.is_some(),
        )
        && unknown_or(
            server.runtime_handlers == ours.runtime_handlers,
            server.runtime_handlers.is_some(),
        )
}

fn is_empty<T>(list: Option<&Vec<T>>) -> bool {
    list.is_none_or(Vec::is_empty)
}

/// The same of our own resources, and none of ours too many.
fn tells_resources(
    server: Option<&BTreeMap<String, Quantity>>,
    ours: Option<&BTreeMap<String, Quantity>>,
) -> bool {
    let own = |map: Option<&BTreeMap<String, Quantity>>| -> Vec<(String, Option<Amount>)> {
        let own = map.into_iter().flatten().filter(|(name, _)| is_ours(name));
        own.map(|(name, text)| (name.clone(), Amount::try_from(text).ok()))
            .collect()
    };
    own(server) == own(ours)
}

fn tells_conditions(server: &NodeStatus, ours: &NodeStatus) -> bool {
    let said = |ours: &NodeCondition| {
        let found = server
            .conditions
            .iter()
            .flatten()
            .find(|theirs| theirs.type_ == ours.type_);
        found.is_some_and(|theirs| {
            theirs.status == ours.status
                && theirs.reason == ours.reason
                && theirs.message == ours.message
        })
    };
    ours.conditions.iter().flatten().all(said)
}

/// A strategic-merge patch for `nodes/status`. Resources that the server has and the node has not are removed.
pub fn status_patch(status: &NodeStatus, before: Option<&NodeStatus>) -> Value {
    let mut patch = json!(status);
    // Merged by type: without this, an address that changed would be joined by its successor.
    if let Some(addresses) = patch["addresses"].as_array_mut() {
        addresses.insert(0, json!({"$patch": "replace"}));
    }
    for (key, old) in [
        (
            "capacity",
            before.and_then(|before| before.capacity.as_ref()),
        ),
        (
            "allocatable",
            before.and_then(|before| before.allocatable.as_ref()),
        ),
    ] {
        for name in old
            .into_iter()
            .flat_map(BTreeMap::keys)
            .filter(|name| is_ours(name))
        {
            if let Some(map) = patch[key].as_object_mut() {
                map.entry(name.clone()).or_insert(Value::Null);
            }
        }
    }
    json!({"status": patch})
}

/// Extended resources belong to device plugins and administrators.
fn is_ours(resource: &str) -> bool {
    !resource.contains('/')
}
