//! A socket that is served for a test, and its clients.

use std::path::{Path, PathBuf};

use axum::Router;
use http::uri::PathAndQuery;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::{bind, serve};

/// A socket that is served, in a directory that goes with it.
pub(crate) struct Served {
    dir: tempfile::TempDir,
    socket: PathBuf,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Served {
    /// Serves the routes at a socket below a directory.
    pub(crate) fn start(socket: impl Fn(&Path) -> PathBuf, routes: Router) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = socket(dir.path());
        let listener = bind(&socket).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(listener, routes, stop.clone()));
        Self {
            dir,
            socket,
            stop,
            task,
        }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).await.unwrap()
    }

    /// Waits until nothing is served any more.
    pub(crate) async fn stop(self) -> tempfile::TempDir {
        self.stop.cancel();
        self.task.await.unwrap();
        self.dir
    }

    /// A client on a connection of its own.
    pub(crate) async fn client(&self) -> Client {
        let stream = self.connect().await;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Client { sender }
    }

    /// A call by a client of its own.
    pub(crate) async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut client = self.client().await.grpc().await;
        let path = PathAndQuery::from_static(path);
        let request = tonic::Request::new(message);
        let answer = client.unary(request, path, ProstCodec::<Q, A>::default());
        Ok(answer.await?.into_inner())
    }

    /// The events that a call is answered with, to a client of its own.
    pub(crate) async fn events<Q, A>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<Streaming<A>, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut client = self.client().await.grpc().await;
        let path = PathAndQuery::from_static(path);
        let request = tonic::Request::new(message);
        let answer = client.server_streaming(request, path, ProstCodec::<Q, A>::default());
        Ok(answer.await?.into_inner())
    }
}

/// A connection.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) sender: SendRequest<tonic::body::Body>,
}

impl Client {
    async fn grpc(
        self,
    ) -> tonic::client::Grpc<
        impl tonic::client::GrpcService<
            tonic::body::Body,
            ResponseBody = hyper::body::Incoming,
            Error = hyper::Error,
            Future: Send,
        >,
    > {
        let sender = self.sender;
        let service = service_fn(move |request: http::Request<tonic::body::Body>| {
            let mut sender = sender.clone();
            async move { sender.send_request(request).await }
        });
        let origin = "http://localhost".parse().unwrap();
        let mut client = tonic::client::Grpc::with_origin(service, origin);
        client.ready().await.unwrap();
        client
    }
}
