//! Sends pods' statuses to the API server, and deletes pods of which nothing is left on the node.
//!
//! One request at a time for a pod, many pods side by side; what is published while a request is on its way is
//! coalesced into the next one. Nothing is ever sent twice, and nothing waits for a batch.

mod patch;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::back_off::BackOff;
use crate::client::{ApiServer, Failure, failure, message};
use crate::pod::status::is_told;
use crate::sinks::StatusSink;

/// Requests at once. More would only queue in the server, whose CPU a node shares with others.
const AT_ONCE: usize = 16;

/// Pods that are remembered as gone, and for how long: our own watch is behind by moments. A pod that is spoken of later
/// is there after all.
const REMEMBERED: usize = 512;
const REMEMBERED_FOR: Duration = Duration::from_secs(30);

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7));

/// Statuses by way of the API server.
#[derive(Debug, Clone)]
pub struct StatusWriter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: ApiServer,
    slots: Mutex<HashMap<PodUid, Slot>>,
    /// Pods that the server has just been rid of; our own watch may be a moment behind.
    gone: Mutex<VecDeque<(Instant, PodUid)>>,
    permits: Semaphore,
}

/// What is known of one pod.
#[derive(Debug)]
struct Slot {
    pod: Arc<Pod>,
    /// To be sent.
    next: Option<PodStatus>,
    /// What the server has, as far as we know.
    sent: Option<PodStatus>,
    /// Nothing of the pod is left here.
    terminated: bool,
    /// A task is at work on it.
    busy: bool,
}

/// What to do next for a pod.
enum Step {
    Patch(Box<Change>),
    Delete(Arc<Pod>),
    Rest,
}

/// A status on its way.
struct Change {
    pod: Arc<Pod>,
    /// What the server has.
    before: Option<PodStatus>,
    /// What it is to have.
    status: PodStatus,
}

impl StatusWriter {
    /// Sends by `server`'s connection for requests.
    pub fn new(server: &ApiServer) -> Self {
        let shared = Shared {
            server: server.clone(),
            slots: Mutex::default(),
            gone: Mutex::default(),
            permits: Semaphore::new(AT_ONCE),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Changes the pod's slot, and starts a task if there is work and none is at it.
    fn change(&self, pod: &Arc<Pod>, change: impl FnOnce(&mut Slot)) {
        let uid = PodUid(pod.metadata.uid.clone().unwrap_or_default());
        if self.shared.is_gone(&uid) {
            return;
        }
        let start = {
            let mut slots = self.shared.slots();
            let slot = slots.entry(uid.clone()).or_insert_with(|| Slot::new(pod));
            slot.pod = pod.clone();
            change(slot);
            let start = !slot.busy && slot.has_work();
            slot.busy |= start;
            if slot.is_over() {
                slots.remove(&uid);
            }
            start
        };
        if start {
            tokio::spawn(work(self.shared.clone(), uid));
        }
    }
}

impl StatusSink for StatusWriter {
    fn publish(&self, pod: &Arc<Pod>, status: PodStatus) {
        self.change(pod, |slot| {
            let is = |known: &PodStatus| patch::same(known, &status);
            let mut same = slot.sent.as_ref().is_some_and(is);
            let theirs = pod.status.as_ref().filter(|_| same && !slot.busy);
            if let Some(theirs) = theirs.filter(|theirs| !is_told(theirs, &status)) {
                // Somebody has written over what was sent. An object that is only behind costs one patch in vain.
                slot.sent = Some(theirs.clone());
                same = false;
            }
            slot.next = if same && !slot.busy {
                None
            } else {
                Some(status)
            };
        });
    }

    fn terminated(&self, pod: &Arc<Pod>) {
        self.change(pod, |slot| slot.terminated = true);
    }
}

impl Slot {
    fn new(pod: &Arc<Pod>) -> Self {
        let sent = pod.status.clone();
        Self {
            pod: pod.clone(),
            next: None,
            sent,
            terminated: false,
            busy: false,
        }
    }

    /// The object waits only for us.
    fn deletable(&self) -> bool {
        self.terminated && self.pod.metadata.deletion_timestamp.is_some()
    }

    /// Nothing is left to send, and nothing will come but for a new form of the pod.
    fn is_over(&self) -> bool {
        self.terminated && !self.busy && !self.has_work()
    }

    fn has_work(&self) -> bool {
        self.next.is_some() || self.deletable()
    }
}

impl Shared {
    fn slots(&self) -> MutexGuard<'_, HashMap<PodUid, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has no such pod any more, and there is nothing left to tell it.
    fn set_gone(&self, uid: &PodUid) {
        self.slots().remove(uid);
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        if gone.len() >= REMEMBERED {
            gone.pop_front();
        }
        gone.push_back((Instant::now(), uid.clone()));
    }

    fn is_gone(&self, uid: &PodUid) -> bool {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.iter()
            .any(|(since, gone)| gone == uid && since.elapsed() < REMEMBERED_FOR)
    }

    /// Takes the next thing to do; without any, the slot is idle from then on.
    fn next(&self, uid: &PodUid) -> Step {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(uid) else {
            return Step::Rest;
        };
        if let Some(status) = slot.next.take() {
            let same = slot
                .sent
                .as_ref()
                .is_some_and(|sent| patch::same(sent, &status));
            if !same {
                let (pod, before) = (slot.pod.clone(), slot.sent.clone());
                return Step::Patch(Box::new(Change {
                    pod,
                    before,
                    status,
                }));
            }
        }
        if slot.deletable() {
            return Step::Delete(slot.pod.clone());
        }
        slot.busy = false;
        if slot.is_over() {
            slots.remove(uid);
        }
        Step::Rest
    }

    /// The server took this status.
    fn sent(&self, uid: &PodUid, status: PodStatus) {
        if let Some(slot) = self.slots().get_mut(uid) {
            slot.sent = Some(status);
        }
    }

    /// It did not: send it later, unless there is a newer one.
    fn put_back(&self, uid: &PodUid, status: PodStatus) {
        if let Some(slot) = self.slots().get_mut(uid) {
            slot.next.get_or_insert(status);
        }
    }
}

/// Works on one pod until there is nothing left to send.
async fn work(shared: Arc<Shared>, uid: PodUid) {
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    let mut told = None;
    loop {
        let Ok(permit) = shared.permits.acquire().await else {
            return;
        };
        let failed = match shared.next(&uid) {
            Step::Rest => return,
            Step::Patch(change) => {
                match send(&shared, &change).await {
                    Outcome::Done => {
                        shared.sent(&uid, change.status);
                        false
                    }
                    Outcome::Gone => {
                        shared.set_gone(&uid);
                        return;
                    }
                    // Who refuses it, a webhook mostly, may come to allow it; nobody else would send it again.
                    Outcome::Refused(why) => {
                        tell(&mut told, &change.pod, "cannot send a pod's status", why);
                        shared.put_back(&uid, change.status);
                        true
                    }
                    Outcome::Later => {
                        shared.put_back(&uid, change.status);
                        true
                    }
                }
            }
            Step::Delete(pod) => match delete(&shared, &pod).await {
                Outcome::Refused(why) => {
                    tell(&mut told, &pod, "cannot delete a pod that has ended", why);
                    true
                }
                Outcome::Later => true,
                Outcome::Done | Outcome::Gone => {
                    shared.set_gone(&uid);
                    return;
                }
            },
        };
        drop(permit);
        if failed {
            back_off.wait().await;
        } else {
            back_off.reset();
        }
    }
}

/// How a request ended.
enum Outcome {
    Done,
    /// There is no such pod any more.
    Gone,
    /// With these words.
    Refused(String),
    Later,
}

/// Says once why the server refuses something, as often as it is asked.
fn tell(told: &mut Option<String>, pod: &Pod, what: &str, why: String) {
    if told.as_ref() != Some(&why) {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        tracing::error!(?namespace, ?name, "{what}: {why}");
        *told = Some(why);
    }
}

fn api(shared: &Shared, pod: &Pod) -> Api<Pod> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    Api::namespaced(shared.server.requests.clone(), namespace)
}

/// Sends one status.
async fn send(shared: &Shared, change: &Change) -> Outcome {
    let pod = &change.pod;
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let patch = Patch::Strategic(patch::status_patch(
        pod,
        change.before.as_ref(),
        &change.status,
    ));
    match api(shared, pod)
        .patch_status(name, &PatchParams::default(), &patch)
        .await
    {
        Ok(_) => Outcome::Done,
        Err(error) => outcome(shared, &error, pod).await,
    }
}

/// Deletes the object for good.
async fn delete(shared: &Shared, pod: &Pod) -> Outcome {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let preconditions = Preconditions {
        uid: pod.metadata.uid.clone(),
        resource_version: None,
    };
    let params = DeleteParams::default()
        .grace_period(0)
        .preconditions(preconditions);
    match api(shared, pod).delete(name, &params).await {
        Ok(_) => Outcome::Done,
        Err(error) => outcome(shared, &error, pod).await,
    }
}

/// Sorts a failure.
async fn outcome(shared: &Shared, error: &kube::Error, pod: &Pod) -> Outcome {
    let message = message(error);
    match failure(error) {
        Failure::NotFound if is_the_servers(error) && !is_listed(shared, pod).await => {
            Outcome::Gone
        }
        // The UID is the precondition: under this name there is another pod now.
        Failure::Conflict if message.contains("UID") || message.contains("uid") => Outcome::Gone,
        Failure::Conflict => Outcome::Later,
        Failure::Refused => Outcome::Refused(message),
        Failure::Later | Failure::NotFound => {
            tracing::debug!(name = ?pod.metadata.name, "trying again to write to a pod: {message}");
            Outcome::Later
        }
    }
}

/// Whether a 404 speaks of the object. That of a proxy, or of a server that is coming up, says nothing of it; taken for
/// the end of the pod, it would be the last that is heard of a pod that runs.
fn is_the_servers(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.reason == "NotFound")
}

/// Whether a list has the pod after all, or cannot be had. What is taken for gone is not written to for a while, so one
/// answer is not enough. A node may not get a pod that is not there, but it may list its own; where it may not, the one
/// answer has to do.
async fn is_listed(shared: &Shared, pod: &Pod) -> bool {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let fields = format!(
        "metadata.name={name},spec.nodeName={}",
        node.unwrap_or_default()
    );
    let params = ListParams::default().fields(&fields);
    match api(shared, pod).list_metadata(&params).await {
        Ok(found) => found
            .items
            .iter()
            .any(|found| found.metadata.uid == pod.metadata.uid),
        Err(kube::Error::Api(status)) if status.code == 403 => false,
        Err(error) => failure(&error) == Failure::Later,
    }
}

#[cfg(test)]
#[path = "status_writer/tests.rs"]
mod tests;
