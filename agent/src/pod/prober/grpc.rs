//! The health check of gRPC (`grpc.health.v1.Health/Check`), framed by hand: one call, one message each way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::{Ping, RecvStream, client};
use http::{HeaderMap, Request, StatusCode};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::back_off::go_duration;
use super::super::http::dial;
use super::super::http::wire::Wire;

/// The longest answer that is read: the real one has two bytes.
const MAX_ANSWER: usize = 4 * 1024;
/// Pause between tries to connect, as the usual client has it.
const RECONNECT: Duration = Duration::from_secs(1);
/// The names of gRPC's status codes.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
const DEADLINE_EXCEEDED: usize = 4;
const UNIMPLEMENTED: usize = 12;
const SERVING: u64 = 1;

/// How a call ended.
#[derive(Debug)]
enum CallError {
    /// There is no connection that speaks HTTP/2.
    Connection,
    /// The call has a status that is not OK.
    Status { code: usize, message: String },
}

/// Asks for the health of a service; `""` is the server's own. The error is what the user reads.
pub(super) async fn check(
    host: &str,
    port: u16,
    service: &str,
    user_agent: &str,
    limit: Duration,
) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    // Whether the other side has shown that it speaks HTTP/2.
    let speaks = AtomicBool::new(false);
    let address = dial::address(host, port);
    let call = async {
        loop {
            let tried = Instant::now();
            if let Ok((stream, _)) = dial::dial(host, port, dial::Opening::Speaks).await {
                let call = call(stream, &address, service, user_agent, limit, &speaks);
                match call.await {
                    Err(CallError::Connection) if !speaks.load(Ordering::Relaxed) => {}
                    ended => return ended,
                }
            }
            sleep(RECONNECT.saturating_sub(tried.elapsed())).await;
        }
    };
    let ended = timeout_at(deadline, call).await;
    let within = go_duration(limit);
    match ended {
        Ok(Ok(SERVING)) => Ok(()),
        Ok(Ok(status)) => Err(format!(
            "service unhealthy (responded with \"{}\")",
            status_name(status)
        )),
        Ok(Err(CallError::Status {
            code: UNIMPLEMENTED,
            message,
        })) => Err(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
        )),
        Ok(Err(CallError::Status {
            code: DEADLINE_EXCEEDED,
            ..
        })) => Err(format!(
            "timeout: health rpc did not complete within {within}"
        )),
        Ok(Err(CallError::Status { code, message })) => Err(failed(code, &message)),
        Ok(Err(CallError::Connection)) => Err(failed(14, "error reading from server: EOF")),
        Err(_) if speaks.load(Ordering::Relaxed) => Err(format!(
            "timeout: health rpc did not complete within {within}"
        )),
        Err(_) => Err(format!(
            "timeout: failed to connect service \"{address}\" within {within}: context deadline exceeded"
        )),
    }
}

fn failed(code: usize, message: &str) -> String {
    let code = match CODES.get(code) {
        Some(name) => (*name).to_owned(),
        None => format!("Code({code})"),
    };
    format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}")
}

/// One call on a new connection. Gives the serving status.
async fn call(
    stream: Wire,
    address: &str,
    service: &str,
    user_agent: &str,
    limit: Duration,
    speaks: &AtomicBool,
) -> Result<u64, CallError> {
    let (send, mut connection) = client::handshake(stream)
        .await
        .map_err(|_| CallError::Connection)?;
    let mut ping = connection.ping_pong();
    let connection = tokio::spawn(async move {
        // The call tells how it ended.
        let _ = connection.await;
    });
    let _connection = AbortOnDropHandle::new(connection);
    let heard = async {
        if let Some(ping) = &mut ping
            && ping.ping(Ping::opaque()).await.is_ok()
        {
            speaks.store(true, Ordering::Relaxed);
        }
        std::future::pending::<()>().await
    };
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", user_agent)
        .header("grpc-timeout", format!("{}m", limit.as_millis()))
        .body(())
        .map_err(|error| internal(&error))?;
    tokio::select! {
        answer = exchange(send, request, service) => {
            if !matches!(answer, Err(CallError::Connection)) {
                speaks.store(true, Ordering::Relaxed);
            }
            answer
        }
        () = heard => Err(CallError::Connection),
    }
}

fn internal(error: &dyn std::fmt::Display) -> CallError {
    CallError::Status {
        code: 13,
        message: error.to_string(),
    }
}

/// An error of the transport: of the connection, or of this call.
fn transport(error: h2::Error) -> CallError {
    match error.reason() {
        Some(reason) if error.is_reset() => CallError::Status {
            code: 13,
            message: format!("stream terminated by RST_STREAM with error code: {reason:?}"),
        },
        _ => CallError::Connection,
    }
}

async fn exchange(
    send: client::SendRequest<Bytes>,
    request: Request<()>,
    service: &str,
) -> Result<u64, CallError> {
    let mut send = send.ready().await.map_err(transport)?;
    let (response, mut stream) = send.send_request(request, false).map_err(transport)?;
    stream
        .send_data(message(service), true)
        .map_err(transport)?;
    let (head, body) = response.await.map_err(transport)?.into_parts();
    if let Some(status) = head.headers.get("grpc-status") {
        status_of(&head.headers, status.as_bytes())?;
    } else if head.status != StatusCode::OK {
        return Err(http_status(head.status));
    }
    let (answer, trailers) = read(body).await.map_err(transport)?;
    if let Some(status) = trailers.get("grpc-status") {
        status_of(&trailers, status.as_bytes())?;
    }
    serving_status(&answer).ok_or_else(|| internal(&"the answer is no HealthCheckResponse"))
}

/// The status that headers or trailers carry; OK is no error.
fn status_of(headers: &HeaderMap, code: &[u8]) -> Result<(), CallError> {
    let code = std::str::from_utf8(code).ok();
    let code = code.and_then(|code| code.parse().ok()).unwrap_or(2);
    if code == 0 {
        return Ok(());
    }
    let message = headers.get("grpc-message").map(|text| text.as_bytes());
    let message = unescape(message.unwrap_or_default());
    Err(CallError::Status { code, message })
}

/// What an answer of plain HTTP means.
fn http_status(status: StatusCode) -> CallError {
    let code = match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => UNIMPLEMENTED,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    };
    let reason = status.canonical_reason().unwrap_or_default();
    let number = status.as_u16();
    let message = format!("unexpected HTTP status code received from server: {number} ({reason})");
    CallError::Status { code, message }
}

/// Reads body and trailers.
async fn read(mut body: RecvStream) -> Result<(Vec<u8>, HeaderMap), h2::Error> {
    let mut read = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        read.extend_from_slice(&chunk);
        if read.len() > MAX_ANSWER {
            break;
        }
    }
    let trailers = match read.len() > MAX_ANSWER {
        true => None,
        false => body.trailers().await?,
    };
    Ok((read, trailers.unwrap_or_default()))
}

/// The request's message: field 1 is the service.
fn message(service: &str) -> Bytes {
    let mut field = BytesMut::new();
    if !service.is_empty() {
        field.put_u8(1 << 3 | 2);
        let mut length = service.len();
        while length >= 0x80 {
            field.put_u8(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
            length >>= 7;
        }
        field.put_u8(u8::try_from(length).unwrap_or(0));
        field.put_slice(service.as_bytes());
    }
    let mut message = BytesMut::new();
    message.put_u8(0);
    message.put_u32(u32::try_from(field.len()).unwrap_or(u32::MAX));
    message.put(field);
    message.freeze()
}

/// Field 1 of the answer's message; 0 when it has none, none when it is no message.
fn serving_status(answer: &[u8]) -> Option<u64> {
    let (head, mut rest) = answer.split_at_checked(5)?;
    if head.first() != Some(&0) {
        return None;
    }
    let mut status = 0;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        match (key >> 3, key & 7) {
            (1, 0) => status = varint(&mut rest)?,
            (_, 0) => drop(varint(&mut rest)?),
            (_, 1) => rest = rest.get(8..)?,
            (_, 2) => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
            (_, 5) => rest = rest.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The name of a serving status.
fn status_name(status: u64) -> String {
    match status {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

/// `%XX` as gRPC writes messages.
fn unescape(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let escaped = after.get(..2).filter(|_| *byte == b'%');
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(value) => {
                out.push(value);
                rest = &after[2..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
