//! Hooks of the OCI runtime specification: programs that are run at points of a container's life, with its
//! state on their standard input.
//!
//! The same code runs them on the node (by `hanok oci`) and in a container's namespaces (by its process).
//! What a hook writes is kept for the message of its failure.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sys::clone::{Cloned, clone_process};
use crate::sys::{exec, process, signal};

/// How much of a failed hook's output is told.
const MAX_OUTPUT: u64 = 2048;

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Absolute path.
    pub path: String,
    /// Arguments from the program's name on; the path alone when empty.
    pub args: Vec<String>,
    /// Environment; the caller's own when none.
    pub env: Option<Vec<String>>,
    /// Seconds after which it is killed and has failed.
    pub timeout: Option<u32>,
    /// The container's state as JSON, before and after the process id.
    pub state: (String, String),
}

/// A hook that did not do its work.
#[derive(Debug, Error)]
pub enum HookError {
    /// It could not be run.
    #[error("cannot run hook {path}")]
    Run {
        /// Its path.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It ended with an error.
    #[error("hook {path} failed ({how}): {output}")]
    Failed {
        /// Its path.
        path: String,
        /// "exit code 1", "signal 9".
        how: String,
        /// The last that it wrote.
        output: String,
    },
    /// It took too long.
    #[error("hook {path} took longer than {seconds} s")]
    TimedOut {
        /// Its path.
        path: String,
        /// The limit.
        seconds: u32,
    },
}

impl Hook {
    /// Runs it and waits for its end. `pid` is the container's process as the hook sees it. The calling
    /// process must have one thread.
    pub fn run(&self, pid: i32) -> Result<(), HookError> {
        self.try_run(pid).map_err(|source| HookError::Run {
            path: self.path.clone(),
            source,
        })?
    }

    fn try_run(&self, pid: i32) -> io::Result<Result<(), HookError>> {
        let mut stdin = memory_file()?;
        write!(stdin, "{}{pid}{}", self.state.0, self.state.1)?;
        stdin.rewind()?;
        let mut output = memory_file()?;
        let words = |list: &[String]| -> io::Result<Vec<CString>> {
            list.iter()
                .map(|word| CString::new(word.as_str()).map_err(io::Error::from))
                .collect()
        };
        let path = CString::new(self.path.as_str())?;
        let argv = match self.args.is_empty() {
            true => vec![path.clone()],
            false => words(&self.args)?,
        };
        let envp = match &self.env {
            Some(env) => words(env)?,
            None => own_environment()?,
        };
        let Cloned::Parent { pid, pidfd } = clone_process(0, None)? else {
            let errno = match become_hook(&stdin, &output) {
                Ok(()) => exec::execve(&path, &argv, &envp),
                Err(errno) => errno,
            };
            // Standard error is the file that the failure's message is made from.
            let _ = writeln!(output, "{}", io::Error::from(errno));
            exec::exit_now(127);
        };
        let in_time = self.wait(&pidfd)?;
        if !in_time {
            // Already over is as good.
            let _ = process::pidfd_kill(&pidfd, libc::SIGKILL);
        }
        let how = reap(pid)?;
        Ok(match (in_time, how) {
            (false, _) => Err(HookError::TimedOut {
                path: self.path.clone(),
                seconds: self.timeout.unwrap_or(0),
            }),
            (true, None) => Ok(()),
            (true, Some(how)) => Err(HookError::Failed {
                path: self.path.clone(),
                how,
                output: tail(&mut output),
            }),
        })
    }

    /// False when its time is over.
    fn wait(&self, pidfd: &OwnedFd) -> io::Result<bool> {
        let limit = self.timeout.map(u64::from).map(Duration::from_secs);
        let began = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let timeout = left.map(|left| Timespec::try_from(left).unwrap_or_default());
            match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(ready) => return Ok(ready > 0),
            }
        }
    }
}

/// In the child: streams, signals, descriptors.
fn become_hook(stdin: &File, output: &File) -> rustix::io::Result<()> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(output)?;
    exec::close_on_exec_from(3)?;
    signal::reset()
}

fn memory_file() -> io::Result<File> {
    Ok(memfd_create("hook", MemfdFlags::CLOEXEC)?.into())
}

fn own_environment() -> io::Result<Vec<CString>> {
    std::env::vars_os()
        .map(|(name, value)| {
            let pair = [name.as_bytes(), value.as_bytes()].join(&b'=');
            CString::new(pair).map_err(io::Error::from)
        })
        .collect()
}

/// None after exit code 0.
fn reap(pid: i32) -> io::Result<Option<String>> {
    loop {
        let status = match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Err(Errno::INTR) => continue,
            done => done?,
        };
        let Some((_, status)) = status else {
            return Ok(None);
        };
        if let Some(signal) = status.terminating_signal() {
            return Ok(Some(format!("signal {signal}")));
        }
        let code = status.exit_status().unwrap_or(0);
        return Ok((code != 0).then(|| format!("exit code {code}")));
    }
}

/// The last of what was written.
fn tail(output: &mut File) -> String {
    let length = output.stream_position().unwrap_or(0);
    let from = length.saturating_sub(MAX_OUTPUT);
    let mut bytes = Vec::new();
    let read = output
        .seek(io::SeekFrom::Start(from))
        .and_then(|_| output.take(MAX_OUTPUT).read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).trim().to_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_told_from_its_end() {
        let mut file = memory_file().unwrap();
        let text = format!("{}the end\n", "x".repeat(5000));
        file.write_all(text.as_bytes()).unwrap();
        let told = tail(&mut file);
        assert!(told.ends_with("the end") && told.len() < 2100);
    }
}
