//! The steps of a pod's start, collected from spans.
//!
//! Pod workers open a span `pod.sync` with the field `uid`; every span below it that is one of [`STEPS`] is a
//! step of that pod. The layer only listens: without it, everything works and timelines are empty.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hanok_runtime::api::PodUid;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The span that says which pod those below it belong to.
pub const ROOT: &str = "pod.sync";
/// Spans that are steps of a start.
pub const STEPS: [&str; 10] = [
    "volumes",
    "sandbox.netns",
    "sandbox.cni",
    "sandbox.create",
    "sandbox.start",
    "image.pull",
    "container.unpack",
    "container.create",
    "container.start",
    "ready",
];
/// Steps kept of one pod: one that restarts for ever does not grow.
const MAX_STEPS: usize = 128;
/// Pods kept: one that never becomes ready is forgotten when it is gone, at the latest then.
const MAX_PODS: usize = 1024;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The span's name.
    pub name: &'static str,
    /// The container that it was for, when the span says so.
    pub container: String,
    /// From the pod's first sight to the step's start.
    pub offset: Duration,
    /// How long it took.
    pub took: Duration,
}

/// One pod's start so far.
#[derive(Debug)]
struct Track {
    began: Instant,
    steps: Vec<Step>,
}

/// The timelines of all pods that are starting.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    tracks: Arc<Mutex<HashMap<PodUid, Track>>>,
    finished: Option<UnboundedSender<(PodUid, Vec<Step>)>>,
}

impl Timeline {
    /// Timelines whose finished ones also come out of the receiver.
    pub fn with_listener() -> (Self, UnboundedReceiver<(PodUid, Vec<Step>)>) {
        let (sender, receiver) = unbounded_channel();
        let timeline = Self {
            finished: Some(sender),
            ..Self::default()
        };
        (timeline, receiver)
    }

    /// The pod has been seen; steps count from now. Later calls do nothing.
    pub fn begin(&self, uid: &PodUid) {
        let mut tracks = self.lock();
        if tracks.len() < MAX_PODS {
            tracks.entry(uid.clone()).or_insert_with(|| Track {
                began: Instant::now(),
                steps: Vec::new(),
            });
        }
    }

    /// Ends the pod's timeline with the step `ready` and gives it, in order of start.
    pub fn ready(&self, uid: &PodUid) -> Option<Vec<Step>> {
        let mut track = self.lock().remove(uid)?;
        let offset = track.began.elapsed();
        let ready = Step {
            name: "ready",
            container: String::new(),
            offset,
            took: Duration::ZERO,
        };
        track.steps.push(ready);
        track.steps.sort_by_key(|step| step.offset);
        if let Some(finished) = &self.finished {
            // A listener that has gone away has lost its interest.
            let _ = finished.send((uid.clone(), track.steps.clone()));
        }
        Some(track.steps)
    }

    /// Forgets the pod.
    pub fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// The layer that fills timelines.
    pub fn layer(&self) -> TimelineLayer {
        TimelineLayer {
            timeline: self.clone(),
        }
    }

    /// Adds a step to a pod that is starting.
    fn add(&self, uid: &PodUid, name: &'static str, container: String, began: Instant) {
        let mut tracks = self.lock();
        let Some(track) = tracks
            .get_mut(uid)
            .filter(|track| track.steps.len() < MAX_STEPS)
        else {
            return;
        };
        let offset = began.saturating_duration_since(track.began);
        track.steps.push(Step {
            name,
            container,
            offset,
            took: began.elapsed(),
        });
    }

    /// A panic elsewhere leaves the map whole: every change is one insertion or removal.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PodUid, Track>> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Steps as one line: `sandbox.netns 0.4+1.2 ...`, offset and time taken in milliseconds.
pub fn one_line(steps: &[Step]) -> String {
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let words = steps.iter().map(|step| {
        let of = if step.container.is_empty() {
            String::new()
        } else {
            format!("({})", step.container)
        };
        match step.name {
            "ready" => format!("ready {:.1}", ms(step.offset)),
            name => format!("{name}{of} {:.1}+{:.1}", ms(step.offset), ms(step.took)),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Fills timelines from spans.
#[derive(Debug)]
pub struct TimelineLayer {
    timeline: Timeline,
}

/// Which pod a span belongs to.
#[derive(Clone)]
struct Owner(PodUid);

/// The innermost step above a span, and the container that it is for.
#[derive(Clone, Default)]
struct Above {
    step: &'static str,
    container: String,
}

/// When a step began, and for which container.
struct Began(Instant, String);

impl<S> Layer<S> for TimelineLayer
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut fields = Fields::default();
        let owner = if span.name() == ROOT {
            attributes.record(&mut fields);
            fields.uid.take().map(|uid| Owner(PodUid(uid)))
        } else {
            span.parent()
                .and_then(|parent| parent.extensions().get::<Owner>().cloned())
        };
        let Some(owner) = owner else { return };
        let above = span
            .parent()
            .and_then(|parent| parent.extensions().get::<Above>().cloned());
        let mut above = above.unwrap_or_default();
        // A step in a step of the same name is the same one, told by a lower layer.
        if STEPS.contains(&span.name()) && above.step != span.name() {
            attributes.record(&mut fields);
            if above.container.is_empty() {
                above.container = fields.container;
            }
            above.step = span.name();
            span.extensions_mut()
                .insert(Began(Instant::now(), above.container.clone()));
        }
        span.extensions_mut().insert(above);
        span.extensions_mut().insert(owner);
    }

    fn on_close(&self, id: Id, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(&id) else { return };
        let mut extensions = span.extensions_mut();
        let (Some(Began(began, container)), Some(Owner(uid))) =
            (extensions.remove::<Began>(), extensions.remove::<Owner>())
        else {
            return;
        };
        self.timeline.add(&uid, span.name(), container, began);
    }
}

/// The fields that matter.
#[derive(Default)]
struct Fields {
    uid: Option<String>,
    container: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "uid" => self.uid = Some(value.to_owned()),
            "container" => value.clone_into(&mut self.container),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{info_span, subscriber};
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    #[test]
    fn steps_belong_to_the_pod_above_them() {
        let timeline = Timeline::default();
        let (one, two) = (PodUid("1".into()), PodUid("2".into()));
        timeline.begin(&one);
        timeline.begin(&two);
        subscriber::with_default(registry().with(timeline.layer()), || {
            let root = info_span!("pod.sync", uid = %one);
            root.in_scope(|| {
                info_span!("between").in_scope(|| drop(info_span!("sandbox.netns").entered()));
                info_span!("container.start", container = "web").in_scope(|| {
                    drop(info_span!("container.start", container = "0e57").entered());
                    drop(info_span!("container.unpack", container = "0e57").entered());
                });
                drop(info_span!("something.else").entered());
            });
            drop(info_span!("sandbox.netns").entered());
        });
        let steps = timeline.ready(&one).expect("it has begun");
        let names: Vec<_> = steps
            .iter()
            .map(|step| (step.name, step.container.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("sandbox.netns", ""),
                ("container.start", "web"),
                ("container.unpack", "web"),
                ("ready", "")
            ]
        );
        assert_eq!(timeline.ready(&one), None);
        assert_eq!(timeline.ready(&two).map(|steps| steps.len()), Some(1));
    }

    #[test]
    fn a_line_shows_offsets_and_times() {
        let step = |name, container: &str, offset, took| Step {
            name,
            container: container.to_owned(),
            offset: Duration::from_micros(offset),
            took: Duration::from_micros(took),
        };
        let steps = [
            step("sandbox.cni", "", 500, 1750),
            step("container.start", "web", 3000, 2000),
            step("ready", "", 6000, 0),
        ];
        assert_eq!(
            one_line(&steps),
            "sandbox.cni 0.5+1.8 container.start(web) 3.0+2.0 ready 6.0"
        );
    }
}
