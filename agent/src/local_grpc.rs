//! gRPC for programs on this machine: a unix socket below the root directory, tonic's protocol, axum's routes.
//!
//! Who connects is root, as that takes leave to write, which the usual umask gives the owner alone. It may be broken all
//! the same: connections, calls, and what a call sends and is answered are bounded, so that the worst that a client can do
//! is to keep others from this one socket.

#[cfg(test)]
pub(crate) mod testing;

use std::fs::{self, DirBuilder};
use std::future::ready;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Request as HttpRequest, Response};
use axum::middleware::Next;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn as hyper_service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
/// What a call may send, and how long it may take to; as long may a new connection be without a call. Nothing that is
/// asked here holds more than two names.
const MESSAGE: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a connection could not be taken, as when there are no more descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);
/// Calls a second, and at once, for all clients of a socket together: as a kubelet has it, for calls with one answer.
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

/// Serves a connection to its end. Pings find out who is gone only once the protocol has begun, so that whoever asks for
/// nothing has to go first.
async fn connection(stream: UnixStream, routes: Router) {
    let asked = CancellationToken::new();
    let routes = TowerToHyperService::new(routes);
    let service = hyper_service_fn(|request: HttpRequest<Incoming>| {
        asked.cancel();
        routes.call(request)
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING.0)
        .keep_alive_timeout(PING.1)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        in_time = timeout(PATIENCE, asked.cancelled()) => match in_time {
            Ok(()) => served.await,
            Err(_) => return,
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client of a local API is gone");
    }
}

/// What stands before some calls: how often they may come, and how many at once. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Gate {
    rate: Option<Arc<Mutex<Bucket>>>,
    places: Arc<Semaphore>,
}

impl Gate {
    /// Lets so many calls with one answer through at once, and no more of them than their rate allows.
    pub(crate) fn of_calls(places: usize) -> Self {
        Self {
            rate: Some(Arc::new(Mutex::new(Bucket::new(BURST, RATE)))),
            ..Self::of_streams(places)
        }
    }

    /// Lets so many calls with many answers through at once, however often they come.
    pub(crate) fn of_streams(places: usize) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self { rate: None, places }
    }

    fn in_rate(&self) -> bool {
        self.rate.as_ref().is_none_or(|bucket| {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(Instant::now())
        })
    }
}

/// A part of an answer, which has its call's place for as long as it is in memory.
struct Held {
    data: Bytes,
    _place: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Turns away who calls too often, and who calls while too many have not taken their answers.
pub(crate) async fn admit(
    State(gate): State<Gate>,
    request: Request,
    next: Next,
) -> Response<Body> {
    if !gate.in_rate() {
        return Status::resource_exhausted("rejected by rate limit").into_http();
    }
    let Ok(place) = gate.places.try_acquire_owned() else {
        return Status::resource_exhausted("too many calls at once").into_http();
    };
    let answer = next.run(request).await;
    // The place is free when the answer has been taken, or nobody takes it any more. The end of the body is not yet that:
    // the protocol takes what the client allows it to send, and keeps it until the client reads.
    let place = Arc::new(place);
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|data| {
                let _place = place.clone();
                Bytes::from_owner(Held { data, _place })
            })
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
