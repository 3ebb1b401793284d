//! Tells of processes that the kernel killed for want of memory. A container that ends of it says so in its status;
//! one that lives on, because only a child of its was killed, says nothing.

use std::sync::Arc;

use hanok_runtime::api::OomEvent;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::directory::Pods;
use super::spec;
use crate::sinks::{EventKind, EventSink, PodDirectory};

/// Turns the runtime's events into events on pods, until the runtime is gone.
pub(super) async fn tell(
    mut events: broadcast::Receiver<OomEvent>,
    pods: Pods,
    sink: Arc<dyn EventSink>,
) {
    loop {
        match events.recv().await {
            Ok(event) => tell_one(&event, &pods, &*sink),
            // The counters are in the metrics all the same.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

fn tell_one(event: &OomEvent, pods: &Pods, sink: &dyn EventSink) {
    let entries = pods.pods();
    let Some(entry) = entries
        .iter()
        .find(|entry| spec::uid(&entry.pod) == event.pod)
    else {
        return;
    };
    let message = format!(
        "The kernel killed {} of container {} for want of memory: raise its memory limit, or let it use less",
        match event.kills {
            1 => "a process".to_owned(),
            many => format!("{many} processes"),
        },
        event.name,
    );
    sink.pod_event(
        &entry.pod,
        Some(&event.name),
        EventKind::Warning,
        "OOMKilled",
        &message,
    );
}
