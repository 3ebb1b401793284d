//! The owner of the set of pods: one worker for each UID, and nobody else makes or ends one.
//!
//! Also the housekeeper: when the source has sent everything it knows, what the runtime, the disk and the log
//! directory have beyond that is removed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::{PodSandbox, PodUid, Resources};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{Instrument, error, info, info_span, warn};

use super::directory::Pods;
use super::resources::{self, QosClass, ROOT_CGROUP};
use super::settings::Deps;
use super::sync::chain;
use super::worker::{Desired, Existence, Worker};
use super::{files, spec};
use crate::sinks::PodUpdate;

/// Time between rounds of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// Least cpu.shares, for pods that asked for none.
const MIN_SHARES: u64 = 2;

/// Starts the pod core. It ends when `updates` is closed; the pods then go on without it.
pub fn start(deps: Deps, updates: mpsc::Receiver<PodUpdate>) -> (Pods, JoinHandle<()>) {
    let pods = Pods::default();
    let workers = Workers {
        deps: Arc::new(deps),
        pods: pods.clone(),
        workers: HashMap::new(),
        tasks: JoinSet::new(),
        ids: HashMap::new(),
        held: Vec::new(),
        synced: false,
    };
    (pods, tokio::spawn(workers.run(updates)))
}

/// What the owner keeps of a worker.
struct Handle {
    desired: watch::Sender<Desired>,
    bell: Arc<Notify>,
}

/// The owner.
struct Workers {
    deps: Arc<Deps>,
    pods: Pods,
    workers: HashMap<PodUid, Handle>,
    tasks: JoinSet<()>,
    ids: HashMap<Id, PodUid>,
    /// Static pods that wait for an older one of their name to be gone.
    held: Vec<Arc<Pod>>,
    synced: bool,
}

impl Workers {
    async fn run(mut self, mut updates: mpsc::Receiver<PodUpdate>) {
        let mut doorbell = self.deps.runtime.doorbell();
        self.make_cgroups().await;
        let mut next = Instant::now() + HOUSEKEEPING;
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Some(update) => self.update(update).await,
                    None => return,
                },
                rung = doorbell.recv() => self.rung(rung, &mut doorbell),
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = sleep_until(next) => {
                    next = Instant::now() + HOUSEKEEPING;
                    self.make_cgroups().await;
                    if self.synced {
                        self.keep_house().await;
                    }
                }
            }
        }
    }

    async fn update(&mut self, update: PodUpdate) {
        match update {
            PodUpdate::Apply(pod) => self.apply(pod),
            PodUpdate::Gone(uid) => {
                self.held.retain(|pod| spec::uid(pod) != uid);
                if let Some(handle) = self.workers.get(&uid) {
                    handle
                        .desired
                        .send_modify(|desired| desired.exists = Existence::Gone);
                }
            }
            PodUpdate::Synced => {
                self.synced = true;
                self.keep_house().await;
            }
        }
    }

    /// Hands a pod to its worker, or makes one.
    fn apply(&mut self, pod: Arc<Pod>) {
        let uid = spec::uid(&pod);
        if uid.as_str().is_empty() {
            error!(pod = spec::name(&pod), "pod has no UID and is not run");
            return;
        }
        let desired = Desired {
            pod: pod.clone(),
            exists: Existence::Object,
        };
        if let Some(handle) = self.workers.get(&uid) {
            handle.desired.send_replace(desired);
            return;
        }
        if spec::is_static(&pod) && self.name_is_taken(&pod) {
            self.held.retain(|held| spec::uid(held) != uid);
            self.held.push(pod);
            return;
        }
        self.deps.objects.register(&pod);
        self.spawn(desired);
    }

    /// Whether another pod of this name is not gone yet.
    fn name_is_taken(&self, pod: &Pod) -> bool {
        let name = |pod: &Pod| (spec::namespace(pod).to_owned(), spec::name(pod).to_owned());
        let wanted = name(pod);
        self.workers
            .values()
            .any(|handle| name(&handle.desired.borrow().pod) == wanted)
    }

    fn spawn(&mut self, desired: Desired) {
        let pod = desired.pod.clone();
        let uid = spec::uid(&pod);
        let bell = Arc::new(Notify::new());
        let slot = self.pods.add(pod.clone(), bell.clone());
        let (sender, inbox) = watch::channel(desired);
        let worker = Worker::new(self.deps.clone(), inbox, bell.clone(), slot);
        let name = format!("{}/{}", spec::namespace(&pod), spec::name(&pod));
        let span = info_span!("pod.sync", uid = %uid, pod = %name);
        let task = self.tasks.spawn(worker.run().instrument(span));
        self.ids.insert(task.id(), uid.clone());
        self.workers.insert(
            uid,
            Handle {
                desired: sender,
                bell,
            },
        );
    }

    /// A worker has ended: nothing of its pod is left, or it panicked and begins anew.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, None),
            Err(error) => (error.id(), Some(error)),
        };
        let Some(uid) = self.ids.remove(&id) else {
            return;
        };
        let Some(handle) = self.workers.remove(&uid) else {
            return;
        };
        let desired = handle.desired.borrow().clone();
        if let Some(panicked) = panicked {
            error!(%uid, error = %panicked, "pod worker failed and begins anew");
            self.spawn(desired);
            return;
        }
        let held = std::mem::take(&mut self.held);
        for pod in held {
            self.apply(pod);
        }
    }

    fn rung(
        &mut self,
        rung: Result<PodUid, RecvError>,
        doorbell: &mut broadcast::Receiver<PodUid>,
    ) {
        match rung {
            Ok(uid) => {
                if let Some(handle) = self.workers.get(&uid) {
                    handle.bell.notify_one();
                }
            }
            Err(RecvError::Lagged(_)) => self.pods.ring_all(),
            // A runtime that has let go of its end rings no more; take a new receiver.
            Err(RecvError::Closed) => *doorbell = self.deps.runtime.doorbell(),
        }
    }

    /// Makes the cgroups above the pods', with shares by what their pods ask for.
    async fn make_cgroups(&self) {
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
    async fn keep_house(&mut self) {
        let sandboxes = match self.deps.runtime.list_pod_sandboxes().await {
            Ok(sandboxes) => sandboxes,
            Err(error) => {
                warn!(error = chain(&error), "cannot list sandboxes");
                return;
            }
        };
        for sandbox in sandboxes {
            let uid = &sandbox.config.uid;
            if !self.is_known(uid) {
                info!(%uid, pod = sandbox.config.name, "ending a pod that nobody wants");
                self.spawn(Desired {
                    pod: Arc::new(orphan(&sandbox)),
                    exists: Existence::Orphan,
                });
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
            .chain(self.held.iter().map(|pod| spec::uid(pod)))
            .collect();
        let settings = self.deps.settings.clone();
        let removed = tokio::task::spawn_blocking(move || {
            for (uid, path) in files::log_dirs(&settings.log_dir) {
                if !known.contains(&uid) {
                    let links = files::links_into(&path, &settings.log_links_dir);
                    files::remove_logs(&path, &links)?;
                }
            }
            Ok::<(), std::io::Error>(())
        });
        if let Ok(Err(error)) = removed.await {
            warn!(%error, "cannot remove logs of pods that are gone");
        }
    }

    /// Volumes and cgroups of a pod without a sandbox.
    async fn remove_left_over(&self, uid: &PodUid) {
        info!(%uid, "removing what is left of a pod that is gone");
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

    fn is_known(&self, uid: &PodUid) -> bool {
        self.workers.contains_key(uid) || self.held.iter().any(|pod| spec::uid(pod) == *uid)
    }
}

/// A pod that only the runtime knows, as far as its end needs it.
fn orphan(sandbox: &PodSandbox) -> Pod {
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
