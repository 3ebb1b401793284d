//! Runtimes by their command lines, called as containerd's shim or podman's conmon would call them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// How long one call may take.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// A runtime with a root directory of its own.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    dir: PathBuf,
}

impl Runtime {
    /// `oci`, `runc` or `crun`; `dir` is the arena's. `hanok` is `hanok-oci`, or `hanok` itself.
    pub(crate) fn new(name: &str, hanok: &Path, dir: &Path) -> Self {
        let root = dir.join(format!("state-{name}"));
        let root = ["--root".to_owned(), root.to_str().unwrap().to_owned()];
        let (program, mut arguments) = match name {
            "oci" if hanok.ends_with("hanok") => (hanok.to_owned(), vec!["oci".to_owned()]),
            "oci" => (hanok.to_owned(), Vec::new()),
            other => (PathBuf::from(other), Vec::new()),
        };
        arguments.extend(root);
        Self {
            name: name.to_owned(),
            program,
            arguments,
            dir: dir.to_owned(),
        }
    }

    /// A container's id, unlike those of any other bench.
    fn id(&self, what: &str) -> String {
        let dir = self.dir.file_name().unwrap().to_str().unwrap();
        format!("{dir}-{what}-{}", self.name)
    }

    /// One call. The error is what it said.
    pub(crate) fn call(&self, words: &[&str]) -> Result<(), String> {
        let errors = self.dir.join("errors");
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&errors).unwrap());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let status = match is_over(child.id()) {
            true => child.wait().unwrap(),
            false => {
                child.kill().unwrap();
                child.wait().unwrap();
                return Err(format!("{words:?} takes too long"));
            }
        };
        if status.success() {
            return Ok(());
        }
        let text = fs::read_to_string(&errors).unwrap_or_default();
        Err(format!(
            "{words:?}: {status}: {}",
            text.trim().replace('\n', " ")
        ))
    }

    /// create, start, the end, delete.
    pub(crate) fn life(&self, bundle: &Path) -> Result<Duration, String> {
        let (id, pid_file) = (self.id("life"), self.dir.join("pid"));
        let (bundle, file) = (bundle.to_str().unwrap(), pid_file.to_str().unwrap());
        let begin = Instant::now();
        self.call(&["create", "--bundle", bundle, "--pid-file", file, &id])?;
        let pid = read_pid(&pid_file);
        self.call(&["start", &id])?;
        // Its parent has ended, and we are the next subreaper.
        waitpid(Pid::from_raw(pid), WaitOptions::empty()).map_err(|error| error.to_string())?;
        self.call(&["delete", &id])?;
        Ok(begin.elapsed())
    }

    /// run, in the foreground, which deletes.
    pub(crate) fn run(&self, bundle: &Path) -> Result<Duration, String> {
        let (id, bundle) = (self.id("run"), bundle.to_str().unwrap());
        let begin = Instant::now();
        let done = self.call(&["run", "--bundle", bundle, &id]);
        let took = begin.elapsed();
        if done.is_err() {
            // What is left of it, if anything is.
            let _ = self.call(&["delete", "--force", &id]);
        }
        done.map(|()| took)
    }

    /// A container to exec in; returns its process id.
    pub(crate) fn sleeper(&self, bundle: &Path) -> Result<i32, String> {
        let pid_file = self.dir.join("pid");
        let (bundle, file) = (bundle.to_str().unwrap(), pid_file.to_str().unwrap());
        let id = self.id("sleeper");
        let words = [
            "run",
            "--detach",
            "--bundle",
            bundle,
            "--pid-file",
            file,
            &id,
        ];
        self.call(&words)?;
        Ok(read_pid(&pid_file))
    }

    pub(crate) fn exec(&self) -> Result<Duration, String> {
        let begin = Instant::now();
        self.call(&["exec", &self.id("sleeper"), "/bin/true"])?;
        Ok(begin.elapsed())
    }

    /// Removes the sleeper, if there is one.
    pub(crate) fn clear_up(&self) {
        let _ = self.call(&["delete", "--force", &self.id("sleeper")]);
    }
}

fn read_pid(file: &Path) -> i32 {
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Waits for a child's end; false when it takes too long.
fn is_over(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PATIENCE)).unwrap() > 0
}

/// Kills a process that was started here, by somebody's daemon.
pub(crate) fn kill(pid: i32) {
    let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if let Some(pidfd) = pidfd {
        // Already ended is as good.
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PATIENCE));
    }
}
