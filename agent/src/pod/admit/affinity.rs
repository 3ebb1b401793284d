//! Node selector and required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};

use super::Placement;
use crate::pod::spec;

/// Whether the node is one that the pod asks for.
pub(super) fn matches(pod: &Pod, node: &Placement) -> bool {
    let Some(spec) = spec::spec(pod) else {
        return true;
    };
    let selector = spec.node_selector.iter().flatten();
    let mut selector = selector.map(|(key, value)| node.labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref();
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    selector.all(|same| same)
        && required.is_none_or(|required| {
            let mut terms = required.node_selector_terms.iter();
            terms.any(|term| term_matches(term, node))
        })
}

/// All of a term's requirements hold; a term without any matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Placement) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = BTreeMap::from([("metadata.name".to_owned(), node.name.clone())]);
    (!labels.is_empty() || !fields.is_empty())
        && labels
            .iter()
            .all(|requirement| holds(requirement, &node.labels))
        && fields.iter().all(|requirement| {
            let values = requirement.values.as_deref().unwrap_or_default();
            matches!(requirement.operator.as_str(), "In" | "NotIn")
                && values.len() == 1
                && holds(requirement, &name)
        })
}

/// One requirement. What is written wrongly holds nowhere.
fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let label = labels.get(&requirement.key);
    let among = label.is_some_and(|label| values.contains(label));
    match requirement.operator.as_str() {
        "In" => among,
        "NotIn" => !values.is_empty() && !among,
        "Exists" => values.is_empty() && label.is_some(),
        "DoesNotExist" => values.is_empty() && label.is_none(),
        "Gt" => compare(label, values).is_some_and(|(label, bound)| label > bound),
        "Lt" => compare(label, values).is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}

/// The label and its only bound, as numbers.
fn compare(label: Option<&String>, values: &[String]) -> Option<(i64, i64)> {
    let [bound] = values else { return None };
    Some((label?.parse().ok()?, bound.parse().ok()?))
}
