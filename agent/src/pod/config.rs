//! From a pod's specification to the runtime's configurations. Pure, but for [`mounts`], which looks at paths.

pub mod container;
pub mod mounts;
pub mod security;

use hanok_runtime::api::{NamespaceMode, PodSandboxConfig, PortMapping, UserNamespace};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::files::hosts;
use super::settings::Settings;
use super::{labels, resources, spec};

/// The configuration of a pod's sandbox. The error is what the user reads.
pub fn sandbox(
    pod: &Pod,
    attempt: u32,
    handler: String,
    users: Option<UserNamespace>,
    settings: &Settings,
) -> Result<PodSandboxConfig, String> {
    let spec = spec::spec(pod);
    let flag = |of: fn(&k8s_openapi::api::core::v1::PodSpec) -> Option<bool>| {
        spec.and_then(of).unwrap_or(false)
    };
    let node_or_pod = |node: bool| {
        if node {
            NamespaceMode::Node
        } else {
            NamespaceMode::Pod
        }
    };
    let pid = match (
        flag(|spec| spec.host_pid),
        flag(|spec| spec.share_process_namespace),
    ) {
        (true, _) => NamespaceMode::Node,
        (false, true) => NamespaceMode::Pod,
        (false, false) => NamespaceMode::Container,
    };
    let security = spec.and_then(|spec| spec.security_context.as_ref());
    let sysctls = security.and_then(|security| security.sysctls.as_ref());
    let host_network = spec::host_network(pod);
    Ok(PodSandboxConfig {
        name: spec::name(pod).to_owned(),
        namespace: spec::namespace(pod).to_owned(),
        uid: spec::uid(pod),
        attempt,
        hostname: if host_network {
            String::new()
        } else {
            hosts::hostname(pod, &settings.dns.cluster_domain)?
        },
        log_directory: settings.pod_log_dir(pod),
        runtime_handler: handler,
        network: node_or_pod(host_network),
        pid,
        ipc: node_or_pod(flag(|spec| spec.host_ipc)),
        user_namespace: users,
        sysctls: sysctls
            .into_iter()
            .flatten()
            .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
            .collect(),
        cgroup_parent: resources::pod_cgroup(pod),
        port_mappings: if host_network {
            Vec::new()
        } else {
            host_ports(pod)
        },
        labels: labels::sandbox_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
    })
}

/// The host ports of app containers and sidecars.
pub fn host_ports(pod: &Pod) -> Vec<PortMapping> {
    let sidecars = spec::init_containers(pod)
        .iter()
        .filter(|container| spec::init_kind(container) == spec::ContainerKind::Sidecar);
    let mapping = |container: &Container| -> Vec<PortMapping> {
        let ports = container.ports.iter().flatten();
        ports
            .filter_map(|port| {
                let host_port = port.host_port.filter(|port| *port != 0)?;
                Some(PortMapping {
                    protocol: port.protocol.as_deref().unwrap_or("TCP").to_lowercase(),
                    container_port: u16::try_from(port.container_port).ok()?,
                    host_port: u16::try_from(host_port).ok()?,
                    host_ip: port.host_ip.clone().unwrap_or_default(),
                })
            })
            .collect()
    };
    sidecars
        .chain(spec::app_containers(pod))
        .flat_map(mapping)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;
    use serde_json::{Value, json};

    fn config(mut extra: Value) -> Result<PodSandboxConfig, String> {
        if extra["containers"].is_null() {
            extra["containers"] = json!([]);
        }
        let settings = Settings::new("/r/pods".into(), "/l/pods".into(), "/l/containers".into());
        sandbox(&sample::from(extra), 2, "runc".into(), None, &settings)
    }

    #[test]
    fn namespaces_follow_the_pods_flags() {
        use NamespaceMode::{Container, Node, Pod};
        let table = [
            (json!({}), (Pod, Container, Pod)),
            (json!({"shareProcessNamespace": true}), (Pod, Pod, Pod)),
            (json!({"hostPID": true}), (Pod, Node, Pod)),
            (
                json!({"hostNetwork": true, "hostIPC": true}),
                (Node, Container, Node),
            ),
        ];
        for (spec, want) in table {
            let config = config(spec.clone()).expect("a configuration");
            assert_eq!((config.network, config.pid, config.ipc), want, "{spec}");
        }
    }

    #[test]
    fn the_sandbox_carries_who_it_is_and_where_it_belongs() {
        let config = config(json!({"containers": [{"name": "c", "image": "i", "ports": [
            {"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]}]}));
        let config = config.expect("a configuration");
        assert_eq!(config.attempt, 2);
        assert_eq!(config.labels[labels::POD_UID], sample::UID);
        let log_directory = format!("/l/pods/default_web_{}", sample::UID);
        assert_eq!(config.log_directory, std::path::Path::new(&log_directory));
        let want = PortMapping {
            protocol: "tcp".into(),
            container_port: 80,
            host_port: 8080,
            host_ip: String::new(),
        };
        assert_eq!(config.port_mappings, [want]);
    }
}
