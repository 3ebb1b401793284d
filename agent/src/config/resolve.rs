//! From flags and the decoded files to settings: a flag goes before a file, and every value is checked. Pure.

mod check;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use hanok_runtime::cgroup::DriverKind;
use ipnet::IpNet;

use super::decode::Decoded;
use super::kubelet::KubeletConfiguration;
use super::{Cluster, ConfigError, Machine, Paths, Settings, standalone, text, tls};
use crate::flags::Flags;
use crate::quantity::Amount;
pub(super) use check::check_files;

/// Lays the flags over the file and checks every value.
pub fn resolve(
    flags: &Flags,
    decoded: Decoded,
    machine: &Machine,
) -> Result<Settings, ConfigError> {
    let mut kubelet = decoded.config;
    overlay(flags, &mut kubelet)?;
    check::check(&kubelet)?;
    let mut without_effect = decoded.without_effect;
    without_effect.extend(flags.ignored.given().into_iter().map(str::to_owned));
    let (tls12, vain_suites) = tls::tls12(&kubelet)?;
    without_effect.extend(vain_suites);
    let log_max_size = amount("containerLogMaxSize", &kubelet.container_log_max_size)?;
    Ok(Settings {
        node_name: node_name(flags, machine)?,
        node_ips: node_ips(flags.node.node_ip.as_deref().unwrap_or_default())?,
        node_labels: parsed(
            "--node-labels",
            flags.node.node_labels.as_deref(),
            text::node_labels,
        )?
        .unwrap_or_default(),
        cluster: cluster(flags, &kubelet)?,
        paths: paths(flags, &kubelet, machine),
        tls12,
        cgroup_driver: cgroup_driver(&kubelet)?,
        bridge_name: bridge_name(flags)?,
        pod_cidrs: cidrs("--pod-cidr (podCIDR)", &kubelet.pod_cidr)?,
        non_masquerade_cidrs: cidrs(
            "--non-masquerade-cidr",
            flags
                .pods
                .non_masquerade_cidr
                .as_deref()
                .unwrap_or_default(),
        )?,
        plain_http_registries: flags.paths.plain_http_registry.clone(),
        log_max_size: u64::try_from(log_max_size.to_units()).unwrap_or(0),
        reserved: reserved(&kubelet)?,
        kubelet,
        without_effect,
        flags: flags.shown(),
    })
}

/// Lays a flag that was given over a field.
macro_rules! over {
    ($($flag:expr => $field:expr;)*) => { $(if let Some(value) = &$flag { $field = value.clone(); })* };
}

/// Flags that stand for one field each.
fn overlay(flags: &Flags, config: &mut KubeletConfiguration) -> Result<(), ConfigError> {
    let (node, serving, pods) = (&flags.node, &flags.serving, &flags.pods);
    over! {
        node.register_node => config.register_node;
        node.provider_id => config.provider_id;
        node.max_pods => config.max_pods;
        serving.address => config.address;
        serving.port => config.port;
        serving.healthz_bind_address => config.healthz_bind_address;
        serving.healthz_port => config.healthz_port;
        serving.tls_cert_file => config.tls_cert_file;
        serving.tls_private_key_file => config.tls_private_key_file;
        serving.tls_min_version => config.tls_min_version;
        serving.rotate_certificates => config.rotate_certificates;
        serving.rotate_server_certificates => config.server_tls_bootstrap;
        serving.client_ca_file => config.authentication.x509.client_ca_file;
        serving.anonymous_auth => config.authentication.anonymous.enabled;
        serving.authentication_token_webhook => config.authentication.webhook.enabled;
        serving.authorization_mode => config.authorization.mode;
        serving.read_only_port => config.read_only_port;
        pods.cluster_domain => config.cluster_domain;
        pods.resolv_conf => config.resolv_conf;
        pods.cgroup_root => config.cgroup_root;
        pods.cgroup_driver => config.cgroup_driver;
        pods.fail_swap_on => config.fail_swap_on;
        pods.pod_cidr => config.pod_cidr;
        pods.pod_manifest_path => config.static_pod_path;
        pods.manifest_url => config.static_pod_url;
    }
    if !pods.allowed_unsafe_sysctls.is_empty() {
        config
            .allowed_unsafe_sysctls
            .clone_from(&pods.allowed_unsafe_sysctls);
    }
    if !serving.tls_cipher_suites.is_empty() {
        let names = serving.tls_cipher_suites.iter().cloned();
        config.tls_cipher_suites = names.filter(|name| !name.is_empty()).collect();
    }
    let headers = pods.manifest_url_header.as_deref();
    if let Some(headers) = parsed("--manifest-url-header", headers, text::headers)? {
        config.static_pod_url_header = headers;
    }
    if let Some(servers) = &pods.cluster_dns {
        config.cluster_dns = servers
            .split(',')
            .map(|server| server.trim().to_owned())
            .collect();
    }
    let taints = node.register_with_taints.as_deref();
    if let Some(taints) = parsed("--register-with-taints", taints, text::taints)? {
        config.register_with_taints = taints;
    }
    let reserved = node.kube_reserved.as_deref();
    if let Some(reserved) = parsed("--kube-reserved", reserved, text::resources)? {
        config.kube_reserved = reserved;
    }
    let reserved = node.system_reserved.as_deref();
    if let Some(reserved) = parsed("--system-reserved", reserved, text::resources)? {
        config.system_reserved = reserved;
    }
    Ok(())
}

/// Runs a parser on a flag's value and gives its complaint a place.
fn parsed<T>(
    name: &'static str,
    value: Option<&str>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = value else { return Ok(None) };
    let failed = |message| ConfigError::Value {
        name,
        value: value.to_owned(),
        message,
    };
    parse(value).map(Some).map_err(failed)
}

/// A complaint about a value.
pub(super) fn refuse<T>(
    name: &'static str,
    value: &dyn std::fmt::Display,
    message: &str,
) -> Result<T, ConfigError> {
    Err(ConfigError::Value {
        name,
        value: value.to_string(),
        message: message.to_owned(),
    })
}

fn node_name(flags: &Flags, machine: &Machine) -> Result<String, ConfigError> {
    let given = flags
        .node
        .hostname_override
        .as_deref()
        .unwrap_or(&machine.hostname);
    let name = given.trim().to_lowercase();
    if text::is_dns_subdomain(&name) {
        return Ok(name);
    }
    let message = "a node's name consists of lower-case letters, digits, \"-\" and \".\"";
    refuse(
        "--hostname-override (default: the host name)",
        &given,
        message,
    )
}

/// Zero, one, or one of each family.
fn node_ips(text: &str) -> Result<Vec<IpAddr>, ConfigError> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let parsed: Result<Vec<IpAddr>, _> = parts.map(str::parse).collect();
    match parsed {
        Ok(ips) if ips.len() < 2 || (ips.len() == 2 && ips[0].is_ipv4() != ips[1].is_ipv4()) => {
            Ok(ips)
        }
        _ => refuse(
            "--node-ip",
            &text,
            "write one IP address, or one of each family",
        ),
    }
}

/// None for a node that is to be alone.
fn cluster(flags: &Flags, config: &KubeletConfiguration) -> Result<Option<Cluster>, ConfigError> {
    match (&flags.kubeconfig, &flags.bootstrap_kubeconfig) {
        (Some(kubeconfig), bootstrap) => Ok(Some(Cluster {
            kubeconfig: kubeconfig.clone(),
            bootstrap_kubeconfig: bootstrap.clone(),
        })),
        (None, Some(path)) => refuse(
            "--bootstrap-kubeconfig",
            &path.display(),
            "give --kubeconfig too: there goes what the node uses once it has joined",
        ),
        (None, None) => standalone::check(config).map(|()| None),
    }
}

fn paths(flags: &Flags, config: &KubeletConfiguration, machine: &Machine) -> Paths {
    let given = &flags.paths;
    let or = |path: &Option<PathBuf>, default: &str| path.clone().unwrap_or_else(|| default.into());
    let state_dir = or(&given.state_dir, "/var/lib/hanok");
    let root_dir = given.root_dir.clone().unwrap_or_else(|| state_dir.clone());
    let beside = |path: &Option<PathBuf>, name: &str| {
        path.clone()
            .unwrap_or_else(|| machine.program_dir.join(name))
    };
    Paths {
        cert_dir: given
            .cert_dir
            .clone()
            .unwrap_or_else(|| root_dir.join("pki")),
        run_dir: or(&given.run_dir, "/run/hanok"),
        netns_dir: or(&given.netns_dir, "/run/netns"),
        pod_logs_dir: or(&given.pod_log_dir, &config.pod_logs_dir),
        containers_log_dir: or(&given.containers_log_dir, "/var/log/containers"),
        cni_conf_dir: or(&given.cni_conf_dir, "/etc/cni/net.d"),
        cni_bin_dir: or(&given.cni_bin_dir, "/opt/cni/bin"),
        shim: beside(&given.shim_path, "hanok-shim"),
        pause: beside(&given.pause_path, "hanok-pause"),
        registry_config: given.registry_config.clone(),
        root_dir,
        state_dir,
    }
}

fn cgroup_driver(config: &KubeletConfiguration) -> Result<DriverKind, ConfigError> {
    let driver = &config.cgroup_driver;
    driver.parse().or_else(|_| {
        refuse(
            "--cgroup-driver (cgroupDriver)",
            driver,
            "write cgroupfs or systemd",
        )
    })
}

/// Linux gives an interface's name 15 bytes.
fn bridge_name(flags: &Flags) -> Result<String, ConfigError> {
    let name = flags.pods.bridge_name.as_deref().unwrap_or("hanok0");
    let fits = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b':';
    if name.is_empty() || name.len() > 15 || !name.bytes().all(fits) || name == "." || name == ".."
    {
        return refuse(
            "--bridge-name",
            &name,
            "write 1 to 15 printable characters without \"/\" and \":\"",
        );
    }
    Ok(name.to_owned())
}

fn cidrs(name: &'static str, text: &str) -> Result<Vec<IpNet>, ConfigError> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let parsed: Result<Vec<IpNet>, _> = parts.map(str::parse).collect();
    match parsed {
        Ok(cidrs) => Ok(cidrs.into_iter().map(|cidr| cidr.trunc()).collect()),
        Err(_) => refuse(name, &text, "write networks as in 10.244.1.0/24"),
    }
}

fn amount(name: &'static str, value: &str) -> Result<Amount, ConfigError> {
    Amount::parse(value).or_else(|error| refuse(name, &value, &error.to_string()))
}

/// The sum of both reservations.
fn reserved(config: &KubeletConfiguration) -> Result<BTreeMap<String, Amount>, ConfigError> {
    let mut sum: BTreeMap<String, Amount> = BTreeMap::new();
    for (place, map) in [
        ("kubeReserved", &config.kube_reserved),
        ("systemReserved", &config.system_reserved),
    ] {
        for (name, value) in map {
            let entry = sum.entry(name.clone()).or_default();
            *entry = entry.plus(amount(place, value)?);
        }
    }
    Ok(sum)
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
