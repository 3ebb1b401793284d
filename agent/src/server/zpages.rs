//! `/statusz` and `/flagz`: what this process is, and by which flags it was started; KEP-4827 and KEP-4828.
//!
//! People get text of no fixed form. Programs ask for a kind by its version and get JSON or YAML, see [`accept`]:
//! ```text
//! curl -k -H 'Accept: application/json;g=config.k8s.io;v=v1beta1;as=Statusz' https://NODE:10250/statusz
//! ```

mod accept;

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, WARNING};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use super::observe;
use super::route::App;
use crate::node::status::KUBERNETES_VERSION;
use accept::{Encoding, Form, GROUP};

/// The component's name, as clients know it.
const COMPONENT: &str = "kubelet";

/// First parts of all paths that are served, sorted.
pub(super) const PATHS: [&str; 13] = [
    "/attach",
    "/configz",
    "/containerLogs",
    "/exec",
    "/flagz",
    "/healthz",
    "/metrics",
    "/pods",
    "/portForward",
    "/run",
    "/runningpods",
    "/stats",
    "/statusz",
];

/// What this process is and since when.
pub(super) async fn statusz(headers: HeaderMap) -> Response {
    let now = Timestamp::now();
    let started = Timestamp::try_from(observe::started()).unwrap_or(now);
    let started = started.round(Unit::Second).unwrap_or(started);
    let up = now.duration_since(started).as_secs().max(0);
    let version = KUBERNETES_VERSION.trim_start_matches('v');
    let emulated = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
    match accept::choose(&headers, "Statusz") {
        Some(Form::Text) => text("statusz", |text| {
            let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
            let _ = write!(
                text,
                "\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
                 Binary version: {version}\nEmulation version: {emulated}\nPaths: {}\n",
                PATHS.join(" ")
            );
        }),
        Some(Form::Object(encoding, api)) => {
            let fields = json!({
                "startTime": started,
                "uptimeSeconds": up,
                // Clients take this field for granted; hanok is no Go program.
                "goVersion": "",
                "binaryVersion": version,
                "emulationVersion": emulated,
                "paths": PATHS,
            });
            object("Statusz", encoding, api, fields)
        }
        None => not_acceptable(),
    }
}

/// The flags that the process was started with.
pub(super) async fn flagz(State(app): State<App>, headers: HeaderMap) -> Response {
    let flags = &app.deps.flags;
    match accept::choose(&headers, "Flagz") {
        Some(Form::Text) => text("flagz", |text| {
            for (name, value) in flags {
                let _ = writeln!(text, "{name}={value}");
            }
        }),
        Some(Form::Object(encoding, api)) => {
            object("Flagz", encoding, api, json!({ "flags": flags }))
        }
        None => not_acceptable(),
    }
}

/// A page for people: a head, and what `write` adds.
fn text(page: &str, write: impl FnOnce(&mut String)) -> Response {
    let mut text = format!(
        "\n{COMPONENT} {page}\nWarning: this page is for people. Its form may change at any time: programs ask for JSON.\n"
    );
    write(&mut text);
    text.into_response()
}

/// An object of this kind and version.
fn object(kind: &str, encoding: Encoding, api: &'static str, fields: Value) -> Response {
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("{GROUP}/{api}"),
        "metadata": {"name": COMPONENT},
    });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    let text = match encoding {
        Encoding::Json => Some(object.to_string()),
        Encoding::Yaml => serde_saphyr::to_string(&object).ok(),
    };
    let Some(text) = text else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let media = format!("{};g={GROUP};v={api};as={kind}", encoding.media_type());
    let mut response = ([(CONTENT_TYPE, media)], text).into_response();
    if api == "v1alpha1" {
        let path = kind.to_lowercase();
        let warning = format!(
            "299 - \"This version of the {path} endpoint is deprecated. Please use a newer version.\""
        );
        let warning = HeaderValue::try_from(warning);
        response
            .headers_mut()
            .extend(warning.ok().map(|value| (WARNING, value)));
    }
    response
}

fn not_acceptable() -> Response {
    let types = "application/json, application/yaml, text/plain";
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("only the following media types are accepted: {types}"),
        "reason": "NotAcceptable",
        "code": 406,
    });
    (StatusCode::NOT_ACCEPTABLE, axum::Json(status)).into_response()
}
