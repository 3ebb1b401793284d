//! The remote end of an exec or attach, whatever carries it.
//!
//! [`websocket`] and [`spdy`] both end up as a [`Streams`]: stdin and terminal sizes come in through bounded
//! queues, output goes out through a [`Sink`] that waits while the client is slow. Nothing is buffered beyond
//! that. Dropping a [`Streams`] ends the task that reads the connection.

pub(super) mod negotiate;
pub(super) mod spdy;
pub(super) mod status;
pub(super) mod websocket;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pieces of input that may wait for the process; each is a frame of the client, 32 KiB by custom.
pub(super) const INPUT_QUEUE: usize = 8;

/// Longest wait for the client to hang up after everything has been sent. Hanging up first could reset the
/// connection and destroy output that the client has not read yet.
pub(super) const HANG_UP: Duration = Duration::from_secs(10);

/// Longest text of terminal sizes that is kept while it is not a whole JSON value.
const MAX_RESIZE: usize = 4096;

/// Which streams the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

/// One of the two outputs of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Stdout,
    Stderr,
}

/// The client has gone away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client is gone")]
pub(super) struct Gone;

/// Takes what goes to the client.
#[async_trait]
pub(super) trait Sink: Send + Sync {
    /// Sends output; waits while the client is slow. What was not asked for is dropped.
    async fn write(&self, output: Output, data: Bytes) -> Result<(), Gone>;
    /// Sends how it ended, and then that nothing more comes. After all output.
    async fn finish(&self, outcome: &status::Outcome) -> Result<(), Gone>;
}

/// The remote end.
pub(super) struct Streams {
    /// Bytes for the process; the end of the queue is the end of its input.
    pub(super) stdin: mpsc::Receiver<Bytes>,
    /// Terminal sizes.
    pub(super) resizes: Resizes,
    /// What goes to the client.
    pub(super) sink: Box<dyn Sink>,
    /// Cancelled when the client has gone away.
    pub(super) gone: CancellationToken,
    /// When something last went in either direction.
    pub(super) activity: Arc<Activity>,
    /// The task that reads the connection.
    pub(super) reader: AbortOnDrop,
}

/// Ends a task when it is dropped.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The time of the last traffic.
#[derive(Debug)]
pub(super) struct Activity(Mutex<Instant>);

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Instant::now())))
    }

    /// Something went in or out just now.
    pub(super) fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns after a silence of this length.
    pub(super) async fn silence(&self, length: Duration) {
        loop {
            let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + length;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A terminal's size as clients write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct TerminalSize {
    #[serde(rename = "Width")]
    pub(super) width: u16,
    #[serde(rename = "Height")]
    pub(super) height: u16,
}

/// Terminal sizes read off a stream of JSON values, which may come in any pieces.
#[derive(Debug)]
pub(super) struct Resizes {
    pieces: mpsc::Receiver<Bytes>,
    text: Vec<u8>,
}

impl Resizes {
    pub(super) fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self {
            pieces,
            text: Vec::new(),
        }
    }

    /// The next size; none at the end of the stream or when it is not what it should be. May be dropped and
    /// called again.
    pub(super) async fn next(&mut self) -> Option<TerminalSize> {
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.text).into_iter();
            match values.next() {
                Some(Ok(size)) => {
                    let end = values.byte_offset();
                    self.text.drain(..end);
                    return Some(size);
                }
                Some(Err(error)) if !error.is_eof() => return None,
                _ => {}
            }
            if self.text.len() > MAX_RESIZE {
                return None;
            }
            let piece = self.pieces.recv().await?;
            self.text.extend_from_slice(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sizes(pieces: &[&str]) -> Vec<(u16, u16)> {
        let (sender, receiver) = mpsc::channel(16);
        for piece in pieces {
            sender
                .send(Bytes::copy_from_slice(piece.as_bytes()))
                .await
                .unwrap();
        }
        drop(sender);
        let mut resizes = Resizes::new(receiver);
        let mut found = Vec::new();
        while let Some(size) = resizes.next().await {
            found.push((size.width, size.height));
        }
        found
    }

    #[tokio::test]
    async fn sizes_come_in_any_pieces() {
        let one = r#"{"Width":80,"Height":24}"#;
        assert_eq!(sizes(&[one]).await, [(80, 24)]);
        assert_eq!(
            sizes(&[&format!("{one}\n{one}")]).await,
            [(80, 24), (80, 24)]
        );
        assert_eq!(
            sizes(&[&one[..7], &one[7..], one]).await,
            [(80, 24), (80, 24)]
        );
        assert_eq!(sizes(&["rubbish", one]).await, []);
        assert_eq!(sizes(&[r#"{"Width":-1,"Height":70000}"#, one]).await, []);
    }

    #[tokio::test(start_paused = true)]
    async fn traffic_puts_off_the_end_of_silence() {
        let activity = Activity::new();
        let start = Instant::now();
        let silence = activity.silence(Duration::from_secs(10));
        let traffic = async {
            tokio::time::advance(Duration::from_secs(6)).await;
            activity.touch();
        };
        tokio::join!(silence, traffic);
        assert_eq!(start.elapsed().as_secs(), 16);
    }
}
