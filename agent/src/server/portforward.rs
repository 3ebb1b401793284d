//! `/portForward/{namespace}/{pod}[/{uid}]`: connections of a client to ports of a pod.
//!
//! SPDY in both forms, directly and inside WebSocket messages. Each connection is a pair of streams, data and
//! error, with the same request id. One that fails is told so on its error stream and harms no other.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt, TryStreamExt};
use hanok_runtime::api::{self, Connection as PodConnection, RuntimeService, SandboxId};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::task::JoinSet;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::route::App;
use super::spdy::frame::Reset;
use super::spdy::{Connection, Stream};
use super::streams::negotiate::{self, Carrier};
use super::streams::websocket::MAX_MESSAGE;
use super::streams::{Activity, Gone};
use super::target::{PodPath, Refusal, find_sandbox};

/// The protocol inside SPDY.
const PROTOCOL: &str = "portforward.k8s.io";

/// The WebSocket protocol that carries SPDY.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// Streams that may wait for their other half.
const MAX_UNPAIRED: usize = 256;

/// Bytes read from a pod at a time.
const PIECE: usize = 32 << 10;

/// Answers with the upgrade and forwards behind it.
pub(super) async fn port_forward(
    State(app): State<App>,
    Path(path): Path<PodPath>,
    request: Request,
) -> Response {
    upgrade(app, path, request).await.unwrap_or_else(|no| no)
}

async fn upgrade(app: App, path: PodPath, request: Request) -> Result<Response, Response> {
    let sandbox = find_sandbox(&app, &path)
        .await
        .map_err(IntoResponse::into_response)?;
    match negotiate::carrier(request.headers()).map_err(IntoResponse::into_response)? {
        Carrier::Spdy => {
            let protocol = negotiate::spdy_protocol(request.headers(), &[PROTOCOL])
                .map_err(IntoResponse::into_response)?;
            let forward = app.clone();
            tokio::spawn(app.stream(async move {
                match hyper::upgrade::on(request).await {
                    Ok(upgraded) => serve(forward, sandbox, TokioIo::new(upgraded)).await,
                    Err(error) => tracing::debug!(%error, "a port-forward was not upgraded"),
                }
            }));
            Ok(negotiate::switch_to_spdy(protocol))
        }
        Carrier::WebSocket => {
            let (mut parts, _) = request.into_parts();
            let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
                .await
                .map_err(IntoResponse::into_response)?
                .protocols([TUNNEL])
                .max_message_size(MAX_MESSAGE)
                .max_frame_size(MAX_MESSAGE);
            if upgrade.selected_protocol().is_none() {
                let message = format!("port-forward by WebSocket needs the protocol {TUNNEL}");
                return Err(Refusal::bad_request(message).into_response());
            }
            Ok(upgrade.on_upgrade(move |socket| {
                let forward = app.clone();
                app.stream(async move { serve(forward, sandbox, tunnel(socket)).await })
            }))
        }
    }
}

/// A WebSocket as a plain connection of bytes.
fn tunnel(socket: WebSocket) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static {
    let (sender, receiver) = socket.split();
    let bytes = receiver
        .map_err(io::Error::other)
        .try_filter_map(async |message| {
            Ok(match message {
                Message::Binary(bytes) => Some(bytes),
                Message::Text(text) => Some(Bytes::from(text)),
                _ => None,
            })
        });
    let sink = sender
        .sink_map_err(io::Error::other)
        .with(async |bytes: Bytes| Ok::<Message, io::Error>(Message::Binary(bytes)));
    tokio::io::join(
        StreamReader::new(Box::pin(bytes)),
        SinkWriter::new(CopyToBytes::new(Box::pin(sink))),
    )
}

/// Forwards until the client hangs up or is silent for too long.
async fn serve<T>(app: App, sandbox: SandboxId, io: T)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let activity = Activity::new();
    let mut connection = Connection::start(io, activity.clone());
    let gone = connection.gone.clone();
    let work = async {
        let mut pairs = Pairs::default();
        let mut forwards = JoinSet::new();
        loop {
            tokio::select! {
                stream = connection.streams.recv() => {
                    let Some(stream) = stream else { return };
                    if let Some(pair) = pairs.add(stream).await {
                        forwards.spawn(forward(app.deps.runtime.clone(), sandbox.clone(), pair));
                    }
                }
                Some(_) = forwards.join_next() => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = gone.cancelled() => {}
        () = activity.silence(app.config.stream_idle_timeout) => {
            tracing::info!(%sandbox, "closing a silent port-forward");
        }
    }
}

/// The two streams of one forwarded connection.
#[derive(Debug)]
struct Pair {
    port: u16,
    data: Stream,
    error: Stream,
}

/// Streams that wait for their other half, by request id.
#[derive(Debug, Default)]
struct Pairs(HashMap<String, Stream>);

impl Pairs {
    /// Takes a stream; returns a pair when it completes one. Refuses what makes no sense.
    async fn add(&mut self, stream: Stream) -> Option<Pair> {
        self.0.retain(|_, waiting| !waiting.reset.is_cancelled());
        let kind = stream.header("streamtype");
        let port = stream.header("port").parse().unwrap_or(0_u16);
        let id = stream.header("requestid").to_owned();
        if !matches!(kind, "data" | "error") || port == 0 || self.0.len() >= MAX_UNPAIRED {
            let _ = stream.writer.reset(Reset::ProtocolError).await;
            return None;
        }
        let Some(other) = self.0.remove(&id) else {
            self.0.insert(id, stream);
            return None;
        };
        match (stream.header("streamtype"), other.header("streamtype")) {
            ("data", "error") => Some(Pair {
                port,
                data: stream,
                error: other,
            }),
            ("error", "data") => Some(Pair {
                port,
                data: other,
                error: stream,
            }),
            _ => {
                let _ = stream.writer.reset(Reset::ProtocolError).await;
                self.0.insert(id, other);
                None
            }
        }
    }
}

/// Serves one connection to the pod.
///
/// Clients wait for the end of the error stream whatever happens, and take text on it for the end of the whole
/// session. So a pod that refuses a connection just gets its stream reset; text is for a pod that is gone.
async fn forward(runtime: Arc<dyn RuntimeService>, sandbox: SandboxId, pair: Pair) {
    let Pair { port, data, error } = pair;
    let reset = data.reset.clone();
    let work = async {
        match runtime.connect(&sandbox, port).await {
            Ok(connection) => copy(connection, data).await,
            Err(cause) => {
                tracing::info!(%sandbox, port, error = %cause, "cannot forward a connection");
                if matches!(cause, api::Error::NotFound { .. }) {
                    let text = format!("error forwarding port {port} to pod {sandbox}: {cause}");
                    error.writer.send(text.into()).await?;
                }
                data.writer.reset(Reset::Cancel).await
            }
        }
    };
    tokio::select! {
        _ = work => {}
        () = reset.cancelled() => {}
    }
    let _ = error.writer.finish().await;
}

/// Moves bytes both ways, half closes too. A reset of the pod's side resets the stream.
async fn copy(connection: Box<dyn PodConnection>, stream: Stream) -> Result<(), Gone> {
    let Stream {
        mut data, writer, ..
    } = stream;
    let (mut from_pod, mut to_pod): (ReadHalf<_>, WriteHalf<_>) = tokio::io::split(connection);
    // Owns the queue: once the pod takes no more, the rest must not hold up the whole connection.
    let inward = async move {
        while let Some(piece) = data.recv().await {
            if to_pod.write_all(&piece).await.is_err() {
                // The pod does not read any more; what it still writes is wanted all the same.
                return;
            }
        }
        let _ = to_pod.shutdown().await;
    };
    let outward = async {
        let mut buffer = BytesMut::with_capacity(PIECE);
        loop {
            buffer.reserve(PIECE);
            match from_pod.read_buf(&mut buffer).await {
                Ok(0) => return writer.finish().await,
                Ok(_) => writer.send(buffer.split().freeze()).await?,
                Err(_) => return writer.reset(Reset::Cancel).await,
            }
        }
    };
    let ((), sent) = tokio::join!(inward, outward);
    sent
}
