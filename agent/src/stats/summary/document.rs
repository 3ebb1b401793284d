//! The shape of the Summary. Field names are the API's; what is not known is left out.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// A moment in whole seconds, UTC.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub(super) SystemTime);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let at = Timestamp::try_from(self.0).unwrap_or(Timestamp::UNIX_EPOCH);
        serializer.collect_str(&at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    }
}

/// The whole document.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    pub(super) node: Node,
    pub(super) pods: Vec<Pod>,
}

/// The machine.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) node_name: String,
    pub(super) system_containers: Vec<SystemContainer>,
    pub(super) start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io: Option<Io>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runtime: Option<NodeRuntime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rlimit: Option<Rlimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<Swap>,
}

/// What is not a pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SystemContainer {
    pub(super) name: String,
    pub(super) start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<Swap>,
}

/// Filesystems of the runtime.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRuntime {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image_fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) container_fs: Option<Fs>,
}

/// Tasks of the machine.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rlimit {
    pub(super) time: Time,
    pub(super) maxpid: u64,
    pub(super) curproc: u64,
}

/// A pod with a ready sandbox.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pod {
    pub(super) pod_ref: PodReference,
    pub(super) start_time: Time,
    pub(super) containers: Vec<Container>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io: Option<Io>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) volume: Vec<Volume>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub(super) ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub(super) process_stats: Option<ProcessCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<Swap>,
}

/// Which pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodReference {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

/// Its tasks.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessCount {
    #[serde(rename = "process_count")]
    pub(super) process_count: u64,
}

/// A running container.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io: Option<Io>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rootfs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) logs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap: Option<Swap>,
}

/// Processor time.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cpu {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<Psi>,
}

/// Memory.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Memory {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<Psi>,
}

/// Swap.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Swap {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swap_usage_bytes: Option<u64>,
}

/// Waiting for devices.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Io {
    pub(super) time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) psi: Option<Psi>,
}

/// Pressure.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Psi {
    pub(super) full: Stall,
    pub(super) some: Stall,
}

/// One kind of pressure: nanoseconds in all, percent of the last time.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stall {
    pub(super) total: u64,
    pub(super) avg10: f64,
    pub(super) avg60: f64,
    pub(super) avg300: f64,
}

/// Interfaces.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    pub(super) time: Time,
    #[serde(flatten)]
    pub(super) top: Option<Interface>,
    pub(super) interfaces: Vec<Interface>,
}

/// Counters of one.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) rx_bytes: u64,
    pub(super) rx_errors: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_errors: u64,
}

/// A filesystem, or what one thing takes of it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Fs {
    pub(super) time: Time,
    pub(super) available_bytes: u64,
    pub(super) capacity_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) used_bytes: Option<u64>,
    pub(super) inodes_free: u64,
    pub(super) inodes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inodes_used: Option<u64>,
}

/// A pod's volume.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Volume {
    #[serde(flatten)]
    pub(super) fs: Fs,
    pub(super) name: String,
}
