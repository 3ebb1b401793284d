//! Mirror pods: what the API server shows of static pods.
//!
//! A static pod is the node's own and has no object. So that the cluster sees it, the node keeps an object of the same
//! name, a copy that carries the pod's hash, and writes the pod's status to it. Deleting the object ends nothing: it
//! is made again. When the manifest changes, the object of the old one goes when the old pod is gone.
//!
//! ```text
//! sources: names ───────────────┐
//! workers: status, over ────────┼─► one task: what is there, what should be ─► create, delete
//! watch of our pods: mirrors ───┘                                          └─► StatusWriter
//! ```
//! It never ends a static pod, and it deletes no object that is not a mirror.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::back_off::BackOff;
use crate::client::{ApiServer, Failure, failure, message};
use crate::pod::spec;
use crate::sinks::{PodUpdate, StatusSink};
use plan::{Mirrored, Step};

/// Annotation: the hash of the static pod that the object mirrors.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A request without an answer is given up.
const REQUEST: Duration = Duration::from_secs(10);

/// Namespace and name.
pub type Name = (String, String);

/// What has happened.
#[derive(Debug)]
enum Message {
    /// A source has these static pods now.
    Wanted(&'static str, BTreeSet<Name>),
    /// A static pod's status.
    Status(Arc<Pod>, Box<PodStatus>),
    /// Nothing is left of a static pod.
    Over(Arc<Pod>),
    /// A mirror pod as the server has it.
    Seen(Arc<Pod>),
    /// The server has an object no more.
    Lost(PodUid),
}

/// The other end of the task. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mirrors {
    messages: mpsc::UnboundedSender<Message>,
}

/// What the task works with.
pub struct Parts {
    /// The API server.
    pub server: ApiServer,
    /// Our own Node, the owner of the mirrors.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// How many sources of static pods there are: an object is an orphan only when all have been heard.
    pub sources: usize,
    /// Takes the statuses of mirror pods.
    pub statuses: Arc<dyn StatusSink>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

impl Mirrors {
    /// Starts the task. It ends when nobody holds its other end any more.
    pub fn start(parts: Parts) -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        tokio::spawn(Keeper::new(parts).run(inbox));
        Self { messages }
    }

    /// These are the static pods of a source now.
    pub fn wanted(&self, source: &'static str, names: BTreeSet<Name>) {
        self.tell(Message::Wanted(source, names));
    }

    /// Takes what concerns mirror pods out of the updates of the API server's pods; gives everything else back.
    pub fn take(&self, update: PodUpdate) -> Option<PodUpdate> {
        match update {
            PodUpdate::Apply(pod) if is_mirror(&pod) => {
                self.tell(Message::Seen(pod));
                None
            }
            PodUpdate::Gone(uid) => {
                self.tell(Message::Lost(uid.clone()));
                Some(PodUpdate::Gone(uid))
            }
            other => Some(other),
        }
    }

    fn tell(&self, message: Message) {
        // Without the task there is no API server to tell.
        let _ = self.messages.send(message);
    }
}

/// Whether the object mirrors a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// Statuses of static pods go to their mirrors, all others where they belong.
#[derive(Clone)]
pub struct MirroredStatuses {
    /// Takes those of static pods.
    pub mirrors: Mirrors,
    /// Takes all others.
    pub statuses: Arc<dyn StatusSink>,
}

impl std::fmt::Debug for MirroredStatuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirroredStatuses").finish_non_exhaustive()
    }
}

impl StatusSink for MirroredStatuses {
    fn publish(&self, pod: &Arc<Pod>, status: PodStatus) {
        if spec::is_static(pod) {
            let message = Message::Status(pod.clone(), Box::new(status));
            self.mirrors.tell(message);
        } else {
            self.statuses.publish(pod, status);
        }
    }

    fn terminated(&self, pod: &Arc<Pod>) {
        if spec::is_static(pod) {
            self.mirrors.tell(Message::Over(pod.clone()));
        } else {
            self.statuses.terminated(pod);
        }
    }
}

/// The task.
struct Keeper {
    parts: Parts,
    pods: BTreeMap<Name, Mirrored>,
    /// The static pods of each source that has been heard.
    wanted: BTreeMap<&'static str, BTreeSet<Name>>,
}

impl Keeper {
    fn new(parts: Parts) -> Self {
        Self {
            parts,
            pods: BTreeMap::new(),
            wanted: BTreeMap::new(),
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Message>) {
        let mut back_off = BackOff::new(RETRY.0, RETRY.1);
        let mut retry: Option<Instant> = None;
        loop {
            tokio::select! {
                message = inbox.recv() => match message {
                    Some(message) => self.take_in(message),
                    None => return,
                },
                changed = self.parts.node.changed() => if changed.is_err() { return },
                () = until(retry) => {}
            }
            while let Ok(message) = inbox.try_recv() {
                self.take_in(message);
            }
            if retry.is_some_and(|retry| retry > Instant::now()) {
                continue;
            }
            retry = match self.act().await {
                true => {
                    back_off.reset();
                    None
                }
                false => Some(Instant::now() + back_off.next_wait()),
            };
        }
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::Wanted(source, names) => {
                self.wanted.insert(source, names);
            }
            Message::Status(pod, status) => {
                let mirrored = self.pods.entry(name(&pod)).or_default();
                if let Some(mirror) = mirrored.publish(pod, *status.clone()) {
                    self.parts.statuses.publish(&mirror, *status);
                }
            }
            Message::Over(pod) => {
                if let Some(mirrored) = self.pods.get_mut(&name(&pod)) {
                    mirrored.over(&pod);
                }
            }
            Message::Seen(mirror) => {
                let mirrored = self.pods.entry(name(&mirror)).or_default();
                if let Some((mirror, status)) = mirrored.seen(mirror) {
                    self.parts.statuses.publish(&mirror, status);
                }
            }
            Message::Lost(uid) => {
                for mirrored in self.pods.values_mut() {
                    mirrored.lost(&uid);
                }
            }
        }
    }

    /// Takes every step that can be taken now. False when one has failed and is to be tried again.
    async fn act(&mut self) -> bool {
        let heard = self.wanted.len() >= self.parts.sources;
        let mut all = true;
        for (name, mut mirrored) in std::mem::take(&mut self.pods) {
            let orphaned = heard && !self.wanted.values().any(|names| names.contains(&name));
            while let Some(step) = mirrored.next(orphaned) {
                match self.take(&name, step, &mut mirrored).await {
                    Taken::Done => {}
                    Taken::Waits => break,
                    Taken::Failed => {
                        all = false;
                        break;
                    }
                }
            }
            if !mirrored.is_empty() {
                self.pods.insert(name, mirrored);
            }
        }
        all
    }

    async fn take(&self, name: &Name, step: Step, mirrored: &mut Mirrored) -> Taken {
        let api = Api::<Pod>::namespaced(self.parts.server.requests.clone(), &name.0);
        match step {
            Step::Delete(mirror) => {
                let params = DeleteParams::default()
                    .grace_period(0)
                    .preconditions(Preconditions {
                        uid: mirror.metadata.uid.clone(),
                        resource_version: None,
                    });
                let answer = in_time(api.delete(&name.1, &params)).await;
                let gone = answer.map(|_| ()).or_else(|error| match failure(&error) {
                    Failure::NotFound | Failure::Conflict => Ok(()),
                    _ => Err(error),
                });
                if let Err(error) = gone {
                    return mirrored.complain(name, "cannot delete a mirror pod", &error);
                }
                mirrored.deleted(&mirror);
                Taken::Done
            }
            Step::Create(pod) => {
                let node = self.parts.node.borrow().clone();
                let Some(mirror) = node.as_deref().and_then(|node| plan::mirror(&pod, node)) else {
                    // The watch of the Node wakes us.
                    return Taken::Waits;
                };
                let made = in_time(api.create(&PostParams::default(), &mirror)).await;
                match made {
                    Ok(made) => self.created(mirrored, made),
                    Err(error) => match in_time(api.get(&name.1)).await {
                        // Made by an earlier agent, and not seen by the watch yet.
                        Ok(found) if is_mirror(&found) => self.created(mirrored, found),
                        _ => mirrored.complain(name, "cannot create a mirror pod", &error),
                    },
                }
            }
        }
    }

    /// The server has this mirror now.
    fn created(&self, mirrored: &mut Mirrored, mirror: Pod) -> Taken {
        if let Some((mirror, status)) = mirrored.seen(Arc::new(mirror)) {
            self.parts.statuses.publish(&mirror, status);
        }
        Taken::Done
    }
}

/// How a step went.
enum Taken {
    Done,
    /// Something else has to happen first, and will tell.
    Waits,
    Failed,
}

impl Mirrored {
    /// Tells once what is wrong.
    fn complain(&mut self, name: &Name, what: &str, error: &kube::Error) -> Taken {
        let why = message(error);
        if self.is_news(&why) {
            tracing::warn!(
                namespace = name.0,
                name = name.1,
                "{what}, trying again: {why}"
            );
        }
        Taken::Failed
    }
}

fn name(pod: &Pod) -> Name {
    (spec::namespace(pod).to_owned(), spec::name(pod).to_owned())
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The answer, or an error when there is none.
async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service("no answer".into())),
    }
}
