//! Housekeeping: the cgroups above the pods' are made, and what the runtime, the disk and the log directory have beyond
//! the pods that are wanted is removed.

use std::collections::BTreeSet;
use std::path::PathBuf;

use hanok_runtime::api::{PodSandbox, PodUid, Resources};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::{HOUSEKEEPING, LOOK_AGAIN, Workers};
use crate::pod::resources::{self, QosClass, ROOT_CGROUP};
use crate::pod::settings::Deps;
use crate::pod::worker::Desired;
use crate::pod::{files, spec};
use hanok_runtime::service::chain;

/// Least cpu.shares, for pods that asked for none.
const MIN_SHARES: u64 = 2;

/// What a round of housekeeping has come to.
#[derive(Debug)]
pub(super) enum Round {
    /// It has looked.
    Seen(Sight),
    /// It has removed what it was to remove.
    Cleaned,
}

/// What there is on the machine.
#[derive(Debug)]
pub(super) struct Sight {
    /// None when the runtime could not tell.
    sandboxes: Option<Vec<PodSandbox>>,
    volumes: Vec<PodUid>,
    logs: Vec<(PodUid, PathBuf)>,
}

/// What belongs to no pod.
#[derive(Debug)]
struct Remains {
    volumes: Vec<PodUid>,
    logs: Vec<PathBuf>,
}

impl Workers {
    /// The cgroups above the pods', with shares by what their pods ask for.
    pub(super) fn upper_cgroups(&self) -> [(String, u64); 3] {
        let pods: Vec<_> = self
            .workers
            .values()
            .map(|handle| handle.desired.borrow().pod.clone())
            .collect();
        let burstable = resources::burstable_shares(pods.iter().map(|pod| &**pod));
        [
            (ROOT_CGROUP.to_owned(), 0),
            (QosClass::Burstable.cgroup(), burstable),
            (QosClass::BestEffort.cgroup(), MIN_SHARES),
        ]
    }

    /// Begins a round, unless one is under way. Pods go on meanwhile: a volume may take its time to go.
    pub(super) fn keep_house(&mut self) {
        self.house_due = Instant::now() + HOUSEKEEPING;
        if !self.house.is_empty() {
            self.house_due = Instant::now() + LOOK_AGAIN;
            return;
        }
        let (deps, cgroups) = (self.deps.clone(), self.upper_cgroups());
        let synced = self.synced;
        self.house.spawn(async move {
            make_cgroups(&deps, cgroups).await;
            match synced {
                true => Round::Seen(look(&deps).await),
                false => Round::Cleaned,
            }
        });
    }

    /// Goes on with a round.
    pub(super) fn house_kept(&mut self, round: Result<Round, JoinError>) {
        match round {
            Ok(Round::Seen(sight)) => self.end_strangers(sight),
            Ok(Round::Cleaned) => self.cleaned(),
            Err(error) => {
                error!(%error, "housekeeping failed");
                self.cleaned();
            }
        }
    }

    fn cleaned(&mut self) {
        if !std::mem::take(&mut self.cleaning).is_empty() {
            self.try_waiting();
        }
    }

    /// Ends what belongs to no pod, and removes what such have left.
    fn end_strangers(&mut self, sight: Sight) {
        let Some(sandboxes) = &sight.sandboxes else {
            // What the disk has may be of a pod that runs, and who ran before may run still.
            self.house_due = Instant::now() + LOOK_AGAIN;
            return;
        };
        for sandbox in sandboxes {
            let uid = &sandbox.config.uid;
            if !self.is_known(uid) {
                info!(%uid, pod = sandbox.config.name, "ending a pod that nobody wants");
                self.spawn(Desired::orphan(orphan(sandbox)));
            }
        }
        // Whoever ran before is known by now, or being ended.
        self.found.clear();
        self.try_wishes();
        let known: BTreeSet<PodUid> = self
            .workers
            .keys()
            .cloned()
            .chain(self.waiting().map(|pod| spec::uid(pod)))
            .collect();
        self.promises.keep(&known);
        let is_left = |uid: &PodUid| !known.contains(uid);
        let volumes: Vec<_> = sight.volumes.into_iter().filter(is_left).collect();
        let logs = sight.logs.into_iter().filter(|(uid, _)| is_left(uid));
        let (uids, logs): (Vec<_>, Vec<_>) = logs.unzip();
        self.cleaning = volumes.iter().cloned().chain(uids).collect();
        if self.cleaning.is_empty() {
            return;
        }
        let (deps, remains) = (self.deps.clone(), Remains { volumes, logs });
        self.house.spawn(async move {
            clean(&deps, remains).await;
            Round::Cleaned
        });
    }
}

/// Makes cgroups with their shares.
pub(super) async fn make_cgroups(deps: &Deps, cgroups: [(String, u64); 3]) {
    for (path, cpu_shares) in cgroups {
        let limits = Resources {
            cpu_shares,
            ..Resources::default()
        };
        if let Err(error) = deps.runtime.update_cgroup(&path, &limits).await {
            warn!(path, error = chain(&error), "cannot make the cgroup");
        }
    }
}

/// Looks at what there is.
async fn look(deps: &Deps) -> Sight {
    let sandboxes = deps.runtime.list_pod_sandboxes().await;
    let log_dir = deps.settings.log_dir.clone();
    let logs = files::off_the_loop(move || files::log_dirs(&log_dir));
    Sight {
        sandboxes: sandboxes
            .inspect_err(|error| warn!(error = chain(error), "cannot list sandboxes"))
            .ok(),
        volumes: deps.volumes.on_disk().await,
        logs: logs.await.unwrap_or_default(),
    }
}

async fn clean(deps: &Deps, remains: Remains) {
    for uid in &remains.volumes {
        remove_left_over(deps, uid).await;
    }
    let links_dir = deps.settings.log_links_dir.clone();
    let removed = files::off_the_loop(move || {
        for path in remains.logs {
            let links = files::links_into(&path, &links_dir);
            files::remove_logs(&path, &links)?;
        }
        Ok::<(), std::io::Error>(())
    });
    if let Some(Err(error)) = removed.await {
        warn!(%error, "cannot remove logs of pods that are gone");
    }
}

/// Volumes and cgroups of a pod without a sandbox.
async fn remove_left_over(deps: &Deps, uid: &PodUid) {
    info!(%uid, "removing what is left of a pod that is gone");
    let dir = deps.settings.pod_dir(uid);
    if let Err(error) = deps.images.unmount_images(&dir).await {
        warn!(%uid, error = chain(&error), "cannot unmount an image");
    }
    let errors = deps.volumes.unmount(uid).await.err();
    for error in errors.into_iter().flatten() {
        warn!(%uid, %error, "cannot remove a volume");
    }
    for class in [
        QosClass::Guaranteed,
        QosClass::Burstable,
        QosClass::BestEffort,
    ] {
        let cgroup = format!("{}/pod{uid}", class.cgroup());
        if let Err(error) = deps.runtime.remove_cgroup(&cgroup).await {
            warn!(cgroup, error = chain(&error), "cannot remove the cgroup");
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
