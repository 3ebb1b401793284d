//! A blocking caller of the shim, one connection each: for tests, benches and small tools.
//!
//! The runtime has its own asynchronous client over the same [`frame`](crate::frame) and
//! [`sys::socket`](crate::sys::socket).

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::frame::{self, Decoder, FrameError};
use crate::protocol::{Event, FIRST_VERSION, Reply, Request};
use crate::sys::socket;

/// Bytes asked from the socket at once.
const CHUNK: usize = 4096;

/// Why a call came to nothing.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The socket failed.
    #[error("connection to the shim failed")]
    Io(#[from] io::Error),
    /// The shim's bytes are not what the protocol says.
    #[error("the shim answered with a bad frame")]
    Frame(#[from] FrameError),
    /// The shim closed the connection instead of answering.
    #[error("the shim closed the connection")]
    Closed,
    /// The shim refused this version of the protocol.
    #[error("the shim refused the connection: {0:?}")]
    Refused(Reply),
}

/// A connection to a shim.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
}

impl Client {
    /// Connects and says hello.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let mut client = Self {
            stream: UnixStream::connect(path)?,
            decoder: Decoder::new(),
        };
        match client.call(&Request::Hello {
            version: FIRST_VERSION,
        })? {
            Reply::Ok => Ok(client),
            other => Err(ClientError::Refused(other)),
        }
    }

    /// Longest time that a read may take; none for no limit.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ClientError> {
        Ok(self.stream.set_read_timeout(timeout)?)
    }

    /// Sends a request and waits for its first reply.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.call_with_fds(request, &[])
    }

    /// As [`Client::call`], with descriptors beside the request.
    pub fn call_with_fds(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply, ClientError> {
        self.send(request, fds)?;
        self.reply()
    }

    /// Sends a request and waits for nothing.
    pub fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let bytes = frame::encode(request)?;
        Ok(socket::send_all(&self.stream, &bytes, fds).map_err(io::Error::from)?)
    }

    /// Waits for the next reply.
    pub fn reply(&mut self) -> Result<Reply, ClientError> {
        self.receive()
    }

    /// Waits for the next event of a subscribed connection.
    pub fn event(&mut self) -> Result<Event, ClientError> {
        self.receive()
    }

    fn receive<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, ClientError> {
        let mut chunk = [0; CHUNK];
        loop {
            if let Some(message) = self.decoder.next_message()? {
                return Ok(message);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(n) => self.decoder.feed(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
