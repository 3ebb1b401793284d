//! Reads a log from where it is wanted to where it ends.
//!
//! Following never polls: a change in the log's directory or a ring of the runtime for this pod makes it look
//! again. It goes through every rotation in order, and ends when the container has ended and all is read. The shim
//! writes all output before it records the exit, so a look at the file after a look at the container misses nothing.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hanok_runtime::api::{ContainerId, ContainerState, PodUid, RuntimeService};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::super::route::App;
use super::super::target::Refusal;
use super::file::{LogFile, PIECE};
use super::format::Formatter;
use super::options::LogOptions;
use super::tail;
use super::watch::Watch;

/// A doorbell may be lost; this is how long an ended container's log is followed on then.
const RELIST: Duration = Duration::from_secs(60);

/// A log being read.
#[derive(Debug)]
pub(super) struct Reader {
    path: PathBuf,
    file: LogFile,
    /// Younger files, oldest first.
    younger: VecDeque<LogFile>,
    /// Another file has the name now, so nothing more is written to `file`.
    superseded: bool,
    buffer: BytesMut,
    /// Where to stop when not following: at the end as it was when the reading began.
    end: u64,
    follow: Option<Follow>,
}

/// What a follower waits for.
struct Follow {
    runtime: Arc<dyn RuntimeService>,
    pod: PodUid,
    container: ContainerId,
    changes: Watch,
    doorbell: broadcast::Receiver<PodUid>,
    stopped: CancellationToken,
    ended: bool,
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow")
            .field("container", &self.container)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the log of a container and goes to where the wanted part begins.
    pub(super) async fn open(
        app: &App,
        pod: PodUid,
        container: ContainerId,
        options: &LogOptions,
    ) -> Result<Self, Refusal> {
        // Before the first look at the container, so that its end cannot fall in between.
        let doorbell = app.deps.runtime.doorbell();
        let view = app.deps.runtime.pod_view(&pod).await;
        let path = view
            .map_err(|error| Refusal::internal(error.to_string()))?
            .containers
            .into_iter()
            .find(|found| found.id == container)
            .map(|found| found.log_path)
            .ok_or_else(|| Refusal::bad_request(format!("container {container} not found")))?;
        let failed = |error: io::Error| {
            Refusal::bad_request(format!(
                "failed to open log file {:?}: {error}",
                path.display()
            ))
        };
        let follow = match (options.follow, path.parent()) {
            (true, Some(directory)) => {
                let changes = app.hub.watch(directory).map_err(failed)?;
                let mut follow = Follow {
                    runtime: app.deps.runtime.clone(),
                    pod,
                    container,
                    changes,
                    doorbell,
                    stopped: app.stopped.clone(),
                    ended: false,
                };
                follow.look().await;
                Some(follow)
            }
            _ => None,
        };
        let mut file = LogFile::open(&path).await.map_err(failed)?;
        let end = file.size().await.map_err(failed)?;
        let start = match options.tail {
            Some(lines) => tail::start(&mut file, end, lines, options.stream)
                .await
                .map_err(failed)?,
            None => 0,
        };
        file.seek(start).await.map_err(failed)?;
        Ok(Self {
            path,
            file,
            younger: VecDeque::new(),
            superseded: false,
            buffer: BytesMut::with_capacity(PIECE),
            end,
            follow,
        })
    }

    /// The next bytes for the client; none at the end. Waits for them when following.
    pub(super) async fn next(&mut self, formatter: &mut Formatter) -> io::Result<Option<Bytes>> {
        let mut out = BytesMut::new();
        while !formatter.is_done() {
            self.buffer.clear();
            let before = self.file.offset();
            if self.file.read(&mut self.buffer).await? > 0 {
                if self.follow.is_none() {
                    let left = self.end.saturating_sub(before);
                    self.buffer
                        .truncate(usize::try_from(left).unwrap_or(usize::MAX));
                }
                formatter.push(&self.buffer, &mut out);
                if !out.is_empty() {
                    return Ok(Some(out.freeze()));
                }
                if self.follow.is_some() || self.file.offset() < self.end {
                    continue;
                }
            }
            if self.follow.is_none() {
                return Ok(None);
            }
            if self.is_more().await? {
                continue;
            }
            if self.advance().await? {
                formatter.forget();
                continue;
            }
            match &mut self.follow {
                Some(follow) if !follow.ended => follow.wait().await,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// At the end of the file: whether it is to be read again, because it was cut short or for a last time.
    async fn is_more(&mut self) -> io::Result<bool> {
        if self.file.is_cut().await? {
            self.file.seek(0).await?;
            return Ok(true);
        }
        if !self.superseded
            && self.younger.is_empty()
            && self.file.is_superseded(&self.path).await?
        {
            // Something may have been written between the last read and the renaming.
            self.superseded = true;
            return Ok(true);
        }
        Ok(false)
    }

    /// Goes on to the next file, if there is one.
    async fn advance(&mut self) -> io::Result<bool> {
        if self.superseded {
            self.superseded = false;
            self.younger = self.file.successors(&self.path).await?.into();
        }
        let Some(next) = self.younger.pop_front() else {
            return Ok(false);
        };
        self.file = next;
        Ok(true)
    }
}

impl Follow {
    /// Waits until there is a reason to look at the file again.
    async fn wait(&mut self) {
        loop {
            tokio::select! {
                () = self.changes.changed() => return,
                () = self.stopped.cancelled() => self.ended = true,
                ring = self.doorbell.recv() => match ring {
                    Ok(pod) if pod != self.pod => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => self.look().await,
                    Err(RecvError::Closed) => self.ended = true,
                },
                () = tokio::time::sleep(RELIST) => self.look().await,
            }
            if self.ended {
                return;
            }
        }
    }

    /// Looks whether the container still runs. One that the runtime cannot be asked about is taken to run.
    async fn look(&mut self) {
        let Ok(view) = self.runtime.pod_view(&self.pod).await else {
            return;
        };
        let container = view
            .containers
            .iter()
            .find(|found| found.id == self.container);
        self.ended = !container.is_some_and(|found| {
            matches!(
                found.state,
                ContainerState::Created | ContainerState::Running
            )
        });
    }
}
