//! What the node and its pods use, for `/stats/summary` and the metrics: looked at when somebody asks.
//!
//! ```text
//!   runtime.stats (cgroups, network, disk) ┐
//!   /proc (the machine, this process)      ├─► Snapshot ─► summary (JSON), resource and cadvisor (Prometheus)
//!   statvfs, walks of volumes              ┘    kept for a moment: scrapers come in crowds
//! ```
//! Rates come from two readings: the first answer after the start of the agent has none.

mod cadvisor;
mod exposition;
mod machine;
mod resource;
mod summary;
mod volumes;

pub(crate) use cadvisor::render as cadvisor;
pub(crate) use resource::render as resource;
pub(crate) use summary::summary;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hanok_runtime::api::{
    CgroupStats, Error, ImageService, RuntimeService, SandboxStats, StatsDetail,
};
use hanok_runtime::stats::disk::DiskCache;
use tokio::time::Instant;

use crate::pod::resources::ROOT_CGROUP;
use machine::MachineStats;
use volumes::VolumeStats;

/// How long a snapshot serves. The kubelet's own are up to ten seconds old.
const FRESH: Duration = Duration::from_secs(2);

/// Readings closer than this make no rate; the last one stays.
const LEAST_WINDOW: Duration = Duration::from_secs(1);

/// Where to look.
#[derive(Debug, Clone)]
pub struct Places {
    /// Name of the node.
    pub node_name: String,
    /// Directory of the pods' volumes, on the node's filesystem.
    pub pods_dir: PathBuf,
    /// Directory of images and writable layers.
    pub state_dir: PathBuf,
}

/// Looks, and keeps what was seen for a moment.
pub struct Stats {
    runtime: Arc<dyn RuntimeService>,
    images: Arc<dyn ImageService>,
    places: Places,
    disk: DiskCache,
    /// One look at a time; whoever waited gets the same.
    latest: tokio::sync::Mutex<Latest>,
    rates: Mutex<Rates>,
}

#[derive(Default)]
struct Latest {
    cgroups: Option<(Instant, Arc<Snapshot>)>,
    all: Option<(Instant, Arc<Snapshot>)>,
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stats")
            .field("places", &self.places)
            .finish_non_exhaustive()
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    node_name: String,
    machine: MachineStats,
    /// The cgroup of all pods.
    pods_cgroup: CgroupStats,
    sandboxes: Vec<SandboxStats>,
    /// Volumes by the pod's UID; empty without the disk.
    volumes: HashMap<String, Vec<VolumeStats>>,
    /// The pods' filesystem and that of the images; none without the disk.
    node_fs: Option<machine::Filesystem>,
    image_fs: Option<machine::Filesystem>,
    /// Bytes of all images.
    images: Option<u64>,
    /// Nanoseconds of processor time a second, by [`NODE`], [`PODS`], [`AGENT`] and the ids.
    rates: HashMap<String, u64>,
}

/// Names of rates that belong to no id.
const NODE: &str = "node";
const PODS: &str = "pods";
const AGENT: &str = "agent";

impl Stats {
    /// Looks at nothing yet.
    pub fn new(
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
        places: Places,
    ) -> Self {
        Self {
            runtime,
            images,
            places,
            disk: DiskCache::default(),
            latest: tokio::sync::Mutex::default(),
            rates: Mutex::default(),
        }
    }

    /// What there is now, or was two seconds ago.
    pub(crate) async fn snapshot(&self, detail: StatsDetail) -> Result<Arc<Snapshot>, Error> {
        let mut latest = self.latest.lock().await;
        let kept = match detail {
            StatsDetail::Cgroups => &mut latest.cgroups,
            StatsDetail::All => &mut latest.all,
        };
        if let Some((at, snapshot)) = kept
            && at.elapsed() < FRESH
        {
            return Ok(snapshot.clone());
        }
        let snapshot = Arc::new(self.look(detail).await?);
        *kept = Some((Instant::now(), snapshot.clone()));
        Ok(snapshot)
    }

    async fn look(&self, detail: StatsDetail) -> Result<Snapshot, Error> {
        let (sandboxes, pods_cgroup, machine) = tokio::join!(
            self.runtime.stats(None, detail),
            self.runtime.cgroup_stats(ROOT_CGROUP),
            tokio::task::spawn_blocking(machine::look),
        );
        let mut snapshot = Snapshot {
            node_name: self.places.node_name.clone(),
            machine: machine.unwrap_or_default(),
            // Before the first pod there is none.
            pods_cgroup: pods_cgroup.unwrap_or_default(),
            sandboxes: sandboxes?,
            ..Snapshot::default()
        };
        snapshot.sandboxes.sort_by(|one, other| {
            (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name))
        });
        if detail == StatsDetail::All {
            self.look_at_disk(&mut snapshot).await;
        }
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.rates = rates.update(readings(&snapshot));
        Ok(snapshot)
    }

    async fn look_at_disk(&self, snapshot: &mut Snapshot) {
        snapshot.node_fs = machine::filesystem(&self.places.pods_dir);
        snapshot.image_fs = machine::filesystem(&self.places.state_dir);
        let images = self.images.list_images().await;
        snapshot.images = images
            .ok()
            .map(|images| images.iter().map(|image| image.size).sum());
        let pods = snapshot.sandboxes.iter().map(|sandbox| async {
            let uid = sandbox.pod.as_str();
            let dir = self.places.pods_dir.join(uid).join("volumes");
            (uid.to_owned(), volumes::look(&self.disk, &dir).await)
        });
        snapshot.volumes = futures::future::join_all(pods).await.into_iter().collect();
    }
}

/// Processor time of everything, with when it was read.
fn readings(snapshot: &Snapshot) -> Vec<(String, SystemTime, Duration)> {
    let machine = &snapshot.machine;
    let mut readings = vec![
        (NODE.to_owned(), machine.at, machine.cpu),
        (AGENT.to_owned(), machine.at, machine.agent.cpu),
    ];
    let mut add = |name: &str, at, cgroup: &CgroupStats| {
        if let Some(cpu) = &cgroup.cpu {
            readings.push((name.to_owned(), at, cpu.usage));
        }
    };
    add(PODS, machine.at, &snapshot.pods_cgroup);
    for sandbox in &snapshot.sandboxes {
        add(sandbox.id.as_str(), sandbox.at, &sandbox.cgroup);
        for container in &sandbox.containers {
            add(container.id.as_str(), container.at, &container.cgroup);
        }
    }
    readings
}

/// The last readings.
#[derive(Debug, Default)]
struct Rates(HashMap<String, Reading>);

#[derive(Debug)]
struct Reading {
    at: SystemTime,
    usage: Duration,
    rate: Option<u64>,
}

impl Rates {
    /// Takes new readings in and returns the rates that there are. What is not among them is forgotten.
    fn update(&mut self, readings: Vec<(String, SystemTime, Duration)>) -> HashMap<String, u64> {
        let mut before = std::mem::take(&mut self.0);
        for (name, at, usage) in readings {
            let reading = match before.remove(&name) {
                Some(old) => old.next(at, usage),
                None => Reading {
                    at,
                    usage,
                    rate: None,
                },
            };
            self.0.insert(name, reading);
        }
        let rates = self
            .0
            .iter()
            .filter_map(|(name, one)| Some((name.clone(), one.rate?)));
        rates.collect()
    }
}

impl Reading {
    fn next(self, at: SystemTime, usage: Duration) -> Self {
        let window = at.duration_since(self.at).unwrap_or_default();
        if window < LEAST_WINDOW {
            return self;
        }
        // A counter that went back belongs to a new cgroup of the same name.
        let spent = usage.checked_sub(self.usage).map(|spent| spent.as_nanos());
        let rate = spent.map(|spent| spent * 1_000_000_000 / window.as_nanos());
        Self {
            at,
            usage,
            rate: rate.and_then(|rate| u64::try_from(rate).ok()),
        }
    }
}

#[cfg(test)]
mod tests;
