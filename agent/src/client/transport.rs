//! Connections whose credentials can be replaced while they are used, and which do not stay silent for ever.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HyperClient, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt};
use rustls_pki_types::ServerName;

use super::{CONNECT_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};

type Connections = HyperClient<TimeoutConnector<HttpsConnector<HttpConnector>>, Body>;

/// How long a connection may be waited on that says nothing. Servers end a watch sooner, after the 290 s that we ask for at
/// the most. One that is silent for longer has lost what was behind it, a proxy's for example, and whoever waits for it
/// would never hear of a pod again.
const SILENCE: Duration = Duration::from_secs(330);

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
    silence: Duration,
    current: Arc<ArcSwap<Connections>>,
}

impl Transport {
    /// With the credentials of this configuration. Nothing is connected yet.
    pub(super) fn new(config: &Config, version: Version) -> Result<Self, kube::Error> {
        Self::within(config, version, SILENCE)
    }

    /// The same, with connections that may be silent for so long.
    fn within(config: &Config, version: Version, silence: Duration) -> Result<Self, kube::Error> {
        let current = connections(config, version, silence)?;
        Ok(Self {
            version,
            silence,
            current: Arc::new(ArcSwap::from_pointee(current)),
        })
    }

    /// The same with other credentials. Requests under way end on their old connections, which nobody uses again: a
    /// server checks a certificate at every request, and refuses an old one when it has expired.
    pub(super) fn renew(&self, config: &Config) -> Result<(), kube::Error> {
        let fresh = connections(config, self.version, self.silence)?;
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
fn connections(
    config: &Config,
    version: Version,
    silence: Duration,
) -> Result<Connections, kube::Error> {
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
    let mut connector = TimeoutConnector::new(connector);
    connector.set_read_timeout(Some(silence));
    // One that was idle has as long as a new one to answer a request.
    connector.set_reset_reader_on_write(true);
    Ok(HyperClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector))
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::WatchParams;

    use super::*;
    use crate::client::fake::{Answer, Fake};

    #[tokio::test]
    async fn a_watch_that_is_silent_for_longer_than_any_lasts_ends() {
        let (_fake, server) = Fake::start(|_| Some(Answer::Open(Vec::new()))).await;
        let config = Config::new(server.url.clone());
        let transport = Transport::within(&config, Version::Http1, Duration::from_millis(50));
        let client = super::super::client(&config, transport.unwrap()).unwrap();
        let pods = Api::<Pod>::all(client);
        let params = WatchParams::default();
        let watch = pods.watch(&params, "0");
        let ended = async {
            let mut events = std::pin::pin!(watch.await?);
            while events.try_next().await?.is_some() {}
            Ok::<(), kube::Error>(())
        };
        let ended = tokio::time::timeout(Duration::from_secs(10), ended).await;
        assert!(ended.is_ok_and(|ended| ended.is_err()));
    }
}
