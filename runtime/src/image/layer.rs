//! Gets layers into the content store and unpacks them: each once, side by side, in one pass.
//!
//! A layer is unpacked while it is fetched and while the layers below it are; only its commit waits for
//! them. Whoever asks for a layer that somebody else is busy with waits for that one.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::flight::Flight;
use super::store::Layer;
use super::{Core, ImageError, SharedError};
use crate::content::{self, Digest};
use crate::registry::Session;
use crate::snapshot::{self, ChainId, Draft, Key, Settled, chain_ids};
use crate::unpack::pipe::{self, Incoming, Piece, Source};

/// Pieces between the network and the disk.
const QUEUE: usize = 8;

/// Where layers come from when they are not in the content store.
pub(crate) type Origin = Option<Arc<Session>>;

type Outcome = Result<(), SharedError>;

/// Brings all layers (bottom first) here; unpacked if `unpack`, else as blobs only.
pub(crate) async fn bring(
    core: &Arc<Core>,
    layers: &[Layer],
    origin: &Origin,
    unpack: bool,
) -> Outcome {
    let (flights, shared) = begin(core, layers, origin, unpack);
    let outcome = try_join_all(flights).await;
    if outcome.is_ok() || !shared {
        return outcome.map(drop);
    }
    // Somebody else's attempt failed, perhaps for want of what we have: credentials, or an origin at all.
    try_join_all(begin(core, layers, origin, unpack).0)
        .await
        .map(drop)
}

/// The layers' flights, and whether some were begun by others.
fn begin(
    core: &Arc<Core>,
    layers: &[Layer],
    origin: &Origin,
    unpack: bool,
) -> (Vec<Flight<Outcome>>, bool) {
    let diffs: Vec<Digest> = layers.iter().map(|layer| layer.diff_id).collect();
    let chain = chain_ids(&diffs);
    let mut flights: Vec<Flight<Outcome>> = Vec::new();
    let mut shared = false;
    for (index, layer) in layers.iter().enumerate() {
        let job = Job {
            core: Arc::clone(core),
            layer: *layer,
            origin: origin.clone(),
            chain: chain[index],
            below: chain[..index].iter().rev().copied().collect(),
            parent: flights.last().cloned(),
        };
        let key = (unpack, if unpack { chain[index] } else { layer.blob });
        let (flight, begun) = core.layers.join(key, || job.run(unpack));
        shared |= !begun;
        flights.push(flight);
    }
    (flights, shared)
}

/// One layer's way.
struct Job {
    core: Arc<Core>,
    layer: Layer,
    origin: Origin,
    chain: ChainId,
    /// Layers below, topmost first.
    below: Vec<ChainId>,
    parent: Option<Flight<Outcome>>,
}

impl Job {
    fn run(self, unpack: bool) -> BoxFuture<'static, Outcome> {
        let span = tracing::info_span!("image.layer", blob = %self.layer.blob, unpack);
        let work = async move {
            let done = if unpack {
                self.unpack().await
            } else {
                self.fetch().await
            };
            done.map_err(Arc::new)
        };
        // A task of its own, which ends with the flight: a layer that polled the one below it, and that one the
        // next, would need a stack as deep as the image.
        let task = AbortOnDropHandle::new(tokio::spawn(work.instrument(span)));
        async move {
            task.await
                .unwrap_or_else(|error| Err(Arc::new(error.into())))
        }
        .boxed()
    }

    fn is_stored(&self) -> bool {
        self.core.content.size(&self.layer.blob) == Some(self.layer.size)
    }

    /// Stores the blob.
    async fn fetch(self) -> Result<(), ImageError> {
        if self.is_stored() {
            return Ok(());
        }
        let _permit = self.core.permit().await?;
        let session = self.session()?;
        let (incoming, sink) = self.incoming().await?;
        let fetched = session.blob(&self.layer.blob, self.layer.size, sink);
        let (fetched, stored) = tokio::join!(fetched, pipe::store(incoming));
        first_cause(
            fetched.map_err(ImageError::from),
            stored.map_err(ImageError::from),
        )
    }

    /// Stores the blob unless it is here, and unpacks it.
    async fn unpack(self) -> Result<(), ImageError> {
        let snapshotter = Arc::clone(&self.core.snapshotter);
        if snapshotter.usage(Key::Layer(&self.chain)).is_ok() {
            return Ok(());
        }
        let permit = self.core.permit().await?;
        let draft = match self.draft(None).await {
            // The corrupt blob was set aside; a registry can give it once more.
            Err(ImageError::Pipe(pipe::PipeError::Content(content::ContentError::Corrupt {
                ..
            }))) if self.origin.is_some() => self.draft(None).await?,
            other => other?,
        };
        drop(permit);
        if let Some(parent) = &self.parent {
            parent.clone().await.map_err(ImageError::Shared)?;
        }
        if self.commit(draft).await? == Settled::NeedsBelow {
            let draft = self.draft(Some(self.below.clone())).await?;
            self.commit(draft).await?;
        }
        Ok(())
    }

    async fn commit(&self, draft: Draft) -> Result<Settled, ImageError> {
        let (chain, below) = (self.chain, self.below.clone());
        let snapshotter = Arc::clone(&self.core.snapshotter);
        let commit = spawn_blocking(move || snapshotter.commit(draft, &chain, &below));
        Ok(commit.await??)
    }

    /// Unpacks, from the content store or straight from the registry, and checks the diff id.
    async fn draft(&self, below: Option<Vec<ChainId>>) -> Result<Draft, ImageError> {
        let snapshotter = Arc::clone(&self.core.snapshotter);
        let sink = move |tar: &mut dyn std::io::BufRead| snapshotter.unpack(tar, below.as_deref());
        let max = self.core.limits.bytes;
        let made: Result<(Draft, Digest), snapshot::SnapshotError> = if self.is_stored() {
            let source = Source::Stored(self.core.content.clone(), self.layer.blob);
            pipe::run(source, max, sink).await?
        } else {
            let session = self.session()?;
            let (incoming, pieces) = self.incoming().await?;
            let fetched = session.blob(&self.layer.blob, self.layer.size, pieces);
            let unpacked = pipe::run(Source::Incoming(incoming), max, sink);
            let (fetched, unpacked) = tokio::join!(fetched, unpacked);
            match (fetched, unpacked) {
                (_, Ok(Err(unpack))) if !is_cut(&unpack) => return Err(unpack.into()),
                (Err(fetch), Err(pipe::PipeError::Interrupted) | Ok(_)) => return Err(fetch.into()),
                (_, unpacked) => unpacked?,
            }
        };
        let (draft, diff_id) = made?;
        if diff_id != self.layer.diff_id {
            return Err(ImageError::DiffId {
                blob: self.layer.blob,
                want: self.layer.diff_id,
                got: diff_id,
            });
        }
        Ok(draft)
    }

    fn session(&self) -> Result<Arc<Session>, ImageError> {
        let missing = content::ContentError::Missing(self.layer.blob);
        self.origin.clone().ok_or(ImageError::Content(missing))
    }

    async fn incoming(&self) -> Result<(Incoming, mpsc::Sender<Piece>), ImageError> {
        let content = self.core.content.clone();
        let ingest = spawn_blocking(move || content.ingest()).await??;
        let (sink, pieces) = mpsc::channel(QUEUE);
        let Layer {
            blob: digest, size, ..
        } = self.layer;
        Ok((
            Incoming {
                pieces,
                ingest,
                digest,
                size,
            },
            sink,
        ))
    }
}

/// Of a fetch and what consumed it: the one that failed by itself.
fn first_cause(
    fetched: Result<(), ImageError>,
    used: Result<(), ImageError>,
) -> Result<(), ImageError> {
    match used {
        Err(ImageError::Pipe(pipe::PipeError::Interrupted)) => fetched.and(used),
        other => other,
    }
}

/// Whether unpacking failed only because its stream was cut.
fn is_cut(error: &snapshot::SnapshotError) -> bool {
    use crate::unpack::{UnpackError as Unpack, tar};
    let snapshot::SnapshotError::Unpack(Unpack::Tar(tar::TarError::Read(source))) = error else {
        return false;
    };
    source.kind() == std::io::ErrorKind::BrokenPipe
}
