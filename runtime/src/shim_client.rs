//! The asynchronous caller of a shim.
//!
//! A [`Shim`] is a socket path and a few idle connections. A connection carries one request at a time, so
//! requests that overlap use several; subscriptions and execs keep theirs. Descriptors for an exec travel
//! beside the request. Nothing here knows what the requests mean.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hanok_shim::frame::{self, Decoder, FrameError};
use hanok_shim::protocol::{Event, FailureKind, Reply, Request, ShimState, VERSION};
use hanok_shim::sys::socket;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Idle connections kept per shim. Each costs a descriptor on both sides.
const MAX_IDLE: usize = 1;

/// How long a shim may take to answer. The slowest request starts a container, which is milliseconds; a
/// shim that is silent for this long is stopped or stuck, and must not hold its pod's worker for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes asked from the socket at once.
const CHUNK: usize = 4096;

/// Longest path that fits `sockaddr_un`, with its final zero.
const MAX_SOCKET_PATH: usize = 107;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// Nobody listens at the socket, or the shim ended before it answered.
    #[error("shim {socket} is gone")]
    Gone {
        /// Its socket.
        socket: PathBuf,
    },
    /// The shim did not answer in time.
    #[error("shim {socket} did not answer within 60 s")]
    Silent {
        /// Its socket.
        socket: PathBuf,
    },
    /// The connection failed.
    #[error("connection to shim {socket} failed")]
    Io {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The bytes are not what the protocol says.
    #[error("shim {socket} does not keep to the protocol")]
    Protocol {
        /// Its socket.
        socket: PathBuf,
        /// What is wrong with them.
        #[source]
        source: FrameError,
    },
    /// The shim answered another question.
    #[error("shim {socket} gave an unexpected answer")]
    Unexpected {
        /// Its socket.
        socket: PathBuf,
    },
    /// The shim could not do it.
    #[error("{message}")]
    Failed {
        /// The kind of failure.
        kind: FailureKind,
        /// What failed.
        message: String,
    },
}

/// A shim, by its socket.
#[derive(Debug)]
pub struct Shim {
    socket: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Shim {
    /// A shim that is to listen at `socket`. Connects at the first call.
    pub fn new(socket: PathBuf) -> Self {
        Shim {
            socket,
            idle: Mutex::default(),
        }
    }

    /// A request whose answer is [`Reply::Ok`].
    pub async fn order(&self, request: &Request) -> Result<(), ShimError> {
        match self.call(request, &[]).await? {
            Reply::Ok => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// A request that starts something; returns its process id.
    pub async fn start(&self, request: &Request) -> Result<i32, ShimError> {
        match self.call(request, &[]).await? {
            Reply::Started { pid } => Ok(pid),
            _ => Err(self.unexpected()),
        }
    }

    /// What the shim holds.
    pub async fn state(&self) -> Result<ShimState, ShimError> {
        match self.call(&Request::State, &[]).await? {
            Reply::State(state) => Ok(state),
            _ => Err(self.unexpected()),
        }
    }

    /// A request with descriptors, answered by [`Reply::Ok`].
    pub async fn order_with(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ShimError> {
        match self.call(request, fds).await? {
            Reply::Ok => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// The shim's events from now on.
    pub async fn subscribe(&self) -> Result<Events, ShimError> {
        let mut connection = self.connect().await?;
        match self
            .in_time(connection.call(&Request::Subscribe, &[]))
            .await?
        {
            Reply::Ok => Ok(Events(connection)),
            _ => Err(self.unexpected()),
        }
    }

    /// Starts a process in a container; its end comes on the returned connection.
    pub async fn exec(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<ExecConnection, ShimError> {
        let mut connection = self.connect().await?;
        match self.in_time(connection.call(request, fds)).await? {
            Reply::Started { .. } => Ok(ExecConnection(connection)),
            _ => Err(self.unexpected()),
        }
    }

    /// Ends the shim and everything in it; returns when it has closed the connection.
    pub async fn shutdown(&self) -> Result<(), ShimError> {
        let mut connection = self.connect().await?;
        let ending = async {
            match connection.call(&Request::Shutdown, &[]).await? {
                Reply::Ok => {}
                _ => return Err(self.unexpected()),
            }
            match connection.receive::<Reply>().await {
                Err(ShimError::Gone { .. }) => Ok(()),
                Err(other) => Err(other),
                Ok(_) => Err(self.unexpected()),
            }
        };
        self.in_time(ending).await
    }

    /// One request and its first reply, on a connection that is free.
    async fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, ShimError> {
        let idle = self.lock().pop();
        if let Some(mut connection) = idle {
            // The idle connection is broken when the shim has dropped it, but then nothing was done either.
            match self.in_time(connection.call(request, fds)).await {
                Err(ShimError::Gone { .. } | ShimError::Io { .. }) if !connection.answered => {}
                done => return self.keep(connection, done),
            }
        }
        let mut connection = self.connect().await?;
        let done = self.in_time(connection.call(request, fds)).await;
        self.keep(connection, done)
    }

    /// A connection is used again after an answer, be it a failure of the shim's.
    fn keep(
        &self,
        connection: Connection,
        done: Result<Reply, ShimError>,
    ) -> Result<Reply, ShimError> {
        if matches!(done, Ok(_) | Err(ShimError::Failed { .. })) {
            let mut idle = self.lock();
            if idle.len() < MAX_IDLE {
                idle.push(connection);
            }
        }
        done
    }

    async fn connect(&self) -> Result<Connection, ShimError> {
        let connecting = async {
            let stream = connect(&self.socket)
                .await
                .map_err(|source| match source.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ShimError::Gone {
                        socket: self.socket.clone(),
                    },
                    _ => ShimError::Io {
                        socket: self.socket.clone(),
                        source,
                    },
                })?;
            let mut connection = Connection {
                socket: self.socket.clone(),
                stream,
                decoder: Decoder::new(),
                answered: false,
            };
            match connection
                .call(&Request::Hello { version: VERSION }, &[])
                .await?
            {
                Reply::Ok => Ok(connection),
                _ => Err(self.unexpected()),
            }
        };
        self.in_time(connecting).await
    }

    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, ShimError>>,
    ) -> Result<T, ShimError> {
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(done) => done,
            Err(_) => Err(ShimError::Silent {
                socket: self.socket.clone(),
            }),
        }
    }

    fn unexpected(&self) -> ShimError {
        ShimError::Unexpected {
            socket: self.socket.clone(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream of events.
#[derive(Debug)]
pub struct Events(Connection);

impl Events {
    /// The next event; [`ShimError::Gone`] when the shim has ended. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Event, ShimError> {
        self.0.receive().await
    }
}

/// The connection of an exec.
#[derive(Debug)]
pub struct ExecConnection(Connection);

impl ExecConnection {
    /// Waits for the end of the process: 0..=255.
    pub async fn exit(&mut self) -> Result<i32, ShimError> {
        match self.0.receive::<Reply>().await? {
            Reply::ExecExited { code } => Ok(code),
            Reply::Failed { kind, message } => Err(ShimError::Failed { kind, message }),
            _ => Err(ShimError::Unexpected {
                socket: self.0.socket.clone(),
            }),
        }
    }
}

#[derive(Debug)]
struct Connection {
    socket: PathBuf,
    stream: UnixStream,
    decoder: Decoder,
    /// Whether the request in flight has been answered in part.
    answered: bool,
}

impl Connection {
    /// Sends a request and waits for its first reply; a reply that says "failed" is an error.
    async fn call(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply, ShimError> {
        self.answered = false;
        let bytes = frame::encode(request).map_err(|source| self.protocol(source))?;
        self.send(&bytes, fds)
            .await
            .map_err(|source| self.io(source))?;
        match self.receive().await? {
            Reply::Failed { kind, message } => Err(ShimError::Failed { kind, message }),
            reply => Ok(reply),
        }
    }

    async fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut sent = 0;
        if !fds.is_empty() {
            sent = self
                .stream
                .async_io(Interest::WRITABLE, || {
                    Ok(socket::send(&self.stream, bytes, fds)?)
                })
                .await?;
        }
        self.stream.write_all(&bytes[sent..]).await
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ShimError> {
        loop {
            match self.decoder.next_message() {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(source) => return Err(self.protocol(source)),
            }
            let mut chunk = [0; CHUNK];
            match self.stream.read(&mut chunk).await {
                Ok(0) => {
                    return Err(ShimError::Gone {
                        socket: self.socket.clone(),
                    });
                }
                Ok(count) => {
                    self.answered = true;
                    self.decoder.feed(&chunk[..count]);
                }
                Err(source) => return Err(self.io(source)),
            }
        }
    }

    fn io(&self, source: io::Error) -> ShimError {
        match source.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ShimError::Gone {
                socket: self.socket.clone(),
            },
            _ => ShimError::Io {
                socket: self.socket.clone(),
                source,
            },
        }
    }

    fn protocol(&self, source: FrameError) -> ShimError {
        ShimError::Protocol {
            socket: self.socket.clone(),
            source,
        }
    }
}

/// Binds a listening socket at a path of any length, for this user only.
pub fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = through_directory(path, |path| std::os::unix::net::UnixListener::bind(path))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(0o600))?;
    Ok(listener)
}

async fn connect(path: &Path) -> io::Result<UnixStream> {
    // Connecting to a unix socket does not wait, but for a full backlog, and then only for the shim.
    let stream = through_directory(path, |path| std::os::unix::net::UnixStream::connect(path))?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Calls with a path that fits a socket address: a long one is named by its open directory.
fn through_directory<T>(path: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= MAX_SOCKET_PATH {
        return call(path);
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&directory.as_fd());
    call(
        &Path::new("/proc/self/fd")
            .join(number.to_string())
            .join(name),
    )
}

#[cfg(test)]
mod tests;
