//! Which values are right. Pure.

use std::net::IpAddr;
use std::path::PathBuf;

use super::{amount, cidrs, refuse, reserved};
use crate::config::kubelet::KubeletConfiguration;
use crate::config::{ConfigError, managers, tls};
use crate::pod::admit::check_pattern;

/// The same complaints about what the files say by themselves: they name the file.
pub(in crate::config) fn check_files(
    files: &[(PathBuf, String)],
    config: &KubeletConfiguration,
) -> Result<(), ConfigError> {
    check(config).map_err(|error| in_file(files, error))
}

/// Gives a complaint about a field its place: the last file that has the field.
fn in_file(files: &[(PathBuf, String)], error: ConfigError) -> ConfigError {
    let ConfigError::Value {
        name,
        value,
        message,
    } = error
    else {
        return error;
    };
    // `--flag (field)`, or the field alone.
    let field = name.split_once('(').map_or(name, |(_, rest)| rest);
    let field = field.split(')').next().unwrap_or(field);
    let top = field.split('.').next().unwrap_or(field);
    let found = files.iter().rev().find(|(_, text)| text.contains(top));
    match found {
        Some((path, _)) => ConfigError::Field {
            path: path.clone(),
            field: field.to_owned(),
            message: format!("{value:?}: {message}"),
        },
        None => ConfigError::Value {
            name,
            value,
            message,
        },
    }
}

/// The longest back-off of a container.
fn check_back_off(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    let longest = config.crash_loop_back_off.max_container_restart_period;
    if (1..=300).contains(&longest.as_secs()) {
        return Ok(());
    }
    refuse(
        "crashLoopBackOff.maxContainerRestartPeriod",
        &longest.as_secs_f64(),
        "write seconds from 1s to 300s",
    )
}

/// Values that have only a few right forms.
pub(super) fn check(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    check_texts(config)?;
    check_tls(config)?;
    let cgroup = &config.cgroup_root;
    if cgroup.split('/').any(|part| part == "..") || cgroup.contains('\0') {
        return refuse(
            "--cgroup-root (cgroupRoot)",
            cgroup,
            "write a path without \"..\"",
        );
    }
    if config.pod_pids_limit < -1 {
        return refuse(
            "podPidsLimit",
            &config.pod_pids_limit,
            "write -1 for no limit, or a number from 0 on",
        );
    }
    for cidr in cidrs("--pod-cidr (podCIDR)", &config.pod_cidr)? {
        if cidr.max_prefix_len() - cidr.prefix_len() < 2 {
            let message = "pods need more than four addresses";
            return refuse("--pod-cidr (podCIDR)", &cidr, message);
        }
    }
    amount("containerLogMaxSize", &config.container_log_max_size)?;
    reserved(config).map(drop)
}

/// Where the serving certificate comes from, and which handshakes are taken.
fn check_tls(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    if config.tls_cert_file.is_empty() != config.tls_private_key_file.is_empty() {
        let given = format!("{}{}", config.tls_cert_file, config.tls_private_key_file);
        let message = "a certificate and its key go together: give both, or neither";
        return refuse(
            "--tls-cert-file (tlsCertFile), --tls-private-key-file",
            &given,
            message,
        );
    }
    if config.server_tls_bootstrap && !config.tls_cert_file.is_empty() {
        let message = "with serverTLSBootstrap the cluster gives the certificate: give one of both";
        return refuse(
            "--tls-cert-file (tlsCertFile)",
            &config.tls_cert_file,
            message,
        );
    }
    tls::tls12(config).map(drop)
}

fn check_swap(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    let behavior = &config.memory_swap.swap_behavior;
    match behavior.as_str() {
        "" | "NoSwap" | "LimitedSwap" => Ok(()),
        _ => refuse(
            "memorySwap.swapBehavior",
            behavior,
            "write NoSwap or LimitedSwap",
        ),
    }
}

fn check_texts(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    let mode = &config.authorization.mode;
    if !matches!(mode.as_str(), "Webhook" | "AlwaysAllow") {
        return refuse(
            "--authorization-mode (authorization.mode)",
            mode,
            "write Webhook or AlwaysAllow",
        );
    }
    check_back_off(config)?;
    managers::check(config)?;
    check_swap(config)?;
    if config.read_only_port != 0 {
        let message = "there is no port without authentication: leave it 0 and use port 10250";
        return refuse(
            "--read-only-port (readOnlyPort)",
            &config.read_only_port,
            message,
        );
    }
    for (name, address) in [
        ("--address (address)", &config.address),
        (
            "--healthz-bind-address (healthzBindAddress)",
            &config.healthz_bind_address,
        ),
    ] {
        if address.parse::<IpAddr>().is_err() {
            return refuse(name, address, "write an IP address");
        }
    }
    for server in &config.cluster_dns {
        if server.parse::<IpAddr>().is_err() {
            return refuse("--cluster-dns (clusterDNS)", server, "write IP addresses");
        }
    }
    for pattern in &config.allowed_unsafe_sysctls {
        if let Err(error) = check_pattern(pattern) {
            let name = "--allowed-unsafe-sysctls (allowedUnsafeSysctls)";
            return refuse(name, pattern, &error.to_string());
        }
    }
    let url = &config.static_pod_url;
    if !url.is_empty() && !url.starts_with("http://") && !url.starts_with("https://") {
        let name = "--manifest-url (staticPodURL)";
        return refuse(name, url, "write a URL of http or https");
    }
    if config.max_pods == 0 {
        return refuse(
            "--max-pods (maxPods)",
            &config.max_pods,
            "write a number above 0",
        );
    }
    if config.container_log_max_files < 2 {
        let message = "write 2 or more: one file is written while the other is kept";
        return refuse(
            "containerLogMaxFiles",
            &config.container_log_max_files,
            message,
        );
    }
    Ok(())
}
