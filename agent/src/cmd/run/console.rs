//! What `hanok run` prints: events, changes of status, timelines, and the containers' own lines.
//!
//! ```text
//! [   0.043] web/app Started: Container started
//! [   0.057] web is ready at 10.86.0.2 after 57.3 ms
//! web/app | listening on 8080
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::pod::spec;
use crate::sinks::{EventKind, EventSink, StatusSink};
use crate::timeline::Step;

/// Something to print.
#[derive(Debug)]
pub(super) enum Note {
    /// An event on a pod or on one of its containers.
    Event {
        /// `POD` or `POD/CONTAINER`.
        about: String,
        /// Whether somebody should look.
        kind: EventKind,
        /// Its reason.
        reason: String,
        /// Its message.
        message: String,
    },
    /// A pod's new status.
    Status(Arc<Pod>, Box<PodStatus>),
    /// Nothing of a pod is left.
    Terminated(PodUid),
}

/// Takes statuses and events from the pod core.
#[derive(Debug)]
pub(super) struct Sink(pub(super) UnboundedSender<Note>);

impl Sink {
    /// The console may have gone before the pods have; nobody reads then.
    fn send(&self, note: Note) {
        let _ = self.0.send(note);
    }
}

impl StatusSink for Sink {
    fn publish(&self, pod: &Arc<Pod>, status: PodStatus) {
        self.send(Note::Status(pod.clone(), Box::new(status)));
    }

    fn terminated(&self, pod: &Arc<Pod>) {
        self.send(Note::Terminated(spec::uid(pod)));
    }
}

impl EventSink for Sink {
    fn pod_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        // There is no cluster whose DNS could be missing.
        if reason == "MissingClusterDNS" {
            return;
        }
        let about = match container {
            Some(container) => format!("{}/{container}", name(pod)),
            None => name(pod),
        };
        self.send(Note::Event {
            about,
            kind,
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    }
}

/// A pod's name, with its namespace where that is not the default one.
pub(super) fn name(pod: &Pod) -> String {
    match spec::namespace(pod) {
        "default" => spec::name(pod).to_owned(),
        namespace => format!("{namespace}/{}", spec::name(pod)),
    }
}

/// What has been said of one pod.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Said {
    phase: String,
    ready: bool,
}

/// The only writer to standard output.
pub(super) struct Console<W> {
    out: W,
    began: Instant,
    said: BTreeMap<PodUid, Said>,
    names: BTreeMap<PodUid, String>,
}

impl<W: Write> Console<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            began: Instant::now(),
            said: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    /// Prints a line of its own.
    pub(super) fn say(&mut self, text: &str) -> io::Result<()> {
        let seconds = self.began.elapsed().as_secs_f64();
        writeln!(self.out, "[{seconds:8.3}] {text}")?;
        self.out.flush()
    }

    /// Prints a line of a container.
    pub(super) fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.out, "{line}")?;
        self.out.flush()
    }

    /// Prints a note.
    pub(super) fn note(&mut self, note: &Note) -> io::Result<()> {
        match note {
            Note::Event {
                about,
                kind,
                reason,
                message,
            } => {
                let mark = match kind {
                    EventKind::Normal => "",
                    EventKind::Warning => "warning: ",
                };
                self.say(&format!("{about} {mark}{reason}: {message}"))
            }
            Note::Status(pod, status) => self.status(pod, status),
            Note::Terminated(uid) => {
                let name = self.names.get(uid).cloned().unwrap_or_default();
                self.say(&format!("{name} is gone"))
            }
        }
    }

    /// Prints what is new in a status.
    fn status(&mut self, pod: &Pod, status: &PodStatus) -> io::Result<()> {
        let uid = spec::uid(pod);
        let name = name(pod);
        self.names.insert(uid.clone(), name.clone());
        let ready = status.conditions.iter().flatten();
        let now = Said {
            phase: status.phase.clone().unwrap_or_default(),
            ready: ready
                .clone()
                .any(|it| it.type_ == "Ready" && it.status == "True"),
        };
        let before = self.said.insert(uid, now.clone()).unwrap_or_default();
        if now.ready && !before.ready {
            let ip = status.pod_ip.as_deref().unwrap_or("an unknown address");
            return self.say(&format!("{name} is ready at {ip}"));
        }
        if now.phase != before.phase && spec::is_terminal_phase(&now.phase) {
            let exits: Vec<String> = status
                .init_container_statuses
                .iter()
                .chain(&status.container_statuses)
                .flatten()
                .filter_map(|container| {
                    let ended = container.state.as_ref()?.terminated.as_ref()?;
                    let reason = ended.reason.as_deref().unwrap_or_default();
                    Some(format!("{} {reason} ({})", container.name, ended.exit_code))
                })
                .collect();
            let why = status
                .message
                .as_deref()
                .map(|why| format!(": {why}"))
                .unwrap_or_default();
            return self.say(&format!(
                "{name} has {}{why}: {}",
                now.phase.to_lowercase(),
                exits.join(", ")
            ));
        }
        if before.ready && !now.ready {
            return self.say(&format!("{name} is not ready any more"));
        }
        Ok(())
    }

    /// Prints where the time of a start went.
    pub(super) fn timeline(&mut self, uid: &PodUid, steps: &[Step]) -> io::Result<()> {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let name = self.names.get(uid).cloned().unwrap_or_default();
        let total = steps.last().map_or(0.0, |step| ms(step.offset));
        self.say(&format!(
            "{name} took {total:.1} ms from its first sight to ready:"
        ))?;
        writeln!(
            self.out,
            "    {:<28} {:>9} {:>9}",
            "step", "at (ms)", "took (ms)"
        )?;
        for step in steps {
            let label = match step.container.as_str() {
                "" => step.name.to_owned(),
                container => format!("{} {container}", step.name),
            };
            match step.name {
                "ready" => writeln!(self.out, "    {label:<28} {:>9.1}", ms(step.offset))?,
                _ => writeln!(
                    self.out,
                    "    {label:<28} {:>9.1} {:>9.1}",
                    ms(step.offset),
                    ms(step.took)
                )?,
            }
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn only_what_is_new_is_said() {
        let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "1"}});
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(pod).expect("a pod"));
        let status = |value| {
            Note::Status(
                pod.clone(),
                Box::new(serde_json::from_value(value).expect("a status")),
            )
        };
        let mut console = Console::new(Vec::new());
        let ready = json!({"phase": "Running", "podIP": "10.0.0.2", "conditions": [{"type": "Ready", "status": "True"}]});
        let failed = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]});
        let event = Note::Event {
            about: "web/c".into(),
            kind: EventKind::Warning,
            reason: "BackOff".into(),
            message: "again".into(),
        };
        let notes = [
            status(json!({"phase": "Pending"})),
            status(ready.clone()),
            status(ready),
            event,
            status(failed),
            Note::Terminated(PodUid("1".into())),
        ];
        for note in &notes {
            console.note(note).expect("printed");
        }
        let text = String::from_utf8(console.out).expect("text");
        let want = "[   0.000] web is ready at 10.0.0.2\n[   0.000] web/c warning: BackOff: again\n\
            [   0.000] web has failed: c Error (3)\n[   0.000] web is gone\n";
        assert_eq!(text, want);
    }
}
