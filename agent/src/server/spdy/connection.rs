//! One SPDY connection: a task that reads frames and hands out streams, and a task that writes frames.
//!
//! Both tasks end when the [`Connection`]'s guards are dropped. All queues are bounded: a stream that nobody reads
//! holds up the connection, as it does in the peers' implementation, and costs no memory.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::streams::{AbortOnDrop, Activity, Gone, INPUT_QUEUE};
use super::frame::{self, Control, Decoder, Encoder, Head, ProtocolError, Reset};
use super::headers::Headers;

/// Most streams open at once: two for each of a thousand forwarded connections.
const MAX_STREAMS: usize = 2048;

/// Largest piece of data that is passed on, bytes.
const PIECE: usize = 32 << 10;

/// Frames that may wait to be written.
const WRITE_QUEUE: usize = 16;

/// Bytes gathered before they are written.
const GATHER: usize = 64 << 10;

/// A stream that the client has opened.
#[derive(Debug)]
pub(in super::super) struct Stream {
    /// Headers of its opening; names in lower case.
    pub(in super::super) headers: Headers,
    /// What the client sends; the end of the queue is the client's half close.
    pub(in super::super) data: mpsc::Receiver<Bytes>,
    /// The way back.
    pub(in super::super) writer: Writer,
    /// Cancelled when the client resets the stream, or the connection ends.
    pub(in super::super) reset: CancellationToken,
}

impl Stream {
    /// The value of a header; empty when there is none.
    pub(in super::super) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }
}

/// Writes to one stream.
#[derive(Debug, Clone)]
pub(in super::super) struct Writer {
    stream: u32,
    orders: mpsc::Sender<Order>,
}

impl Writer {
    /// Sends data; waits while the client is slow.
    pub(in super::super) async fn send(&self, data: Bytes) -> Result<(), Gone> {
        self.order(Order::Data {
            stream: self.stream,
            data,
            fin: false,
        })
        .await
    }

    /// Half-closes the stream.
    pub(in super::super) async fn finish(&self) -> Result<(), Gone> {
        self.order(Order::Data {
            stream: self.stream,
            data: Bytes::new(),
            fin: true,
        })
        .await
    }

    /// Ends the stream at once.
    pub(in super::super) async fn reset(&self, reason: Reset) -> Result<(), Gone> {
        self.order(Order::Reset {
            stream: self.stream,
            reason,
        })
        .await
    }

    async fn order(&self, order: Order) -> Result<(), Gone> {
        self.orders.send(order).await.map_err(|_| Gone)
    }
}

/// Ends the connection once everything written before has been sent.
#[derive(Debug, Clone)]
pub(in super::super) struct Closer(mpsc::Sender<Order>);

impl Closer {
    /// Says goodbye and half-closes.
    pub(in super::super) async fn close(&self) -> Result<(), Gone> {
        self.0
            .send(Order::GoAway { status: 0 })
            .await
            .map_err(|_| Gone)
    }
}

/// Something to write.
#[derive(Debug)]
enum Order {
    Reply { stream: u32 },
    Data { stream: u32, data: Bytes, fin: bool },
    Reset { stream: u32, reason: Reset },
    Pong { id: u32 },
    GoAway { status: u32 },
}

/// A running connection.
#[derive(Debug)]
pub(in super::super) struct Connection {
    /// Streams as the client opens them. Dropping the queue refuses further ones.
    pub(in super::super) streams: mpsc::Receiver<Stream>,
    /// Ends it well.
    pub(in super::super) closer: Closer,
    /// Cancelled when the client is gone.
    pub(in super::super) gone: CancellationToken,
    /// The two tasks.
    pub(in super::super) tasks: [AbortOnDrop; 2],
}

impl Connection {
    /// Starts to speak SPDY on an open connection.
    pub(in super::super) fn start<T>(io: T, activity: Arc<Activity>) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (read, write) = tokio::io::split(io);
        let (orders, orders_end) = mpsc::channel(WRITE_QUEUE);
        let (accepted, streams) = mpsc::channel(WRITE_QUEUE);
        let gone = CancellationToken::new();
        let reader = Reader {
            decoder: Decoder::new(),
            orders: orders.clone(),
            accepted,
            open: HashMap::new(),
            last: 0,
            gone: gone.clone(),
            activity: activity.clone(),
        };
        let reading = tokio::spawn(reader.run(BufReader::with_capacity(PIECE, read)));
        let writing = {
            let gone = gone.clone();
            tokio::spawn(async move {
                if write_frames(write, orders_end, &activity).await.is_err() {
                    gone.cancel();
                }
            })
        };
        Self {
            streams,
            closer: Closer(orders),
            gone,
            tasks: [
                AbortOnDrop(reading.abort_handle()),
                AbortOnDrop(writing.abort_handle()),
            ],
        }
    }
}

/// Why reading ended early.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// A stream as the reader knows it.
#[derive(Debug)]
struct Incoming {
    data: mpsc::Sender<Bytes>,
    reset: CancellationToken,
}

/// Reads frames.
struct Reader {
    decoder: Decoder,
    orders: mpsc::Sender<Order>,
    accepted: mpsc::Sender<Stream>,
    /// Streams that the client still sends on.
    open: HashMap<u32, Incoming>,
    /// The newest stream's id.
    last: u32,
    gone: CancellationToken,
    activity: Arc<Activity>,
}

impl Reader {
    /// Until the client hangs up or does what it must not.
    async fn run<T: AsyncRead + Send>(mut self, mut input: BufReader<ReadHalf<T>>) {
        let _guard = self.gone.clone().drop_guard();
        match self.frames(&mut input).await {
            Ok(()) | Err(ReadError::Io(_) | ReadError::Gone(_)) => {}
            Err(ReadError::Protocol(error)) => {
                tracing::debug!(%error, "closing a SPDY connection");
                let _ = self.orders.send(Order::GoAway { status: 1 }).await;
            }
        }
    }

    async fn frames<T: AsyncRead>(
        &mut self,
        input: &mut BufReader<ReadHalf<T>>,
    ) -> Result<(), ReadError> {
        loop {
            let mut head = [0; 8];
            input.read_exact(&mut head).await?;
            self.activity.touch();
            match Head::parse(head)? {
                Head::Control {
                    kind,
                    flags,
                    length,
                } => {
                    let mut payload = vec![0; length];
                    input.read_exact(&mut payload).await?;
                    let control = self.decoder.control(kind, flags, &payload)?;
                    self.control(control).await?;
                }
                Head::Data {
                    stream,
                    fin,
                    length,
                } => {
                    self.data(stream, length, input).await?;
                    if fin {
                        self.open.remove(&stream);
                    }
                }
            }
        }
    }

    async fn control(&mut self, control: Control) -> Result<(), ReadError> {
        match control {
            Control::Open {
                stream,
                fin,
                headers,
            } => self.accept(stream, fin, headers).await,
            Control::Reset { stream } => {
                if let Some(incoming) = self.open.remove(&stream) {
                    incoming.reset.cancel();
                }
                Ok(())
            }
            Control::More { stream, fin: true } => {
                self.open.remove(&stream);
                Ok(())
            }
            // Even ids are pings of ours; we send none.
            Control::Ping { id } if id % 2 == 1 => self.order(Order::Pong { id }).await,
            _ => Ok(()),
        }
    }

    async fn accept(&mut self, id: u32, fin: bool, headers: Headers) -> Result<(), ReadError> {
        if id.is_multiple_of(2) || id <= self.last {
            return Err(ProtocolError("stream id out of order").into());
        }
        self.last = id;
        if self.open.len() >= MAX_STREAMS || self.accepted.is_closed() {
            return self
                .order(Order::Reset {
                    stream: id,
                    reason: Reset::Refused,
                })
                .await;
        }
        let (sender, data) = mpsc::channel(INPUT_QUEUE);
        let reset = self.gone.child_token();
        if !fin {
            self.open.insert(
                id,
                Incoming {
                    data: sender,
                    reset: reset.clone(),
                },
            );
        }
        self.order(Order::Reply { stream: id }).await?;
        let writer = Writer {
            stream: id,
            orders: self.orders.clone(),
        };
        // Nobody takes it when the session ends just now; then the connection ends, too.
        let _ = self
            .accepted
            .send(Stream {
                headers,
                data,
                writer,
                reset,
            })
            .await;
        Ok(())
    }

    /// Passes a data frame's payload on, piece by piece.
    async fn data<T: AsyncRead>(
        &mut self,
        stream: u32,
        length: usize,
        input: &mut BufReader<ReadHalf<T>>,
    ) -> Result<(), ReadError> {
        if stream.is_multiple_of(2) || stream > self.last {
            self.order(Order::Reset {
                stream,
                reason: Reset::InvalidStream,
            })
            .await?;
        }
        let mut left = length;
        while left > 0 {
            let mut piece = BytesMut::zeroed(left.min(PIECE));
            input.read_exact(&mut piece).await?;
            left -= piece.len();
            if let Some(incoming) = self.open.get(&stream)
                && incoming.data.send(piece.freeze()).await.is_err()
            {
                self.open.remove(&stream);
            }
        }
        Ok(())
    }

    async fn order(&self, order: Order) -> Result<(), ReadError> {
        self.orders
            .send(order)
            .await
            .map_err(|_| ReadError::Gone(Gone))
    }
}

/// Writes frames until told to stop; gathers small ones.
async fn write_frames<T: AsyncWrite>(
    mut output: WriteHalf<T>,
    mut orders: mpsc::Receiver<Order>,
    activity: &Activity,
) -> io::Result<()> {
    let mut encoder = Encoder::new();
    let mut buffer = BytesMut::new();
    let mut last = 0;
    while let Some(first) = orders.recv().await {
        let mut next = Some(first);
        let mut goodbye = false;
        while let Some(order) = next {
            if let Order::Reply { stream } = order {
                last = stream;
            }
            goodbye = matches!(order, Order::GoAway { .. });
            encode(&mut encoder, order, last, &mut buffer)?;
            next = if goodbye || buffer.len() >= GATHER {
                None
            } else {
                orders.try_recv().ok()
            };
        }
        output.write_all(&buffer).await?;
        output.flush().await?;
        activity.touch();
        buffer.clear();
        if goodbye {
            return output.shutdown().await;
        }
    }
    Ok(())
}

fn encode(encoder: &mut Encoder, order: Order, last: u32, buffer: &mut BytesMut) -> io::Result<()> {
    match order {
        Order::Reply { stream } => encoder.reply(stream, buffer).map_err(io::Error::other)?,
        Order::Data { stream, data, fin } => {
            frame::data(stream, fin, data.len(), buffer);
            buffer.extend_from_slice(&data);
        }
        Order::Reset { stream, reason } => frame::reset(stream, reason, buffer),
        Order::Pong { id } => frame::ping(id, buffer),
        Order::GoAway { status } => frame::go_away(last, status, buffer),
    }
    Ok(())
}
