//! Parsers of the small languages in flags: labels, taints, resource lists, address lists.
//!
//! Pure. Each complaint is the second half of a line that starts with the flag and its value.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;

use crate::quantity::Amount;

/// `key=value,key=value`.
pub fn pairs(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut out = BTreeMap::new();
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!("{part:?} has no \"=\": write key=value,key=value"));
        };
        out.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(out)
}

/// `name:value,name:value`; a name may come more than once.
pub fn headers(text: &str) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let Some((name, value)) = part.split_once(':') else {
            return Err(format!(
                "{part:?} has no \":\": write name:value,name:value"
            ));
        };
        let values = out.entry(name.trim().to_owned()).or_default();
        values.push(value.trim().to_owned());
    }
    Ok(out)
}

/// `cpu=100m,memory=1Gi`.
pub fn resources(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pairs = pairs(text)?;
    for (name, amount) in &pairs {
        Amount::parse(amount).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(pairs)
}

/// `key=value:Effect,key:Effect`.
pub fn taints(text: &str) -> Result<Vec<Taint>, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts.map(taint).collect()
}

/// `key=value:Effect` or `key:Effect`.
pub fn taint(part: &str) -> Result<Taint, String> {
    let wrong = || {
        format!(
            "{part:?} is no taint: write key=value:Effect, where Effect is NoSchedule, PreferNoSchedule or NoExecute"
        )
    };
    let (name, effect) = part.rsplit_once(':').ok_or_else(wrong)?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(wrong());
    }
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    if !is_qualified_name(key) || !is_label_value(value) {
        return Err(wrong());
    }
    Ok(Taint {
        key: key.to_owned(),
        value: (!value.is_empty()).then(|| value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    })
}

/// Labels that a node may give itself; NodeRestriction refuses the others, and so the whole Node.
pub fn node_labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let labels = pairs(text)?;
    for (key, value) in &labels {
        if !is_qualified_name(key) {
            return Err(format!("{key:?} is no label key"));
        }
        if !is_label_value(value) {
            return Err(format!(
                "{value:?} is no value for label {key:?}: at most 63 letters, digits, \"-\", \"_\", \".\""
            ));
        }
        if !may_set_label(key) {
            return Err(format!(
                "label {key:?} is reserved: a node may not give it to itself"
            ));
        }
    }
    Ok(labels)
}

/// The rule of NodeRestriction: labels of Kubernetes' own domains only where they are meant for kubelets.
fn may_set_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else {
        return true;
    };
    let below = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
    if !below("kubernetes.io") && !below("k8s.io") {
        return true;
    }
    const ALLOWED: &[&str] = &[
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.kubernetes.io/region",
        "failure-domain.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    ];
    ALLOWED.contains(&key) || below("kubelet.kubernetes.io") || below("node.kubernetes.io")
}

/// `[dns.domain/]name`.
fn is_qualified_name(key: &str) -> bool {
    let name = match key.split_once('/') {
        Some((domain, name)) if is_dns_subdomain(domain) => name,
        Some(_) => return false,
        None => key,
    };
    !name.is_empty() && is_label_value(name)
}

/// At most 63 characters, alphanumeric at both ends.
fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    value.len() <= 63
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
        && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
}

/// Lower-case labels joined by dots, at most 253 characters: what a Node may be called.
pub fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let bytes = label.as_bytes();
        let fits = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        bytes.first().is_some_and(fits)
            && bytes.last().is_some_and(fits)
            && bytes.iter().all(|b| fits(b) || *b == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_read_with_and_without_a_value() {
        let taints = taints("a.b/c=d:NoSchedule,e:NoExecute").unwrap();
        assert_eq!(
            (taints[0].key.as_str(), taints[0].value.as_deref()),
            ("a.b/c", Some("d"))
        );
        assert_eq!(
            (taints[1].key.as_str(), taints[1].effect.as_str()),
            ("e", "NoExecute")
        );
        for wrong in ["a", "a:Never", "=b:NoSchedule", "a=b c:NoSchedule"] {
            assert!(
                super::taints(wrong).unwrap_err().contains("is no taint"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_node_gives_itself_only_the_labels_that_node_restriction_allows() {
        for allowed in [
            "a=b",
            "example.com/x=y",
            "node.kubernetes.io/x=",
            "topology.kubernetes.io/zone=z",
        ] {
            assert!(node_labels(allowed).is_ok(), "{allowed}");
        }
        for refused in [
            "node-role.kubernetes.io/control-plane=",
            "node-restriction.kubernetes.io/x=y",
            "kubernetes.io/x=y",
            "x.k8s.io/y=z",
            "-a=b",
            "a=b c",
            "a",
        ] {
            assert!(node_labels(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_node_name_is_a_dns_subdomain() {
        for good in ["n1", "n-1.example.com"] {
            assert!(is_dns_subdomain(good), "{good}");
        }
        for bad in ["", "N1", "a..b", "-a", "a_b", "a/b"] {
            assert!(!is_dns_subdomain(bad), "{bad}");
        }
    }

    #[test]
    fn reserved_resources_are_quantities() {
        assert_eq!(resources("cpu=100m, memory=1Gi").unwrap()["cpu"], "100m");
        assert!(
            resources("cpu=much")
                .unwrap_err()
                .starts_with("cpu: \"much\" is not a quantity")
        );
    }
}
