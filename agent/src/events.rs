//! Writes events to the API server, as `kubectl describe` shows them.
//!
//! A bounded queue and one task: whoever reports never waits, and when more comes than may be sent, it is dropped.
//! What is reported again becomes a count on the event that there is already.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::back_off::BackOff;
use crate::bucket::Bucket;
use crate::client::{ApiServer, Failure, failure, message};
use crate::sinks::{EventKind, EventSink};

/// Events that wait to be sent.
const QUEUE: usize = 1000;
/// Events that are remembered for counting.
const REMEMBERED: usize = 4096;
/// The longest message that the API takes.
const LONGEST_MESSAGE: usize = 1024;
/// Tries of one event before it is dropped.
const TRIES: u32 = 8;
/// Events of one object: this many at once, then one in five minutes.
const PER_OBJECT: (f64, f64) = (25.0, 1.0 / 300.0);
/// The component that events come from.
const COMPONENT: &str = "kubelet";

/// Events by way of the API server.
#[derive(Debug, Clone)]
pub struct ApiEvents {
    queue: mpsc::Sender<Report>,
    node_name: String,
}

/// What was reported.
#[derive(Debug, Clone)]
struct Report {
    object: ObjectReference,
    kind: EventKind,
    reason: String,
    message: String,
    at: Timestamp,
}

/// What makes two reports the same event.
type Key = (String, String, String, String);

impl Report {
    fn key(&self) -> Key {
        let object = &self.object;
        let uid = object.uid.clone().unwrap_or_default();
        let field = object.field_path.clone().unwrap_or_default();
        (uid, field, self.reason.clone(), self.message.clone())
    }
}

impl ApiEvents {
    /// Starts the task. At most `qps` events a second (0: no limit) and `burst` at once.
    pub fn start(server: &ApiServer, node_name: &str, qps: u32, burst: u32) -> Self {
        let (queue, reports) = mpsc::channel(QUEUE);
        let limit = (qps > 0).then(|| Bucket::new(f64::from(burst), f64::from(qps)));
        let writer = Writer {
            server: server.clone(),
            node_name: node_name.to_owned(),
            limit,
            per_object: HashMap::new(),
            remembered: HashMap::new(),
            order: VecDeque::new(),
        };
        tokio::spawn(writer.run(reports));
        Self {
            queue,
            node_name: node_name.to_owned(),
        }
    }

    /// Reports something about the node itself.
    pub fn node_event(&self, kind: EventKind, reason: &str, message: &str) {
        let object = ObjectReference {
            kind: Some("Node".into()),
            name: Some(self.node_name.clone()),
            // The kubelet names the node, since events may come before its object exists.
            uid: Some(self.node_name.clone()),
            ..ObjectReference::default()
        };
        self.report(object, kind, reason, message);
    }

    fn report(&self, object: ObjectReference, kind: EventKind, reason: &str, message: &str) {
        let (reason, message) = (reason.to_owned(), shorten(message));
        let report = Report {
            object,
            kind,
            reason,
            message,
            at: Timestamp::now(),
        };
        if self.queue.try_send(report).is_err() {
            tracing::debug!("too many events, one is dropped");
        }
    }
}

/// Cuts at a character's end.
fn shorten(message: &str) -> String {
    if message.len() <= LONGEST_MESSAGE {
        return message.to_owned();
    }
    let mut end = LONGEST_MESSAGE - 3;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &message[..end])
}

impl EventSink for ApiEvents {
    fn pod_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        let meta = &pod.metadata;
        let object = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            field_path: container.map(|name| field_path(pod, name)),
        };
        self.report(object, kind, reason, message);
    }
}

/// Where in the pod's specification a container stands.
fn field_path(pod: &Pod, container: &str) -> String {
    let spec = pod.spec.as_ref();
    let init = spec.is_some_and(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .any(|found| found.name == container)
    });
    let ephemeral = spec.is_some_and(|spec| {
        spec.ephemeral_containers
            .iter()
            .flatten()
            .any(|found| found.name == container)
    });
    let list = match (init, ephemeral) {
        (true, _) => "initContainers",
        (_, true) => "ephemeralContainers",
        _ => "containers",
    };
    format!("spec.{list}{{{container}}}")
}

/// The task that sends.
struct Writer {
    server: ApiServer,
    node_name: String,
    limit: Option<Bucket>,
    per_object: HashMap<String, Bucket>,
    remembered: HashMap<Key, Sent>,
    /// Keys in the order of their first report: the oldest is forgotten first.
    order: VecDeque<Key>,
}

/// An event that the server has.
#[derive(Debug, Clone)]
struct Sent {
    namespace: String,
    name: String,
    count: i32,
}

impl Writer {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>) {
        while let Some(report) = reports.recv().await {
            let now = Instant::now();
            if self.is_spam(&report, now) {
                continue;
            }
            if let Some(limit) = &mut self.limit {
                tokio::time::sleep(limit.take_or_wait(now)).await;
            }
            self.send(&report).await;
        }
    }

    /// An object that reports without end is cut off.
    fn is_spam(&mut self, report: &Report, now: Instant) -> bool {
        if self.per_object.len() > REMEMBERED {
            self.per_object.retain(|_, bucket| !bucket.is_full(now));
        }
        let uid = report.object.uid.clone().unwrap_or_default();
        let bucket = self
            .per_object
            .entry(uid)
            .or_insert_with(|| Bucket::new(PER_OBJECT.0, PER_OBJECT.1));
        !bucket.take(now)
    }

    /// Counts up an event that there is, or makes one.
    async fn send(&mut self, report: &Report) {
        let mut back_off = BackOff::new(Duration::from_millis(500), Duration::from_secs(10));
        for _ in 0..TRIES {
            let result = match self.remembered.get(&report.key()).cloned() {
                Some(sent) => self.count_up(report, sent).await,
                None => self.create(report).await,
            };
            let Err(error) = result else { return };
            match failure(&error) {
                // It has expired on the server: make it anew.
                Failure::NotFound if self.remembered.remove(&report.key()).is_some() => {}
                // Its namespace is going; there is nobody left to read it.
                Failure::NotFound => return,
                Failure::Later => back_off.wait().await,
                Failure::Conflict | Failure::Refused => {
                    return tracing::debug!(
                        reason = report.reason,
                        "event refused: {}",
                        message(&error)
                    );
                }
            }
        }
    }

    async fn create(&mut self, report: &Report) -> Result<(), kube::Error> {
        let event = new_event(report, &self.node_name);
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let name = event.metadata.name.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.server.requests.clone(), &namespace);
        api.create(&PostParams::default(), &event).await?;
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.remembered.remove(&oldest);
        }
        self.order.push_back(report.key());
        self.remembered.insert(
            report.key(),
            Sent {
                namespace,
                name,
                count: 1,
            },
        );
        Ok(())
    }

    async fn count_up(&mut self, report: &Report, sent: Sent) -> Result<(), kube::Error> {
        let api: Api<Event> = Api::namespaced(self.server.requests.clone(), &sent.namespace);
        let count = sent.count.saturating_add(1);
        let patch = json!({"count": count, "lastTimestamp": Time(report.at)});
        api.patch(
            &sent.name,
            &PatchParams::default(),
            &Patch::Strategic(patch),
        )
        .await?;
        if let Some(sent) = self.remembered.get_mut(&report.key()) {
            sent.count = count;
        }
        Ok(())
    }
}

/// The event of a first report.
fn new_event(report: &Report, node_name: &str) -> Event {
    let object = report.object.clone();
    let namespace = object.namespace.clone().unwrap_or_else(|| "default".into());
    let stamp = report.at.as_nanosecond();
    let name = format!("{}.{stamp:x}", object.name.as_deref().unwrap_or_default());
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: Some(namespace),
        ..ObjectMeta::default()
    };
    let kind = match report.kind {
        EventKind::Normal => "Normal",
        EventKind::Warning => "Warning",
    };
    Event {
        metadata,
        involved_object: object,
        reason: Some(report.reason.clone()),
        message: Some(report.message.clone()),
        source: Some(EventSource {
            component: Some(COMPONENT.into()),
            host: Some(node_name.into()),
        }),
        first_timestamp: Some(Time(report.at)),
        last_timestamp: Some(Time(report.at)),
        count: Some(1),
        type_: Some(kind.into()),
        reporting_component: Some(COMPONENT.into()),
        reporting_instance: Some(node_name.into()),
        ..Event::default()
    }
}

#[cfg(test)]
#[path = "events/tests.rs"]
mod tests;
