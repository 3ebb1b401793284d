//! Moves bytes between a process and a client. Nothing is kept beyond one piece in each direction.

use bytes::{Bytes, BytesMut};
use hanok_runtime::api::{self, ExecProcess, ExecSession};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::super::streams::status::Outcome;
use super::super::streams::{Gone, Output, Resizes, Sink};

/// Bytes read from a process at a time.
const PIECE: usize = 32 << 10;

/// Most output that `/run` keeps of each stream; the rest is read and dropped, as CRI's ExecSync does.
const MAX_RUN_OUTPUT: usize = 16 << 20;

/// Moves bytes both ways until the process has ended and all its output is sent.
pub(super) async fn pump(
    session: ExecSession,
    stdin: mpsc::Receiver<Bytes>,
    resizes: Resizes,
    sink: &dyn Sink,
) -> Result<Outcome, Gone> {
    let ExecSession {
        stdin: process_stdin,
        stdout,
        stderr,
        process,
    } = session;
    let output = async {
        tokio::try_join!(
            copy_output(Some(stdout), Output::Stdout, sink),
            copy_output(stderr, Output::Stderr, sink),
        )
    };
    let end = async {
        let code = process.wait().await;
        outcome_of(code)
    };
    let input = async {
        tokio::join!(
            copy_input(stdin, process_stdin),
            resize(resizes, process.as_ref())
        );
        // Input may end long before the process does.
        std::future::pending::<()>().await;
    };
    // What the process wrote comes before its exit code, so both must be there.
    let finished = async {
        let (outcome, sent) = tokio::join!(end, output);
        sent.map(|_| outcome)
    };
    tokio::select! {
        outcome = finished => outcome,
        () = input => Err(Gone),
    }
}

fn outcome_of(code: api::Result<i32>) -> Outcome {
    match code {
        Ok(0) => Outcome::Success,
        Ok(code) => Outcome::ExitCode(code),
        Err(error) => Outcome::Error(error.to_string()),
    }
}

async fn copy_output(
    from: Option<Box<dyn AsyncRead + Send + Unpin>>,
    output: Output,
    sink: &dyn Sink,
) -> Result<(), Gone> {
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = BytesMut::with_capacity(PIECE);
    loop {
        buffer.reserve(PIECE);
        match from.read_buf(&mut buffer).await {
            // A terminal's far end gives EIO when the last process has closed it.
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => sink.write(output, buffer.split().freeze()).await?,
        }
    }
}

/// Feeds the process. A process that has closed its stdin just does not get the rest.
async fn copy_input(
    mut from: mpsc::Receiver<Bytes>,
    to: Option<Box<dyn AsyncWrite + Send + Unpin>>,
) {
    let Some(mut to) = to else { return };
    while let Some(data) = from.recv().await {
        let written = async {
            to.write_all(&data).await?;
            to.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

async fn resize(mut sizes: Resizes, process: &dyn ExecProcess) {
    while let Some(size) = sizes.next().await {
        if size.width == 0 || size.height == 0 {
            continue;
        }
        if let Err(error) = process.resize(size.height, size.width).await {
            tracing::debug!(%error, "cannot resize a terminal");
        }
    }
}

/// Reads to the end and keeps the beginning.
pub(super) async fn collect(from: Option<Box<dyn AsyncRead + Send + Unpin>>) -> BytesMut {
    let mut kept = BytesMut::new();
    let Some(mut from) = from else { return kept };
    let mut piece = vec![0; PIECE];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let room = MAX_RUN_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&piece[..length.min(room)]);
    }
    kept
}
