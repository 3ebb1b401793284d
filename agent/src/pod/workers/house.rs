//! Housekeeping: the cgroups above the pods' are made, and what the runtime, the disk and the log directory have beyond
//! the pods that are wanted is removed.

use std::collections::BTreeSet;

use hanok_runtime::api::{PodSandbox, PodUid, Resources};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{HOUSEKEEPING_AGAIN, Workers};
use crate::chain::chain;
use crate::pod::resources::{self, QosClass, ROOT_CGROUP};
use crate::pod::worker::Desired;
use crate::pod::{files, spec};

/// Least cpu.shares, for pods that asked for none.
const MIN_SHARES: u64 = 2;

impl Workers {
    /// Makes the cgroups above the pods', with shares by what their pods ask for.
    pub(super) async fn make_cgroups(&self) {
        let pods: Vec<_> = self
            .workers
            .values()
            .map(|handle| handle.desired.borrow().pod.clone())
            .collect();
        let burstable = resources::burstable_shares(pods.iter().map(|pod| &**pod));
        let cgroups = [
            (ROOT_CGROUP.to_owned(), 0),
            (QosClass::Burstable.cgroup(), burstable),
            (QosClass::BestEffort.cgroup(), MIN_SHARES),
        ];
        for (path, cpu_shares) in cgroups {
            let limits = Resources {
                cpu_shares,
                ..Resources::default()
            };
            if let Err(error) = self.deps.runtime.update_cgroup(&path, &limits).await {
                warn!(path, error = chain(&error), "cannot make the cgroup");
            }
        }
    }

    /// Removes what belongs to no pod.
    pub(super) async fn keep_house(&mut self) {
        let sandboxes = match self.deps.runtime.list_pod_sandboxes().await {
            Ok(sandboxes) => sandboxes,
            Err(error) => {
                warn!(error = chain(&error), "cannot list sandboxes");
                self.house_due = Instant::now() + HOUSEKEEPING_AGAIN;
                return;
            }
        };
        for sandbox in sandboxes {
            let uid = &sandbox.config.uid;
            if !self.is_known(uid) {
                info!(%uid, pod = sandbox.config.name, "ending a pod that nobody wants");
                self.spawn(Desired::orphan(orphan(&sandbox)));
            }
        }
        for uid in self.deps.volumes.on_disk().await {
            if !self.is_known(&uid) {
                self.remove_left_over(&uid).await;
            }
        }
        let known: BTreeSet<PodUid> = self
            .workers
            .keys()
            .cloned()
            .chain(self.waiting().map(|pod| spec::uid(pod)))
            .collect();
        self.promises.keep(&known);
        let settings = self.deps.settings.clone();
        let removed = files::off_the_loop(move || {
            for (uid, path) in files::log_dirs(&settings.log_dir) {
                if !known.contains(&uid) {
                    let links = files::links_into(&path, &settings.log_links_dir);
                    files::remove_logs(&path, &links)?;
                }
            }
            Ok::<(), std::io::Error>(())
        });
        if let Some(Err(error)) = removed.await {
            warn!(%error, "cannot remove logs of pods that are gone");
        }
    }

    /// Volumes and cgroups of a pod without a sandbox.
    async fn remove_left_over(&self, uid: &PodUid) {
        info!(%uid, "removing what is left of a pod that is gone");
        let dir = self.deps.settings.pod_dir(uid);
        if let Err(error) = self.deps.images.unmount_images(&dir).await {
            warn!(%uid, error = chain(&error), "cannot unmount an image");
        }
        for error in self
            .deps
            .volumes
            .unmount(uid)
            .await
            .err()
            .into_iter()
            .flatten()
        {
            warn!(%uid, %error, "cannot remove a volume");
        }
        for class in [
            QosClass::Guaranteed,
            QosClass::Burstable,
            QosClass::BestEffort,
        ] {
            let cgroup = format!("{}/pod{uid}", class.cgroup());
            if let Err(error) = self.deps.runtime.remove_cgroup(&cgroup).await {
                warn!(cgroup, error = chain(&error), "cannot remove the cgroup");
            }
        }
    }
}

/// A pod that only the runtime knows, as far as its end needs it.
pub(super) fn orphan(sandbox: &PodSandbox) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(sandbox.config.name.clone()),
            namespace: Some(sandbox.config.namespace.clone()),
            uid: Some(sandbox.config.uid.0.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec::default()),
        status: None,
    }
}
