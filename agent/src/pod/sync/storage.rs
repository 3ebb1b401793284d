//! Looks at what a pod has written to the node's disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use hanok_runtime::api::{PodUid, StatsDetail};
use hanok_runtime::stats::disk::DiskCache;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::pod::settings::Deps;
use crate::pod::storage::Usage;
use crate::sinks::MountedVolumes;
use hanok_runtime::service::chain;

/// A look.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) uid: PodUid,
    /// The volumes to look at.
    pub(in crate::pod) volumes: MountedVolumes,
    /// Remembers for a while what was walked, the longer the dearer that was.
    pub(in crate::pod) disk: Arc<DiskCache>,
    /// Nobody wants to know any more.
    pub(in crate::pod) cancelled: CancellationToken,
}

/// Looks; none when that was called off. What is not known yet is left out.
pub(in crate::pod) async fn measure(job: Job) -> Option<Usage> {
    let look = async {
        let runtime = &job.deps.runtime;
        let stats = runtime.stats(Some(&job.uid), StatsDetail::All).await;
        let stats = stats.inspect_err(|error| {
            debug!(error = chain(error), "cannot see what the pod has written");
        });
        let sandboxes = stats.unwrap_or_default();
        let written = sandboxes.into_iter().flat_map(|sandbox| sandbox.containers);
        let containers = written.map(|one| {
            let parts = [one.rootfs, one.logs].into_iter().flatten();
            (one.name, parts.map(|usage| usage.bytes).sum())
        });
        let mut volumes = BTreeMap::new();
        for (name, path) in job.volumes {
            if let Some(usage) = job.disk.usage(path).await {
                volumes.insert(name, usage.bytes);
            }
        }
        Usage {
            volumes,
            containers: containers.collect(),
        }
    };
    job.cancelled.run_until_cancelled(look).await
}
