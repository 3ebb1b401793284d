//! The routes, and the guard in front of all of them.
//!
//! The guard wraps the fallback too: without a proof of identity even an unknown path is 401.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum_server::tls::TlsInfo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::authn::Authenticator;
use super::authz::{self, Authorizer, Decision};
use super::logs::watch::Hub;
use super::{Deps, Health, ServerConfig, logs, observe, portforward, session, stats, zpages};

/// What every handler works with.
#[derive(Clone)]
pub(super) struct App {
    pub(super) config: Arc<ServerConfig>,
    pub(super) deps: Deps,
    authenticator: Arc<Authenticator>,
    authorizer: Arc<Authorizer>,
    /// Watches log directories.
    pub(super) hub: Arc<Hub>,
    /// Every task that serves a stream.
    pub(super) streams: TaskTracker,
    /// Cancelled at shutdown.
    pub(super) stopped: CancellationToken,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl App {
    pub(super) fn new(config: ServerConfig, deps: Deps) -> Self {
        observe::mark_start();
        let reviewer = deps.reviewer.clone();
        Self {
            authenticator: Arc::new(Authenticator::new(
                config.authentication.clone(),
                reviewer.clone(),
            )),
            authorizer: Arc::new(Authorizer::new(
                config.authorization.clone(),
                config.node_name.clone(),
                reviewer,
            )),
            config: Arc::new(config),
            deps,
            hub: Arc::new(Hub::new()),
            streams: TaskTracker::new(),
            stopped: CancellationToken::new(),
        }
    }

    /// Runs a stream's work until it is done or the server stops, and counts it meanwhile.
    pub(super) fn stream<W>(&self, work: W) -> impl Future<Output = ()> + Send + 'static + use<W>
    where
        W: Future<Output = ()> + Send + 'static,
    {
        let stopped = self.stopped.clone();
        self.streams.track_future(async move {
            stopped.run_until_cancelled_owned(work).await;
        })
    }
}

/// The API's routes.
pub(super) fn router(app: App) -> Router {
    let about_itself = match app.config.debugging_handlers {
        true => Router::new()
            .route("/statusz", get(zpages::statusz))
            .route("/flagz", get(zpages::flagz)),
        false => Router::new(),
    };
    about_itself
        .route("/pods", get(observe::pods))
        .route("/pods/", get(observe::pods))
        .route("/runningpods/", get(observe::running_pods))
        .route("/healthz", get(observe::healthz))
        .route("/healthz/ping", get(observe::healthz))
        .route("/healthz/log", get(observe::healthz))
        .route("/healthz/syncloop", get(observe::healthz))
        .route("/configz", get(observe::configz))
        .route("/metrics", get(observe::metrics))
        .route("/metrics/resource", get(stats::resource))
        .route("/metrics/cadvisor", get(stats::cadvisor))
        .route("/stats/summary", get(stats::summary))
        .route(
            "/containerLogs/{namespace}/{pod}/{container}",
            get(logs::container_logs),
        )
        .route("/exec/{namespace}/{pod}/{container}", any(session::exec))
        .route(
            "/exec/{namespace}/{pod}/{uid}/{container}",
            any(session::exec),
        )
        .route(
            "/attach/{namespace}/{pod}/{container}",
            any(session::attach),
        )
        .route(
            "/attach/{namespace}/{pod}/{uid}/{container}",
            any(session::attach),
        )
        .route("/run/{namespace}/{pod}/{container}", post(session::run))
        .route(
            "/run/{namespace}/{pod}/{uid}/{container}",
            post(session::run),
        )
        .route(
            "/portForward/{namespace}/{pod}",
            any(portforward::port_forward),
        )
        .route(
            "/portForward/{namespace}/{pod}/{uid}",
            any(portforward::port_forward),
        )
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

/// The routes of the plain health check: one.
pub(super) fn health_router(health: Health) -> Router {
    Router::new().route(
        "/healthz",
        get(async move || observe::health_response(&health)),
    )
}

async fn not_found() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Lets a request through when its caller is known and may make it.
async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let certificate = request
        .extensions()
        .get::<Arc<TlsInfo>>()
        .and_then(|tls| tls.peer_certificates.first())
        .map(Vec::as_slice);
    let Some(who) = app
        .authenticator
        .identify(certificate, request.headers())
        .await
    else {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    };
    let path = request.uri().path();
    match app.authorizer.decide(&who, request.method(), path).await {
        Decision::Allowed if !app.config.debugging_handlers && authz::is_debugging(path) => (
            StatusCode::METHOD_NOT_ALLOWED,
            "Debug endpoints are disabled.\n",
        )
            .into_response(),
        Decision::Allowed => next.run(request).await,
        Decision::Forbidden(text) => (StatusCode::FORBIDDEN, text).into_response(),
        Decision::Failed(text) => (StatusCode::INTERNAL_SERVER_ERROR, text).into_response(),
    }
}
