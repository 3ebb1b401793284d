//! Execs and connections to ports: streams, and the process behind them.

use std::fmt;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Result;

/// An exec in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecRequest {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Give it a terminal (then stderr is not separate).
    pub tty: bool,
    /// The caller has something for stdin.
    pub stdin: bool,
    /// The caller does not ask when it has started: the session is there at once, and what cannot be started is an error
    /// of [`ExecProcess::wait`]. Without `tty` and `stdin` only.
    pub only_end: bool,
}

/// A running exec. Dropping it closes its streams and does not kill it; [`ExecSession::kill`] does.
pub struct ExecSession {
    /// Feeds stdin; drop to close.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Error output; none with a terminal.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Control and end of the process.
    pub process: Box<dyn ExecProcess>,
}

impl fmt::Debug for ExecSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSession").finish_non_exhaustive()
    }
}

/// A connection to a port of a pod.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// The process behind an [`ExecSession`].
#[async_trait]
pub trait ExecProcess: Send + Sync {
    /// Waits for the end; 0..=255, 128 + n after signal n. May be dropped and called again, also after the end.
    async fn wait(&self) -> Result<i32>;
    /// Changes the terminal's size.
    async fn resize(&self, rows: u16, cols: u16) -> Result<()>;
    /// Kills the process and everything it started.
    async fn kill(&self) -> Result<()>;
}
