//! Processes of the lab: started in a network namespace, recorded on disk, stopped by their record.
//!
//! A record names a process by its id and its start time, and signals go through a pidfd, so that a
//! process id that the kernel has given to somebody else is never hit.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A started process as its record on disk names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What it is, e.g. `etcd`; the record's file name.
    pub name: String,
    /// Its process id.
    pub pid: i32,
    /// Clock ticks after boot at which it started.
    pub started: u64,
}

/// What to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Name of the record and of the log file.
    pub name: &'a str,
    /// Network namespace by name; none for the host's.
    pub netns: Option<&'a str>,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to its environment.
    pub env: Vec<(String, String)>,
}

/// The records of one lab: `pids/NAME.json` and `logs/NAME.log` below its directory.
#[derive(Debug, Clone)]
pub struct Processes {
    dir: PathBuf,
}

impl Processes {
    /// The records below a lab's directory.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
        }
    }

    /// Where a process writes its output.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    /// Starts a process in a session of its own, so that it outlives the caller, and records it.
    ///
    /// # Errors
    /// When it cannot be started or recorded.
    pub fn spawn(&self, what: &Spawn<'_>) -> Result<Process> {
        fs::create_dir_all(self.dir.join("logs"))?;
        fs::create_dir_all(self.dir.join("pids"))?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log(what.name))?;
        // setsid and nsenter exec in place: the process id stays that of the child.
        let mut command = Command::new("setsid");
        if let Some(netns) = what.netns {
            command
                .arg("nsenter")
                .arg(format!("--net=/run/netns/{netns}"));
        }
        command.arg(&what.program).args(&what.args);
        command.envs(what.env.iter().map(|(k, v)| (k, v)));
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("start {}", what.name))?;
        let pid = i32::try_from(child.id()).context("process id")?;
        let started = start_time(pid).with_context(|| format!("{} ended at once", what.name))?;
        let process = Process {
            name: what.name.to_owned(),
            pid,
            started,
        };
        let record = self.record(what.name);
        fs::write(&record, serde_json::to_vec(&process)?)
            .with_context(|| format!("write {}", record.display()))?;
        Ok(process)
    }

    /// Every recorded process.
    pub fn list(&self) -> Vec<Process> {
        let Ok(entries) = fs::read_dir(self.dir.join("pids")) else {
            return Vec::new();
        };
        let texts = entries.flatten().filter_map(|e| fs::read(e.path()).ok());
        texts
            .filter_map(|t| serde_json::from_slice(&t).ok())
            .collect()
    }

    /// The recorded process of this name, when it runs.
    pub fn running(&self, name: &str) -> Option<Process> {
        let text = fs::read(self.record(name)).ok()?;
        let process: Process = serde_json::from_slice(&text).ok()?;
        process.is_alive().then_some(process)
    }

    /// Stops a process with a signal, with SIGKILL after the grace, and forgets it. Absent is success.
    ///
    /// # Errors
    /// When it survives SIGKILL.
    pub fn stop(&self, name: &str, signal: Signal, grace: Duration) -> Result<()> {
        if let Some(process) = self.running(name) {
            process.end(signal, grace)?;
        }
        match fs::remove_file(self.record(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// The end of a process's log, for an error message.
    pub fn log_tail(&self, name: &str) -> String {
        let text = fs::read(self.log(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn record(&self, name: &str) -> PathBuf {
        self.dir.join("pids").join(format!("{name}.json"))
    }
}

impl Process {
    /// Whether it still runs; reaps it when it is a dead child of ours.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid).is_ok_and(|started| started == self.started)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("process id 0")?;
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        ensure!(
            self.is_alive(),
            "{} (process {}) does not run",
            self.name,
            self.pid
        );
        Ok(pidfd_send_signal(&fd, signal)?)
    }

    /// Sends a signal, waits for the end, and sends SIGKILL when the grace is over.
    ///
    /// # Errors
    /// When it survives SIGKILL.
    pub fn end(&self, signal: Signal, grace: Duration) -> Result<()> {
        let pid = Pid::from_raw(self.pid).context("process id 0")?;
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
            return Ok(());
        };
        // Checked after the descriptor is open: from here on it can only mean this process.
        if !self.is_alive() {
            return Ok(());
        }
        for (signal, wait) in [(signal, grace), (Signal::KILL, Duration::from_secs(10))] {
            pidfd_send_signal(&fd, signal).ok();
            let timeout = Timespec::try_from(wait).context("grace period")?;
            let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))?;
            if ready > 0 {
                reap(self.pid);
                return Ok(());
            }
        }
        bail!("{} (process {}) survives SIGKILL", self.name, self.pid)
    }
}

/// The start time of a live process, in clock ticks after boot (`proc_pid_stat(5)`, field 22).
///
/// # Errors
/// When there is no such process, or it is a zombie.
pub fn start_time(pid: i32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command's name may hold blanks and parentheses; the fields start after the last one.
    let (_, rest) = text.rsplit_once(')').context("stat without a command")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        reap(pid);
        bail!("process {pid} is dead");
    }
    Ok(fields.get(19).context("stat is short")?.parse()?)
}

/// Collects a dead child; what is not our child stays for its parent.
fn reap(pid: i32) {
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::WNOHANG)).ok();
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// When it cannot be started or fails; the message holds what it wrote to standard error.
pub fn run(program: impl AsRef<Path>, args: &[&str]) -> Result<String> {
    let program = program.as_ref();
    let line = || format!("{} {}", program.display(), args.join(" "));
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(line)?;
    ensure!(
        output.status.success(),
        "{} failed ({}): {}",
        line(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A deadline on this machine: `HANOK_PATIENCE` times as long, for nodes that are so much slower than usual.
pub fn patience(deadline: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| {
        let text = std::env::var("HANOK_PATIENCE").ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(1)
    });
    deadline.saturating_mul(*factor)
}

/// Waits until `done` gives a value, asking every 50 ms, for as long as [`patience`] makes of the deadline.
///
/// # Errors
/// After the deadline, with what `done` said last.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut done: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = patience(deadline);
    let end = Instant::now() + deadline;
    loop {
        match done() {
            Ok(value) => return Ok(value),
            Err(e) if Instant::now() >= end => {
                return Err(e.context(format!("waited {} s for {what}", deadline.as_secs())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
