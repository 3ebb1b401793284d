//! Connections whose credentials can be replaced while they are used.

use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HyperClient, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt};
use rustls_pki_types::ServerName;

use super::{CONNECT_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};

type Connections = HyperClient<HttpsConnector<HttpConnector>, Body>;

/// Which protocol is offered to a TLS server. Without TLS it is always HTTP/1.1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Http1,
    Http2,
}

/// A pool of connections. Clones share it.
#[derive(Clone)]
pub(super) struct Transport {
    version: Version,
    current: Arc<ArcSwap<Connections>>,
}

impl Transport {
    /// With the credentials of this configuration. Nothing is connected yet.
    pub(super) fn new(config: &Config, version: Version) -> Result<Self, kube::Error> {
        let current = connections(config, version)?;
        Ok(Self {
            version,
            current: Arc::new(ArcSwap::from_pointee(current)),
        })
    }

    /// The same with other credentials. Requests under way end on their old connections, which nobody uses again: a
    /// server checks a certificate at every request, and refuses an old one when it has expired.
    pub(super) fn renew(&self, config: &Config) -> Result<(), kube::Error> {
        let fresh = connections(config, self.version)?;
        self.current.store(Arc::new(fresh));
        Ok(())
    }
}

impl tower::Service<Request<Body>> for Transport {
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        self.current.load().request(request)
    }
}

/// Connections that are not delayed by Nagle's algorithm and notice a dead server.
fn connections(config: &Config, version: Version) -> Result<Connections, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(PING_INTERVAL));
    http.set_keepalive_interval(Some(PING_TIMEOUT / 3));
    http.set_keepalive_retries(Some(3));
    let mut builder = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone()).map_err(|error| {
            kube::Error::Service(
                format!("field clusters[].cluster.tls-server-name: {error}").into(),
            )
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = match version {
        Version::Http1 => builder.enable_http1().wrap_connector(http),
        Version::Http2 => builder.enable_all_versions().wrap_connector(http),
    };
    Ok(HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector))
}
