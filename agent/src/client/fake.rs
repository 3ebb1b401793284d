//! A fake API server for tests: real HTTP on the loopback, scripted answers, every request on record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use super::{ApiServer, connect};

/// One request as the fake saw it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// What the fake answers.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// This object, with 200.
    Object(Value),
    /// A Status with this code and message.
    Status(u16, &'static str),
    /// What a proxy in between says, with this code.
    Page(u16, &'static str),
    /// A watch: these lines, then the end of the stream.
    Lines(Vec<Value>),
    /// A watch that sends these lines and stays open.
    Open(Vec<Value>),
    /// The same as [`Answer::Object`], after a time.
    Late(Duration, Value),
}

type Rule = Box<dyn FnMut(&Seen) -> Option<Answer> + Send>;

/// The fake's state.
pub(crate) struct Fake {
    seen: Mutex<Vec<Seen>>,
    rules: Mutex<VecDeque<Rule>>,
    changed: tokio::sync::Notify,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fake").finish_non_exhaustive()
    }
}

impl Fake {
    /// Starts a server that answers by `rule`; 404 where it gives none.
    pub(crate) async fn start(
        rule: impl FnMut(&Seen) -> Option<Answer> + Send + 'static,
    ) -> (Arc<Self>, ApiServer) {
        let fake = Arc::new(Self {
            seen: Mutex::default(),
            rules: Mutex::new(VecDeque::from([Box::new(rule) as Rule])),
            changed: tokio::sync::Notify::new(),
        });
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new()
            .fallback(answer)
            .with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let server = connect(&kube::Config::new(url.parse().unwrap())).unwrap();
        (fake, server)
    }

    /// Every request so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until the requests fulfil a condition; fails after ten seconds.
    pub(crate) async fn until(&self, condition: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                let seen = self.seen();
                if condition(&seen) {
                    return seen;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(10), wait).await {
            Ok(seen) => seen,
            Err(_) => panic!("not within ten seconds; seen: {:#?}", self.seen()),
        }
    }
}

async fn answer(
    State(fake): State<Arc<Fake>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response<Body> {
    let seen = Seen {
        method,
        path: uri.path().to_owned(),
        query: uri.query().unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let answer = {
        let mut rules = fake.rules.lock().unwrap();
        rules.iter_mut().find_map(|rule| rule(&seen))
    };
    fake.seen.lock().unwrap().push(seen);
    fake.changed.notify_waiters();
    match answer.unwrap_or(Answer::Status(404, "not found")) {
        Answer::Object(value) => reply(200, value.to_string().into()),
        Answer::Late(wait, value) => {
            tokio::time::sleep(wait).await;
            reply(200, value.to_string().into())
        }
        Answer::Status(code, message) => {
            let reason = match code {
                404 => "NotFound",
                409 => "Conflict",
                _ => "",
            };
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason,
                "message": message});
            reply(code, status.to_string().into())
        }
        Answer::Page(code, page) => reply(code, page.into()),
        Answer::Lines(lines) => reply(200, text(&lines).into()),
        Answer::Open(lines) => {
            let first = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(text(&lines)))]);
            let stream = futures::StreamExt::chain(first, futures::stream::pending());
            reply(200, Body::from_stream(stream))
        }
    }
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn reply(code: u16, body: Body) -> Response<Body> {
    Response::builder()
        .status(StatusCode::from_u16(code).unwrap())
        .header("content-type", "application/json")
        .body(body)
        .unwrap()
}
