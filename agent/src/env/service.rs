//! Environment variables that name the Services a pod can reach: `NAME_SERVICE_HOST` and the older link style.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;

/// The namespace of the one service that every pod is told about, and its name.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

/// The variables for a pod of `namespace`. Without `links` only the API server's service is named.
pub fn variables(
    services: &[Arc<Service>],
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services
        .iter()
        .filter(|service| cluster_ip(service).is_some())
    {
        let (Some(name), Some(home)) = (&service.metadata.name, &service.metadata.namespace) else {
            continue;
        };
        if home == namespace && links {
            chosen.insert(name, service);
        } else if (home.as_str(), name.as_str()) == API_SERVICE {
            chosen.entry(name).or_insert(service);
        }
    }
    let mut out = BTreeMap::new();
    for (name, service) in chosen {
        add(&mut out, name, service);
    }
    out
}

/// The address, unless the service is headless or has none yet.
fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

/// Adds the variables of one service.
fn add(out: &mut BTreeMap<String, String>, name: &str, service: &Service) {
    let Some(ip) = cluster_ip(service) else {
        return;
    };
    let prefix = variable_name(name);
    out.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    };
    let ports = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ports.as_deref())
        .unwrap_or_default();
    for (index, port) in ports.iter().enumerate() {
        let number = port.port;
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let scheme = protocol.to_lowercase();
        let url = format!("{scheme}://{host}:{number}");
        if index == 0 {
            out.insert(format!("{prefix}_SERVICE_PORT"), number.to_string());
            out.insert(format!("{prefix}_PORT"), url.clone());
        }
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let key = format!("{prefix}_SERVICE_PORT_{}", variable_name(port_name));
            out.insert(key, number.to_string());
        }
        let link = format!("{prefix}_PORT_{number}_{}", protocol.to_uppercase());
        out.insert(format!("{link}_PROTO"), scheme);
        out.insert(format!("{link}_PORT"), number.to_string());
        out.insert(format!("{link}_ADDR"), ip.to_owned());
        out.insert(link, url);
    }
}

/// `my-db` as `MY_DB`.
fn variable_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(namespace: &str, name: &str, ip: &str, ports: serde_json::Value) -> Arc<Service> {
        let value = json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": ports},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_service_is_told_in_both_styles() {
        let db = service(
            "ns",
            "my-db",
            "10.0.0.7",
            json!([
                {"name": "sql", "port": 5432}, {"name": "stats-1", "port": 99, "protocol": "UDP"}
            ]),
        );
        let vars = variables(&[db], "ns", true);
        let lines: Vec<String> = vars
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            lines,
            [
                "MY_DB_PORT=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_PORT_99_UDP=udp://10.0.0.7:99",
                "MY_DB_PORT_99_UDP_ADDR=10.0.0.7",
                "MY_DB_PORT_99_UDP_PORT=99",
                "MY_DB_PORT_99_UDP_PROTO=udp",
                "MY_DB_SERVICE_HOST=10.0.0.7",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_SQL=5432",
                "MY_DB_SERVICE_PORT_STATS_1=99",
            ]
        );
    }

    #[test]
    fn without_links_only_the_api_service_is_told() {
        let services = [
            service("ns", "web", "10.0.0.8", json!([{"port": 80}])),
            service(
                "default",
                "kubernetes",
                "fd00::1",
                json!([{"name": "https", "port": 443}]),
            ),
            service("default", "other", "10.0.0.9", json!([{"port": 80}])),
        ];
        let vars = variables(&services, "ns", false);
        assert_eq!(vars["KUBERNETES_SERVICE_HOST"], "fd00::1");
        assert_eq!(vars["KUBERNETES_PORT"], "tcp://[fd00::1]:443");
        assert!(vars.keys().all(|name| name.starts_with("KUBERNETES_")));
    }

    #[test]
    fn a_namesake_of_the_api_service_in_the_pods_namespace_goes_before_it() {
        let services = [
            service("default", "kubernetes", "10.0.0.1", json!([{"port": 443}])),
            service("ns", "kubernetes", "10.0.0.2", json!([{"port": 443}])),
        ];
        assert_eq!(
            variables(&services, "ns", true)["KUBERNETES_SERVICE_HOST"],
            "10.0.0.2"
        );
        assert_eq!(
            variables(&services, "ns", false)["KUBERNETES_SERVICE_HOST"],
            "10.0.0.1"
        );
    }

    #[test]
    fn a_headless_service_is_not_told() {
        assert!(variables(&[service("ns", "db", "None", json!([]))], "ns", true).is_empty());
    }
}
