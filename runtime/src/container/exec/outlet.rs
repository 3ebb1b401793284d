//! Our end of a pipe that a process writes to.
//!
//! Most commands say less than a pipe holds and end at once, and who runs them reads when they have ended. So nothing
//! waits for the pipe before somebody has read it empty.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

/// The reading end.
#[derive(Debug)]
pub(super) enum Outlet {
    /// Nobody has read of it yet, and of most nobody will.
    Untouched(OwnedFd),
    /// Nothing waits for it yet.
    Unwatched(OwnedFd),
    /// It was empty once, and tells when it is not.
    Watched(pipe::Receiver),
    /// Waiting for it failed.
    Broken,
}

impl Outlet {
    pub(super) fn new(pipe: OwnedFd) -> Self {
        Self::Untouched(pipe)
    }

    /// Reads what is there; none when that is nothing.
    fn read_now(pipe: &OwnedFd, buffer: &mut ReadBuf<'_>) -> io::Result<Option<()>> {
        loop {
            match rustix::io::read(pipe, buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Ok(Some(()));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsyncRead for Outlet {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Self::Untouched(pipe) = this {
            rustix::io::ioctl_fionbio(&*pipe, true)?;
            *this = match std::mem::replace(this, Self::Broken) {
                Self::Untouched(pipe) => Self::Unwatched(pipe),
                other => other,
            };
        }
        if let Self::Unwatched(pipe) = this
            && let Some(()) = Self::read_now(pipe, buffer)?
        {
            return Poll::Ready(Ok(()));
        }
        *this = match std::mem::replace(this, Self::Broken) {
            Self::Untouched(pipe) | Self::Unwatched(pipe) => {
                Self::Watched(pipe::Receiver::from_owned_fd_unchecked(pipe)?)
            }
            other => other,
        };
        match this {
            Self::Watched(receiver) => Pin::new(receiver).poll_read(context, buffer),
            Self::Untouched(_) | Self::Unwatched(_) | Self::Broken => {
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn what_is_there_is_read_and_what_comes_later_is_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut outlet = Outlet::new(reader.into());
        writer.write_all(b"now").unwrap();
        let mut text = [0; 8];
        assert_eq!(outlet.read(&mut text).await.unwrap(), 3);
        assert!(matches!(outlet, Outlet::Unwatched(_)));
        let reading = tokio::spawn(async move {
            let mut rest = String::new();
            outlet.read_to_string(&mut rest).await.unwrap();
            rest
        });
        tokio::task::yield_now().await;
        writer.write_all(b"la").unwrap();
        tokio::task::yield_now().await;
        writer.write_all(b"ter").unwrap();
        drop(writer);
        assert_eq!(reading.await.unwrap(), "later");
    }
}
