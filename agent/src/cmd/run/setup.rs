//! Opens everything that a run works with, and removes at its end what the run has made on the machine.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use hanok_cni::{BuiltIn, Config, Options as NetworkOptions, Source};
use hanok_runtime::api::RuntimeService;
use hanok_runtime::cgroup::{CgroupError, Cgroups, DriverKind};
use hanok_runtime::lsm::app_armor;
use hanok_runtime::registry::RegistryConfig;
use tracing::warn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use super::console::Sink;
use super::{Options, host};
use crate::embedded::{self, Embedded, Places};
use crate::env::field::NodeFacts;
use crate::node::{machine, status};
use crate::objects::manifest::ManifestObjects;
use crate::pod::admit::NodeView;
use crate::pod::resources::ROOT_CGROUP;
use crate::pod::settings::{ClassIsHandler, Clock};
use crate::pod::{Deps, Settings};
use crate::timeline::Timeline;
use crate::volume::PodVolumes;

/// Log lines go to standard error, so that the console's own are not torn.
pub(super) fn logging(verbosity: u8, timeline: &Timeline) {
    let level = match verbosity {
        0 => "warn",
        1..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let subscriber = tracing_subscriber::registry()
        .with(timeline.layer())
        .with(tracing_subscriber::Layer::with_filter(lines, filter));
    // Only a second subscriber in one process would fail, and there is none.
    let _ = subscriber.try_init();
}

/// A node for the time of a run.
pub(super) struct Node {
    pub(super) deps: Deps,
    embedded: Embedded,
    bridge: String,
    run_dir: PathBuf,
    cgroups: CgroupsAbove,
    made_dirs: Vec<PathBuf>,
    _claimed: [File; 2],
}

impl Node {
    /// Opens the runtime and everything around it.
    pub(super) async fn open(
        options: &Options,
        objects: ManifestObjects,
        sink: Sink,
        timeline: Timeline,
    ) -> anyhow::Result<Self> {
        let built_in = BuiltIn::new(&options.bridge_name, vec![options.pod_cidr]);
        let network = Config::built_in(&built_in).context("--bridge-name, --pod-cidr")?;
        let network = NetworkOptions {
            source: Source::Fixed(network),
            cache_dir: options.run_dir.join("cni/results"),
            ipam_dir: options.run_dir.join("ipam"),
            ..NetworkOptions::default()
        };
        let root_dir = options
            .root_dir
            .clone()
            .unwrap_or_else(|| options.state_dir.clone());
        let places = places(options, &root_dir)?;
        let registries = RegistryConfig {
            plain_http: options.plain_http.clone(),
            ..RegistryConfig::default()
        };
        let cgroups = CgroupsAbove {
            driver: places.cgroup_driver,
            root: places.cgroup_root.clone(),
            shim: places.shim.clone(),
        };
        let embedded = embedded::open(places, registries, network).await?;
        let log_dir = options
            .log_dir
            .clone()
            .unwrap_or_else(|| options.state_dir.join("logs"));
        let settings = settings(&root_dir, &log_dir);
        let _claimed = claim(&root_dir, &settings.log_dir)?;
        let facts = NodeFacts {
            host_ips: settings.host_ips.clone(),
            pod_ips: Vec::new(),
            allocatable: settings.allocatable.clone(),
        };
        let objects = Arc::new(objects);
        let sink = Arc::new(sink);
        let made_dirs = vec![
            settings.log_dir.clone(),
            settings.log_links_dir.clone(),
            log_dir,
            settings.pods_dir.clone(),
        ];
        let deps = Deps {
            runtime: embedded.runtime.clone(),
            images: embedded.images.clone(),
            status: sink.clone(),
            events: sink,
            volumes: Arc::new(PodVolumes::new(&root_dir, objects.clone(), facts)),
            objects,
            classes: Arc::new(ClassIsHandler),
            admission: Arc::new(admission()),
            timeline,
            settings: Arc::new(settings),
            clock: Clock::wall(),
        };
        let (bridge, run_dir) = (options.bridge_name.clone(), options.run_dir.clone());
        Ok(Self {
            deps,
            embedded,
            bridge,
            run_dir,
            cgroups,
            made_dirs,
            _claimed,
        })
    }

    /// Removes what is not any pod's: cgroups, bridge, firewall rules, directories. Every step runs.
    pub(super) async fn remove(self) {
        if let Err(error) = self.embedded.runtime.remove_cgroup(ROOT_CGROUP).await {
            warn!(%error, "cannot remove the pods' cgroups");
        }
        if let Err(error) = self.cgroups.remove().await {
            warn!(%error, "cannot remove the root of the cgroups");
        }
        if let Err(error) = hanok_cni::remove_bridge(&self.bridge).await {
            warn!(%error, bridge = self.bridge, "cannot remove the bridge");
        }
        for dir in ["sandboxes", "cni", "ipam"] {
            let dir = self.run_dir.join(dir);
            if let Err(error) = std::fs::remove_dir_all(&dir)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                warn!(%error, dir = %dir.display(), "cannot remove the directory");
            }
        }
        drop(self.embedded);
        embedded::remove_lock(&self.run_dir);
        for dir in self.made_dirs.iter().chain([&self.run_dir]) {
            // A directory that holds something, or that is somebody else's, stays.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// What belongs to no pod of this run is removed from them.
fn claim(root_dir: &Path, log_dir: &Path) -> anyhow::Result<[File; 2]> {
    Ok([
        embedded::claim(root_dir).context("--root-dir")?,
        embedded::claim(log_dir).context("--log-dir")?,
    ])
}

/// Where the runtime has its things.
fn places(options: &Options, root_dir: &Path) -> anyhow::Result<Places> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let beside = |given: &Option<PathBuf>, name: &str| {
        let given = given.clone();
        given.unwrap_or_else(|| program.with_file_name(name))
    };
    let cgroup_root = options.cgroup_root.clone();
    Ok(Places {
        state_dir: options.state_dir.clone(),
        run_dir: options.run_dir.clone(),
        netns_dir: options.netns_dir.clone(),
        cgroup_driver: options.cgroup_driver,
        cgroup_root: cgroup_root.unwrap_or_else(host::cgroup_root),
        seccomp_dir: root_dir.join("seccomp"),
        shim: beside(&options.shim_path, "hanok-shim"),
        pause: beside(&options.pause_path, "hanok-pause"),
    })
}

/// What the pods' cgroups were made below.
struct CgroupsAbove {
    driver: DriverKind,
    root: String,
    shim: PathBuf,
}

impl CgroupsAbove {
    /// Removes the root, seen from the cgroup above it. A root that is our own cgroup stays.
    async fn remove(&self) -> Result<(), CgroupError> {
        let (above, path) = match self.root.strip_prefix('/') {
            Some(absolute) => ("/", absolute),
            None => ("", self.root.as_str()),
        };
        match path {
            "" => Ok(()),
            path => {
                let cgroups = Cgroups::open(self.driver, above, &self.shim).await?;
                cgroups.remove(path).await
            }
        }
    }
}

/// Any pod that can run here may: there is no other node.
fn admission() -> NodeView {
    NodeView {
        app_armor: app_armor::is_enabled(),
        features: status::declared_features(),
        ..NodeView::default()
    }
}

/// The node's facts and choices.
fn settings(root_dir: &Path, log_dir: &Path) -> Settings {
    let memory = host::memory();
    let (pods, links) = (log_dir.join("pods"), log_dir.join("containers"));
    let mut settings = Settings::new(root_dir.join("pods"), pods, links);
    settings.host_ips = vec![machine::own_address(false).to_string()];
    settings.node_memory = memory;
    settings.huge_page_sizes = machine::huge_page_sizes();
    settings.allocatable = host::allocatable(memory);
    settings.dns.node = host::resolv_conf();
    settings
}
