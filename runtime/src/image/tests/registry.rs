//! A registry in this process, with faults to order.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::build::Built;
use crate::content::Digest;
use crate::image::manifest::OCI_MANIFEST;

type Body = BoxBody<Bytes, std::io::Error>;

/// What one request was.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) range: Option<String>,
}

/// Answers a request in place of the registry, or leaves it to it.
pub(super) type Hook = Box<dyn Fn(&Seen) -> Option<Response<Body>> + Send + Sync>;

#[derive(Default)]
struct State {
    manifests: Mutex<HashMap<String, (String, Vec<u8>)>>,
    blobs: Mutex<HashMap<String, Vec<u8>>>,
    seen: Mutex<Vec<Seen>>,
    hook: Mutex<Option<Hook>>,
}

/// The registry; it stops when it is dropped.
pub(super) struct Registry {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Registry {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let service = service_fn(move |request| {
                    let state = Arc::clone(&state);
                    async move { Ok::<_, Infallible>(state.answer(&request)) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Self {
            address,
            state,
            server,
        }
    }

    pub(super) fn push(&self, repository: &str, tag: &str, built: &Built) {
        for blob in built.blobs() {
            self.push_blob(blob);
        }
        self.push_manifest(repository, tag, OCI_MANIFEST, &built.manifest);
    }

    pub(super) fn push_blob(&self, blob: &[u8]) {
        let digest = Digest::of(blob).to_string();
        self.state
            .blobs
            .lock()
            .unwrap()
            .insert(digest, blob.to_vec());
    }

    pub(super) fn push_manifest(
        &self,
        repository: &str,
        tag: &str,
        media_type: &str,
        bytes: &[u8],
    ) {
        let digest = Digest::of(bytes).to_string();
        for identifier in [tag, &digest] {
            let key = format!("/v2/{repository}/manifests/{identifier}");
            let value = (media_type.to_owned(), bytes.to_vec());
            self.state.manifests.lock().unwrap().insert(key, value);
        }
    }

    pub(super) fn hook(
        &self,
        hook: impl Fn(&Seen) -> Option<Response<Body>> + Send + Sync + 'static,
    ) {
        *self.state.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub(super) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// How many requests had this in their path.
    pub(super) fn count(&self, part: &str) -> usize {
        self.seen()
            .iter()
            .filter(|seen| seen.path.contains(part))
            .count()
    }
}

impl State {
    fn answer(&self, request: &Request<Incoming>) -> Response<Body> {
        let header = |name: &str| {
            let value = request.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let seen = Seen {
            method: request.method().to_string(),
            path: request.uri().to_string(),
            authorization: header("authorization"),
            range: header("range"),
        };
        self.seen.lock().unwrap().push(seen.clone());
        if let Some(response) = self
            .hook
            .lock()
            .unwrap()
            .as_ref()
            .and_then(|hook| hook(&seen))
        {
            return response;
        }
        let path = seen.path.split('?').next().unwrap_or_default();
        if let Some((media_type, bytes)) = self.manifests.lock().unwrap().get(path) {
            return Response::builder()
                .header("content-type", media_type)
                .header("docker-content-digest", Digest::of(bytes).to_string())
                .body(full(bytes))
                .unwrap();
        }
        let digest = path.rsplit('/').next().unwrap_or_default();
        match self.blobs.lock().unwrap().get(digest) {
            Some(blob) => ranged(blob, seen.range.as_deref()),
            None => status(404),
        }
    }
}

/// A blob, or the rest of it.
pub(super) fn ranged(blob: &[u8], range: Option<&str>) -> Response<Body> {
    let from = range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    });
    match from {
        Some(from) if from < blob.len() => Response::builder()
            .status(206)
            .header(
                "content-range",
                format!("bytes {from}-{}/{}", blob.len() - 1, blob.len()),
            )
            .body(full(&blob[from..]))
            .unwrap(),
        _ => Response::new(full(blob)),
    }
}

pub(super) fn full(bytes: &[u8]) -> Body {
    Full::new(Bytes::copy_from_slice(bytes))
        .map_err(|never| match never {})
        .boxed()
}

pub(super) fn status(code: u16) -> Response<Body> {
    Response::builder().status(code).body(full(b"")).unwrap()
}

/// A body that announces `length` bytes, sends `bytes` and breaks off.
pub(super) fn cut(bytes: &[u8], length: usize) -> Response<Body> {
    let data = Ok(Frame::data(Bytes::copy_from_slice(bytes)));
    // The break comes a moment later: one at once would take the bytes before it along.
    let end = async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        Err(std::io::Error::other("cut"))
    };
    let first = futures::stream::iter([data]);
    let parts = futures::StreamExt::chain(first, futures::stream::once(end));
    let body = BodyExt::boxed(StreamBody::new(parts));
    Response::builder()
        .header("content-length", length)
        .body(body)
        .unwrap()
}

/// A body without end.
pub(super) fn endless() -> Response<Body> {
    let spaces = Bytes::from(vec![b' '; 64 << 10]);
    let parts = futures::stream::repeat_with(move || Ok(Frame::data(spaces.clone())));
    Response::new(BodyExt::boxed(StreamBody::new(parts)))
}

/// A body that does not begin.
pub(super) fn silent() -> Response<Body> {
    let parts = futures::stream::pending();
    Response::new(BodyExt::boxed(StreamBody::new(parts)))
}
