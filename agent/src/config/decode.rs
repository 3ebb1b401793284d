//! From the text of KubeletConfiguration files to one configuration: strict, and every complaint is one line that
//! names the file, the field and the value.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ConfigError;
use super::kubelet::KubeletConfiguration;
use super::without_effect::{ON_BY_DEFAULT, WITHOUT_EFFECT};

/// The only version that there is.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The only kind that there is.
pub const KIND: &str = "KubeletConfiguration";

/// A decoded configuration and the names of fields that were set in vain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoded {
    /// The configuration.
    pub config: KubeletConfiguration,
    /// Fields that are accepted and have no effect.
    pub without_effect: Vec<String>,
}

/// Decodes files that build on one another: objects are merged, everything else is replaced.
pub fn decode(files: &[(PathBuf, String)]) -> Result<Decoded, ConfigError> {
    let mut merged = Map::new();
    // Each file is checked for itself first, so that a complaint names the right one.
    for (path, text) in files {
        let map = parse(path, text)?;
        typed(path, without_effect(map.clone()).0)?;
        merge(&mut merged, map);
    }
    let last = files
        .last()
        .map(|(path, _)| path.as_path())
        .unwrap_or_else(|| Path::new(""));
    let (known, names) = without_effect(merged);
    Ok(Decoded {
        config: typed(last, known)?,
        without_effect: names,
    })
}

/// YAML (or JSON) text to a map; refuses duplicate fields, other kinds and other versions.
fn parse(path: &Path, text: &str) -> Result<Map<String, Value>, ConfigError> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        message: one_line(&error.without_snippet().to_string()),
    })?;
    let mut map = match value {
        Value::Object(map) => map,
        Value::Null => Map::new(),
        _ => {
            let message = format!("is no {KIND}: a mapping of field names to values is expected");
            return Err(ConfigError::Syntax {
                path: path.to_owned(),
                message,
            });
        }
    };
    // Nothing behind a field's name is as good as no field.
    map.retain(|_, value| !value.is_null());
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let given = map.get(field).and_then(Value::as_str).unwrap_or_default();
        if given != wanted {
            return Err(ConfigError::Field {
                path: path.to_owned(),
                field: field.to_owned(),
                message: format!("{given:?} is not supported, write {wanted}"),
            });
        }
    }
    Ok(map)
}

/// The typed form; a complaint names the path of the field.
fn typed(path: &Path, map: Map<String, Value>) -> Result<KubeletConfiguration, ConfigError> {
    let source = Value::Object(map);
    serde_path_to_error::deserialize(&source).map_err(|error| {
        let field = error.path().to_string();
        let message = error.into_inner().to_string();
        // serde lists every field that it would have taken; a hundred names are no help.
        let message = message
            .split(", expected one of")
            .next()
            .unwrap_or_default();
        let message = match value_at(&source, &field) {
            Some(value) if !value.is_object() && !message.contains("unknown field") => {
                format!("{value}: {message}")
            }
            _ => message.to_owned(),
        };
        ConfigError::Field {
            path: path.to_owned(),
            field,
            message: one_line(&message),
        }
    })
}

/// The value at a path like `authentication.x509`.
fn value_at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// Takes out the fields that have no effect, and names those that ask for something.
fn without_effect(mut map: Map<String, Value>) -> (Map<String, Value>, Vec<String>) {
    let mut names = Vec::new();
    for name in WITHOUT_EFFECT {
        let asks = match map.remove(*name) {
            Some(Value::Bool(on)) => on != ON_BY_DEFAULT.contains(name),
            Some(value) => asks_for_something(&value),
            None => false,
        };
        if asks {
            names.push((*name).to_owned());
        }
    }
    (map, names)
}

/// Generated files spell out every default as a zero; these ask for nothing.
fn asks_for_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(on) => *on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0s" | "0"),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => map.values().any(asks_for_something),
    }
}

/// Lays `over` over `base`.
fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// Messages of parsers may span lines; ours do not.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn one(body: &str) -> Result<Decoded, String> {
        let text = format!("{HEAD}{body}");
        decode(&[("/etc/k.yaml".into(), text)]).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_configuration_is_the_kubelets_default() {
        let decoded = one("").unwrap();
        assert_eq!(decoded, Decoded::default());
        assert_eq!(decoded.config.max_pods, 110);
        assert_eq!(decoded.config.authorization.mode, "Webhook");
        assert!(!decoded.config.authentication.anonymous.enabled);
    }

    #[test]
    fn what_kubeadm_generates_is_accepted_with_its_zeros() {
        let decoded = one(concat!(
            "authentication:\n  anonymous: {enabled: false}\n  webhook: {cacheTTL: 0s, enabled: true}\n",
            "  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}\n",
            "authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}\n",
            "cgroupDriver: systemd\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n",
            "cpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {}\nevictionPressureTransitionPeriod: 0s\n",
            "logging: {flushFrequency: 0, options: {json: {infoBufferSize: \"0\"}}, verbosity: 0}\n",
            "memorySwap: {}\nnodeStatusReportFrequency: 0s\nnodeStatusUpdateFrequency: 0s\n",
            "rotateCertificates: true\nshutdownGracePeriod: 0s\nstaticPodPath: /etc/kubernetes/manifests\n",
            "healthzPort: 10248\nhealthzBindAddress: 127.0.0.1\n",
        ))
        .unwrap();
        assert_eq!(
            decoded.config.node_status_update_frequency,
            Duration::from_secs(10)
        );
        assert_eq!(
            decoded.config.authentication.webhook.cache_ttl,
            Duration::from_secs(120)
        );
        assert_eq!(decoded.config.cluster_dns, ["10.96.0.10"]);
        assert_eq!(decoded.config.static_pod_path, "/etc/kubernetes/manifests");
        assert!(decoded.config.rotate_certificates);
        assert!(decoded.without_effect.is_empty());
    }

    #[test]
    fn a_field_with_nothing_behind_is_as_good_as_absent() {
        for body in [
            "tlsCipherSuites:\n",
            "tlsMinVersion: null\n",
            "maxPods: ~\nauthentication:\n",
        ] {
            assert_eq!(one(body), Ok(Decoded::default()), "{body}");
        }
        // It takes nothing away from the file below.
        let base = format!("{HEAD}maxPods: 50\n");
        let over = format!("{HEAD}maxPods:\n");
        let both = decode(&[("/a".into(), base), ("/b".into(), over)]).unwrap();
        assert_eq!(both.config.max_pods, 50);
    }

    #[test]
    fn a_switch_asks_for_something_when_it_is_not_at_its_default() {
        for (body, want) in [
            (
                "cpuCFSQuota: false\nserializeImagePulls: false\n",
                &["cpuCFSQuota", "serializeImagePulls"][..],
            ),
            ("cpuCFSQuota: true\n", &[]),
            ("cpuCFSQuota: null\n", &[]),
            ("protectKernelDefaults: true\n", &["protectKernelDefaults"]),
            ("protectKernelDefaults: false\n", &[]),
        ] {
            assert_eq!(one(body).unwrap().without_effect, want, "{body}");
        }
        for name in ON_BY_DEFAULT {
            assert!(WITHOUT_EFFECT.contains(name), "{name}");
        }
    }

    #[test]
    fn a_complaint_names_file_field_and_value_in_one_line() {
        for (body, message) in [
            (
                "maxPod: 5\n",
                "/etc/k.yaml: field maxPod: unknown field `maxPod`",
            ),
            (
                "authentication: {x509: {caFile: /x}}\n",
                "/etc/k.yaml: field authentication.x509.caFile: unknown field `caFile`",
            ),
            (
                "maxPods: many\n",
                "/etc/k.yaml: field maxPods: \"many\": invalid type",
            ),
            (
                "port: 70000\n",
                "/etc/k.yaml: field port: 70000: invalid value",
            ),
            (
                "nodeStatusUpdateFrequency: 10\n",
                "/etc/k.yaml: field nodeStatusUpdateFrequency: 10: ",
            ),
            (
                "nodeStatusUpdateFrequency: -1s\n",
                "/etc/k.yaml: field nodeStatusUpdateFrequency: \"-1s\": a duration cannot be negative",
            ),
            ("maxPods: 1\nmaxPods: 2\n", "/etc/k.yaml: "),
            ("maxPods: [\n", "/etc/k.yaml: "),
            (
                "registerWithTaints: [{key: a}]\n",
                "/etc/k.yaml: field registerWithTaints[0]",
            ),
        ] {
            let error = one(body).unwrap_err();
            assert!(error.starts_with(message), "{body:?} gave {error:?}");
            assert!(!error.contains('\n') && error.len() < 300, "{error:?}");
        }
    }

    #[test]
    fn another_kind_or_version_is_refused() {
        for (text, part) in [
            (
                "kind: KubeletConfiguration\n",
                "field apiVersion: \"\" is not supported",
            ),
            (
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod\n",
                "field kind: \"Pod\"",
            ),
            ("- 1\n", "is no KubeletConfiguration"),
        ] {
            let error = decode(&[("/k".into(), text.into())])
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn a_drop_in_changes_only_what_it_names() {
        let base = format!("{HEAD}maxPods: 50\nauthentication: {{anonymous: {{enabled: true}}}}\n");
        let over = format!(
            "{HEAD}authentication: {{x509: {{clientCAFile: /ca}}}}\nclusterDNS: [1.1.1.1]\n"
        );
        let config = decode(&[("/a".into(), base), ("/b".into(), over)])
            .unwrap()
            .config;
        assert_eq!(config.max_pods, 50);
        assert!(config.authentication.anonymous.enabled);
        assert_eq!(config.authentication.x509.client_ca_file, "/ca");
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let config = one("maxPods: 7\nnodeStatusUpdateFrequency: 90s\n")
            .unwrap()
            .config;
        let shown = serde_json::to_string(&config).unwrap();
        assert_eq!(decode(&[("/k".into(), shown)]).unwrap().config, config);
    }
}
