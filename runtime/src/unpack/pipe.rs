//! The stages from compressed bytes to a tar stream, each on a blocking thread of its own.
//!
//! Inflating is the slowest by far, so hashing and writing happen beside it. The queues between the stages
//! are short: a slow disk slows the network down and memory stays where it is. A stage whose neighbour is
//! gone stops, and all of them when nobody waits for what they make; a stream counts as whole only when its [`Piece::End`] arrives.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::content::{self, ContentStore, Digest, Hasher, Ingest};

/// Size of a piece of inflated data.
const PIECE: usize = 256 << 10;
/// Pieces in flight between two stages.
const QUEUE: usize = 4;
/// A layer may expand this much beyond [`FREE_EXPANSION`]; what compilers and package managers make stays below 20.
const MAX_RATIO: u64 = 200;
/// Expansion that is never called a bomb.
const FREE_EXPANSION: u64 = 1 << 30;
/// When unpacking has failed, this much more is still read to learn whether the bytes were right at all.
const CONCLUDE: u64 = 64 << 20;

/// A part of a stream.
#[derive(Debug)]
pub enum Piece {
    /// Some bytes.
    Data(Bytes),
    /// The stream ended as it should. Without it, it was cut.
    End,
}

/// Why a stage failed.
#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    /// The blob is wrong, or cannot be stored or read.
    #[error(transparent)]
    Content(#[from] content::ContentError),
    /// The blob has another size than its descriptor says.
    #[error("blob {digest} has {got} bytes or more, its descriptor says {want}")]
    Size {
        /// Which.
        digest: Digest,
        /// By descriptor.
        want: u64,
        /// In fact; may be cut short.
        got: u64,
    },
    /// The compressed data is bad.
    #[error("failed to decompress the layer")]
    Inflate(#[source] io::Error),
    /// The data expands beyond reason.
    #[error("the layer expands to more than {0} bytes")]
    Bomb(u64),
    /// The neighbour stage is gone; its error is the one to report.
    #[error("interrupted")]
    Interrupted,
    /// A stage panicked, which none should.
    #[error("a stage of unpacking failed")]
    Join(#[from] tokio::task::JoinError),
}

/// A blob that is fetched now, and how its bytes arrive.
#[derive(Debug)]
pub struct Incoming {
    /// The bytes.
    pub pieces: tokio::sync::mpsc::Receiver<Piece>,
    /// Where they are stored.
    pub ingest: Ingest,
    /// What they must hash to.
    pub digest: Digest,
    /// How many they must be.
    pub size: u64,
}

/// Where a layer's compressed bytes come from.
#[derive(Debug)]
pub enum Source {
    /// They are being fetched, and stored on the way.
    Incoming(Incoming),
    /// They are in the content store.
    Stored(ContentStore, Digest),
}

/// Stores a blob as it arrives.
pub async fn store(incoming: Incoming) -> Result<(), PipeError> {
    spawn_blocking(move || receive(incoming, None)).await?
}

/// Feeds a layer to `sink` as an uncompressed stream. Returns what the sink made and the digest of the
/// uncompressed stream, once the blob itself proved right. `max_bytes` bounds the uncompressed size. Dropped, it stops.
pub async fn run<T, E, F>(
    source: Source,
    max_bytes: u64,
    sink: F,
) -> Result<Result<(T, Digest), E>, PipeError>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnOnce(&mut dyn BufRead) -> Result<T, E> + Send + 'static,
{
    let (blob_tx, blob_rx) = sync_channel(QUEUE);
    let (tar_tx, tar_rx) = sync_channel(QUEUE);
    let abandoned = CancellationToken::new();
    let _waiting = abandoned.clone().drop_guard();
    let first = spawn_blocking(move || match source {
        Source::Incoming(incoming) => receive(incoming, Some(&blob_tx)),
        Source::Stored(store, digest) => reread(&store, &digest, &blob_tx, &abandoned),
    });
    let second = spawn_blocking(move || inflate(blob_rx, &tar_tx, max_bytes));
    let third = spawn_blocking(move || {
        let mut reader = Hashing {
            inner: Pieces::new(tar_rx),
            hasher: Hasher::default(),
        };
        sink(&mut reader).map(|made| (made, reader.hasher.finish()))
    });
    let (first, second, third) = tokio::join!(first, second, third);
    // The first stage that failed by itself has the reason; the others only saw it go.
    for stage in [first?, second?] {
        match stage {
            Err(PipeError::Interrupted) | Ok(()) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(third?)
}

/// First stage for a blob that arrives: check its size, hash it, store it, pass it on.
fn receive(mut incoming: Incoming, forward: Option<&SyncSender<Piece>>) -> Result<(), PipeError> {
    let mut forward = forward;
    let mut interrupted = false;
    while let Some(piece) = incoming.pieces.blocking_recv() {
        let Piece::Data(bytes) = piece else {
            return conclude(incoming, forward, interrupted);
        };
        let got = incoming.ingest.size() + bytes.len() as u64;
        if got > incoming.size {
            return Err(PipeError::Size {
                digest: incoming.digest,
                want: incoming.size,
                got,
            });
        }
        incoming.ingest.write(&bytes)?;
        if let Some(next) = forward
            && next.send(Piece::Data(bytes)).is_err()
        {
            interrupted = true;
            forward = None;
        }
        if interrupted && incoming.size - got > CONCLUDE {
            return Err(PipeError::Interrupted);
        }
    }
    Err(PipeError::Interrupted)
}

fn conclude(
    incoming: Incoming,
    forward: Option<&SyncSender<Piece>>,
    interrupted: bool,
) -> Result<(), PipeError> {
    let got = incoming.ingest.size();
    if got != incoming.size {
        return Err(PipeError::Size {
            digest: incoming.digest,
            want: incoming.size,
            got,
        });
    }
    incoming.ingest.finish(&incoming.digest)?;
    if interrupted {
        return Err(PipeError::Interrupted);
    }
    match forward {
        Some(next) => next.send(Piece::End).map_err(|_| PipeError::Interrupted),
        None => Ok(()),
    }
}

/// First stage for a stored blob: read it, hash it again, pass it on.
fn reread(
    store: &ContentStore,
    digest: &Digest,
    forward: &SyncSender<Piece>,
    abandoned: &CancellationToken,
) -> Result<(), PipeError> {
    let mut file = store.reader(digest)?;
    let mut hasher = Hasher::default();
    let mut forwarding = true;
    loop {
        if abandoned.is_cancelled() {
            return Err(PipeError::Interrupted);
        }
        let mut buffer = vec![0; PIECE];
        let n = file
            .read(&mut buffer)
            .map_err(content::ContentError::io("read", &store.path(digest)))?;
        if n == 0 {
            break;
        }
        buffer.truncate(n);
        hasher.update(&buffer);
        forwarding = forwarding && forward.send(Piece::Data(buffer.into())).is_ok();
    }
    store.check(digest, hasher.finish())?;
    if !forwarding {
        return Err(PipeError::Interrupted);
    }
    forward.send(Piece::End).map_err(|_| PipeError::Interrupted)
}

/// Second stage. What the data is, its first bytes say; the media type may be wrong.
fn inflate(from: Receiver<Piece>, to: &SyncSender<Piece>, max_bytes: u64) -> Result<(), PipeError> {
    let taken = Arc::new(AtomicU64::new(0));
    let input = Counting {
        inner: Pieces::new(from),
        taken: Arc::clone(&taken),
    };
    let mut decoder = decoder(input).map_err(PipeError::Inflate)?;
    let mut total = 0_u64;
    loop {
        let mut buffer = vec![0; PIECE];
        let n = fill(&mut decoder, &mut buffer).map_err(PipeError::Inflate)?;
        if n == 0 {
            return to.send(Piece::End).map_err(|_| PipeError::Interrupted);
        }
        total += n as u64;
        let allowed = FREE_EXPANSION + taken.load(Ordering::Relaxed).saturating_mul(MAX_RATIO);
        if total > allowed.min(max_bytes) {
            return Err(PipeError::Bomb(allowed.min(max_bytes)));
        }
        buffer.truncate(n);
        to.send(Piece::Data(buffer.into()))
            .map_err(|_| PipeError::Interrupted)?;
    }
}

/// A decompressor for whatever `input` is: gzip (several members), zstd (several frames) or plain.
pub(crate) fn decoder<'a>(mut input: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    // A piece may be shorter than the magic; joining the first bytes makes the look safe.
    let mut head = Vec::new();
    while head.len() < 4 {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            break;
        }
        let n = buffer.len().min(4 - head.len());
        head.extend_from_slice(&buffer[..n]);
        input.consume(n);
    }
    let gzip = head.starts_with(&[0x1f, 0x8b]);
    let zstd = head == [0x28, 0xb5, 0x2f, 0xfd];
    let whole = Read::chain(io::Cursor::new(head), input);
    Ok(match (gzip, zstd) {
        (true, _) => Box::new(MultiGzDecoder::new(whole)),
        (_, true) => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
        _ => Box::new(whole),
    })
}

fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Reads what comes through a queue.
struct Pieces {
    from: Receiver<Piece>,
    current: Bytes,
    ended: bool,
}

impl Pieces {
    fn new(from: Receiver<Piece>) -> Self {
        Self {
            from,
            current: Bytes::new(),
            ended: false,
        }
    }
}

impl BufRead for Pieces {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty() && !self.ended {
            match self.from.recv() {
                Ok(Piece::Data(bytes)) => self.current = bytes,
                Ok(Piece::End) => self.ended = true,
                Err(_) => return Err(io::Error::new(io::ErrorKind::BrokenPipe, "stream cut")),
            }
        }
        Ok(&self.current)
    }

    fn consume(&mut self, n: usize) {
        self.current.advance(n);
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buffer)?;
        self.consume(n);
        Ok(n)
    }
}

/// Counts what is consumed.
struct Counting {
    inner: Pieces,
    taken: Arc<AtomicU64>,
}

impl BufRead for Counting {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.taken.fetch_add(n as u64, Ordering::Relaxed);
        self.inner.consume(n);
    }
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buffer)?;
        self.consume(n);
        Ok(n)
    }
}

/// Hashes what is consumed.
struct Hashing {
    inner: Pieces,
    hasher: Hasher,
}

impl BufRead for Hashing {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.hasher.update(&self.inner.current[..n]);
        self.inner.consume(n);
    }
}

impl Read for Hashing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buffer)?;
        self.consume(n);
        Ok(n)
    }
}
