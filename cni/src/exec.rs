//! Executing a plugin's program: `CNI_…` in the environment, JSON on standard input and output.
//!
//! The program is looked up by its bare name in the configured directories only. It gets a process
//! group of its own, a deadline, and as much output as a result can have; then the group is killed.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use crate::attachment::Attachment;
use crate::spec::{AddResult, ErrorObject, MAX_RESULT, ParseError, is_valid_plugin_type};

/// How much of a plugin's standard error is kept for the message, in bytes.
const MAX_STDERR: usize = 4096;

/// A plugin's program failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// No such program.
    #[error("no program {name:?} in {}", show(.dirs))]
    Missing {
        /// The plugin's type.
        name: String,
        /// Where it was looked for.
        dirs: Vec<PathBuf>,
    },
    /// The program could not be started or spoken to.
    #[error("cannot run {}", .path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("no answer within {timeout:?}, killed")]
    Timeout {
        /// The deadline.
        timeout: Duration,
    },
    /// It printed more than any result has, and was killed.
    #[error("more than {MAX_RESULT} bytes of output, killed")]
    TooMuchOutput,
    /// It said what is wrong.
    #[error("{0}")]
    Refused(ErrorObject),
    /// It failed and printed no error object.
    #[error("{status}, standard error: {stderr:?}")]
    Failed {
        /// How it ended.
        status: String,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It succeeded and printed something that is no result.
    #[error("output is not a CNI result")]
    Output(#[source] ParseError),
}

impl ExecError {
    /// Whether nothing was executed at all.
    pub(crate) fn never_ran(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Run { .. })
    }
}

fn show(dirs: &[PathBuf]) -> String {
    let dirs: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
    dirs.join(", ")
}

/// What programs are run with.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) dirs: Vec<PathBuf>,
    pub(crate) timeout: Duration,
}

impl Programs {
    /// The program of a plugin type.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        if !is_valid_plugin_type(name) {
            return None;
        }
        self.dirs
            .iter()
            .map(|dir| dir.join(name))
            .find(|path| is_program(path))
    }

    /// ADD: runs it and reads its result.
    pub(crate) async fn add(
        &self,
        name: &str,
        attachment: &Attachment,
        stdin: &[u8],
    ) -> Result<AddResult, ExecError> {
        let output = self.run(name, "ADD", Some(attachment), stdin).await?;
        AddResult::parse(&output).map_err(ExecError::Output)
    }

    /// Any other command; what it prints on success does not matter.
    pub(crate) async fn command(
        &self,
        name: &str,
        command: &str,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<(), ExecError> {
        self.run(name, command, attachment, stdin).await.map(|_| ())
    }

    async fn run(
        &self,
        name: &str,
        command: &str,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, ExecError> {
        let path = self.find(name).ok_or_else(|| ExecError::Missing {
            name: name.to_owned(),
            dirs: self.dirs.clone(),
        })?;
        let failed = |source| ExecError::Run {
            path: path.clone(),
            source,
        };
        let mut child = self
            .command_line(&path, command, attachment)
            .spawn()
            .map_err(failed)?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        // Whatever way this future ends, also by being dropped, nothing of the plugin stays.
        let mut guard = GroupGuard(group);
        let talk = talk(&mut child, stdin);
        match tokio::time::timeout(self.timeout, talk).await {
            Err(_) => Err(ExecError::Timeout {
                timeout: self.timeout,
            }),
            Ok(Err(e)) if e.kind() == io::ErrorKind::FileTooLarge => Err(ExecError::TooMuchOutput),
            Ok(Err(e)) => Err(failed(e)),
            Ok(Ok((stdout, stderr, status))) => {
                // It has ended and been reaped: its number may be somebody else's from now on.
                guard.0 = None;
                if status.success() {
                    return Ok(stdout);
                }
                if let Ok(error) = ErrorObject::parse(&stdout) {
                    return Err(ExecError::Refused(error));
                }
                let tail = &stderr[stderr.len().saturating_sub(MAX_STDERR)..];
                let stderr = String::from_utf8_lossy(tail).trim().to_owned();
                Err(ExecError::Failed {
                    status: status.to_string(),
                    stderr,
                })
            }
        }
    }

    fn command_line(&self, path: &Path, command: &str, attachment: Option<&Attachment>) -> Command {
        let mut line = Command::new(path);
        let dirs: Vec<_> = self.dirs.iter().map(|d| d.to_string_lossy()).collect();
        line.env("CNI_COMMAND", command)
            .env("CNI_PATH", dirs.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(attachment) = attachment {
            line.env("CNI_CONTAINERID", &attachment.id)
                .env("CNI_NETNS", &attachment.netns)
                .env("CNI_IFNAME", &attachment.ifname)
                .env("CNI_ARGS", attachment.args_text());
        }
        line
    }
}

/// Kills a process group when dropped. Its leader has not been reaped then, so that the number is ours.
struct GroupGuard(Option<Pid>);

impl Drop for GroupGuard {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // ESRCH: everybody has ended, as it should be.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// Writes the input and reads both outputs at once, then waits for the end.
async fn talk(
    child: &mut Child,
    input: &[u8],
) -> io::Result<(Vec<u8>, Vec<u8>, std::process::ExitStatus)> {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let write = async {
        if let Some(mut stdin) = stdin {
            // A plugin may end without reading; its exit code tells the rest.
            let _ = stdin.write_all(input).await;
        }
        Ok(())
    };
    let ((), out, err) = tokio::try_join!(write, read_result(stdout), read_tail(stderr))?;
    let status = child.wait().await?;
    Ok((out, err, status))
}

/// Reads to the end, or fails as soon as it is more than a result can be.
async fn read_result(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let limit = u64::try_from(MAX_RESULT)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        from.take(limit).read_to_end(&mut bytes).await?;
    }
    if bytes.len() > MAX_RESULT {
        Err(io::ErrorKind::FileTooLarge.into())
    } else {
        Ok(bytes)
    }
}

/// Reads to the end and keeps the tail only.
async fn read_tail(from: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut tail = Vec::new();
    let Some(mut from) = from else {
        return Ok(tail);
    };
    let mut chunk = [0; 4096];
    loop {
        let n = from.read(&mut chunk).await?;
        if n == 0 {
            return Ok(tail);
        }
        tail.extend_from_slice(&chunk[..n]);
        if tail.len() > 2 * MAX_STDERR {
            tail.drain(..tail.len() - MAX_STDERR);
        }
    }
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
