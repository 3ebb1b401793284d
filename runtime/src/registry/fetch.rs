//! Streams a blob, and goes on where a broken connection left off.

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::hosts::RegistryConfig;
use super::{RegistryError, Session, text_header};
use crate::content::Digest;
use crate::unpack::pipe::Piece;

/// Longest pause that a server may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A connection slower than this many bytes over [`WINDOW`] is given up: a byte a second is no progress.
const MIN_BYTES: u64 = 16 << 10;
/// Over how long progress is measured.
const WINDOW: Duration = Duration::from_secs(60);

/// Attempts at one thing.
#[derive(Debug)]
pub(super) struct Retry {
    left: u32,
    attempts: u32,
    first: Duration,
    pause: Duration,
}

impl Retry {
    pub(super) fn new(config: &RegistryConfig) -> Self {
        let attempts = config.attempts.max(1);
        let pause = config.retry_pause;
        Self {
            left: attempts - 1,
            attempts,
            first: pause,
            pause,
        }
    }

    /// Something worked: begin to count anew.
    fn reset(&mut self) {
        (self.left, self.pause) = (self.attempts - 1, self.first);
    }

    /// Waits before the next attempt; gives the error back when there is to be none.
    pub(super) async fn pause(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if self.left == 0 || !error.is_transient() {
            return Err(error);
        }
        self.left -= 1;
        let pause = match &error {
            RegistryError::Status {
                retry_after: Some(seconds),
                ..
            } => Duration::from_secs(*seconds),
            _ => self.pause,
        };
        tracing::debug!(%error, ?pause, "registry request failed; trying again");
        tokio::time::sleep(pause.min(MAX_PAUSE)).await;
        self.pause *= 2;
        Ok(())
    }
}

impl Session {
    /// Streams the blob into `sink`, its end marked. At most `size` bytes and one more are sent.
    pub async fn blob(
        &self,
        digest: &Digest,
        size: u64,
        sink: mpsc::Sender<Piece>,
    ) -> Result<(), RegistryError> {
        let url = self.url("blobs", &digest.to_string());
        let mut retry = Retry::new(&self.config);
        let mut done = 0;
        loop {
            let before = done;
            match self.stream(&url, &mut done, size, &sink).await {
                Ok(()) => {
                    return sink
                        .send(Piece::End)
                        .await
                        .map_err(|_| RegistryError::Interrupted);
                }
                Err(e) => {
                    if done > before {
                        retry.reset();
                    }
                    retry.pause(e).await?;
                }
            }
        }
    }

    /// One connection's worth of the blob, from byte `done` on.
    async fn stream(
        &self,
        url: &str,
        done: &mut u64,
        size: u64,
        sink: &mpsc::Sender<Piece>,
    ) -> Result<(), RegistryError> {
        let range = (*done > 0).then_some(*done);
        let mut response = self.request(&Method::GET, url, range).await?;
        let mut skip = to_skip(&response, *done)?;
        let mut window = (Instant::now(), 0);
        while let Some(mut data) = self.transport.frame(&mut response).await? {
            check_progress(&mut window, data.len() as u64)?;
            let skipped = skip.min(data.len() as u64);
            skip -= skipped;
            let _: Bytes = data.split_to(usize::try_from(skipped).unwrap_or(data.len()));
            if data.is_empty() {
                continue;
            }
            *done += data.len() as u64;
            sink.send(Piece::Data(data))
                .await
                .map_err(|_| RegistryError::Interrupted)?;
            // The receiver measures too and complains; there is no reason to read on.
            if *done > size {
                return Ok(());
            }
        }
        match *done >= size {
            true => Ok(()),
            false => Err(RegistryError::Body(
                format!("ended after {done} of {size} bytes").into(),
            )),
        }
    }
}

/// How much of the answer we have already: nothing if it begins where we want, all of it if the server
/// does not know ranges.
fn to_skip(response: &Response<Incoming>, done: u64) -> Result<u64, RegistryError> {
    if done == 0 || response.status() != StatusCode::PARTIAL_CONTENT {
        return Ok(done);
    }
    let range = text_header(response, "content-range");
    let start = range
        .strip_prefix("bytes ")
        .and_then(|range| range.split('-').next());
    match start.and_then(|start| start.trim().parse::<u64>().ok()) {
        Some(start) if start <= done => Ok(done - start),
        _ => Err(RegistryError::Body(
            format!("asked for bytes from {done}, got {range:?}").into(),
        )),
    }
}

fn check_progress(window: &mut (Instant, u64), bytes: u64) -> Result<(), RegistryError> {
    window.1 += bytes;
    if window.0.elapsed() < WINDOW {
        return Ok(());
    }
    if window.1 < MIN_BYTES {
        return Err(RegistryError::Body("the connection is too slow".into()));
    }
    *window = (Instant::now(), 0);
    Ok(())
}
