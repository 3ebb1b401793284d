//! From a pod's status to the patch that makes the API server's copy equal to it. Pure.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Map, Value, json};

/// Conditions that the node owns. All others belong to somebody else and are never sent.
const OWN_CONDITIONS: &[&str] = &[
    "PodScheduled",
    "PodReadyToStartContainers",
    "Initialized",
    "ContainersReady",
    "Ready",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
    "DisruptionTarget",
];

/// Fields that others own: never sent.
const OF_OTHERS: &[&str] = &[
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "resourceClaimStatuses",
];

/// A strategic-merge patch for `pods/status`, with the UID as its precondition. `before` is what the server is
/// thought to have: what it has and `status` has not is removed.
pub(super) fn status_patch(pod: &Pod, before: Option<&PodStatus>, status: &PodStatus) -> Value {
    let before = before.map(to_map).unwrap_or_default();
    let mut patch = to_map(status);
    name_missing(&before, &mut patch);
    patch.retain(|key, _| !OF_OTHERS.contains(&key.as_str()));
    // Merged by address: without this, an address that changed would be joined by its successor.
    for list in ["podIPs", "hostIPs"] {
        if let Some(Value::Array(entries)) = patch.get_mut(list) {
            entries.insert(0, json!({"$patch": "replace"}));
        }
    }
    let order = order(patch.get("conditions"));
    let conditions = conditions(before.get("conditions"), patch.get("conditions"));
    match conditions.is_empty() {
        true => patch.remove("conditions"),
        false => {
            patch.insert("$setElementOrder/conditions".into(), order);
            patch.insert("conditions".into(), Value::Array(conditions))
        }
    };
    json!({"metadata": {"uid": pod.metadata.uid}, "status": patch})
}

fn to_map(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Names what is there before and not after, also in maps within.
fn name_missing(before: &Map<String, Value>, after: &mut Map<String, Value>) {
    for (key, old) in before {
        match (old, after.get_mut(key)) {
            (_, None) => {
                after.insert(key.clone(), Value::Null);
            }
            (Value::Object(old), Some(Value::Object(new))) => name_missing(old, new),
            _ => {}
        }
    }
}

/// The order in which conditions are to stand, those of others too.
fn order(conditions: Option<&Value>) -> Value {
    let all = conditions.and_then(Value::as_array).into_iter().flatten();
    let maps = all.filter_map(Value::as_object);
    maps.map(|map| json!({"type": kind(map)})).collect()
}

/// The node's own conditions, complete, and the removal of those that are over. The server merges them by type and
/// field by field, so a field that is to go must be named.
fn conditions(before: Option<&Value>, after: Option<&Value>) -> Vec<Value> {
    let own = |list: Option<&Value>| -> Vec<Map<String, Value>> {
        let list = list.and_then(Value::as_array).into_iter().flatten();
        let maps = list.filter_map(Value::as_object).cloned();
        maps.filter(|map| OWN_CONDITIONS.contains(&kind(map)))
            .collect()
    };
    let after = own(after);
    let over = own(before)
        .into_iter()
        .filter(|old| !after.iter().any(|new| kind(new) == kind(old)));
    let over: Vec<Value> = over
        .map(|old| json!({"$patch": "delete", "type": kind(&old)}))
        .collect();
    let complete = after.into_iter().map(|mut condition| {
        for field in [
            "lastProbeTime",
            "lastTransitionTime",
            "message",
            "observedGeneration",
            "reason",
        ] {
            condition.entry(field).or_insert(Value::Null);
        }
        Value::Object(condition)
    });
    complete.chain(over).collect()
}

fn kind(condition: &Map<String, Value>) -> &str {
    condition
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether two statuses are the same to the server, which keeps whole seconds.
pub(super) fn same(a: &PodStatus, b: &PodStatus) -> bool {
    to_map(a) == to_map(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).unwrap()
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": "u"}})).unwrap()
    }

    #[test]
    fn what_the_server_has_and_the_status_has_not_is_removed() {
        let before = status(json!({"phase": "Pending", "message": "x", "podIP": "10.0.0.1"}));
        let after = status(json!({"phase": "Running"}));
        let patch = status_patch(&pod(), Some(&before), &after);
        assert_eq!(
            patch,
            json!({"metadata": {"uid": "u"},
                   "status": {"phase": "Running", "message": null, "podIP": null}})
        );
    }

    #[test]
    fn addresses_are_replaced_and_not_merged() {
        let after = status(json!({"podIPs": [{"ip": "10.0.0.2"}]}));
        let patch = status_patch(&pod(), None, &after);
        assert_eq!(
            patch["status"]["podIPs"],
            json!([{"$patch": "replace"}, {"ip": "10.0.0.2"}])
        );
    }

    #[test]
    fn only_own_conditions_are_sent_complete_and_those_that_are_over_go() {
        let before = status(json!({"conditions": [
            {"type": "Ready", "status": "False", "reason": "R", "message": "m"},
            {"type": "PodResizePending", "status": "True"},
            {"type": "example.com/gate", "status": "True"},
        ]}));
        let after = status(json!({"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "example.com/gate", "status": "False"},
        ]}));
        let patch = status_patch(&pod(), Some(&before), &after);
        assert_eq!(
            patch["status"]["conditions"],
            json!([
                {"type": "Ready", "status": "True", "reason": null, "message": null,
                 "lastProbeTime": null, "lastTransitionTime": null, "observedGeneration": null},
                {"$patch": "delete", "type": "PodResizePending"},
            ])
        );
        assert_eq!(
            patch["status"]["$setElementOrder/conditions"],
            json!([{"type": "Ready"}, {"type": "example.com/gate"}])
        );
    }

    #[test]
    fn what_others_own_is_not_sent_though_it_has_changed() {
        let before = status(json!({"message": "m", "resourceClaimStatuses": [{"name": "old"}]}));
        let after = status(json!({"phase": "Running", "resourceClaimStatuses": [{"name": "new"}]}));
        let patch = status_patch(&pod(), Some(&before), &after);
        let want = json!({"phase": "Running", "message": null});
        assert_eq!(patch["status"], want);
    }

    #[test]
    fn a_quantity_that_is_over_is_removed_from_its_map() {
        let with = |requests: Value| status(json!({"resources": {"requests": requests}}));
        let before = with(json!({"cpu": "1", "memory": "1Mi"}));
        let patch = status_patch(&pod(), Some(&before), &with(json!({"cpu": "2"})));
        let want = json!({"requests": {"cpu": "2", "memory": null}});
        assert_eq!(patch["status"]["resources"], want);
    }

    #[test]
    fn a_fraction_of_a_second_is_no_difference() {
        let at = |time: &str| status(json!({"startTime": time}));
        assert!(same(
            &at("2026-01-01T00:00:00Z"),
            &at("2026-01-01T00:00:00.5Z")
        ));
        assert!(!same(
            &at("2026-01-01T00:00:00Z"),
            &at("2026-01-01T00:00:01Z")
        ));
    }
}
