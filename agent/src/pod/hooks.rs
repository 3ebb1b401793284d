//! Lifecycle hooks: exec, httpGet, sleep.

use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, ExecRequest, RuntimeService};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpStream;

/// Most of a hook's output that is kept for the message.
const MAX_OUTPUT: u64 = 10 * 1024;
/// How long a hook's output may lag behind its process: a child that it left behind may hold the pipe.
const DRAIN: Duration = Duration::from_millis(200);
/// A hook without a limit of its own is limited by who runs it; this one is never reached.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);
/// As the API's documentation has it.
const USER_AGENT: &str = "kube-lifecycle/1.37";

/// Why a hook failed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command could not be run.
    #[error("cannot run the hook's command")]
    Exec(#[from] api::Error),
    /// The command ended badly.
    #[error("command exited with {code}: {output}")]
    Exit {
        /// Its exit code.
        code: i32,
        /// The start of its output.
        output: String,
    },
    /// The request failed.
    #[error("{address}{path}: {cause}")]
    Http {
        /// Host and port.
        address: String,
        /// Path.
        path: String,
        /// Why.
        cause: String,
    },
    /// It did not end in time.
    #[error("command or request timed out after {}s", .0.as_secs())]
    Timeout(Duration),
    /// The handler is of a kind that hooks do not have, or of none.
    #[error("hook has no action that this node knows (exec, httpGet over HTTP, sleep)")]
    Unsupported,
}

/// Runs a hook to its end. Dropping the future abandons it.
pub async fn run(
    runtime: &dyn RuntimeService,
    handler: &LifecycleHandler,
    container: &Container,
    id: &ContainerId,
    pod_ip: &str,
) -> Result<(), HookError> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        return run_exec(runtime, command, id, None).await;
    }
    if let Some(get) = &handler.http_get {
        return run_http(get, container, pod_ip, USER_AGENT).await;
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(HookError::Unsupported)
}

/// Runs a command in the container; past the limit it is killed.
pub(super) async fn run_exec(
    runtime: &dyn RuntimeService,
    command: Vec<String>,
    id: &ContainerId,
    limit: Option<Duration>,
) -> Result<(), HookError> {
    let request = ExecRequest {
        command,
        ..ExecRequest::default()
    };
    let limit = limit.unwrap_or(NO_LIMIT);
    let deadline = tokio::time::sleep(limit);
    tokio::pin!(deadline);
    let session = runtime.exec(id, request).await?;
    let mut output = Vec::new();
    let mut errors = Vec::new();
    let code = {
        let read = async {
            tokio::join!(
                drain(session.stdout, &mut output),
                drain(
                    session
                        .stderr
                        .unwrap_or_else(|| Box::new(tokio::io::empty())),
                    &mut errors
                )
            );
        };
        tokio::pin!(read);
        let wait = session.process.wait();
        tokio::pin!(wait);
        let mut drained = false;
        let code = loop {
            tokio::select! {
                code = &mut wait => break code?,
                () = &mut read, if !drained => drained = true,
                () = &mut deadline => {
                    session.process.kill().await?;
                    return Err(HookError::Timeout(limit));
                }
            }
        };
        if !drained {
            // Past this time the output is what it is.
            let _ = tokio::time::timeout(DRAIN, read).await;
        }
        code
    };
    if code == 0 {
        return Ok(());
    }
    output.extend(errors);
    let output = String::from_utf8_lossy(&output).trim().to_owned();
    Err(HookError::Exit { code, output })
}

/// Keeps the start of a stream and reads the rest away.
async fn drain(mut stream: Box<dyn AsyncRead + Send + Unpin>, kept: &mut Vec<u8>) {
    // A broken stream is an ended one.
    let _ = (&mut stream).take(MAX_OUTPUT).read_to_end(kept).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}

/// Sends the request; any answer from 200 to 399 is success. Redirects are not followed.
pub(super) async fn run_http(
    get: &HTTPGetAction,
    container: &Container,
    pod_ip: &str,
    user_agent: &str,
) -> Result<(), HookError> {
    if get.scheme.as_deref().is_some_and(|scheme| scheme != "HTTP") {
        return Err(HookError::Unsupported);
    }
    let host = get
        .host
        .as_deref()
        .filter(|host| !host.is_empty())
        .unwrap_or(pod_ip);
    let port = port(&get.port, container);
    let path = match get.path.as_deref() {
        Some(path) if path.starts_with('/') => path.to_owned(),
        path => format!("/{}", path.unwrap_or_default()),
    };
    let address = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let failed = |cause: String| HookError::Http {
        address: address.clone(),
        path: path.clone(),
        cause,
    };
    let mut request = hyper::Request::get(&path).header("Accept", "*/*");
    let own = |name: &str| {
        let mut headers = get.http_headers.iter().flatten();
        headers.any(|header| header.name.eq_ignore_ascii_case(name))
    };
    for (name, value) in [("Host", address.as_str()), ("User-Agent", user_agent)] {
        if !own(name) {
            request = request.header(name, value);
        }
    }
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|error| failed(error.to_string()))?;
    let stream = TcpStream::connect(&address)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(error.to_string()))?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    connection.abort();
    let status = response
        .map_err(|error| failed(error.to_string()))?
        .status();
    match status.as_u16() {
        200..400 => Ok(()),
        code => Err(failed(format!("HTTP probe failed with statuscode: {code}"))),
    }
}

/// Connects to a port; that it accepts is success.
pub(super) async fn connect(host: &str, port: i32) -> Result<(), HookError> {
    let address = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    match TcpStream::connect(&address).await {
        Ok(_) => Ok(()),
        Err(error) => Err(HookError::Http {
            address,
            path: String::new(),
            cause: error.to_string(),
        }),
    }
}

/// The number of a port that may be named.
pub(super) fn port(port: &IntOrString, container: &Container) -> i32 {
    match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_deref() == Some(name));
            named.map_or_else(|| name.parse().unwrap_or(0), |port| port.container_port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    async fn get(answer: &'static str, path: Value) -> (Result<(), HookError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": port}]});
        let container: Container = serde_json::from_value(container).expect("a container");
        let get =
            json!({"port": "web", "path": path, "httpHeaders": [{"name": "X-A", "value": "b"}]});
        let get: HTTPGetAction = serde_json::from_value(get).expect("an action");
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.expect("a request");
            stream.write_all(answer.as_bytes()).await.expect("answered");
            String::from_utf8_lossy(&request[..read]).into_owned()
        };
        tokio::join!(run_http(&get, &container, "127.0.0.1", USER_AGENT), serve)
    }

    #[tokio::test]
    async fn a_request_carries_its_headers_and_succeeds_below_400() {
        let (result, request) = get("HTTP/1.1 204 No Content\r\n\r\n", json!("x")).await;
        assert!(result.is_ok());
        assert!(request.starts_with("GET /x HTTP/1.1\r\n"), "{request}");
        assert!(request.to_lowercase().contains("x-a: b") && request.contains(USER_AGENT));
        let (result, _) = get("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", json!("/")).await;
        let message = result.expect_err("refused").to_string();
        assert!(message.ends_with("statuscode: 500"), "{message}");
    }
}
