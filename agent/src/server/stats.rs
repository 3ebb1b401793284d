//! `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hanok_runtime::api::StatsDetail;
use serde::Deserialize;

use super::route::App;
use super::target::Refusal;
use crate::stats;

/// The query of `/stats/summary`.
#[derive(Debug, Deserialize)]
pub(super) struct SummaryQuery {
    /// Leaves out network and disk.
    #[serde(default)]
    only_cpu_and_memory: bool,
}

/// The Summary as JSON.
pub(super) async fn summary(
    State(app): State<App>,
    Query(query): Query<SummaryQuery>,
) -> Result<Json<serde_json::Value>, Refusal> {
    let detail = match query.only_cpu_and_memory {
        true => StatsDetail::Cgroups,
        false => StatsDetail::All,
    };
    let snapshot = snapshot(&app, detail).await?;
    Ok(Json(stats::summary(&snapshot, detail)))
}

/// Processor time and memory, for metrics-server.
pub(super) async fn resource(State(app): State<App>) -> Result<Response, Refusal> {
    let snapshot = snapshot(&app, StatsDetail::Cgroups).await?;
    Ok(page(stats::resource(&snapshot)))
}

/// Everything about containers.
pub(super) async fn cadvisor(State(app): State<App>) -> Result<Response, Refusal> {
    let snapshot = snapshot(&app, StatsDetail::All).await?;
    Ok(page(stats::cadvisor(&snapshot)))
}

async fn snapshot(
    app: &App,
    detail: StatsDetail,
) -> Result<std::sync::Arc<stats::Snapshot>, Refusal> {
    let snapshot = app.deps.stats.snapshot(detail).await;
    snapshot.map_err(|error| Refusal::internal(error.to_string()))
}

fn page(text: String) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], text).into_response()
}
