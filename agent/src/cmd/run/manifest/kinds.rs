//! Kinds that `hanok run` knows. Pure.

use super::Complaint;

/// Kinds that have pods.
pub(super) const PODS: [&str; 6] = [
    "Pod",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
];
/// Every kind that is read, with its only version.
const KINDS: [(&str, &str); 10] = [
    ("Pod", "v1"),
    ("List", "v1"),
    ("ConfigMap", "v1"),
    ("Secret", "v1"),
    ("Service", "v1"),
    ("Deployment", "apps/v1"),
    ("ReplicaSet", "apps/v1"),
    ("StatefulSet", "apps/v1"),
    ("DaemonSet", "apps/v1"),
    ("Job", "batch/v1"),
];
/// Kinds without pods that an error names.
const NAMED: usize = 3;

/// Refuses a kind that is read, in another version or in other letters: left out, it would be missed.
pub(super) fn misspelt(version: &str, kind: &str) -> Result<(), Complaint> {
    let meant = KINDS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(kind));
    match meant {
        Some((name, _)) if *name != kind => {
            Err(Complaint::new("kind", format!("{kind:?}: write {name}")))
        }
        // A kind of the same name in a group of somebody's own is another kind.
        Some((name, wanted)) if !version.split('/').next().unwrap_or_default().contains('.') => {
            let message = format!("{version:?}: a {name} is of {wanted}");
            Err(Complaint::new("apiVersion", message))
        }
        _ => Ok(()),
    }
}

/// What there is in place of pods, for an error.
pub(super) fn only(ignored: &[String]) -> String {
    if ignored.is_empty() {
        return String::new();
    }
    let more = match ignored.len() {
        0..=NAMED => "",
        _ => ", ...",
    };
    let named = &ignored[..ignored.len().min(NAMED)];
    format!(", only {}{more}", named.join(", "))
}
