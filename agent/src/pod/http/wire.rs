//! A connection of one question and its answer, with as little of the system's work as there can be.
//!
//! Probes connect to a pod of their own node, where the other end has mostly answered before connect(2) returns, and
//! what is sent always fits. So nothing waits for a connection before it has to.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection that is there. Dropped, it leaves nothing in TIME-WAIT: thousands of probes a minute would fill the
/// node's table and take its ports.
#[derive(Debug)]
pub(in crate::pod) enum Wire {
    /// Nothing waits for it yet.
    Unwatched(std::net::TcpStream),
    /// Something had to wait once.
    Watched(TcpStream),
    /// Waiting for it failed.
    Broken,
}

/// What comes first on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) enum Opening {
    /// We say something at once: the packet that would only say that the connection is there can be spared, as what we say
    /// tells that too.
    Speaks,
    /// Nothing, or the other side.
    Waits,
}

impl Wire {
    /// Connects.
    pub(super) async fn connect(address: SocketAddr, opening: Opening) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        if opening == Opening::Speaks {
            sockopt::set_tcp_quickack(&socket, false)?;
        }
        let waits = match connect(&socket, &address) {
            // The second call tells what has become of the first one.
            Err(Errno::INPROGRESS) => match connect(&socket, &address) {
                Err(Errno::ALREADY | Errno::INPROGRESS) => true,
                Err(Errno::ISCONN) => false,
                done => done.map(|()| false)?,
            },
            done => done.map(|()| false)?,
        };
        let stream = std::net::TcpStream::from(socket);
        if !waits {
            return Ok(Self::Unwatched(stream));
        }
        let stream = TcpStream::from_std(stream)?;
        stream.writable().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(Self::Watched(stream)),
        }
    }

    /// The address on this side.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unwatched(stream) => stream.local_addr().ok(),
            Self::Watched(stream) => stream.local_addr().ok(),
            Self::Broken => None,
        }
    }

    /// The stream, for whoever has to wait for it.
    fn watched(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        *self = match std::mem::replace(self, Self::Broken) {
            Self::Unwatched(stream) => Self::Watched(TcpStream::from_std(stream)?),
            other => other,
        };
        match self {
            Self::Watched(stream) => Ok(Pin::new(stream)),
            Self::Unwatched(_) | Self::Broken => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// None when the call has to wait.
fn at_once<T>(mut call: impl FnMut() -> io::Result<T>) -> Option<io::Result<T>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            done => return Some(done),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Self::Unwatched(stream) = this
            && let Some(read) = at_once(|| stream.read(buffer.initialize_unfilled()))
        {
            buffer.advance(read?);
            return Poll::Ready(Ok(()));
        }
        this.watched()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Self::Unwatched(stream) = this
            && let Some(written) = at_once(|| stream.write(bytes))
        {
            return Poll::Ready(written);
        }
        this.watched()?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Nothing: whoever has its answer drops the connection.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
