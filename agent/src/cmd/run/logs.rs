//! Follows the logs of every container, each line with its container's name.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::console;
use crate::pod::spec;
use crate::server::watch::Hub;

/// Longest line that is printed; a longer one is cut into several.
const MAX_LINE: usize = 16 * 1024;

/// The followers, one for each run of a container.
pub(super) struct Logs {
    hub: std::sync::Arc<Hub>,
    log_dir: PathBuf,
    lines: mpsc::Sender<String>,
    /// By container id; true once the run has ended.
    runs: BTreeMap<String, watch::Sender<bool>>,
    tasks: JoinSet<()>,
}

impl Logs {
    /// Follows logs below `log_dir`.
    pub(super) fn new(log_dir: &Path, lines: mpsc::Sender<String>) -> Self {
        Self {
            hub: std::sync::Arc::new(Hub::new()),
            log_dir: log_dir.to_owned(),
            lines,
            runs: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Takes up what a status says of runs.
    pub(super) fn update(&mut self, pod: &Pod, status: &PodStatus) {
        let containers = status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses);
        for container in containers.flatten() {
            for (id, attempt, ended) in runs(container) {
                self.run(pod, &container.name, id, attempt, ended);
            }
        }
    }

    fn run(&mut self, pod: &Pod, container: &str, id: &str, attempt: i32, ended: bool) {
        let sender = self.runs.entry(id.to_owned()).or_insert_with(|| {
            let dir = format!(
                "{}_{}_{}",
                spec::namespace(pod),
                spec::name(pod),
                spec::uid(pod)
            );
            let path = self
                .log_dir
                .join(dir)
                .join(container)
                .join(format!("{attempt}.log"));
            let (sender, receiver) = watch::channel(false);
            let prefix = format!("{}/{container} | ", console::name(pod));
            let follower = Follower {
                prefix,
                lines: self.lines.clone(),
                hub: self.hub.clone(),
            };
            // A log that cannot be read is one that nobody has written yet, or that is gone: nothing to print.
            self.tasks.spawn(async move {
                let _ = follower.follow(&path, receiver).await;
            });
            sender
        });
        sender.send_if_modified(|known| std::mem::replace(known, ended) != ended);
    }

    /// Waits until everything that ended runs have written is handed over.
    pub(super) async fn finish(mut self) {
        for sender in self.runs.values() {
            sender.send_replace(true);
        }
        drop(self.lines);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The runs that a status tells of: container id, restart count, whether it has ended.
fn runs(status: &ContainerStatus) -> Vec<(&str, i32, bool)> {
    let current = status.container_id.as_deref().unwrap_or_default();
    let terminated = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        state.as_ref().and_then(|state| state.terminated.clone())
    };
    let last = status
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    let last = last
        .and_then(|last| last.container_id.as_deref())
        .unwrap_or_default();
    let mut found = Vec::new();
    if !last.is_empty() && last != current {
        found.push((last, status.restart_count - 1, true));
    }
    // What is created and not started has no log yet.
    let running = status
        .state
        .as_ref()
        .and_then(|state| state.running.as_ref());
    let ended = terminated(&status.state).is_some() || last == current;
    if !current.is_empty() && (ended || running.is_some()) {
        found.push((current, status.restart_count, ended));
    }
    found
}

/// Reads one log to its end.
struct Follower {
    prefix: String,
    lines: mpsc::Sender<String>,
    hub: std::sync::Arc<Hub>,
}

impl Follower {
    async fn follow(&self, path: &Path, mut ended: watch::Receiver<bool>) -> io::Result<()> {
        let directory = path.parent().unwrap_or(path);
        let mut changes = self.hub.watch(directory)?;
        let mut file = BufReader::new(File::open(path).await?);
        let mut partial = Vec::new();
        loop {
            let over = *ended.borrow_and_update();
            let superseded = is_superseded(file.get_ref(), path).await;
            self.read(&mut file, &mut partial).await?;
            if superseded {
                file = BufReader::new(File::open(path).await?);
                continue;
            }
            if over {
                return Ok(());
            }
            tokio::select! {
                () = changes.changed() => {}
                changed = ended.changed() => if changed.is_err() { return Ok(()) },
            }
        }
    }

    /// Reads what there is.
    async fn read(&self, file: &mut BufReader<File>, partial: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = vec![0; MAX_LINE];
        loop {
            let read = file.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            for piece in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
                partial.extend_from_slice(piece);
                if piece.ends_with(b"\n") || partial.len() > 2 * MAX_LINE {
                    let line = content(&String::from_utf8_lossy(partial)).to_owned();
                    partial.clear();
                    if self
                        .lines
                        .send(format!("{}{line}", self.prefix))
                        .await
                        .is_err()
                    {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Whether another file has the name by now.
async fn is_superseded(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata().await, tokio::fs::metadata(path).await) else {
        return false;
    };
    open.ino() != named.ino()
}

/// A line of the CRI format without time, stream and tag.
fn content(line: &str) -> &str {
    let line = line.trim_end_matches(['\n', '\r']);
    line.splitn(4, ' ').nth(3).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_is_followed_once_it_has_started() {
        let mut status = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "hanok://a", "state": {"waiting": {"reason": "ContainerCreating"}}});
        let told = |status: &serde_json::Value| {
            let status: ContainerStatus = serde_json::from_value(status.clone()).expect("a status");
            runs(&status)
                .into_iter()
                .map(|(_, _, ended)| ended)
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&status), [] as [bool; 0]);
        status["state"] = json!({"running": {}});
        assert_eq!(told(&status), [false]);
        status["state"] = json!({"terminated": {"exitCode": 0}});
        assert_eq!(told(&status), [true]);
    }

    #[test]
    fn both_runs_of_a_restarted_container_are_told() {
        let status =
            |value| -> ContainerStatus { serde_json::from_value(value).expect("a status") };
        let base = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 2,
            "containerID": "hanok://b", "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "hanok://a"}}});
        assert_eq!(
            runs(&status(base.clone())),
            [("hanok://a", 1, true), ("hanok://b", 2, false)]
        );
        let mut waiting = base;
        waiting["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        waiting["lastState"]["terminated"]["containerID"] = json!("hanok://b");
        assert_eq!(runs(&status(waiting)), [("hanok://b", 2, true)]);
    }

    #[tokio::test]
    async fn a_log_is_read_to_its_end_and_over_a_rotation() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        std::fs::write(&path, "t stdout F one\n").expect("written");
        let (lines, mut printed) = mpsc::channel(8);
        let (over, ended) = watch::channel(false);
        let follower = Follower {
            prefix: "p/c | ".into(),
            lines,
            hub: Default::default(),
        };
        let at = path.clone();
        let task = tokio::spawn(async move { follower.follow(&at, ended).await });
        assert_eq!(printed.recv().await.as_deref(), Some("p/c | one"));
        std::fs::rename(&path, dir.path().join("0.log.1")).expect("rotated");
        std::fs::write(&path, "t stderr F two words\n").expect("written");
        assert_eq!(printed.recv().await.as_deref(), Some("p/c | two words"));
        over.send_replace(true);
        task.await.expect("no panic").expect("read");
        assert_eq!(printed.recv().await, None);
    }
}
