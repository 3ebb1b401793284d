//! What the agent is told: flags over drop-ins over the configuration file over defaults, checked once at the start.
//!
//! [`load`] reads; [`resolve`] decides, purely. Nothing else in the agent looks at flags or files of configuration.

pub mod decode;
pub mod kubelet;
pub mod text;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::flags::Flags;
use crate::quantity::Amount;
use decode::Decoded;
use kubelet::KubeletConfiguration;

/// A configuration that cannot be used: one line that names the place and the value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("{path}: cannot read it")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file that is no configuration.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A field with a wrong name or value.
    #[error("{path}: field {field}: {message}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The field's path.
        field: String,
        /// What is wrong with it, and what would be right.
        message: String,
    },
    /// A value that cannot be used, wherever it was given.
    #[error("{name}: {value:?}: {message}")]
    Value {
        /// The flag, and the field that it overrides.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it, and what would be right.
        message: String,
    },
}

/// Everything that the agent is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The configuration file's fields, with flags laid over them.
    pub kubelet: KubeletConfiguration,
    /// Name of the Node.
    pub node_name: String,
    /// The node's addresses, primary first; an unspecified one (`0.0.0.0`, `::`) asks for detection in its family.
    pub node_ips: Vec<IpAddr>,
    /// Labels beside the standard ones.
    pub node_labels: BTreeMap<String, String>,
    /// How to reach the API server.
    pub kubeconfig: PathBuf,
    /// Directories.
    pub paths: Paths,
    /// Bridge of the built-in pod network.
    pub bridge_name: String,
    /// Pod addresses by order of the operator; empty to take the Node's.
    pub pod_cidrs: Vec<IpNet>,
    /// Destinations that see pods' own addresses.
    pub non_masquerade_cidrs: Vec<IpNet>,
    /// Registries that are asked over plain HTTP.
    pub plain_http_registries: Vec<String>,
    /// Size at which a container's log is rotated, bytes; 0 for never.
    pub log_max_size: u64,
    /// What is taken off the capacity.
    pub reserved: BTreeMap<String, Amount>,
    /// Fields and flags that were given and have no effect.
    pub without_effect: Vec<String>,
}

/// Directories and programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Paths {
    /// Pods' volumes are below it.
    pub root_dir: PathBuf,
    /// Certificates.
    pub cert_dir: PathBuf,
    /// What outlives a reboot.
    pub state_dir: PathBuf,
    /// What dies with it.
    pub run_dir: PathBuf,
    /// Pinned network namespaces.
    pub netns_dir: PathBuf,
    /// Pods' logs.
    pub pod_logs_dir: PathBuf,
    /// Links to logs by container.
    pub containers_log_dir: PathBuf,
    /// CNI configuration.
    pub cni_conf_dir: PathBuf,
    /// CNI plugins.
    pub cni_bin_dir: PathBuf,
    /// The shim.
    pub shim: PathBuf,
    /// Pause.
    pub pause: PathBuf,
    /// Registries' hosts.toml files; none for the default.
    pub registry_config: Option<PathBuf>,
}

/// What the machine contributes to defaults.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its host name.
    pub hostname: String,
    /// The directory of the running program: shim and pause lie there.
    pub program_dir: PathBuf,
}

/// Reads the files that the flags name and decides.
pub fn load(flags: &Flags, machine: &Machine) -> Result<Settings, ConfigError> {
    let mut files = Vec::new();
    for path in flags
        .config
        .iter()
        .cloned()
        .chain(drop_ins(flags.config_dir.as_deref())?)
    {
        let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        files.push((path, text));
    }
    resolve(flags, decode::decode(&files)?, machine)
}

/// `*.conf` in the drop-in directory, sorted by name.
fn drop_ins(dir: Option<&Path>) -> Result<Vec<PathBuf>, ConfigError> {
    let Some(dir) = dir else {
        return Ok(Vec::new());
    };
    let failed = |source| ConfigError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "conf")
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Lays the flags over the file and checks every value.
pub fn resolve(
    flags: &Flags,
    decoded: Decoded,
    machine: &Machine,
) -> Result<Settings, ConfigError> {
    let mut kubelet = decoded.config;
    overlay(flags, &mut kubelet)?;
    check(&kubelet)?;
    let mut without_effect = decoded.without_effect;
    without_effect.extend(flags.ignored.given().into_iter().map(str::to_owned));
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
        kubeconfig: kubeconfig(flags)?,
        paths: paths(flags, &kubelet, machine),
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
fn refuse<T>(
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

/// Values that have only a few right forms.
fn check(config: &KubeletConfiguration) -> Result<(), ConfigError> {
    let mode = &config.authorization.mode;
    if !matches!(mode.as_str(), "Webhook" | "AlwaysAllow") {
        return refuse(
            "--authorization-mode (authorization.mode)",
            mode,
            "write Webhook or AlwaysAllow",
        );
    }
    let driver = &config.cgroup_driver;
    if !matches!(driver.as_str(), "cgroupfs" | "systemd") {
        return refuse(
            "--cgroup-driver (cgroupDriver)",
            driver,
            "write cgroupfs or systemd",
        );
    }
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
    if config.tls_cert_file.is_empty() != config.tls_private_key_file.is_empty() {
        let given = format!("{}{}", config.tls_cert_file, config.tls_private_key_file);
        let message = "a certificate and its key go together: give both, or neither";
        return refuse(
            "--tls-cert-file (tlsCertFile), --tls-private-key-file",
            &given,
            message,
        );
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

fn kubeconfig(flags: &Flags) -> Result<PathBuf, ConfigError> {
    match (&flags.kubeconfig, &flags.bootstrap_kubeconfig) {
        (Some(path), None) => Ok(path.clone()),
        // kubeadm's units always give both; the second one counts only while the first does not exist.
        (Some(path), Some(_)) if path.exists() => Ok(path.clone()),
        (_, Some(path)) => refuse(
            "--bootstrap-kubeconfig",
            &path.display(),
            "joining with a bootstrap token is not supported: make a certificate for this node and give it by --kubeconfig",
        ),
        (None, None) => refuse(
            "--kubeconfig",
            &"",
            "give the file that says how to reach the API server; to run pods without one, use `hanok run FILE`",
        ),
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
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn settle(line: &[&str]) -> Result<Settings, String> {
        let line = [&["agent", "--kubeconfig=/k"], line].concat();
        let flags = Line::try_parse_from(line)
            .map_err(|error| error.to_string())?
            .flags;
        let machine = Machine {
            hostname: "Host1".into(),
            program_dir: "/usr/bin".into(),
        };
        resolve(&flags, Decoded::default(), &machine).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_follow_the_layout_on_disk() {
        let settings = settle(&[]).unwrap();
        assert_eq!(settings.node_name, "host1");
        assert_eq!(settings.paths.root_dir, Path::new("/var/lib/hanok"));
        assert_eq!(settings.paths.cert_dir, Path::new("/var/lib/hanok/pki"));
        assert_eq!(settings.paths.shim, Path::new("/usr/bin/hanok-shim"));
        assert_eq!(settings.paths.pod_logs_dir, Path::new("/var/log/pods"));
        assert_eq!(settings.log_max_size, 10 << 20);
        assert!(settings.without_effect.is_empty());
    }

    #[test]
    fn a_flag_goes_before_the_file() {
        let settings = settle(&[
            "--max-pods=250",
            "--register-node=false",
            "--anonymous-auth",
            "--node-ip=10.0.0.1,fd00::1",
            "--kube-reserved=cpu=100m",
            "--system-reserved=cpu=200m,memory=1Gi",
            "--pod-cidr=10.244.1.7/24",
            "--cluster-dns=10.96.0.10",
            "--container-runtime-endpoint=unix:///x",
            "--v=4",
        ])
        .unwrap();
        assert_eq!(settings.kubelet.max_pods, 250);
        assert!(!settings.kubelet.register_node);
        assert!(settings.kubelet.authentication.anonymous.enabled);
        assert_eq!(settings.node_ips.len(), 2);
        assert_eq!(settings.reserved["cpu"].to_millis(), 300);
        assert_eq!(settings.pod_cidrs[0].to_string(), "10.244.1.0/24");
        assert_eq!(settings.without_effect, ["--container-runtime-endpoint"]);
    }

    #[test]
    fn a_bad_value_is_refused_by_name_with_the_way_out() {
        for (flag, message) in [
            (
                "--node-ip=10.0.0.1,10.0.0.2",
                "--node-ip: \"10.0.0.1,10.0.0.2\": write one",
            ),
            (
                "--hostname-override=a_b",
                "--hostname-override (default: the host name): \"a_b\": ",
            ),
            (
                "--node-labels=a",
                "--node-labels: \"a\": \"a\" has no \"=\"",
            ),
            (
                "--register-with-taints=a",
                "--register-with-taints: \"a\": ",
            ),
            ("--kube-reserved=cpu=x", "--kube-reserved: \"cpu=x\": cpu: "),
            (
                "--authorization-mode=RBAC",
                "--authorization-mode (authorization.mode): \"RBAC\": write",
            ),
            (
                "--read-only-port=10255",
                "--read-only-port (readOnlyPort): \"10255\": ",
            ),
            (
                "--tls-cert-file=/c",
                "--tls-cert-file (tlsCertFile), --tls-private-key-file: \"/c\"",
            ),
            ("--cluster-dns=x", "--cluster-dns (clusterDNS): \"x\": "),
            ("--bridge-name=much-too-long-name", "--bridge-name: "),
            (
                "--pod-cidr=10.0.0.0",
                "--pod-cidr (podCIDR): \"10.0.0.0\": ",
            ),
            (
                "--bootstrap-kubeconfig=/b",
                "--bootstrap-kubeconfig: \"/b\": ",
            ),
            (
                "--cgroup-driver=x",
                "--cgroup-driver (cgroupDriver): \"x\": ",
            ),
        ] {
            let error = settle(&[flag]).unwrap_err();
            assert!(error.starts_with(message), "{flag} gave {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
