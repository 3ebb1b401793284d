//! The kubelet API: HTTPS on port 10250, and a plain health check on the loopback.
//!
//! ```text
//! TLS (client certificate verified if there is one) ─► authn: who ─► authz: may they ─► route
//!     route:  /pods /runningpods/ /healthz /configz /metrics      answers from memory
//!             /statusz /flagz                                     what this process is, and its flags
//!             /stats/summary /metrics/{resource,cadvisor}         stats: looked at now
//!             /containerLogs                                      logs: CRI files, followed by inotify
//!             /exec /attach /run /portForward                     session on WebSocket or SPDY ─► runtime
//! ```
//! It reads pods from a [`PodDirectory`] and acts on the runtime only for streams. Every task that outlives its
//! request is counted and ends with the server.

mod authn;
mod authz;
mod cache;
mod logs;
mod observe;
mod portforward;
mod reload;
mod review;
mod route;
mod session;
mod settings;
mod spdy;
mod stats;
mod streams;
mod target;
#[cfg(test)]
mod testing;
mod tls;
mod zpages;

pub(crate) use logs::watch;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hanok_runtime::api::RuntimeService;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::sinks::PodDirectory;
use crate::stats::Stats;

pub use authn::AuthenticationConfig;
pub use authz::AuthorizationConfig;
pub use review::{Access, ApiReviewer, Identity, ReviewError, Reviewer};
pub use tls::{TlsConfig, TlsError};

/// Longest wait for a request's head, and for the first request of a connection.
const REQUEST_HEAD: Duration = Duration::from_secs(30);

/// How long open requests may go on after the order to shut down.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Everything that can be set.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where the API listens; port 10250 by custom. None for nowhere (enableServer: false).
    pub address: Option<SocketAddr>,
    /// Where the plain health check listens (healthzBindAddress, healthzPort); none for nowhere.
    pub healthz_address: Option<SocketAddr>,
    /// The node's name: the object that access is asked for.
    pub node_name: String,
    /// Certificates.
    pub tls: TlsConfig,
    /// Who is let in.
    pub authentication: AuthenticationConfig,
    /// Who may do what.
    pub authorization: AuthorizationConfig,
    /// How long a stream may be silent (streamingConnectionIdleTimeout).
    pub stream_idle_timeout: Duration,
    /// How long a client may take to open its streams.
    pub stream_creation_timeout: Duration,
    /// Whether logs, exec, the process's own pages and the like are served (enableDebuggingHandlers).
    pub debugging_handlers: bool,
}

impl ServerConfig {
    /// The kubelet's defaults: Webhook for both questions, 4 h of silence, 30 s to open streams.
    pub fn new(address: SocketAddr, node_name: impl Into<String>, tls: TlsConfig) -> Self {
        Self {
            address: Some(address),
            healthz_address: None,
            node_name: node_name.into(),
            tls,
            authentication: AuthenticationConfig::default(),
            authorization: AuthorizationConfig::default(),
            stream_idle_timeout: Duration::from_secs(4 * 3600),
            stream_creation_timeout: Duration::from_secs(30),
            debugging_handlers: true,
        }
    }

    /// Everywhere that the server listens.
    pub fn listens(&self) -> impl Iterator<Item = SocketAddr> {
        [self.address, self.healthz_address].into_iter().flatten()
    }
}

/// What a health check asks; the text says what is wrong.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What the server works with.
#[derive(Clone)]
pub struct Deps {
    /// The runtime.
    pub runtime: Arc<dyn RuntimeService>,
    /// The node's pods.
    pub pods: Arc<dyn PodDirectory>,
    /// Who answers questions of authentication and authorization.
    pub reviewer: Arc<dyn Reviewer>,
    /// What node and pods use.
    pub stats: Arc<Stats>,
    /// Whether the agent is well.
    pub health: Health,
    /// The KubeletConfiguration in force, for `/configz`.
    pub configz: serde_json::Value,
    /// The flags of the command line with their values, for `/flagz`.
    pub flags: BTreeMap<String, String>,
}

impl fmt::Debug for Deps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deps").finish_non_exhaustive()
    }
}

/// The server could not be started, or stopped serving.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Nobody on any network would be refused anything.
    #[error(
        "anonymous callers are let in and may do everything: turn off authentication.anonymous, \
         set authorization.mode to Webhook, or listen on the loopback alone (address: 127.0.0.1)"
    )]
    OpenToAll,
    /// Certificates.
    #[error("cannot set up the kubelet API's TLS")]
    Tls(#[from] TlsError),
    /// Serving ended.
    #[error("the kubelet API stopped serving")]
    Serve(#[source] io::Error),
}

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct Server {
    api: Option<(TcpListener, RustlsConfig)>,
    healthz: Option<TcpListener>,
    app: route::App,
}

impl Server {
    /// Reads certificates and binds the addresses, so that what is wrong with them is known at the start.
    pub fn bind(config: ServerConfig, deps: Deps) -> Result<Self, ServerError> {
        let open = config.authentication.anonymous
            && config.authorization == AuthorizationConfig::AlwaysAllow;
        let bind = |address: SocketAddr| {
            if open && !address.ip().is_loopback() {
                return Err(ServerError::OpenToAll);
            }
            tls::prepare(&config.tls)?;
            let tls = RustlsConfig::from_config(tls::server_config(&config.tls)?);
            Ok((listen(address)?, tls))
        };
        let api = config.address.map(bind).transpose()?;
        let healthz = config.healthz_address.map(listen).transpose()?;
        Ok(Self {
            api,
            healthz,
            app: route::App::new(config, deps),
        })
    }

    /// The address of the API, with the port that was given out when 0 was asked for; none when it is not served.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let (listener, _) = self.api.as_ref()?;
        listener.local_addr().ok()
    }

    /// The address of the plain health check.
    pub fn healthz_addr(&self) -> Option<SocketAddr> {
        self.healthz
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// The number of tasks that serve streams.
    pub fn streams(&self) -> TaskTracker {
        self.app.streams.clone()
    }

    /// Serves until `shutdown` is cancelled, then ends every stream and returns.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ServerError> {
        let handle = Handle::new();
        let stopped = self.app.stopped.clone();
        let streams = self.app.streams.clone();
        let stop = {
            let handle = handle.clone();
            async move {
                shutdown.cancelled().await;
                stopped.cancel();
                handle.graceful_shutdown(Some(SHUTDOWN_GRACE));
                streams.close();
                streams.wait().await;
            }
        };
        let (hub, files) = (self.app.hub.clone(), self.app.config.tls.clone());
        let live = self.api.as_ref().map(|(_, live)| live.clone());
        let reload = async {
            match live {
                Some(live) => reload::follow(hub, files, live).await,
                None => std::future::pending().await,
            }
        };
        let health = self.app.deps.health.clone();
        let api_handle = handle.clone();
        let api = async {
            let Some((listener, tls)) = self.api else {
                return Ok(());
            };
            // Without no-delay a session's small frames wait 40 ms for each other's acknowledgement.
            let acceptor = RustlsAcceptor::new(tls).acceptor(NoDelayAcceptor::new());
            let mut api = axum_server::from_tcp(listener)?
                .acceptor(acceptor)
                .handle(api_handle)
                .first_request_timeout(REQUEST_HEAD);
            api.http_builder().http1().header_read_timeout(REQUEST_HEAD);
            api.http_builder()
                .http2()
                .max_concurrent_streams(64)
                .max_header_list_size(64 << 10);
            api.serve(route::router(self.app).into_make_service()).await
        };
        let plain = async {
            let Some(listener) = self.healthz else {
                return Ok(());
            };
            let mut plain = axum_server::from_tcp(listener)?
                .handle(Handle::with_control(handle.control()))
                .first_request_timeout(REQUEST_HEAD);
            plain
                .http_builder()
                .http1()
                .header_read_timeout(REQUEST_HEAD);
            plain
                .serve(route::health_router(health).into_make_service())
                .await
        };
        // Following certificates has no end of its own; it ends with the order to stop.
        let stop = async {
            tokio::select! {
                () = stop => Ok(()),
                never = reload => match never {},
            }
        };
        tokio::try_join!(api, plain, stop)
            .map(drop)
            .map_err(ServerError::Serve)
    }
}

/// Binds and serves until `shutdown` is cancelled.
pub async fn serve(
    config: ServerConfig,
    deps: Deps,
    shutdown: CancellationToken,
) -> Result<(), ServerError> {
    Server::bind(config, deps)?.run(shutdown).await
}

fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).map_err(|source| ServerError::Bind { address, source })
}
