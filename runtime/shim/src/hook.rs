//! Hooks of the OCI runtime specification: programs that are run at points of a container's life, with its
//! state on their standard input.
//!
//! The same code runs them on the node (by `hanok oci`) and in a container's namespaces (by its process).
//! The last of what a hook writes is kept for the message of its failure. What it leaves behind can write no more.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sys::clone::{Cloned, clone_process};
use crate::sys::{exec, process, signal};

/// How much of a failed hook's output is told.
const MAX_OUTPUT: usize = 2048;

/// Most that is read after a hook's end: what a pipe holds. Somebody whom it left behind may go on writing.
const MAX_REST: usize = 64 << 10;

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
        let (read, output) = pipe_with(PipeFlags::CLOEXEC)?;
        let output = File::from(output);
        let mut told = Output::new(read)?;
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
            // Standard error is where the failure's message comes from.
            let _ = writeln!(&output, "{}", io::Error::from(errno));
            exec::exit_now(127);
        };
        drop(output);
        let in_time = self.wait(&pidfd, &mut told)?;
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
                output: told.rest(),
            }),
        })
    }

    /// False when its time is over.
    fn wait(&self, pidfd: &OwnedFd, output: &mut Output) -> io::Result<bool> {
        let limit = self.timeout.map(u64::from).map(Duration::from_secs);
        let began = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let timeout = left.map(|left| Timespec::try_from(left).unwrap_or_default());
            let mut polled = vec![PollFd::new(pidfd, PollFlags::IN)];
            if let Some(pipe) = &output.pipe {
                polled.push(PollFd::new(pipe, PollFlags::IN));
            }
            match poll(&mut polled, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                done => done?,
            };
            if !polled[0].revents().is_empty() {
                return Ok(true);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            if polled.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                output.read();
            }
        }
    }
}

/// The last of what a hook writes.
struct Output {
    /// None once nobody can write any more.
    pipe: Option<File>,
    last: Vec<u8>,
}

impl Output {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Self {
            pipe: Some(pipe.into()),
            last: Vec::new(),
        })
    }

    /// Takes a piece; how long it is, 0 when there is none.
    fn read(&mut self) -> usize {
        let mut piece = [0; 4096];
        let Some(pipe) = &mut self.pipe else {
            return 0;
        };
        let length = match pipe.read(&mut piece) {
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) =>
            {
                return 0;
            }
            done => done.unwrap_or(0),
        };
        if length == 0 {
            self.pipe = None;
        }
        self.last.extend_from_slice(&piece[..length]);
        let more = self.last.len().saturating_sub(MAX_OUTPUT);
        self.last.drain(..more);
        length
    }

    /// After the hook's end.
    fn rest(mut self) -> String {
        let mut read = 0;
        while read < MAX_REST {
            match self.read() {
                0 => break,
                length => read += length,
            }
        }
        String::from_utf8_lossy(&self.last).trim().to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> (Output, File) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        (Output::new(read).unwrap(), write.into())
    }

    #[test]
    fn output_is_told_from_its_end() {
        let (told, mut file) = output();
        let text = format!("{}the end\n", "x".repeat(5000));
        file.write_all(text.as_bytes()).unwrap();
        let told = told.rest();
        assert!(told.ends_with("the end") && told.len() < 2100);
    }

    #[test]
    fn no_more_is_kept_than_is_told_and_nobody_writes_on() {
        let (mut told, mut file) = output();
        let writer = std::thread::spawn(move || {
            let mut written = 0;
            while file.write_all(&[b'x'; 1000]).is_ok() {
                written += 1000;
            }
            written
        });
        let mut read = 0;
        while read < 1 << 20 {
            read += told.read();
            assert!(told.last.len() <= MAX_OUTPUT);
        }
        assert_eq!(told.rest().len(), MAX_OUTPUT);
        assert!(writer.join().unwrap() < 2 << 20);
    }
}
