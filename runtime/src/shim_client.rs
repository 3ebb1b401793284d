//! The asynchronous caller of a shim.
//!
//! A [`Shim`] is a socket path and a few idle connections. A connection carries one request at a time, so
//! requests that overlap use several; a subscription keeps its own, an exec has one until it ends. Descriptors for an
//! exec travel beside the request. Nothing here knows what the requests mean.

mod connection;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hanok_shim::frame::FrameError;
use hanok_shim::protocol::{Event, FIRST_VERSION, FailureKind, Reply, Request, ShimState, VERSION};

use connection::Connection;
pub use connection::bind;

/// Idle connections kept per shim: as many as a pod often has exec probes at once. Each costs a descriptor on both
/// sides.
const MAX_IDLE: usize = 2;

/// How long a shim may take to answer. The slowest request starts a container, which is milliseconds; a
/// shim that is silent for this long is stopped or stuck, and must not hold its pod's worker for ever.
const PATIENCE: Duration = Duration::from_secs(60);

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
    idle: Arc<Idle>,
    /// An earlier release has started it, whose protocol is the first.
    is_early: AtomicBool,
}

/// Connections on which nothing is under way.
#[derive(Debug, Default)]
struct Idle(Mutex<Vec<Connection>>);

impl Idle {
    fn take(&self) -> Option<Connection> {
        self.lock().pop()
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.lock();
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shim {
    /// A shim that is to listen at `socket`. Connects at the first call.
    pub fn new(socket: PathBuf) -> Self {
        Shim {
            socket,
            idle: Arc::default(),
            is_early: AtomicBool::new(false),
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

    /// As [`Shim::start`], for a request that carries a descriptor.
    pub async fn start_with(
        &self,
        request: &Request,
        fd: BorrowedFd<'_>,
    ) -> Result<i32, ShimError> {
        match self.call(request, &[fd]).await? {
            Reply::Started { pid } => Ok(pid),
            _ => Err(self.unexpected()),
        }
    }

    /// Whether the shim knows every request: none that an earlier release has started does.
    pub async fn is_current(&self) -> Result<bool, ShimError> {
        if !self.is_early() && self.idle.is_empty() {
            self.idle.put(self.connect().await?);
        }
        Ok(!self.is_early())
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
        let (connection, done) = self.call_on_one(request, fds).await?;
        if matches!(done, Ok(Reply::Started { .. })) {
            return Ok(self.exec_connection(connection));
        }
        self.keep(connection, done)?;
        Err(self.unexpected())
    }

    /// Has a program run to its end, which comes on the returned connection, as does the news that it could not start. It
    /// wakes nobody who does not wait for it yet. None from a shim that does not know how.
    pub async fn run(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<ExecConnection>, ShimError> {
        if self.is_early() {
            return Ok(None);
        }
        if let Some(mut connection) = self.idle.take() {
            let asked = async {
                connection.be_quiet()?;
                connection.ask(request, fds).await
            };
            match self.in_time(asked).await {
                Err(ShimError::Gone { .. } | ShimError::Io { .. }) => {}
                done => return done.map(|()| Some(self.exec_connection(connection))),
            }
        }
        let mut connection = self.connect().await?;
        if self.is_early() {
            self.idle.put(connection);
            return Ok(None);
        }
        connection.be_quiet()?;
        self.in_time(connection.ask(request, fds)).await?;
        Ok(Some(self.exec_connection(connection)))
    }

    fn exec_connection(&self, connection: Connection) -> ExecConnection {
        ExecConnection {
            connection: Some(connection),
            idle: self.idle.clone(),
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

    /// One request and its only reply, on a connection that is free.
    async fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, ShimError> {
        let (connection, done) = self.call_on_one(request, fds).await?;
        self.keep(connection, done)
    }

    /// One request and its first reply, on a connection that was free, with that connection.
    async fn call_on_one(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Connection, Result<Reply, ShimError>), ShimError> {
        if let Some(mut connection) = self.idle.take() {
            // The idle connection is broken when the shim has dropped it, but then nothing was done either.
            match self.in_time(connection.call(request, fds)).await {
                Err(ShimError::Gone { .. } | ShimError::Io { .. }) if !connection.answered => {}
                done => return Ok((connection, done)),
            }
        }
        let mut connection = self.connect().await?;
        let done = self.in_time(connection.call(request, fds)).await;
        Ok((connection, done))
    }

    /// A connection is used again after an answer, be it a failure of the shim's.
    fn keep(
        &self,
        connection: Connection,
        done: Result<Reply, ShimError>,
    ) -> Result<Reply, ShimError> {
        if matches!(done, Ok(_) | Err(ShimError::Failed { .. })) {
            self.idle.put(connection);
        }
        done
    }

    async fn connect(&self) -> Result<Connection, ShimError> {
        if !self.is_early() {
            match self.in_time(self.greet(VERSION)).await {
                Err(ShimError::Failed {
                    kind: FailureKind::Invalid,
                    ..
                }) => self.is_early.store(true, Ordering::Relaxed),
                done => return done,
            }
        }
        self.in_time(self.greet(FIRST_VERSION)).await
    }

    async fn greet(&self, version: u32) -> Result<Connection, ShimError> {
        let opened = Connection::open(self.socket.clone());
        let mut connection = opened.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ShimError::Gone {
                socket: self.socket.clone(),
            },
            _ => ShimError::Io {
                socket: self.socket.clone(),
                source,
            },
        })?;
        match connection.call(&Request::Hello { version }, &[]).await? {
            Reply::Ok => Ok(connection),
            _ => Err(self.unexpected()),
        }
    }

    fn is_early(&self) -> bool {
        self.is_early.load(Ordering::Relaxed)
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

/// The connection of an exec. Dropped before its end, it is closed, and the process runs on.
#[derive(Debug)]
pub struct ExecConnection {
    /// None once the end has come.
    connection: Option<Connection>,
    idle: Arc<Idle>,
}

impl ExecConnection {
    /// Waits for the end of the process: 0..=255. May be dropped and called again, until it has said the end.
    pub async fn exit(&mut self) -> Result<i32, ShimError> {
        let Some(connection) = &mut self.connection else {
            // Whoever has heard the end asks again.
            return std::future::pending().await;
        };
        let reply = connection.receive::<Reply>().await?;
        let ended = match reply {
            Reply::ExecExited { code } => Ok(code),
            Reply::Failed { kind, message } => Err(ShimError::Failed { kind, message }),
            _ => {
                return Err(ShimError::Unexpected {
                    socket: connection.socket.clone(),
                });
            }
        };
        // It is free for the next request now.
        if let Some(connection) = self.connection.take() {
            self.idle.put(connection);
        }
        ended
    }
}

#[cfg(test)]
mod tests;
