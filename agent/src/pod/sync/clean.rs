//! Takes down what is left of a pod whose containers have ended. Every step is safe to repeat, and one that
//! fails does not keep the others from running.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::join_all;
use hanok_runtime::api::{PodUid, SandboxId};
use k8s_openapi::api::core::v1::Pod;

use crate::pod::settings::Deps;
use crate::pod::{files, spec};
use hanok_runtime::service::chain;

/// How much goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) enum Extent {
    /// The pod has finished: network, volumes and cgroup go; records and logs stay for those who ask.
    Finished,
    /// The pod is being deleted: everything goes.
    Deleted,
}

/// What to clean.
#[derive(Debug)]
pub(in crate::pod) struct Job {
    pub(in crate::pod) deps: Arc<Deps>,
    pub(in crate::pod) pod: Arc<Pod>,
    pub(in crate::pod) uid: PodUid,
    pub(in crate::pod) sandboxes: Vec<SandboxId>,
    pub(in crate::pod) cgroups: Vec<String>,
    /// Links to the logs of its containers.
    pub(in crate::pod) log_links: Vec<PathBuf>,
    pub(in crate::pod) extent: Extent,
}

/// Cleans; gives everything that failed.
pub(in crate::pod) async fn clean(job: Job) -> Result<(), Vec<String>> {
    let runtime = &job.deps.runtime;
    let sandboxes = join_all(job.sandboxes.iter().map(|id| async {
        match job.extent {
            Extent::Finished => runtime.stop_pod_sandbox(id).await,
            Extent::Deleted => runtime.remove_pod_sandbox(id).await,
        }
    }));
    let volumes = volumes(&job);
    let (sandboxes, volumes, logs) = tokio::join!(sandboxes, volumes, remove_logs(&job));
    let mut failed: Vec<String> = Vec::new();
    failed.extend(
        sandboxes
            .into_iter()
            .filter_map(|result| result.err().map(|error| chain(&error))),
    );
    failed.extend(volumes);
    failed.extend(logs.err());
    for cgroup in &job.cgroups {
        let removed = runtime.remove_cgroup(cgroup).await;
        failed.extend(removed.err().map(|error| chain(&error)));
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed)
    }
}

/// Unmounts images and removes volumes; gives everything that failed.
async fn volumes(job: &Job) -> Vec<String> {
    let dir = job.deps.settings.pod_dir(&job.uid);
    let images = job.deps.images.unmount_images(&dir).await;
    let volumes = job.deps.volumes.unmount(&job.uid).await;
    let errors = volumes.err().into_iter().flatten();
    let mut failed: Vec<String> = errors.map(|error| error.to_string()).collect();
    failed.extend(images.err().map(|error| chain(&error)));
    failed
}

/// Removes the pod's logs and the links to them, when it is deleted.
async fn remove_logs(job: &Job) -> Result<(), String> {
    if job.extent == Extent::Finished {
        return Ok(());
    }
    let (logs, mut links) = (
        job.deps.settings.pod_log_dir(&job.pod),
        job.log_links.clone(),
    );
    // A restart of all takes records away, and leaves their logs and the links to them.
    let all = spec::may_restart_all(&job.pod).then(|| job.deps.settings.log_links_dir.clone());
    let remove = move || {
        links.extend(
            all.into_iter()
                .flat_map(|all| files::links_into(&logs, &all)),
        );
        files::remove_logs(&logs, &links)
    };
    files::off_the_loop(remove)
        .await
        .unwrap_or_else(|| Err(std::io::Error::other("removing them failed")))
        .map_err(|error| format!("cannot remove the pod's logs: {error}"))
}
