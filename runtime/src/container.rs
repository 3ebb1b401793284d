//! Containers: their records, their phase, and one file for each verb.
//!
//! ```text
//!   Created ──start──► Starting ──► Running ──► Exited
//!                          └──────────────────► Failed        all but Created and Running may be Unknown
//! ```
//! The phase has one owner, [`Container`]; only what was observed moves it: the shim's answers and events,
//! and the exit records. Waiting for an end is waiting for the phase.

pub(crate) mod adopt;
mod ahead;
pub(crate) mod create;
mod devices;
pub(crate) mod exec;
mod identity;
mod propagation;
pub(crate) mod remove;
pub mod rootfs;
pub(crate) mod start;
pub(crate) mod stop;
mod target;
pub(crate) mod update;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hanok_shim::protocol::{Exit, Rootfs};
use oci_spec::runtime::Spec;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::api;
use crate::api::{ContainerConfig, ContainerId, ContainerState, Identity, PodUid, SandboxId};
use crate::sandbox::Sandbox;
use crate::service::{Core, child_cgroup, record};
use ahead::Ahead;

/// Exit code of a container of which nobody knows how it ended, as the kubelet gives it.
const UNKNOWN_EXIT: i32 = 137;

/// A container as it is written to `container.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerRecord {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// What it was made from; the values of the environment are in config.json only.
    pub config: ContainerConfig,
    /// Digested reference of the image.
    pub image_ref: String,
    /// The signal that asks it to end: the configuration's, or the image's STOPSIGNAL; empty for TERM.
    pub stop_signal: String,
    /// Who its first process was when it began.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Its root filesystem.
    pub rootfs: Rootfs,
    /// When it was made.
    pub created_at: SystemTime,
    /// When its start was ordered.
    pub started_at: Option<SystemTime>,
    /// Why it could not be started.
    pub failure: Option<StartFailure>,
}

/// A start that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFailure {
    /// 128.
    pub code: i32,
    /// What failed.
    pub message: String,
    /// When.
    pub at: SystemTime,
}

/// Where a container is in its life, with what is known of it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made; nothing of it runs.
    Created,
    /// The shim was told to start it and has not answered.
    Starting,
    /// Its process runs.
    Running {
        /// Its process id.
        pid: i32,
    },
    /// Its process has ended.
    Exited(Exit),
    /// It could not be started.
    Failed(StartFailure),
    /// It ran, and its shim is gone without an exit record.
    Unknown,
}

impl Phase {
    /// Whether nothing of it runs any more, as far as anybody knows.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Phase::Exited(_) | Phase::Failed(_) | Phase::Unknown)
    }

    /// Whether a process of it may exist.
    pub(crate) fn may_run(&self) -> bool {
        matches!(self, Phase::Starting | Phase::Running { .. })
    }
}

/// A container in memory.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: ContainerId,
    pub(crate) pod: PodUid,
    pub(crate) sandbox: Arc<Sandbox>,
    /// Its directory below the sandbox's.
    pub(crate) dir: PathBuf,
    /// One of create, start and remove at a time. Stop does not take it: it may wait for long.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// Its cgroup, until it is started.
    ahead: Ahead,
    /// Its specification, from its creation here to its start; then it is on disk only.
    spec: Mutex<Option<Box<Spec>>>,
    record: Mutex<ContainerRecord>,
    phase: watch::Sender<Phase>,
}

impl Container {
    pub(crate) fn new(
        record: ContainerRecord,
        sandbox: Arc<Sandbox>,
        dir: PathBuf,
        phase: Phase,
    ) -> Self {
        Container {
            id: record.id.clone(),
            pod: sandbox.with_record(|sandbox| sandbox.config.uid.clone()),
            sandbox,
            dir,
            gate: tokio::sync::Mutex::default(),
            ahead: Ahead::default(),
            spec: Mutex::default(),
            record: Mutex::new(record),
            phase: watch::Sender::new(phase),
        }
    }

    pub(crate) fn record(&self) -> ContainerRecord {
        self.with_record(ContainerRecord::clone)
    }

    /// A part of the record.
    fn with_record<T>(&self, part: impl FnOnce(&ContainerRecord) -> T) -> T {
        part(&self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the record and commits it to disk.
    pub(crate) fn update(&self, change: impl FnOnce(&mut ContainerRecord)) -> std::io::Result<()> {
        let record = {
            let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut record);
            record.clone()
        };
        record::write(&record_file(&self.dir), &record)
    }

    /// Remembers the specification that was written down.
    fn keep_spec(&self, spec: Spec) {
        *self.spec.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(spec));
    }

    /// The specification, for its start.
    fn take_spec(&self) -> std::io::Result<Box<Spec>> {
        let kept = self
            .spec
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        kept.map_or_else(|| record::read(&spec_file(&self.dir)).map(Box::new), Ok)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// A receiver of every later phase.
    pub(crate) fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Moves on from one phase only; false when another one is reached already. An exit can overtake the
    /// answer to the start, and must not be forgotten over it.
    pub(crate) fn advance(&self, from: &Phase, to: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let same = phase == from;
            if same {
                *phase = to;
            }
            same
        })
    }

    /// Its process has ended.
    pub(crate) fn exited(&self, exit: Exit) {
        self.phase.send_if_modified(|phase| {
            let news = !matches!(phase, Phase::Exited(_) | Phase::Failed(_));
            if news {
                *phase = Phase::Exited(exit);
            }
            news
        });
    }

    /// Its cgroup, below the root.
    pub(crate) fn cgroup(&self) -> String {
        let parent = self
            .sandbox
            .with_record(|sandbox| sandbox.config.cgroup_parent.clone());
        child_cgroup(&parent, self.id.as_str())
    }

    /// Its log file.
    pub(crate) fn log_path(&self) -> PathBuf {
        let directory = self
            .sandbox
            .with_record(|sandbox| sandbox.config.log_directory.clone());
        self.with_record(|record| directory.join(&record.config.log_path))
    }

    /// As list and status give it.
    pub(crate) fn view(&self) -> api::Container {
        let log_path = self.log_path();
        let record = self.record();
        let config = ContainerConfig {
            stop_signal: stop::signal_name(&record.stop_signal),
            ..record.config
        };
        let mut view = api::Container {
            id: record.id,
            sandbox: record.sandbox,
            pod: self.pod.clone(),
            config,
            state: ContainerState::Created,
            created_at: record.created_at,
            started_at: record.started_at,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image_ref: record.image_ref,
            log_path,
            pid: 0,
            identity: record.identity,
        };
        match self.phase() {
            Phase::Created => view.started_at = None,
            // The agent asks for a start and hears of it; to others it is not started yet.
            Phase::Starting => view.started_at = None,
            Phase::Running { pid } => {
                view.state = ContainerState::Running;
                view.pid = pid;
            }
            Phase::Exited(exit) => {
                view.state = ContainerState::Exited;
                view.finished_at = Some(time(exit.finished_at_ns));
                view.exit_code = exit.code;
                view.reason = reason(&exit).to_owned();
            }
            Phase::Failed(failure) => {
                view.state = ContainerState::Exited;
                view.started_at = None;
                view.finished_at = Some(failure.at);
                view.exit_code = failure.code;
                view.reason = "StartError".to_owned();
                view.message = failure.message;
            }
            Phase::Unknown => {
                view.state = ContainerState::Unknown;
                view.exit_code = UNKNOWN_EXIT;
                view.reason = "ContainerStatusUnknown".to_owned();
                view.message = "the shim of the container is gone and left no exit record".into();
            }
        }
        view
    }
}

/// CRI reason of an end.
fn reason(exit: &Exit) -> &'static str {
    match exit {
        Exit {
            oom_killed: true, ..
        } => "OOMKilled",
        Exit { code: 0, .. } => "Completed",
        _ => "Error",
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}

/// Looks up how the containers of a sandbox ended whose shim is gone.
pub(crate) fn settle(core: &Core, sandbox: &SandboxId) {
    for container in core.registry.containers_of(sandbox) {
        if container.sandbox.shim().is_some() || !container.phase().may_run() {
            continue;
        }
        match record::read::<Exit>(&exit_file(&container.dir)) {
            Ok(exit) => container.exited(exit),
            Err(_) => {
                container.phase.send_if_modified(|phase| {
                    let lost = phase.may_run();
                    if lost {
                        *phase = Phase::Unknown;
                    }
                    lost
                });
            }
        }
    }
}

/// Files of a container's directory.
pub(crate) fn record_file(dir: &Path) -> PathBuf {
    dir.join("container.json")
}

pub(crate) fn spec_file(dir: &Path) -> PathBuf {
    dir.join("config.json")
}

pub(crate) fn exit_file(dir: &Path) -> PathBuf {
    dir.join("exit.json")
}
