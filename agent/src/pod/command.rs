//! Commands that probes and hooks run in a container.

use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ExecRequest, RuntimeService};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep_until};

/// Most of a command's output that is kept for the message.
const MAX_OUTPUT: usize = 10 * 1024;
/// How long a command's output may lag behind its process: a child that it left behind may hold the pipe.
const DRAIN: Duration = Duration::from_millis(200);
/// How long a command may run before its output is read. One that has ended by then is read without waiting for its
/// pipes, which is how probes end; one that writes more than a pipe holds is held up by this, once.
const READ_AFTER: Duration = Duration::from_millis(50);
/// Bytes read at once.
const CHUNK: usize = 2 * 1024;
/// A command without a limit of its own is limited by who runs it; this one is never reached.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// When the end of a command is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// As soon as it is there.
    AtOnce,
    /// Not before [`READ_AFTER`]: by then most have ended, and those of many that have begun together are found together.
    Later,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself.
    Exit {
        /// Its exit code.
        code: i32,
        /// The start of its output, then of its error output. Nobody reads that of a command which did not fail.
        output: String,
    },
    /// It took longer than its limit, and was killed.
    TimedOut,
}

/// Runs a command in the container; past the limit, which is longer than [`READ_AFTER`], it is killed. The limit counts
/// from the call.
pub(super) async fn run(
    runtime: &dyn RuntimeService,
    command: Vec<String>,
    id: &ContainerId,
    limit: Option<Duration>,
    look: Look,
) -> Result<Ended, api::Error> {
    let request = ExecRequest {
        command,
        // A limit also holds for the start, and without one the start has its own.
        only_end: limit.is_some(),
        ..ExecRequest::default()
    };
    let deadline = Instant::now() + limit.unwrap_or(NO_LIMIT);
    let session = runtime.exec(id, request).await?;
    let read_after = deadline.min(Instant::now() + READ_AFTER);
    if look == Look::Later {
        sleep_until(read_after).await;
    }
    let timer = sleep_until(read_after);
    tokio::pin!(timer);
    let mut output = Vec::new();
    let mut errors = Vec::new();
    let code = {
        let nothing = || -> Box<dyn AsyncRead + Send + Unpin> { Box::new(tokio::io::empty()) };
        let stderr = session.stderr.unwrap_or_else(nothing);
        let read = async {
            tokio::join!(
                drain(session.stdout, &mut output),
                drain(stderr, &mut errors)
            );
        };
        tokio::pin!(read);
        let wait = session.process.wait();
        tokio::pin!(wait);
        let (mut reading, mut drained) = (false, false);
        let code = loop {
            tokio::select! {
                biased;
                code = &mut wait => break code?,
                () = &mut read, if reading && !drained => drained = true,
                () = &mut timer => {
                    if Instant::now() >= deadline {
                        session.process.kill().await?;
                        return Ok(Ended::TimedOut);
                    }
                    reading = true;
                    timer.as_mut().reset(deadline);
                }
            }
        };
        if code != 0 && !drained {
            // Past this time the output is what it is.
            let _ = tokio::time::timeout(DRAIN, read).await;
        }
        code
    };
    output.extend(errors);
    output.truncate(MAX_OUTPUT);
    let output = String::from_utf8_lossy(&output).into_owned();
    Ok(Ended::Exit { code, output })
}

/// Keeps the start of a stream and reads the rest away.
async fn drain(mut stream: Box<dyn AsyncRead + Send + Unpin>, kept: &mut Vec<u8>) {
    let mut chunk = [0; CHUNK];
    // A broken stream is an ended one.
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        let room = MAX_OUTPUT.saturating_sub(kept.len());
        kept.extend_from_slice(&chunk[..length.min(room)]);
    }
}
