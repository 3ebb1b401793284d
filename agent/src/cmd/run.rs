//! `hanok run`: the pods of manifests in the foreground, over the same workers as a node's, without an API server.
//!
//! ```text
//! files ─► manifest ─► pods ─► pod::workers ─► console (events, statuses, timelines)
//!                                         └──► logs (lines of containers)
//! signal, or nothing left to run ─► pods are deleted ─► what the run made on the machine is removed
//! ```

pub(crate) mod check;
mod console;
mod host;
mod logs;
pub(crate) mod manifest;
mod setup;

use std::collections::BTreeMap;
use std::io::{Read, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use hanok_runtime::api::PodUid;
use hanok_runtime::cgroup::DriverKind;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, unbounded_channel};

use crate::pod::{self, spec};
use crate::sinks::PodUpdate;
use crate::timeline::{Step, Timeline};
use console::{Console, Note, Sink};
use logs::Logs;
use manifest::Manifests;

/// Lines of containers that wait to be printed; beyond them, reading waits.
const LINES: usize = 1024;
/// Most bytes of one manifest: far more than an API server would take.
const MAX_MANIFEST: usize = 16 << 20;

/// Options of `hanok run`.
///
/// The run ends by itself when every pod has finished, with success if all of them have succeeded; otherwise at
/// Ctrl-C or TERM, which stop the pods within their grace periods. A second Ctrl-C leaves them no time.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Manifests (YAML or JSON; Pod, Deployment and the like, Job, List, ConfigMap, Secret); - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What outlives a reboot: images, snapshots, and the pods' volumes while they run
    #[arg(long, value_name = "DIR", default_value = "/var/lib/hanok")]
    state_dir: PathBuf,
    /// What dies with it: sandboxes, containers, leases
    #[arg(long, value_name = "DIR", default_value = "/run/hanok")]
    run_dir: PathBuf,
    /// Pods' volumes; default is the state directory
    #[arg(long, value_name = "DIR")]
    root_dir: Option<PathBuf>,
    /// Pods' logs while they run; default is STATE_DIR/logs
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Pinned network namespaces
    #[arg(long, value_name = "DIR", default_value = "/run/netns")]
    netns_dir: PathBuf,
    /// Root of the pods' cgroups: absolute, or below this process's own; with systemd, the slices above the pods'
    #[arg(long, value_name = "PATH")]
    cgroup_root: Option<String>,
    /// Who makes the pods' cgroups: cgroupfs or systemd
    #[arg(long, value_name = "NAME", default_value_t = DriverKind::Cgroupfs)]
    cgroup_driver: DriverKind,
    /// Bridge of the pods' network; it is made, and removed at the end
    #[arg(long, value_name = "NAME", default_value = "hanok-run0")]
    bridge_name: String,
    /// Addresses of the pods
    #[arg(long, value_name = "CIDR", default_value = "10.86.0.0/24")]
    pod_cidr: IpNet,
    /// The shim's program; default lies beside this one
    #[arg(long, value_name = "FILE")]
    shim_path: Option<PathBuf>,
    /// The pause program; default lies beside this one
    #[arg(long, value_name = "FILE")]
    pause_path: Option<PathBuf>,
    /// Registries that are asked over plain HTTP
    #[arg(long, value_name = "HOST[:PORT]")]
    plain_http: Vec<String>,
    /// Log verbosity: 0 is warnings, 1 to 3 info, 4 and 5 debug, more is trace (RUST_LOG goes before it)
    #[arg(long = "v", short = 'v', value_name = "LEVEL", default_value_t = 0)]
    verbosity: u8,
}

/// Runs the command.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let manifests = read(&options.files)?;
    let (timeline, timelines) = Timeline::with_listener();
    setup::logging(options.verbosity, &timeline);
    let mut signals = Signals::new()?;
    let (sender, notes) = unbounded_channel();
    let node = setup::Node::open(&options, manifests.objects, Sink(sender), timeline).await?;
    let (updates, receiver) = mpsc::channel(64);
    let (_, core) = pod::start(node.deps.clone(), receiver);
    let (lines, printed) = mpsc::channel(LINES);
    let pods: BTreeMap<PodUid, Arc<Pod>> = manifests
        .pods
        .into_iter()
        .enumerate()
        .map(|(index, pod)| host::identified(pod, index))
        .map(|pod| (spec::uid(&pod), Arc::new(pod)))
        .collect();
    let mut run = Run {
        console: Console::new(stdout()),
        logs: Logs::new(&node.deps.settings.log_dir, lines),
        phases: BTreeMap::new(),
        left: pods,
        stopping: Stopping::No,
        updates,
    };
    for ignored in manifests.ignored {
        run.console.say(&format!(
            "{ignored} has no meaning without a cluster and is left out"
        ))?;
    }
    let result = run
        .until_gone(
            &mut signals,
            Channels {
                notes,
                timelines,
                printed,
            },
        )
        .await;
    core.abort();
    node.remove().await;
    result
}

/// Reads every manifest.
fn read(files: &[PathBuf]) -> anyhow::Result<Manifests> {
    let mut manifests = Manifests::default();
    let mut names = Vec::new();
    for path in files {
        let (name, bytes) = if path.as_os_str() == "-" {
            let name = "standard input".to_owned();
            let bytes = bounded(std::io::stdin()).context("standard input")?;
            (name, bytes)
        } else {
            let name = path.display().to_string();
            let bytes = std::fs::File::open(path)
                .and_then(bounded)
                .with_context(|| name.clone())?;
            (name, bytes)
        };
        if bytes.len() > MAX_MANIFEST {
            bail!("{name}: is larger than {} MiB", MAX_MANIFEST >> 20);
        }
        let text = std::str::from_utf8(&bytes)
            .map_err(|error| anyhow!("{name}: byte {}: is no text", error.valid_up_to()))?;
        manifests.add(&name, text)?;
        names.push(name);
    }
    Ok(manifests.complete(&names)?)
}

/// Reads as much as a manifest may have, and a byte more.
fn bounded(source: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source
        .take(MAX_MANIFEST as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How the run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    /// It does not yet.
    No,
    /// Every pod has finished.
    Finished,
    /// Somebody asked for it.
    Asked,
    /// Somebody asked twice.
    Hurried,
}

/// What comes in.
struct Channels {
    notes: UnboundedReceiver<Note>,
    timelines: UnboundedReceiver<(PodUid, Vec<Step>)>,
    printed: mpsc::Receiver<String>,
}

/// A run.
struct Run {
    console: Console<std::io::Stdout>,
    logs: Logs,
    phases: BTreeMap<PodUid, String>,
    /// Pods of which something is left.
    left: BTreeMap<PodUid, Arc<Pod>>,
    stopping: Stopping,
    updates: mpsc::Sender<PodUpdate>,
}

impl Run {
    /// Runs the pods until nothing of them is left.
    async fn until_gone(mut self, signals: &mut Signals, mut from: Channels) -> anyhow::Result<()> {
        for pod in self.left.values() {
            self.updates.send(PodUpdate::Apply(pod.clone())).await?;
        }
        self.updates.send(PodUpdate::Synced).await?;
        while !self.left.is_empty() {
            tokio::select! {
                biased;
                Some(note) = from.notes.recv() => self.note(note).await?,
                Some((uid, steps)) = from.timelines.recv() => self.console.timeline(&uid, &steps)?,
                Some(line) = from.printed.recv() => self.console.line(&line)?,
                () = signals.next() => self.signalled().await?,
            }
        }
        let (finish, console) = (self.logs.finish(), &mut self.console);
        let print = async {
            while let Some(line) = from.printed.recv().await {
                console.line(&line)?;
            }
            Ok::<(), std::io::Error>(())
        };
        let ((), printed) = tokio::join!(finish, print);
        printed?;
        match self.stopping {
            Stopping::Asked | Stopping::Hurried => Ok(()),
            _ => {
                let failed = self
                    .phases
                    .values()
                    .filter(|phase| *phase != "Succeeded")
                    .count();
                if failed > 0 {
                    bail!("{failed} of {} pods have failed", self.phases.len());
                }
                Ok(())
            }
        }
    }

    /// Takes note of what the pod core says.
    async fn note(&mut self, note: Note) -> anyhow::Result<()> {
        self.console.note(&note)?;
        match note {
            Note::Event { .. } => {}
            Note::Status(pod, status) => {
                self.logs.update(&pod, &status);
                let phase = status.phase.unwrap_or_default();
                if self.stopping == Stopping::No {
                    self.phases.insert(spec::uid(&pod), phase);
                }
                let finished = |uid| {
                    self.phases
                        .get(uid)
                        .is_some_and(|phase| spec::is_terminal_phase(phase))
                };
                if self.stopping == Stopping::No && self.left.keys().all(finished) {
                    self.stop(Stopping::Finished).await?;
                }
            }
            Note::Terminated(uid) => {
                self.left.remove(&uid);
                self.updates.send(PodUpdate::Gone(uid)).await?;
            }
        }
        Ok(())
    }

    async fn signalled(&mut self) -> anyhow::Result<()> {
        match self.stopping {
            Stopping::No | Stopping::Finished => {
                self.console
                    .say("stopping; once more to leave the pods no time")?;
                self.stop(Stopping::Asked).await
            }
            Stopping::Asked | Stopping::Hurried => self.stop(Stopping::Hurried).await,
        }
    }

    /// Asks for the deletion of every pod.
    async fn stop(&mut self, how: Stopping) -> anyhow::Result<()> {
        self.stopping = how;
        for pod in self.left.values_mut() {
            let mut deleted = Pod::clone(pod);
            let grace = match how {
                Stopping::Hurried => 0,
                _ => spec::grace_period(pod).as_secs(),
            };
            deleted.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::now()));
            deleted.metadata.deletion_grace_period_seconds = i64::try_from(grace).ok();
            *pod = Arc::new(deleted);
            self.updates.send(PodUpdate::Apply(pod.clone())).await?;
        }
        Ok(())
    }
}

/// The signals that end a run.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("cannot wait for signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
