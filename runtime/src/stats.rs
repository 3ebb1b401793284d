//! What pods use: read when somebody asks, nothing in between.
//!
//! ```text
//!   cgroup files          now
//!   /proc/PID/net/dev     now, of the sandbox's holder
//!   writable layer, logs  by [`disk`]: walked aside, kept for some seconds
//! ```
//! Reads of a whole node run on one blocking thread; they are short, and there is no reason to hurry.

pub mod disk;
pub mod interfaces;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use hanok_shim::protocol::Rootfs;

use crate::api::{
    CgroupStats, ContainerStats, DiskUsage, Error, InterfaceStats, PodUid, Result, SandboxState,
    SandboxStats, StatsDetail,
};
use crate::container::{Container, Phase};
use crate::sandbox::{Sandbox, SandboxRecord};
use crate::service::{Core, chain};

/// Ready sandboxes with their running containers; of one pod, or all.
pub(crate) async fn list(
    core: &Arc<Core>,
    pod: Option<&PodUid>,
    detail: StatsDetail,
) -> Result<Vec<SandboxStats>> {
    let sandboxes = match pod {
        Some(pod) => core.registry.pod(pod).0,
        None => core.registry.sandboxes(),
    };
    let reader = core.clone();
    let read = tokio::task::spawn_blocking(move || {
        let ready = |sandbox: &Arc<Sandbox>| sandbox.view().state == SandboxState::Ready;
        let ready = sandboxes.into_iter().filter(ready);
        let read = |sandbox: Arc<Sandbox>| read_sandbox(&reader, &sandbox, detail);
        ready.map(read).collect::<Vec<_>>()
    });
    let failed = |error| Error::Internal(format!("cannot read what pods use: {error}"));
    let mut found = read.await.map_err(failed)?;
    if detail == StatsDetail::All {
        let disks = found.iter_mut().flat_map(|sandbox| &mut sandbox.containers);
        futures::future::join_all(disks.map(|container| add_disk(core, container))).await;
    }
    Ok(found)
}

/// What one cgroup above the containers has used.
pub(crate) async fn cgroup(core: &Arc<Core>, path: String) -> Result<CgroupStats> {
    let core = core.clone();
    let read = tokio::task::spawn_blocking(move || core.cgroups.stats(&path)).await;
    match read {
        Ok(stats) => stats.map_err(|error| Error::Internal(chain(&error))),
        Err(error) => Err(Error::Internal(format!("cannot read a cgroup: {error}"))),
    }
}

fn read_sandbox(core: &Core, sandbox: &Sandbox, detail: StatsDetail) -> SandboxStats {
    let record = sandbox.record();
    let containers = core.registry.containers_of(&sandbox.id);
    let mut containers: Vec<ContainerStats> = containers
        .iter()
        .filter(|container| matches!(container.phase(), Phase::Running { .. }))
        .map(|container| read_container(core, container))
        .collect();
    containers.sort_by(|one, other| one.name.cmp(&other.name));
    SandboxStats {
        at: SystemTime::now(),
        // Without a cgroup of the pod's own there is nothing to tell.
        cgroup: core
            .cgroups
            .stats(&record.config.cgroup_parent)
            .unwrap_or_default(),
        interfaces: match detail {
            StatsDetail::Cgroups => Vec::new(),
            StatsDetail::All => pod_interfaces(&record),
        },
        pod: record.config.uid,
        name: record.config.name,
        namespace: record.config.namespace,
        created_at: record.created_at,
        id: record.id,
        containers,
    }
}

fn read_container(core: &Core, container: &Container) -> ContainerStats {
    let record = container.record();
    ContainerStats {
        id: record.id,
        name: record.config.name,
        started_at: record.started_at,
        at: SystemTime::now(),
        cgroup: core.cgroups.stats(&container.cgroup()).unwrap_or_default(),
        rootfs: None,
        logs: None,
    }
}

async fn add_disk(core: &Arc<Core>, stats: &mut ContainerStats) {
    let Some(container) = core.registry.container(&stats.id) else {
        return;
    };
    let record = container.record();
    let logs = container.log_path().parent().map(Path::to_owned);
    let upper = match record.rootfs {
        Rootfs::Overlay { upper, .. } => Some(PathBuf::from(upper)),
        Rootfs::Dir(_) => None,
    };
    let layer = async {
        match upper {
            Some(upper) => core.disk.usage(upper).await,
            None => None,
        }
    };
    let logs = async {
        // A directory of its own, below the pod's; without one there are no logs of this container.
        match logs.filter(|_| record.config.log_path.components().count() > 1) {
            Some(logs) => core.disk.usage(logs).await,
            None => Some(DiskUsage::default()),
        }
    };
    (stats.rootfs, stats.logs) = tokio::join!(layer, logs);
}

/// The counters that the holder of the sandbox sees, if it is in the sandbox's network: its process id may be
/// another process's by now.
fn pod_interfaces(record: &SandboxRecord) -> Vec<InterfaceStats> {
    let Some(netns) = &record.netns else {
        return Vec::new();
    };
    let inode = |path: &Path| {
        std::fs::metadata(path)
            .map(|meta| (meta.dev(), meta.ino()))
            .ok()
    };
    let process = PathBuf::from(format!("/proc/{}", record.pid));
    let pinned = inode(netns);
    if pinned.is_none() || inode(&process.join("ns/net")) != pinned {
        return Vec::new();
    }
    let text = std::fs::read_to_string(process.join("net/dev")).unwrap_or_default();
    interfaces::parse(&text)
}
