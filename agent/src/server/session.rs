//! exec, attach and run: a process of the runtime on one side, a client's streams on the other.
//!
//! All of one session is one future: when the client goes away, the session is silent for too long or the server
//! stops, it is dropped, and with it everything that it holds. The process is not killed then; its streams are
//! closed, as a terminal is hung up.

mod pump;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hanok_runtime::api::{self, ContainerId, ExecRequest, ExecSession};
use tokio::sync::mpsc;

use super::route::App;
use super::streams::negotiate::{self, Carrier};
use super::streams::status::Outcome;
use super::streams::{self, Gone, HANG_UP, Output, Resizes, Sink, Streams, Wanted};
use super::target::{PodPath, Refusal, find_running};
use pump::{collect, pump};

/// What is done in the container.
#[derive(Debug, Clone)]
enum Task {
    /// Runs a command.
    Exec(Vec<String>),
    /// Joins the container's own process.
    Attach,
}

/// Query parameters, in order and with repeats.
type Parameters = Query<Vec<(String, String)>>;

/// `/exec/{namespace}/{pod}[/{uid}]/{container}?command=...`.
pub(super) async fn exec(
    State(app): State<App>,
    Path(path): Path<PodPath>,
    Query(parameters): Parameters,
    request: Request,
) -> Response {
    let command = values(&parameters, "command");
    if command.is_empty() {
        return Refusal::bad_request("you must specify a command").into_response();
    }
    stream(app, path, &parameters, Task::Exec(command), request)
        .await
        .unwrap_or_else(|no| no)
}

/// `/attach/{namespace}/{pod}[/{uid}]/{container}`.
pub(super) async fn attach(
    State(app): State<App>,
    Path(path): Path<PodPath>,
    Query(parameters): Parameters,
    request: Request,
) -> Response {
    stream(app, path, &parameters, Task::Attach, request)
        .await
        .unwrap_or_else(|no| no)
}

/// `POST /run/{namespace}/{pod}[/{uid}]/{container}?cmd=...`: runs a command, answers with its output.
pub(super) async fn run(
    State(app): State<App>,
    Path(path): Path<PodPath>,
    Query(parameters): Parameters,
) -> Result<Bytes, Refusal> {
    let container = find_running(&app, &path).await?;
    let line = values(&parameters, "cmd").concat();
    let command: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let request = ExecRequest {
        command,
        tty: false,
        stdin: false,
        ..ExecRequest::default()
    };
    let internal = |error: api::Error| Refusal::internal(error.to_string());
    let session = app
        .deps
        .runtime
        .exec(&container.id, request)
        .await
        .map_err(internal)?;
    let ExecSession {
        stdout,
        stderr,
        process,
        ..
    } = session;
    let (mut output, errors, code) =
        tokio::join!(collect(Some(stdout)), collect(stderr), process.wait());
    output.extend_from_slice(&errors);
    match code.map_err(internal)? {
        0 => Ok(output.freeze()),
        code => Err(Refusal::internal(format!(
            "command terminated with non-zero exit code: exit status {code}, output: {}",
            String::from_utf8_lossy(&output)
        ))),
    }
}

fn values(parameters: &[(String, String)], name: &str) -> Vec<String> {
    parameters
        .iter()
        .filter(|(key, _)| key == name)
        .map(|(_, value)| value.clone())
        .collect()
}

/// Reads the wanted streams off the query, in the kubelet's words or the API server's.
fn wanted(parameters: &[(String, String)]) -> Result<Wanted, Refusal> {
    let flag = |names: [&str; 2]| {
        parameters
            .iter()
            .any(|(key, value)| names.contains(&key.as_str()) && (value == "1" || value == "true"))
    };
    let tty = flag(["tty", "tty"]);
    let wanted = Wanted {
        stdin: flag(["input", "stdin"]),
        stdout: flag(["output", "stdout"]),
        // A terminal has one output.
        stderr: flag(["error", "stderr"]) && !tty,
        tty,
    };
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        return Err(Refusal::bad_request(
            "you must specify at least 1 of stdin, stdout, stderr",
        ));
    }
    Ok(wanted)
}

/// Answers with the upgrade and goes on behind it.
async fn stream(
    app: App,
    path: PodPath,
    parameters: &[(String, String)],
    task: Task,
    request: Request,
) -> Result<Response, Response> {
    let wanted = wanted(parameters).map_err(IntoResponse::into_response)?;
    let container = find_running(&app, &path)
        .await
        .map_err(IntoResponse::into_response)?;
    let carrier = negotiate::carrier(request.headers()).map_err(IntoResponse::into_response)?;
    let session = Session {
        app: app.clone(),
        container: container.id,
        task,
        wanted,
    };
    match carrier {
        Carrier::WebSocket => {
            let (mut parts, _) = request.into_parts();
            let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &())
                .await
                .map_err(IntoResponse::into_response)?;
            let upgrade = streams::websocket::prepare(upgrade);
            if negotiate::offers_protocols(&parts.headers) && upgrade.selected_protocol().is_none()
            {
                return Err(
                    Refusal::bad_request("no known WebSocket protocol offered").into_response()
                );
            }
            Ok(upgrade.on_upgrade(move |socket| {
                app.stream(async move {
                    if let Ok(streams) = streams::websocket::open(socket, wanted).await {
                        session.serve(streams).await;
                    }
                })
            }))
        }
        Carrier::Spdy => {
            let protocol = negotiate::spdy_protocol(request.headers(), &streams::spdy::PROTOCOLS)
                .map_err(IntoResponse::into_response)?;
            let creation = app.config.stream_creation_timeout;
            let work = async move {
                match streams::spdy::open(request, protocol, wanted, creation).await {
                    Ok(streams) => session.serve(streams).await,
                    Err(error) => tracing::debug!(%error, "an exec's streams did not open"),
                }
            };
            tokio::spawn(app.stream(work));
            Ok(negotiate::switch_to_spdy(protocol))
        }
    }
}

/// One exec or attach.
struct Session {
    app: App,
    container: ContainerId,
    task: Task,
    wanted: Wanted,
}

impl Session {
    /// From the open streams to the end. Returns when the client has been told, or is gone.
    async fn serve(self, streams: Streams) {
        let Streams {
            stdin,
            resizes,
            sink,
            gone,
            activity,
            reader: _reader,
        } = streams;
        let work = async {
            let outcome = self.work(stdin, resizes, sink.as_ref()).await?;
            sink.finish(&outcome).await?;
            // The reader goes on and drops what still comes, until the client hangs up.
            let _ = tokio::time::timeout(HANG_UP, gone.cancelled()).await;
            Ok::<(), Gone>(())
        };
        tokio::select! {
            _ = work => {}
            () = gone.cancelled() => {}
            () = activity.silence(self.app.config.stream_idle_timeout) => {
                tracing::info!(container = %self.container, "closing a silent stream");
            }
        }
    }

    /// Runs the process and says how it ended.
    async fn work(
        &self,
        stdin: mpsc::Receiver<Bytes>,
        resizes: Resizes,
        sink: &dyn Sink,
    ) -> Result<Outcome, Gone> {
        let runtime = &self.app.deps.runtime;
        let started = match &self.task {
            Task::Exec(command) => {
                let request = ExecRequest {
                    command: command.clone(),
                    tty: self.wanted.tty,
                    stdin: self.wanted.stdin,
                    ..ExecRequest::default()
                };
                runtime.exec(&self.container, request).await
            }
            Task::Attach => runtime.attach(&self.container, self.wanted.stdin).await,
        };
        match started {
            Ok(session) => pump(session, stdin, resizes, sink).await,
            Err(error) => not_started(&error, self.wanted, sink).await,
        }
    }
}

/// A command that could not be started ends like one that a shell could not start: with its message and its code.
async fn not_started(error: &api::Error, wanted: Wanted, sink: &dyn Sink) -> Result<Outcome, Gone> {
    let api::Error::Start { code, message, .. } = error else {
        return Ok(Outcome::Error(error.to_string()));
    };
    let (output, end) = if wanted.stderr {
        (Output::Stderr, "\n")
    } else {
        (Output::Stdout, "\r\n")
    };
    sink.write(output, Bytes::from(format!("{message}{end}")))
        .await?;
    Ok(Outcome::ExitCode(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_terminal_has_no_separate_error_output() {
        let all = parameters(&[
            ("input", "1"),
            ("output", "1"),
            ("error", "1"),
            ("tty", "1"),
        ]);
        let wanted = wanted(&all).unwrap();
        assert_eq!(
            wanted,
            Wanted {
                stdin: true,
                stdout: true,
                stderr: false,
                tty: true
            }
        );
    }

    #[test]
    fn no_stream_at_all_is_refused() {
        assert!(wanted(&parameters(&[("tty", "1"), ("output", "0")])).is_err());
        assert!(wanted(&parameters(&[("stdout", "true")])).unwrap().stdout);
    }
}
