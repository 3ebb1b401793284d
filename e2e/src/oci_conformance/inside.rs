//! A worker from the inside: enters its cgroups and namespaces and runs the programs one after the other.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::verdict::Verdict;
use crate::lab::cgroup;

/// File with the verdicts, in the worker's directory.
pub(super) const RESULTS: &str = "results.json";

/// How long one program may take; the longest waits about 40 s for things that do not happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a program that fails is run, unless that is known: some race with the container that they have started
/// (killsig sends a signal to a shell that may not have come to its `trap` yet).
const ATTEMPTS: u32 = 3;

/// What a worker is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) runtime: PathBuf,
    pub(super) programs: PathBuf,
    pub(super) names: Vec<String>,
    /// Those whose failure is known.
    pub(super) excused: Vec<String>,
    pub(super) dir: PathBuf,
    pub(super) cgroups: Vec<PathBuf>,
}

/// Does what a task file says.
///
/// # Errors
/// When a namespace, a mount or a program is not to be had.
pub fn work(file: &Path) -> Result<()> {
    let task: Task = serde_json::from_slice(&fs::read(file)?)?;
    for group in &task.cgroups {
        fs::write(group.join("cgroup.procs"), "0")
            .with_context(|| format!("join {}", group.display()))?;
    }
    // Containers that a program leaves behind become ours, and are reaped.
    set_child_subreaper(true)?;
    enter_namespaces()?;
    let mut verdicts = BTreeMap::new();
    for name in &task.names {
        let mut left = if task.excused.contains(name) {
            1
        } else {
            ATTEMPTS
        };
        let verdict = loop {
            let verdict = run(&task, name)?;
            clear(&task)?;
            left -= 1;
            if verdict.is_pass() || left == 0 {
                break verdict;
            }
        };
        verdicts.insert(name.clone(), verdict);
    }
    fs::write(task.dir.join(RESULTS), serde_json::to_vec(&verdicts)?)?;
    // What is still there would hold our cgroups.
    set_child_subreaper(false)?;
    Ok(())
}

/// Mounts that go with us, and cgroups that begin at ours.
fn enter_namespaces() -> Result<()> {
    let hierarchies = cgroup::hierarchies()?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWCGROUP).context("unshare")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("private mounts")?;
    let v1 = hierarchies
        .iter()
        .any(|hierarchy| !hierarchy.controllers.is_empty());
    for hierarchy in &hierarchies {
        umount2(&hierarchy.mount, MntFlags::MNT_DETACH)
            .with_context(|| format!("unmount {}", hierarchy.mount.display()))?;
        let (kind, options) = match (hierarchy.controllers.as_str(), v1) {
            // Not every runtime takes a v2 hierarchy beside v1.
            ("", true) => continue,
            ("", false) => ("cgroup2", String::new()),
            (name, _) if name.starts_with("name=") => ("cgroup", format!("none,{name}")),
            (controllers, _) => ("cgroup", controllers.to_owned()),
        };
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(
            Some(kind),
            &hierarchy.mount,
            Some(kind),
            flags,
            Some(options.as_str()),
        )
        .with_context(|| format!("mount {}", hierarchy.mount.display()))?;
    }
    Ok(())
}

fn run(task: &Task, name: &str) -> Result<Verdict> {
    let output = |kind: &str| task.dir.join(format!("{name}.{kind}"));
    let (stdout, stderr) = (output("out"), output("err"));
    // In a group of its own, so that all of it can be ended.
    let mut child = Command::new(task.programs.join(format!("t-{name}")))
        .current_dir(&task.programs)
        .env("RUNTIME", &task.runtime)
        .env("TMPDIR", &task.dir)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&stdout)?)
        .stderr(fs::File::create(&stderr)?)
        .process_group(0)
        .spawn()
        .with_context(|| name.to_owned())?;
    let pid = i32::try_from(child.id())?;
    let pidfd = pidfd_open(
        rustix::process::Pid::from_raw(pid).context("no process id")?,
        PidfdFlags::empty(),
    )?;
    let timeout = Timespec::try_from(PATIENCE)?;
    let in_time = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout))? > 0;
    if !in_time {
        // Ended this very moment is as good.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let status = child.wait()?;
    let exit = status.code().filter(|_| in_time);
    Ok(Verdict::of(exit, &text(&stdout)?, &text(&stderr)?))
}

/// Programs may write anything.
fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(4 << 20)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Deletes the containers that a program has left, and reaps what has become ours.
fn clear(task: &Task) -> Result<()> {
    let containers = task.dir.join("containers");
    for entry in fs::read_dir(containers).into_iter().flatten() {
        let id = entry?.file_name();
        if id.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // It may be a directory that is none of a container.
        let _ = Command::new(&task.runtime)
            .args(["delete".as_ref(), "--force".as_ref(), id.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
    Ok(())
}
