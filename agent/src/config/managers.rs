//! Policies for which CPUs and which memory containers get. A node that is told one and has another would break a
//! promise to its pods: what hanok does not do is refused at the start.

use super::kubelet::KubeletConfiguration;
use super::{ConfigError, resolve};

/// Refuses policies that are not there.
pub(super) fn check(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    let policies = [
        (
            "cpuManagerPolicy",
            &config.cpu_manager_policy,
            &["none"][..],
            "containers have no CPUs of their own here: write none, or leave the field out",
        ),
        (
            "memoryManagerPolicy",
            &config.memory_manager_policy,
            &["None"],
            "containers have no memory of their own here: write None, or leave the field out",
        ),
        (
            "topologyManagerPolicy",
            &config.topology_manager_policy,
            &["none"],
            "CPUs and memory are not placed together here: write none, or leave the field out",
        ),
        (
            "topologyManagerScope",
            &config.topology_manager_scope,
            &["container", "pod"],
            "write container or pod",
        ),
    ];
    for (name, value, known, way_out) in policies {
        if !value.is_empty() && !known.contains(&value.as_str()) {
            return resolve::refuse(name, value, way_out);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_not_there_is_refused_by_field_value_and_way_out() {
        let table = [
            ("cpuManagerPolicy: none\ntopologyManagerScope: pod", None),
            (
                "memoryManagerPolicy: None\ntopologyManagerPolicy: none",
                None,
            ),
            ("cpuManagerPolicy: ''", None),
            ("cpuManagerPolicy: static", Some("write none")),
            ("memoryManagerPolicy: Static", Some("write None")),
            ("topologyManagerPolicy: restricted", Some("write none")),
            ("topologyManagerScope: node", Some("write container or pod")),
        ];
        for (text, want) in table {
            let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
            let files = [("/c.yaml".into(), format!("{head}{text}\n"))];
            let decoded = super::super::decode::decode(&files).expect("a configuration");
            assert!(decoded.without_effect.is_empty(), "{text}");
            let found = resolve::check_files(&files, &decoded.config);
            let found = found.map_err(|error| error.to_string());
            let Some(want) = want else {
                assert_eq!(found, Ok(()), "{text}");
                continue;
            };
            let error = found.expect_err(text);
            let (field, value) = text.split_once(": ").expect("a field");
            for part in ["/c.yaml", field, value, want] {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}
