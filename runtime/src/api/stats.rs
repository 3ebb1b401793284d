//! What pods and containers use: plain data.
//!
//! Counters grow from the start of the thing they count for; two readings make a rate. What the kernel does
//! not count here (pressure and, without blkio, I/O on cgroup v1, swap without swap accounting) is `None`, not zero.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{ContainerId, PodUid, SandboxId};

/// How much is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsDetail {
    /// What cgroups count: a few short reads each.
    Cgroups,
    /// Also the network and the disk. The disk's figures may be some seconds old: they cost a walk.
    All,
}

/// What one cgroup and those below it have used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CgroupStats {
    /// Processors.
    pub cpu: Option<CpuStats>,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Block devices.
    pub io: Option<IoStats>,
    /// Tasks now.
    pub pids: Option<u64>,
}

/// Processor time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuStats {
    /// All of it.
    pub usage: Duration,
    /// In programs.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
    /// CFS periods in which somebody wanted to run.
    pub periods: u64,
    /// Those of them in which the quota ran out.
    pub throttled_periods: u64,
    /// How long tasks waited for the next period.
    pub throttled: Duration,
    /// Waiting for a processor; v2 only.
    pub pressure: Option<Pressure>,
}

/// Memory, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// Everything that is charged.
    pub usage: u64,
    /// Without the page cache that nobody used lately: what eviction and autoscalers look at.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Swapped out.
    pub swap: Option<u64>,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that waited for a disk.
    pub major_page_faults: u64,
    /// The limit; none for no limit.
    pub limit: Option<u64>,
    /// The limit of swap alone; none for no limit or no accounting.
    pub swap_limit: Option<u64>,
    /// Processes killed for want of memory.
    pub oom_kills: u64,
    /// Waiting for memory; v2 only.
    pub pressure: Option<Pressure>,
}

/// Reads and writes of block devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct IoStats {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
    /// Waiting for a device; v2 only.
    pub pressure: Option<Pressure>,
}

/// Pressure stall information (the kernel's accounting/psi).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// Some task waited.
    pub some: Stall,
    /// All tasks waited.
    pub full: Stall,
}

/// One line of pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Time lost since the beginning.
    pub total: Duration,
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
}

/// Files in a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Bytes of the blocks in use.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// Counters of a network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStats {
    /// Its name, e.g. "eth0".
    pub name: String,
    /// Received.
    pub rx: TrafficStats,
    /// Sent.
    pub tx: TrafficStats,
}

/// One direction of an interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficStats {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Errors.
    pub errors: u64,
    /// Packets dropped.
    pub dropped: u64,
}

/// A running container.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerStats {
    /// Its id.
    pub id: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// When its process was started.
    pub started_at: Option<SystemTime>,
    /// When the cgroup was read.
    pub at: SystemTime,
    /// Its cgroup.
    pub cgroup: CgroupStats,
    /// What it has written into its root filesystem; none before the first walk is done.
    pub rootfs: Option<DiskUsage>,
    /// Its log files, rotated ones too.
    pub logs: Option<DiskUsage>,
}

/// The OOM killer struck in a container, which may live on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomEvent {
    /// Its pod.
    pub pod: PodUid,
    /// Its id.
    pub container: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// Processes killed since the last event.
    pub kills: u64,
}

/// A ready sandbox with its running containers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxStats {
    /// Its id.
    pub id: SandboxId,
    /// Its pod.
    pub pod: PodUid,
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// When it was made.
    pub created_at: SystemTime,
    /// When the cgroup was read.
    pub at: SystemTime,
    /// The pod's cgroup: its containers, and what the kernel charges to none of them.
    pub cgroup: CgroupStats,
    /// The pod's interfaces without the loopback; empty on the node's network.
    pub interfaces: Vec<InterfaceStats>,
    /// Its running containers by name.
    pub containers: Vec<ContainerStats>,
}
