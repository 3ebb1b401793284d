//! One connection to a shim: frames out, frames in, descriptors beside them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use hanok_shim::frame::{self, Decoder, FrameError};
use hanok_shim::protocol::{Reply, Request};
use hanok_shim::sys::socket;
use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::ShimError;

/// Bytes asked from the socket at once.
const CHUNK: usize = 4096;

/// Longest path that fits `sockaddr_un`, with its final zero.
const MAX_SOCKET_PATH: usize = 107;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: PathBuf,
    stream: UnixStream,
    decoder: Decoder,
    /// Whether the request in flight has been answered in part.
    pub(super) answered: bool,
}

impl Connection {
    pub(super) fn new(socket: PathBuf, stream: UnixStream) -> Self {
        Connection {
            socket,
            stream,
            decoder: Decoder::new(),
            answered: false,
        }
    }

    /// Sends a request and waits for its first reply; a reply that says "failed" is an error.
    pub(super) async fn call(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply, ShimError> {
        self.ask(request, fds).await?;
        match self.receive().await? {
            Reply::Failed { kind, message } => Err(ShimError::Failed { kind, message }),
            reply => Ok(reply),
        }
    }

    /// Sends a request.
    pub(super) async fn ask(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ShimError> {
        self.answered = false;
        let bytes = frame::encode(request).map_err(|source| self.protocol(source))?;
        self.send(&bytes, fds)
            .await
            .map_err(|source| self.io(source))
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

    pub(super) async fn receive<T: DeserializeOwned>(&mut self) -> Result<T, ShimError> {
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

pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
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
