//! What the pod core is given at its start: the node's facts and everybody it talks to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use hanok_runtime::api::{ImageService, PodUid, RuntimeService};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::time::Instant;

use super::admit::NodeView;
use super::back_off;
use super::files::NAME_MAX;
use super::files::dns::DnsConfig;
use super::hooks;
use super::memory::MemoryRules;
use super::observation::Observation;
use super::spec;
use super::users::{Ids, UserRanges};
use crate::quantity::Amount;
use crate::sinks::{EventKind, EventSink, Objects, StatusSink, Volumes};
use crate::timeline::Timeline;

/// Everybody that pod workers talk to.
#[derive(Clone)]
pub struct Deps {
    /// Sandboxes and containers.
    pub runtime: Arc<dyn RuntimeService>,
    /// Images.
    pub images: Arc<dyn ImageService>,
    /// Takes statuses.
    pub status: Arc<dyn StatusSink>,
    /// Takes events.
    pub events: Arc<dyn EventSink>,
    /// ConfigMaps, Secrets, Services.
    pub objects: Arc<dyn Objects>,
    /// Volumes.
    pub volumes: Arc<dyn Volumes>,
    /// RuntimeClasses.
    pub classes: Arc<dyn RuntimeClasses>,
    /// What pods are judged by.
    pub admission: Arc<dyn Admission>,
    /// Collects the steps of pods' starts.
    pub timeline: Timeline,
    /// The node's facts.
    pub settings: Arc<Settings>,
    /// The time.
    pub clock: Clock,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deps")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Deps {
    /// An event on a container; on the pod, when it has no name.
    pub(super) fn event(
        &self,
        pod: &Pod,
        container: &Container,
        kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        let name = Some(container.name.as_str()).filter(|name| !name.is_empty());
        self.events.pod_event(pod, name, kind, reason, message);
    }

    /// What a hook had to tell.
    pub(super) fn hook_told(&self, pod: &Pod, told: hooks::Told) {
        if let Some(message) = told {
            let reason = "LifecycleHTTPFallback";
            self.pod_event(pod, EventKind::Warning, reason, &message);
        }
    }

    /// The address that probes and hooks connect to; empty while there is none.
    pub(super) fn pod_ip(&self, pod: &Pod, seen: &Observation) -> String {
        let ips = match spec::host_network(pod) {
            true => self.settings.host_ips.as_slice(),
            false => seen
                .newest_sandbox()
                .map(|sandbox| sandbox.ips.as_slice())
                .unwrap_or_default(),
        };
        ips.first().cloned().unwrap_or_default()
    }

    /// An event on the pod.
    pub(super) fn pod_event(&self, pod: &Pod, kind: EventKind, reason: &str, message: &str) {
        self.events.pod_event(pod, None, kind, reason, message);
    }
}

/// The node's facts and choices, as far as pods depend on them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's addresses, primary first.
    pub host_ips: Vec<String>,
    /// Allocatable resources: what `resourceFieldRef` says of a limit that is not there.
    pub allocatable: BTreeMap<String, Amount>,
    /// The node's memory in bytes.
    pub node_memory: u64,
    /// Sizes of the kernel's huge pages, as its files have them (`2MB`).
    pub huge_page_sizes: Vec<String>,
    /// Swap, and who dies of want of memory.
    pub memory: MemoryRules,
    /// Parent of the pods' directories, `ROOT/pods`.
    pub pods_dir: PathBuf,
    /// Parent of the pods' log directories, `/var/log/pods`.
    pub log_dir: PathBuf,
    /// Directory of the links to log files, `/var/log/containers`.
    pub log_links_dir: PathBuf,
    /// Size at which a log is rotated, bytes; 0 for never.
    pub log_max_size: u64,
    /// Log files kept of one run.
    pub log_max_files: u32,
    /// Directory of Localhost seccomp profiles.
    pub seccomp_dir: PathBuf,
    /// Containers without a profile get RuntimeDefault (KubeletConfiguration's seccompDefault); else none.
    pub seccomp_default: bool,
    /// Most processes of a pod; 0 for no limit.
    pub pod_pids_limit: i64,
    /// Pods that write more to the disk than they may are ended.
    pub limits_storage: bool,
    /// Longest back-off of restarts.
    pub back_off_cap: Duration,
    /// What pods resolve names with.
    pub dns: DnsConfig,
    /// Users and groups of pods that have their own.
    pub users: Arc<UserRanges>,
}

impl Settings {
    /// The defaults below these directories.
    pub fn new(pods_dir: PathBuf, log_dir: PathBuf, log_links_dir: PathBuf) -> Self {
        Self {
            host_ips: Vec::new(),
            allocatable: BTreeMap::new(),
            node_memory: 0,
            huge_page_sizes: Vec::new(),
            memory: MemoryRules::default(),
            seccomp_dir: pods_dir.with_file_name("seccomp"),
            users: Arc::new(UserRanges::new(pods_dir.clone(), Ids::default())),
            pods_dir,
            log_dir,
            log_links_dir,
            log_max_size: 10 << 20,
            log_max_files: 5,
            seccomp_default: true,
            pod_pids_limit: 0,
            limits_storage: true,
            back_off_cap: back_off::CAP,
            dns: DnsConfig::default(),
        }
    }

    /// The pod's directory.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir.join(uid.as_str())
    }

    /// The pod's log directory: `NAMESPACE_NAME_UID`. A name that would make it longer than a file's name can be is
    /// cut: the pod would have no logs else, and not start.
    pub fn pod_log_dir(&self, pod: &Pod) -> PathBuf {
        let (namespace, uid) = (spec::namespace(pod), spec::uid(pod));
        let room = NAME_MAX.saturating_sub(namespace.len() + uid.as_str().len() + 2);
        let name = spec::name(pod);
        let name = &name[..name.floor_char_boundary(room)];
        self.log_dir.join(format!("{namespace}_{name}_{uid}"))
    }
}

/// Resolves RuntimeClasses.
#[async_trait]
pub trait RuntimeClasses: Send + Sync + 'static {
    /// The handler of a class. The error is what the user reads.
    async fn handler(&self, class: &str) -> Result<String, String>;
}

/// A node without RuntimeClass objects: every class is its own handler.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClassIsHandler;

#[async_trait]
impl RuntimeClasses for ClassIsHandler {
    async fn handler(&self, class: &str) -> Result<String, String> {
        Ok(class.to_owned())
    }
}

/// Tells what pods are judged by.
pub trait Admission: Send + Sync + 'static {
    /// The node as far as it is known.
    fn node(&self) -> NodeView;

    /// Learns what the node is now, where that can be asked for.
    fn look(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// A node that does not change.
impl Admission for NodeView {
    fn node(&self) -> NodeView {
        self.clone()
    }
}

/// The time, as records and timers see it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock {
    start: Option<(Timestamp, Instant)>,
    /// Seconds by which somebody has set it.
    #[cfg(test)]
    set: Option<&'static std::sync::atomic::AtomicI64>,
}

impl Clock {
    /// This clock, and by how many seconds it is ahead of itself.
    #[cfg(test)]
    pub(crate) fn settable(self) -> (Self, &'static std::sync::atomic::AtomicI64) {
        let set = Box::leak(Box::default());
        (
            Self {
                set: Some(set),
                ..self
            },
            set,
        )
    }

    /// The wall clock.
    pub fn wall() -> Self {
        Self::default()
    }

    /// A clock that shows `start` now and goes on with tokio's time, which tests can pause.
    pub fn from_now(start: Timestamp) -> Self {
        Self {
            start: Some((start, Instant::now())),
            #[cfg(test)]
            set: None,
        }
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        let Some((start, since)) = self.start else {
            return Timestamp::now();
        };
        let elapsed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::ZERO);
        #[cfg(test)]
        let elapsed = elapsed
            + SignedDuration::from_secs(
                self.set
                    .map_or(0, |set| set.load(std::sync::atomic::Ordering::Relaxed)),
            );
        start.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// The instant of tokio's clock at which this clock will show `time`.
    pub fn instant(&self, time: Timestamp) -> Instant {
        let left = time.duration_since(self.now());
        Instant::now() + Duration::try_from(left).unwrap_or(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::sample;

    #[test]
    fn a_pod_of_any_name_has_a_directory_for_its_logs() {
        let settings = Settings::new("/p".into(), "/l".into(), "/k".into());
        let mut pod = sample::pod("Never", &[], &["a"]);
        let directory = format!("/l/default_web_{}", sample::UID);
        assert_eq!(settings.pod_log_dir(&pod), PathBuf::from(directory));
        pod.metadata.name = Some("n".repeat(253));
        pod.metadata.namespace = Some("s".repeat(63));
        let directory = settings.pod_log_dir(&pod);
        let name = directory.file_name().and_then(|name| name.to_str());
        let name = name.expect("a name");
        assert_eq!(name.len(), NAME_MAX);
        let found = name.rsplit_once('_').map(|(_, uid)| uid);
        assert_eq!(found, Some(sample::UID), "by which it is found again");
    }
}
