//! `/containerLogs/{namespace}/{pod}/{container}`: what a container has written, and goes on to write.
//!
//! ```text
//! query ─► options          pod status ─► which container id (or why there are no logs yet)
//! runtime ─► log path ─► file ─► tail: where to start ─► entry: lines ─► format: bytes for the client
//!                           └── follow: next file after a rotation; waits on inotify and the runtime's doorbell
//! ```
//! The answer's body pulls: nothing is read ahead of the client, and a client that goes away drops everything.

mod entry;
mod file;
mod follow;
mod format;
mod options;
mod tail;
pub(crate) mod watch;
mod which;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::stream;

use super::route::App;
use super::target::{self, PodPath, Refusal};
use follow::Reader;
use format::Formatter;
use options::LogOptions;

/// Answers with the container's log.
pub(super) async fn container_logs(
    State(app): State<App>,
    Path(path): Path<PodPath>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let options = LogOptions::parse(&parameters, jiff::Timestamp::now())?;
    let PodPath {
        namespace,
        pod,
        container,
        ..
    } = path;
    let entry = app.deps.pods.pod_by_name(&namespace, &pod).ok_or_else(|| {
        Refusal::new(
            StatusCode::NOT_FOUND,
            format!("pod {pod:?} does not exist\n"),
        )
    })?;
    if !target::has_container(&entry.pod, &container) {
        let message = format!("container {container:?} not found in pod {pod:?}\n");
        return Err(Refusal::new(StatusCode::NOT_FOUND, message));
    }
    let id = which::container_id(&pod, &entry.status, &container, options.previous)
        .map_err(Refusal::bad_request)?;
    let reader = Reader::open(&app, target::pod_uid(&entry.pod), id, &options).await?;
    Ok(respond(reader, Formatter::new(&options)))
}

/// Pulls the log through the formatter as the client takes it.
fn respond(reader: Reader, formatter: Formatter) -> Response {
    let pieces = stream::try_unfold((reader, formatter), async |(mut reader, mut formatter)| {
        let piece = reader.next(&mut formatter).await?;
        Ok::<_, std::io::Error>(piece.map(|piece| (piece, (reader, formatter))))
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/plain")),
        // What containers write is no web page, whatever it looks like.
        (
            HeaderName::from_static("x-content-type-options"),
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}
