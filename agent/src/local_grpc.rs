//! gRPC for programs on this machine: a unix socket below the root directory, tonic's protocol, axum's routes.
//!
//! Whoever may open the socket is root or of its group, but may be broken: connections, calls and what a call sends are
//! bounded, so that the worst that a client can do is to keep others from this one socket.

#[cfg(test)]
pub(crate) mod testing;

use std::fs::{self, DirBuilder};
use std::future::ready;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::middleware::Next;
use http_body_util::BodyExt as _;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::server::Grpc;
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::bucket::Bucket;

/// Connections that are served at once; further ones wait.
const CONNECTIONS: usize = 64;
/// Streams of one connection, and what their headers may hold.
const STREAMS: u32 = 32;
const HEADERS: u32 = 16 << 10;
/// A client that answers no ping for so long is gone.
const PING: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30));
/// What a call may send, and how long it may take to. Nothing that is asked here holds more than two names.
const MESSAGE: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a connection could not be taken, as when there are no more descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// Calls a second, and at once, for all clients together: as a kubelet has it.
const RATE: f64 = 100.0;
const BURST: f64 = 10.0;

/// Puts a socket in the place of one that an agent before this one has left. The directory is root's and its group's.
///
/// # Errors
/// When it cannot be made, as where the path is too long for a socket.
pub(crate) fn bind(socket: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = socket.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(directory)?;
    }
    // A client never finds a socket on which nobody listens.
    let own = socket.with_extension("new");
    match fs::remove_file(&own) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&own)?;
    fs::rename(&own, socket)?;
    Ok(listener)
}

/// Serves until the order to stop, which ends every connection.
pub(crate) async fn serve(listener: UnixListener, routes: Router, stop: CancellationToken) {
    let routes = routes
        .fallback(async || Status::unimplemented("unknown service or method").into_http::<Body>());
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let serving = async {
        // Nobody closes it.
        while let Ok(place) = places.clone().acquire_owned().await {
            let stream = accept(&listener).await;
            let connection = connection(stream, routes.clone());
            connections.spawn(async move {
                connection.await;
                drop(place);
            });
            while connections.try_join_next().is_some() {}
        }
    };
    stop.run_until_cancelled(serving).await;
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "cannot take a connection");
                sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, routes: Router) {
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    if let Err(error) = served.await {
        tracing::debug!(%error, "a client of a local API is gone");
    }
}

/// How often calls may come, for a whole socket. Cheap to clone.
pub(crate) type Rate = Arc<Mutex<Bucket>>;

/// A socket's rate.
pub(crate) fn rate() -> Rate {
    Arc::new(Mutex::new(Bucket::new(BURST, RATE)))
}

/// What stands before some calls: how often they may come, and how many at once. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gate {
    rate: Rate,
    places: Arc<Semaphore>,
}

impl Gate {
    /// Lets so many calls through at once.
    pub(crate) fn new(rate: Rate, places: usize) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self { rate, places }
    }
}

/// Turns away who calls too often, and who calls while too many have not taken their answers.
pub(crate) async fn admit(
    State(gate): State<Gate>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let taken = {
        let mut bucket = gate.rate.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(Instant::now())
    };
    if !taken {
        return Status::resource_exhausted("rejected by rate limit").into_http();
    }
    let Ok(place) = gate.places.try_acquire_owned() else {
        return Status::resource_exhausted("too many calls at once").into_http();
    };
    let answer = next.run(request).await;
    // The place is free when the answer has been taken, or nobody takes it any more.
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &place;
            frame
        }))
    })
}

/// The protocol for a call that asks `Q` and is answered with `A`.
pub(crate) fn grpc<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(MESSAGE)
}

/// Answers a call with what `answer` makes of its message.
pub(crate) async fn unary<Q, A>(
    request: Request,
    answer: impl Fn(Q) -> Result<A, Status>,
) -> Response<Body>
where
    Q: prost::Message + Default + Send + 'static,
    A: prost::Message + Default + Send + 'static,
{
    let service = service_fn(|request: tonic::Request<Q>| {
        ready(answer(request.into_inner()).map(tonic::Response::new))
    });
    in_time(grpc::<Q, A>().unary(service, request)).await
}

/// The answer, unless the message takes too long to come.
pub(crate) async fn in_time(
    answer: impl Future<Output = Response<tonic::body::Body>>,
) -> Response<Body> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map(Body::new),
        Err(_) => Status::deadline_exceeded("the request has not come").into_http(),
    }
}

#[cfg(test)]
mod tests;
