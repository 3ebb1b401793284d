//! `/stats/summary`: the kubelet's Summary, a JSON document (kubelet's stats/v1alpha1). Pure.

mod document;

use std::time::SystemTime;

use document::{
    Container, Cpu, Fs, Interface, Io, Memory, Network, Node, NodeRuntime, Pod, PodReference,
    ProcessCount, Psi, Rlimit, Stall, Summary, Swap, SystemContainer, Time, Volume,
};
use hanok_runtime::api::{
    CgroupStats, ContainerStats, CpuStats, DiskUsage, InterfaceStats, MemoryStats, Pressure,
    SandboxStats, StatsDetail,
};

use super::machine::{AgentStats, Filesystem, MachineStats};
use super::volumes::VolumeStats;
use super::{AGENT, NODE, PODS, Snapshot};

/// The document.
pub(crate) fn summary(snapshot: &Snapshot, detail: StatsDetail) -> serde_json::Value {
    let summary = Summary {
        node: node(snapshot, detail),
        pods: snapshot
            .sandboxes
            .iter()
            .map(|sandbox| pod(snapshot, sandbox, detail))
            .collect(),
    };
    // Nothing in it can fail to be written.
    serde_json::to_value(summary).unwrap_or_default()
}

fn node(snapshot: &Snapshot, detail: StatsDetail) -> Node {
    let machine = &snapshot.machine;
    let all = detail == StatsDetail::All;
    let memory = &machine.memory;
    let fs =
        |used: Option<u64>, fs: Option<Filesystem>| fs.map(|fs| filesystem(machine.at, fs, used));
    let image_fs = fs(snapshot.images, snapshot.image_fs);
    Node {
        node_name: snapshot.node_name.clone(),
        system_containers: system_containers(snapshot),
        start_time: Time(machine.booted_at),
        cpu: Some(Cpu {
            time: Time(machine.at),
            usage_nano_cores: snapshot.rates.get(NODE).copied(),
            usage_core_nano_seconds: Some(nanos(machine.cpu)),
            psi: machine.cpu_pressure.map(psi),
        }),
        memory: Some(Memory {
            time: Time(machine.at),
            available_bytes: Some(memory.total.saturating_sub(memory.working_set)),
            usage_bytes: Some(memory.usage),
            working_set_bytes: Some(memory.working_set),
            rss_bytes: Some(memory.rss),
            page_faults: Some(memory.page_faults),
            major_page_faults: Some(memory.major_page_faults),
            psi: machine.memory_pressure.map(psi),
        }),
        io: machine.io_pressure.map(|pressure| Io {
            time: Time(machine.at),
            psi: Some(psi(pressure)),
        }),
        network: all.then(|| node_network(machine)),
        fs: fs(None, snapshot.node_fs),
        runtime: image_fs.map(|image_fs| NodeRuntime {
            container_fs: Some(image_fs.clone()),
            image_fs: Some(image_fs),
        }),
        rlimit: all.then_some(Rlimit {
            time: Time(machine.at),
            maxpid: machine.max_tasks,
            curproc: machine.tasks,
        }),
        swap: Some(Swap {
            time: Time(machine.at),
            swap_available_bytes: Some(memory.swap_total.saturating_sub(memory.swap_used)),
            swap_usage_bytes: Some(memory.swap_used),
        }),
    }
}

/// This process, and all pods together.
fn system_containers(snapshot: &Snapshot) -> Vec<SystemContainer> {
    let machine = &snapshot.machine;
    let AgentStats {
        cpu,
        rss,
        page_faults,
        major_page_faults,
        started,
    } = machine.agent;
    let agent = SystemContainer {
        name: "kubelet".to_owned(),
        start_time: Time(machine.booted_at + started),
        cpu: Some(Cpu {
            time: Time(machine.at),
            usage_nano_cores: snapshot.rates.get(AGENT).copied(),
            usage_core_nano_seconds: Some(nanos(cpu)),
            psi: None,
        }),
        memory: Some(Memory {
            time: Time(machine.at),
            available_bytes: None,
            usage_bytes: Some(rss),
            working_set_bytes: Some(rss),
            rss_bytes: Some(rss),
            page_faults: Some(page_faults),
            major_page_faults: Some(major_page_faults),
            psi: None,
        }),
        swap: None,
    };
    let cgroup = &snapshot.pods_cgroup;
    let pods = SystemContainer {
        name: "pods".to_owned(),
        start_time: Time(machine.booted_at),
        cpu: cpu_of(snapshot, PODS, machine.at, cgroup),
        memory: memory_of(machine.at, cgroup),
        swap: swap_of(machine.at, cgroup),
    };
    vec![agent, pods]
}

fn pod(snapshot: &Snapshot, sandbox: &SandboxStats, detail: StatsDetail) -> Pod {
    let all = detail == StatsDetail::All;
    let volumes = snapshot.volumes.get(sandbox.pod.as_str());
    let volumes = volumes.map(Vec::as_slice).unwrap_or_default();
    let containers = sandbox.containers.iter();
    Pod {
        pod_ref: PodReference {
            name: sandbox.name.clone(),
            namespace: sandbox.namespace.clone(),
            uid: sandbox.pod.to_string(),
        },
        start_time: Time(sandbox.created_at),
        containers: containers.map(|one| container(snapshot, one)).collect(),
        cpu: cpu_of(snapshot, sandbox.id.as_str(), sandbox.at, &sandbox.cgroup),
        memory: memory_of(sandbox.at, &sandbox.cgroup),
        io: io_of(sandbox.at, &sandbox.cgroup),
        network: (all && !sandbox.interfaces.is_empty()).then(|| {
            let first = sandbox.interfaces.first().map(|one| one.name.clone());
            network(sandbox.at, &sandbox.interfaces, first)
        }),
        volume: volumes
            .iter()
            .filter_map(|one| volume(sandbox.at, one))
            .collect(),
        ephemeral_storage: snapshot
            .node_fs
            .filter(|_| all)
            .map(|fs| ephemeral(sandbox, volumes, fs)),
        process_stats: sandbox
            .cgroup
            .pids
            .map(|process_count| ProcessCount { process_count }),
        swap: swap_of(sandbox.at, &sandbox.cgroup),
    }
}

fn container(snapshot: &Snapshot, one: &ContainerStats) -> Container {
    let disk = |usage: Option<DiskUsage>, fs: Option<Filesystem>| {
        let (usage, fs) = usage.zip(fs)?;
        Some(used_on(one.at, usage, fs))
    };
    Container {
        name: one.name.clone(),
        start_time: one.started_at.map(Time),
        cpu: cpu_of(snapshot, one.id.as_str(), one.at, &one.cgroup),
        memory: memory_of(one.at, &one.cgroup),
        io: io_of(one.at, &one.cgroup),
        rootfs: disk(one.rootfs, snapshot.image_fs),
        logs: disk(one.logs, snapshot.node_fs),
        swap: swap_of(one.at, &one.cgroup),
    }
}

fn cpu_of(snapshot: &Snapshot, name: &str, at: SystemTime, cgroup: &CgroupStats) -> Option<Cpu> {
    let cpu: &CpuStats = cgroup.cpu.as_ref()?;
    Some(Cpu {
        time: Time(at),
        usage_nano_cores: snapshot.rates.get(name).copied(),
        usage_core_nano_seconds: Some(nanos(cpu.usage)),
        psi: cpu.pressure.map(psi),
    })
}

fn memory_of(at: SystemTime, cgroup: &CgroupStats) -> Option<Memory> {
    let memory: &MemoryStats = cgroup.memory.as_ref()?;
    let available = memory
        .limit
        .map(|limit| limit.saturating_sub(memory.working_set));
    Some(Memory {
        time: Time(at),
        available_bytes: available,
        usage_bytes: Some(memory.usage),
        working_set_bytes: Some(memory.working_set),
        rss_bytes: Some(memory.rss),
        page_faults: Some(memory.page_faults),
        major_page_faults: Some(memory.major_page_faults),
        psi: memory.pressure.map(psi),
    })
}

fn swap_of(at: SystemTime, cgroup: &CgroupStats) -> Option<Swap> {
    let memory: &MemoryStats = cgroup.memory.as_ref()?;
    let used = memory.swap?;
    Some(Swap {
        time: Time(at),
        swap_available_bytes: memory.swap_limit.map(|limit| limit.saturating_sub(used)),
        swap_usage_bytes: Some(used),
    })
}

fn io_of(at: SystemTime, cgroup: &CgroupStats) -> Option<Io> {
    let pressure = cgroup.io.as_ref()?.pressure?;
    Some(Io {
        time: Time(at),
        psi: Some(psi(pressure)),
    })
}

fn node_network(machine: &MachineStats) -> Network {
    network(
        machine.at,
        &machine.interfaces,
        machine.default_interface.clone(),
    )
}

/// One interface at the top, all of them in the list.
fn network(at: SystemTime, all: &[InterfaceStats], first: Option<String>) -> Network {
    let interfaces: Vec<Interface> = all.iter().map(interface).collect();
    let top = interfaces
        .iter()
        .find(|one| Some(&one.name) == first.as_ref());
    Network {
        time: Time(at),
        top: top.cloned(),
        interfaces,
    }
}

fn interface(one: &InterfaceStats) -> Interface {
    Interface {
        name: one.name.clone(),
        rx_bytes: one.rx.bytes,
        rx_errors: one.rx.errors,
        tx_bytes: one.tx.bytes,
        tx_errors: one.tx.errors,
    }
}

fn volume(at: SystemTime, one: &VolumeStats) -> Option<Volume> {
    let (usage, filesystem) = (one.usage?, one.filesystem?);
    Some(Volume {
        fs: used_on(at, usage, filesystem),
        name: one.name.clone(),
    })
}

/// What the pod takes of the node's filesystem: writable layers, logs, volumes that are directories.
fn ephemeral(sandbox: &SandboxStats, volumes: &[VolumeStats], fs: Filesystem) -> Fs {
    let containers = sandbox.containers.iter();
    let disks = containers.flat_map(|one| [one.rootfs, one.logs]);
    let volumes = volumes
        .iter()
        .filter(|one| !one.is_mount)
        .map(|one| one.usage);
    let total = disks
        .chain(volumes)
        .flatten()
        .fold(DiskUsage::default(), |sum, one| DiskUsage {
            bytes: sum.bytes.saturating_add(one.bytes),
            inodes: sum.inodes.saturating_add(one.inodes),
        });
    used_on(sandbox.at, total, fs)
}

fn used_on(at: SystemTime, usage: DiskUsage, fs: Filesystem) -> Fs {
    Fs {
        used_bytes: Some(usage.bytes),
        inodes_used: Some(usage.inodes),
        ..filesystem(at, fs, None)
    }
}

fn filesystem(at: SystemTime, fs: Filesystem, used: Option<u64>) -> Fs {
    Fs {
        time: Time(at),
        available_bytes: fs.available,
        capacity_bytes: fs.capacity,
        used_bytes: Some(used.unwrap_or(fs.used)),
        inodes_free: fs.inodes_free,
        inodes: fs.inodes,
        inodes_used: Some(fs.inodes.saturating_sub(fs.inodes_free)),
    }
}

fn psi(pressure: Pressure) -> Psi {
    let stall = |stall: hanok_runtime::api::Stall| Stall {
        total: nanos(stall.total),
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    Psi {
        full: stall(pressure.full),
        some: stall(pressure.some),
    }
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
