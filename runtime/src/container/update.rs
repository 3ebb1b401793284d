//! UpdateContainerResources: other limits for a container that runs.
//!
//! First the kernel's files, all or none, then the record: an agent that dies in between finds the old limits
//! written down, and whoever wants the new ones asks again.

use std::sync::Arc;

use tracing::{Instrument, info_span};

use super::{Container, Phase};
use crate::api::{ContainerId, Error, Resources, Result};
use crate::cgroup::CgroupError;
use crate::service::{Core, chain};

/// Changes the limits, or nothing. Those that are zero or empty in `change` stay as they are.
pub(crate) async fn update(core: &Arc<Core>, id: &ContainerId, change: Resources) -> Result<()> {
    let container = core.registry.container(id).ok_or_else(|| Error::NotFound {
        kind: "container",
        id: id.0.clone(),
    })?;
    let span = info_span!("container.update", container = %id);
    async {
        // A start under way uses the limits of the record.
        let _gate = container.gate.lock().await;
        let before = container.record().config.resources;
        let wanted = merge(&before, change);
        match container.phase() {
            Phase::Created => record(&container, &before, wanted)?,
            Phase::Running { .. } => change_running(core, &container, &before, wanted).await?,
            _ => return Err(Error::Internal(format!("container {id} does not run"))),
        }
        core.ring(&container.pod);
        Ok(())
    }
    .instrument(span)
    .await
}

async fn change_running(
    core: &Arc<Core>,
    container: &Container,
    before: &Resources,
    wanted: Resources,
) -> Result<()> {
    let undo = change_cgroup(core, container.cgroup(), wanted.clone()).await?;
    match record(container, before, wanted) {
        Ok(()) => {
            undo.keep();
            Ok(())
        }
        Err(error) => {
            undo.undo();
            Err(error)
        }
    }
}

/// Changes a cgroup's limits, with errors in the API's words.
pub(crate) async fn change_cgroup(
    core: &Arc<Core>,
    path: String,
    resources: Resources,
) -> Result<crate::cgroup::Undo> {
    match core.cgroups.change(&path, &resources).await {
        Ok(undo) => Ok(undo),
        Err(CgroupError::InUse { usage, limit, .. }) => Err(Error::MemoryInUse { usage, limit }),
        Err(error) => Err(Error::Internal(format!(
            "cannot update cgroup: {}",
            chain(&error)
        ))),
    }
}

fn record(container: &Container, before: &Resources, wanted: Resources) -> Result<()> {
    let recorded = container.update(|record| record.config.resources = wanted);
    recorded.map_err(|error| {
        // What memory says is what the disk said before.
        let _ = container.update(|record| record.config.resources = before.clone());
        let id = &container.id;
        Error::Internal(format!("cannot record the limits of {id}: {error}"))
    })
}

/// The old limits with those of the change that are there.
fn merge(before: &Resources, change: Resources) -> Resources {
    let number = |old: i64, new: i64| if new == 0 { old } else { new };
    let mut merged = Resources {
        cpu_quota: number(before.cpu_quota, change.cpu_quota),
        memory_limit: number(before.memory_limit, change.memory_limit),
        memory_swap_limit: number(before.memory_swap_limit, change.memory_swap_limit),
        pids_limit: number(before.pids_limit, change.pids_limit),
        ..before.clone()
    };
    if change.cpu_shares != 0 {
        merged.cpu_shares = change.cpu_shares;
    }
    if change.cpu_period != 0 {
        merged.cpu_period = change.cpu_period;
    }
    if !change.cpuset_cpus.is_empty() {
        merged.cpuset_cpus = change.cpuset_cpus;
    }
    if change.memory_swap_limit == 0 && before.memory_swap_limit > 0 {
        // It is the sum: as much swap as before beside the new limit.
        let swap = before
            .memory_swap_limit
            .saturating_sub(before.memory_limit.max(0));
        merged.memory_swap_limit = match merged.memory_limit {
            limit if limit > 0 => limit.saturating_add(swap),
            _ => merged.memory_limit,
        };
    }
    merged.hugepages.extend(change.hugepages);
    merged.unified.extend(change.unified);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_change_does_not_name_stays() {
        let before = Resources {
            cpu_shares: 512,
            cpu_quota: 50_000,
            memory_limit: 64,
            memory_swap_limit: 80,
            oom_score_adj: 7,
            cpuset_cpus: "0".into(),
            hugepages: [("2MB".to_owned(), 4)].into(),
            ..Resources::default()
        };
        assert_eq!(merge(&before, Resources::default()), before);
        let change = Resources {
            cpu_shares: 1024,
            memory_limit: 128,
            hugepages: [("1GB".to_owned(), 1)].into(),
            ..Resources::default()
        };
        let merged = merge(&before, change);
        assert_eq!((merged.cpu_shares, merged.cpu_quota), (1024, 50_000));
        assert_eq!((merged.memory_limit, merged.memory_swap_limit), (128, 144));
        assert_eq!(merged.hugepages.len(), 2);
        assert_eq!(merged.oom_score_adj, 7);
    }
}
