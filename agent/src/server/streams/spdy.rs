//! Streams on SPDY: one SPDY stream each for error, stdin, stdout, stderr and resize, opened by the client.

use std::time::Duration;

use async_trait::async_trait;
use axum::extract::Request;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;

use super::super::spdy::connection::{Closer, Writer};
use super::super::spdy::{Connection, Stream};
use super::status::Outcome;
use super::{AbortOnDrop, Activity, Gone, Output, Resizes, Sink, Streams, Wanted};

/// The protocols of exec and attach, best first.
pub(in super::super) const PROTOCOLS: [&str; 4] = [
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
];

/// The streams did not come about.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum OpenError {
    #[error("the connection was not upgraded")]
    Upgrade(#[source] hyper::Error),
    #[error("timed out waiting for client to create streams")]
    TimedOut,
    #[error("the client hung up before its streams were there")]
    Gone,
}

/// Waits for the upgrade and for the client to open the streams it wants.
pub(in super::super) async fn open(
    request: Request,
    protocol: &'static str,
    wanted: Wanted,
    timeout: Duration,
) -> Result<Streams, OpenError> {
    let upgraded = hyper::upgrade::on(request)
        .await
        .map_err(OpenError::Upgrade)?;
    let activity = Activity::new();
    let mut connection = Connection::start(TokioIo::new(upgraded), activity.clone());
    let version = Version::new(protocol);
    let opened = tokio::time::timeout(timeout, collect(&mut connection, version, wanted))
        .await
        .map_err(|_| OpenError::TimedOut)?
        .ok_or(OpenError::Gone)?;
    let Connection {
        closer,
        gone,
        tasks: [reader, writer],
        ..
    } = connection;
    let sink = SpdySink {
        json_status: version.json_status,
        error: opened.error.map(|stream| stream.writer),
        stdout: opened.stdout.map(|stream| stream.writer),
        stderr: opened.stderr.map(|stream| stream.writer),
        closer,
        _writer: writer,
    };
    Ok(Streams {
        stdin: opened.stdin.map_or_else(nothing, |stream| stream.data),
        resizes: Resizes::new(opened.resize.map_or_else(nothing, |stream| stream.data)),
        sink: Box::new(sink),
        gone,
        activity,
        reader,
    })
}

/// A queue that has ended.
fn nothing() -> mpsc::Receiver<Bytes> {
    mpsc::channel(1).1
}

/// What a protocol's version says.
#[derive(Debug, Clone, Copy)]
struct Version {
    json_status: bool,
    resize: bool,
}

impl Version {
    fn new(protocol: &str) -> Self {
        Self {
            json_status: protocol.starts_with("v4."),
            resize: protocol.starts_with("v4.") || protocol.starts_with("v3."),
        }
    }
}

/// The client's streams by their type.
#[derive(Debug, Default)]
struct Opened {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

/// Takes streams until those that are wanted are there. None when the client is gone.
async fn collect(connection: &mut Connection, version: Version, wanted: Wanted) -> Option<Opened> {
    let mut opened = Opened::default();
    let complete = |opened: &Opened| {
        opened.error.is_some()
            && (!wanted.stdin || opened.stdin.is_some())
            && (!wanted.stdout || opened.stdout.is_some())
            && (!wanted.stderr || opened.stderr.is_some())
            && (!(wanted.tty && version.resize) || opened.resize.is_some())
    };
    while !complete(&opened) {
        let stream = connection.streams.recv().await?;
        let place = match stream.header("streamtype") {
            "error" => &mut opened.error,
            "stdin" => &mut opened.stdin,
            "stdout" => &mut opened.stdout,
            "stderr" => &mut opened.stderr,
            "resize" => &mut opened.resize,
            // A stream of another type is dropped; whoever sends on it is ignored.
            _ => continue,
        };
        *place = Some(stream);
    }
    Some(opened)
}

/// The way to the client.
struct SpdySink {
    json_status: bool,
    error: Option<Writer>,
    stdout: Option<Writer>,
    stderr: Option<Writer>,
    closer: Closer,
    _writer: AbortOnDrop,
}

#[async_trait]
impl Sink for SpdySink {
    async fn write(&self, output: Output, data: Bytes) -> Result<(), Gone> {
        let writer = match output {
            Output::Stdout => &self.stdout,
            Output::Stderr => &self.stderr,
        };
        match writer {
            Some(writer) if !data.is_empty() => writer.send(data).await,
            _ => Ok(()),
        }
    }

    async fn finish(&self, outcome: &Outcome) -> Result<(), Gone> {
        for writer in self.stdout.iter().chain(&self.stderr) {
            writer.finish().await?;
        }
        if let Some(error) = &self.error {
            let status = if self.json_status {
                Some(outcome.json())
            } else {
                outcome.text().map(String::into_bytes)
            };
            if let Some(status) = status {
                error.send(status.into()).await?;
            }
            error.finish().await?;
        }
        self.closer.close().await
    }
}
