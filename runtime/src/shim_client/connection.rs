//! One connection to a shim: frames out, frames in, descriptors beside them.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use hanok_shim::frame::{self, Decoder, FrameError};
use hanok_shim::protocol::{Reply, Request};
use hanok_shim::sys::socket;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::ShimError;

/// Bytes asked from the socket at once.
const CHUNK: usize = 4096;

/// Longest path that fits `sockaddr_un`, with its final zero.
const MAX_SOCKET_PATH: usize = 107;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: PathBuf,
    stream: Stream,
    decoder: Decoder,
    /// Whether the request in flight has been answered in part.
    pub(super) answered: bool,
}

/// The socket, which does not block.
#[derive(Debug)]
enum Stream {
    /// Nothing wakes anybody: what has come is found when somebody looks.
    Quiet(UnixStream),
    /// What comes wakes us. It is a socket, which tokio takes for a pipe that is read, since a socket of tokio's would also
    /// wake us for the room that every request leaves when the shim takes it.
    Watched(pipe::Receiver),
    /// Between the two.
    Neither,
}

impl Stream {
    /// Takes what is there: none when that is nothing yet.
    fn look(&mut self, chunk: &mut [u8]) -> Option<io::Result<usize>> {
        let Self::Quiet(stream) = self else {
            return None;
        };
        loop {
            match stream.read(chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                done => return Some(done),
            }
        }
    }

    /// Waits for what comes.
    async fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        if let Some(found) = self.look(chunk) {
            return found;
        }
        *self = match std::mem::replace(self, Self::Neither) {
            Self::Quiet(stream) => {
                Self::Watched(pipe::Receiver::from_owned_fd_unchecked(stream.into())?)
            }
            other => other,
        };
        match self {
            Self::Watched(stream) => stream.read(chunk).await,
            Self::Quiet(_) | Self::Neither => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn be_quiet(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Neither) {
            Self::Watched(stream) => Self::Quiet(stream.into_nonblocking_fd()?.into()),
            other => other,
        };
        Ok(())
    }

    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            Self::Quiet(stream) => Ok(stream.as_fd()),
            Self::Watched(stream) => Ok(stream.as_fd()),
            Self::Neither => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Connection {
    /// Connects to a shim.
    pub(super) fn open(socket: PathBuf) -> io::Result<Self> {
        let stream = connect(&socket)?;
        Ok(Connection {
            socket,
            stream: Stream::Quiet(stream),
            decoder: Decoder::new(),
            answered: false,
        })
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

    /// The answer to the next request is looked for when somebody asks, and wakes nobody before.
    pub(super) fn be_quiet(&mut self) -> Result<(), ShimError> {
        self.stream.be_quiet().map_err(|source| self.io(source))
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
        while sent < bytes.len() {
            let fds = if sent == 0 { fds } else { &[] };
            match socket::send(self.stream.fd()?, &bytes[sent..], fds) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => self.wait_for_room().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The shim has more to read than a socket holds.
    async fn wait_for_room(&self) -> io::Result<()> {
        let again = self.stream.fd()?.try_clone_to_owned()?;
        let again = pipe::Sender::from_owned_fd_unchecked(again)?;
        again.writable().await
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

pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    // Connecting to a unix socket does not wait, but for a full backlog, and then only for the shim.
    let stream = through_directory(path, |path| UnixStream::connect(path))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
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
