//! From settings to the configurations of the parts.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::assembly::{Assembled, Machinery};
use crate::certificate::store::Store;
use crate::certificate::{Kind, Order};
use crate::client::ApiServer;
use crate::config::Settings;
use crate::embedded::Places;
use crate::env::field::NodeFacts;
use crate::mirror::Mirrors;
use crate::node::status::Facts;
use crate::node::{machine, sub_ids};
use crate::pod::directory::Pods;
use crate::pod::files::dns::{DnsConfig, ResolvConf};
use crate::pod::memory::MemoryRules;
use crate::pod::users::UserRanges;
use crate::server::{self, Reviewer};
use crate::sinks::PodUpdate;
use crate::source::file::{self, FileSource};
use crate::source::static_pods::{Gate, StaticPods};
use crate::source::url::{self, UrlSource};
use crate::stats::Stats;

/// How long an unanswered question for the API server's address may take.
const RESOLVE: Duration = Duration::from_secs(5);

/// The runtime's places.
pub(super) fn machinery(settings: &Settings) -> Machinery {
    let paths = &settings.paths;
    Machinery {
        places: Places {
            state_dir: paths.state_dir.clone(),
            run_dir: paths.run_dir.clone(),
            netns_dir: paths.netns_dir.clone(),
            cgroup_driver: settings.cgroup_driver,
            cgroup_root: settings.kubelet.cgroup_root.clone(),
            seccomp_dir: seccomp_dir(settings),
            shim: paths.shim.clone(),
            pause: paths.pause.clone(),
        },
        cni_conf_dir: paths.cni_conf_dir.clone(),
        cni_bin_dir: paths.cni_bin_dir.clone(),
        bridge: settings.bridge_name.clone(),
        non_masquerade_cidrs: settings.non_masquerade_cidrs.clone(),
        registry_config: paths.registry_config.clone(),
        plain_http_registries: settings.plain_http_registries.clone(),
    }
}

/// A certificate that the cluster is to sign.
pub(super) fn order(settings: &Settings, kind: Kind, addresses: &[IpAddr]) -> Order {
    Order {
        kind,
        node_name: settings.node_name.clone(),
        addresses: addresses.to_vec(),
        store: Store::new(&settings.paths.cert_dir, kind),
    }
}

/// The certificate that goes before the kubeconfig's: one that was renewed, while it lasts.
pub(super) fn identity(settings: &Settings) -> Option<PathBuf> {
    let order = order(settings, Kind::Client, &[]);
    let renewed = settings.kubelet.rotate_certificates && order.holds(Timestamp::now());
    renewed.then(|| order.store.current())
}

/// Where Localhost profiles are, as in every kubelet.
fn seccomp_dir(settings: &Settings) -> PathBuf {
    settings.paths.root_dir.join("seccomp")
}

/// What does not change about the node.
pub(super) fn facts(settings: &Settings, ips: Vec<IpAddr>) -> Facts {
    let kubelet = &settings.kubelet;
    let machine = machine::look(&settings.paths.root_dir);
    let by_core = machine.cpus.saturating_mul(kubelet.pods_per_core);
    let max_pods = if by_core > 0 {
        by_core.min(kubelet.max_pods)
    } else {
        kubelet.max_pods
    };
    Facts {
        name: settings.node_name.clone(),
        hostname: settings.node_name.clone(),
        ips,
        machine,
        max_pods,
        reserved: settings.reserved.clone(),
        labels: settings.node_labels.clone(),
        taints: kubelet.register_with_taints.clone(),
        provider_id: kubelet.provider_id.clone(),
        attach_detach: kubelet.enable_controller_attach_detach,
        port: kubelet.port,
        handlers: Vec::new(),
        user_namespaces: false,
        max_images: usize::try_from(kubelet.node_status_max_images).ok(),
    }
}

/// The node's addresses as they were given, if none of them is to be found out.
fn given_addresses(settings: &Settings) -> Option<Vec<IpAddr>> {
    let given = &settings.node_ips;
    let all = !given.is_empty() && given.iter().all(|ip| !ip.is_unspecified());
    all.then(|| given.clone())
}

/// The same for a node that is alone: those given, or the one that leads elsewhere.
pub(super) fn own_addresses(settings: &Settings) -> Vec<IpAddr> {
    let v6 = settings.node_ips.first().is_some_and(IpAddr::is_ipv6);
    given_addresses(settings).unwrap_or_else(|| vec![machine::own_address(v6)])
}

/// The node's addresses: those given, or the one by which it reaches the API server.
pub(super) async fn addresses_towards(
    settings: &Settings,
    kubeconfig: &Path,
    server: &ApiServer,
) -> anyhow::Result<Vec<IpAddr>> {
    if let Some(given) = given_addresses(settings) {
        return Ok(given);
    }
    let host = server
        .url
        .host()
        .unwrap_or_default()
        .trim_matches(['[', ']'])
        .to_owned();
    let port = server.url.port_u16().unwrap_or(443);
    let kubeconfig = kubeconfig.display();
    let lookup = tokio::time::timeout(RESOLVE, tokio::net::lookup_host((host.as_str(), port)));
    let peers: Vec<SocketAddr> = match lookup.await {
        Ok(Ok(peers)) => peers.collect(),
        Ok(Err(error)) => bail!(
            "{kubeconfig}: field clusters[].cluster.server: cannot find the address of {host:?}: {error}: give --node-ip to start before names can be found"
        ),
        Err(_) => bail!(
            "{kubeconfig}: field clusters[].cluster.server: cannot find the address of {host:?}: no answer: give --node-ip to start before names can be found"
        ),
    };
    let family = |ip: &IpAddr| {
        let wanted = settings.node_ips.first();
        wanted.is_none_or(|wanted| wanted.is_ipv4() == ip.is_ipv4())
    };
    let found = peers
        .into_iter()
        .filter_map(machine::address_towards)
        .find(family);
    let found = found
        .with_context(|| format!("no address of this machine reaches {host:?}: give --node-ip"))?;
    Ok(vec![found])
}

/// A source of static pods.
pub(super) enum StaticSource {
    File(FileSource),
    Url(UrlSource),
}

impl StaticSource {
    /// Tells of its pods until nobody listens any more.
    pub(super) async fn follow(
        self,
        updates: mpsc::Sender<PodUpdate>,
        mirrors: Option<Mirrors>,
        gate: Gate,
    ) {
        let pods = |source| StaticPods::new(source, updates, mirrors);
        match self {
            Self::File(source) => file::follow(source, pods("file"), gate).await,
            Self::Url(source) => url::follow(source, pods("http"), gate).await,
        }
    }
}

/// The sources of static pods.
pub(super) fn sources(settings: &Settings) -> anyhow::Result<Vec<StaticSource>> {
    let kubelet = &settings.kubelet;
    let mut sources = Vec::new();
    if !kubelet.static_pod_path.is_empty() {
        sources.push(StaticSource::File(FileSource {
            path: kubelet.static_pod_path.clone().into(),
            node_name: settings.node_name.clone(),
            every: kubelet.file_check_frequency,
        }));
    }
    if !kubelet.static_pod_url.is_empty() {
        let name = "--manifest-url (staticPodURL)";
        let url = kubelet.static_pod_url.parse();
        let url = url.with_context(|| format!("{name}: {:?}", kubelet.static_pod_url))?;
        let mut headers = HeaderMap::new();
        for (header, values) in &kubelet.static_pod_url_header {
            for value in values {
                // The value may be a secret.
                let wrong = || format!("--manifest-url-header (staticPodURLHeader): {header:?}");
                let header: HeaderName = header.parse().with_context(wrong)?;
                headers.append(header, value.parse().with_context(wrong)?);
            }
        }
        sources.push(StaticSource::Url(UrlSource {
            url,
            headers,
            node_name: settings.node_name.clone(),
            every: kubelet.http_check_frequency,
        }));
    }
    Ok(sources)
}

/// The node's part of the downward API.
pub(super) fn node_facts(facts: &Facts) -> NodeFacts {
    NodeFacts {
        host_ips: facts.ips.iter().map(ToString::to_string).collect(),
        pod_ips: Vec::new(),
        allocatable: facts.allocatable(),
    }
}

/// What pods depend on.
pub(super) fn pod_settings(
    settings: &Settings,
    facts: &Facts,
) -> anyhow::Result<crate::pod::settings::Settings> {
    let (paths, kubelet) = (&settings.paths, &settings.kubelet);
    let pods_dir = paths.root_dir.join("pods");
    let mut pod = crate::pod::settings::Settings::new(
        pods_dir,
        paths.pod_logs_dir.clone(),
        paths.containers_log_dir.clone(),
    );
    pod.host_ips = facts.ips.iter().map(ToString::to_string).collect();
    pod.allocatable = facts.allocatable();
    pod.node_memory = facts.machine.memory;
    pod.huge_page_sizes = machine::huge_page_sizes();
    pod.memory = MemoryRules {
        swap: match kubelet.memory_swap.swap_behavior.as_str() {
            // Version 1 cannot say it of a container without a limit.
            "LimitedSwap" if super::checks::is_cgroup_v2() => facts.machine.swap,
            _ => 0,
        },
        kill_one: kubelet.single_process_oom_kill,
    };
    pod.log_max_size = settings.log_max_size;
    pod.log_max_files = kubelet.container_log_max_files;
    pod.seccomp_dir = seccomp_dir(settings);
    pod.seccomp_default = kubelet.seccomp_default;
    pod.pod_pids_limit = kubelet.pod_pids_limit.max(0);
    pod.limits_storage = kubelet.local_storage_capacity_isolation;
    pod.back_off_cap = kubelet.crash_loop_back_off.max_container_restart_period;
    let ids = sub_ids::look(kubelet.user_namespaces.ids_per_pod, facts.max_pods)?;
    pod.users = Arc::new(UserRanges::new(pod.pods_dir.clone(), ids));
    pod.dns = DnsConfig {
        cluster_dns: kubelet.cluster_dns.clone(),
        cluster_domain: kubelet.cluster_domain.clone(),
        node: resolv_conf(&kubelet.resolv_conf)?,
    };
    Ok(pod)
}

/// The node's own resolv.conf; an empty path means none.
fn resolv_conf(path: &str) -> anyhow::Result<ResolvConf> {
    if path.is_empty() {
        return Ok(ResolvConf::default());
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(ResolvConf::parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tracing::warn!(path, "no such file: pods with the node's DNS have none");
            Ok(ResolvConf::default())
        }
        Err(error) => Err(error).with_context(|| format!("--resolv-conf (resolvConf): {path:?}")),
    }
}

fn stats(settings: &Settings, assembled: &Assembled) -> Stats {
    let places = crate::stats::Places {
        node_name: settings.node_name.clone(),
        pods_dir: settings.paths.root_dir.join("pods"),
        state_dir: settings.paths.state_dir.clone(),
    };
    let embedded = &assembled.embedded;
    Stats::new(embedded.runtime.clone(), embedded.images.clone(), places)
}

/// What the kubelet API answers from.
pub(super) fn server_deps(
    settings: &Settings,
    assembled: &Assembled,
    pods: Pods,
    reviewer: Arc<dyn Reviewer>,
) -> server::Deps {
    let owner = pods.clone();
    server::Deps {
        runtime: assembled.embedded.runtime.clone(),
        stats: Arc::new(stats(settings, assembled)),
        pods: Arc::new(pods),
        reviewer,
        health: Arc::new(move || owner.health()),
        configz: serde_json::to_value(&settings.kubelet).unwrap_or_default(),
        flags: settings.flags.clone(),
    }
}
