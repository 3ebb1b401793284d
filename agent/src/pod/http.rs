//! The GET of an `httpGet` action, for probes and for hooks: one request on a connection of its own, no proxy, no
//! check of certificates, redirects within the host only.
//!
//! Errors read as those of the client that users know from their events.

pub(super) mod dial;
mod plain;
mod target;
mod tls;
pub(super) mod wire;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, REFERER, TRAILER,
    TRANSFER_ENCODING, USER_AGENT,
};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncWrite};

use dial::{Opening, Peers};
use plain::Came;
use target::Target;
pub(super) use tls::NO_TLS;

/// Most of a body that is read.
const MAX_BODY: usize = 10 * 1024;
/// Most requests, the first one and those that redirects ask for.
const MAX_REQUESTS: usize = 10;
/// Headers that tell of a body. There is none, whatever the action says, and a server would wait for it.
const OF_A_BODY: [HeaderName; 3] = [CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER];

/// A request that is ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Get {
    target: Target,
    headers: HeaderMap,
    /// The head, as it is sent without TLS.
    text: Arc<[u8]>,
    /// What makes it impossible to send.
    fault: Option<String>,
}

/// The head of an answer; its body is still to be read.
pub(super) enum Answer {
    /// One that needs no client that knows all of HTTP.
    Plain(plain::Answer, Peers),
    /// Any other.
    Full {
        /// The head.
        response: Response<Incoming>,
        /// What brings the body.
        connection: Driver,
    },
}

/// Moves the bytes of a connection while it is polled; ends with the connection.
type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Answer").field(&self.status()).finish()
    }
}

impl Get {
    /// The request of an action. The error is what the user reads.
    pub(super) fn new(
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
        user_agent: &str,
    ) -> Result<Self, String> {
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        let port = port(&action.port, container)?;
        let https = action.scheme.as_deref() == Some("HTTPS");
        let path = action.path.as_deref().unwrap_or_default();
        let target = Target::of_action(https, host.unwrap_or(pod_ip), port, path);
        let (headers, fault) = headers(action, user_agent)?;
        Ok(Self {
            fault,
            ..Self::of(target, headers)
        })
    }

    fn of(target: Target, headers: HeaderMap) -> Self {
        Self {
            text: plain::request(&target, &headers).into(),
            target,
            headers,
            fault: None,
        }
    }

    /// Host and port.
    pub(super) fn address(&self) -> String {
        self.target.address()
    }

    /// The error of a request that has taken too long.
    pub(super) fn timed_out(&self) -> String {
        let text = &self.target.text;
        format!(
            "Get \"{text}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )
    }

    /// The same request without TLS and without credentials; none when it has no TLS.
    pub(super) fn in_the_clear(&self) -> Option<Self> {
        let mut headers = self.headers.clone();
        headers.remove(http::header::AUTHORIZATION);
        Some(Self::of(self.target.in_the_clear()?, headers))
    }

    /// Sends the request, and follows redirects for as long as they stay on the host.
    pub(super) async fn send(&self) -> Result<Answer, String> {
        if let Some(fault) = &self.fault {
            return Err(format!("Get \"{}\": {fault}", self.target.text));
        }
        let mut redirected: Option<Self> = None;
        let mut sent = 0;
        loop {
            let get = redirected.as_ref().unwrap_or(self);
            let answer = get
                .send_once()
                .await
                .map_err(|cause| format!("Get \"{}\": {cause}", get.target.text))?;
            sent += 1;
            let Some(location) = answer.location() else {
                return Ok(answer);
            };
            let next = get
                .target
                .join(location)
                .map_err(|cause| format!("Get \"{location}\": {cause}"))?;
            if next.host != self.target.host {
                return Ok(answer);
            }
            if sent == MAX_REQUESTS {
                return Err(format!(
                    "Get \"{location}\": stopped after {MAX_REQUESTS} redirects"
                ));
            }
            let headers = self.headers_after(&get.target, &next, location);
            redirected = Some(Self::of(next, headers));
        }
    }

    /// The headers of a request that a redirect from `last` asks for.
    fn headers_after(&self, last: &Target, next: &Target, location: &str) -> HeaderMap {
        let mut headers = self.headers.clone();
        if target::is_absolute(location) {
            headers.remove(HOST);
        }
        let tells = next.https || !last.https;
        if tells
            && !headers.contains_key(REFERER)
            && let Ok(from) = HeaderValue::from_str(&last.text)
        {
            headers.insert(REFERER, from);
        }
        headers
    }
}

impl Get {
    /// Sends the request on a connection of its own.
    async fn send_once(&self) -> Result<Answer, String> {
        let Target { host, port, .. } = &self.target;
        let (wire, address) = dial::dial(host, *port, Opening::Speaks).await?;
        let peers = Peers::new(&wire, address);
        let sent = if self.target.https {
            let request = full_request(&self.target, &self.headers)?;
            exchange(tls::connect(wire, peers, host).await?, request).await
        } else {
            match plain::ask(wire, &self.text).await {
                Ok(Came::Answer(answer)) => return Ok(Answer::Plain(answer, peers)),
                Ok(Came::Other(replay)) => {
                    let request = full_request(&self.target, &self.headers)?;
                    exchange(replay, request).await
                }
                Err(error) => return Err(failed_read(&peers, &error)),
            }
        };
        sent.map_err(|error| match io_error(&error) {
            Some(error) => failed_read(&peers, error),
            None => cause(&error),
        })
    }
}

impl Answer {
    /// The status code.
    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Plain(answer, _) => answer.status,
            Self::Full { response, .. } => response.status().as_u16(),
        }
    }

    /// Reads the body, as far as anybody wants to know it.
    pub(super) async fn body(self) -> Result<String, String> {
        let (response, mut connection) = match self {
            Self::Plain(answer, peers) => {
                return answer.body().await.map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
                    _ => failed_read(&peers, &error),
                });
            }
            Self::Full {
                response,
                connection,
            } => (response, connection),
        };
        let mut body = response.into_body();
        let mut open = true;
        let mut read = Vec::new();
        while read.len() < MAX_BODY {
            let frame = tokio::select! {
                biased;
                frame = body.frame() => frame,
                () = &mut connection, if open => {
                    open = false;
                    continue;
                }
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| cause(&error))?;
            read.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        }
        read.truncate(MAX_BODY);
        Ok(String::from_utf8_lossy(&read).into_owned())
    }

    /// Where the answer sends us; none when it does not.
    fn location(&self) -> Option<&str> {
        let Self::Full { response, .. } = self else {
            return None;
        };
        if !matches!(self.status(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        let location = response.headers().get(http::header::LOCATION)?;
        location
            .to_str()
            .ok()
            .filter(|location| !location.is_empty())
    }
}

/// The number of a port that may be named. The error is what the user reads.
pub(super) fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_deref() == Some(name));
            let named = named.ok_or_else(|| format!("port {name:?} not found"))?;
            named.container_port
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

/// The action's headers, and those that a request has without being told; and what is wrong with the former, which fails
/// the request as an answer would.
fn headers(
    action: &HTTPGetAction,
    user_agent: &str,
) -> Result<(HeaderMap, Option<String>), String> {
    let mut headers = HeaderMap::new();
    let mut fault = None;
    for header in action.http_headers.iter().flatten() {
        let (name, value) = (&header.name, &header.value);
        let Ok(key) = HeaderName::from_bytes(name.as_bytes()) else {
            fault.get_or_insert_with(|| format!("net/http: invalid header field name {name:?}"));
            continue;
        };
        let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) else {
            let name = plain::titled(key.as_str());
            fault.get_or_insert_with(|| {
                format!("net/http: invalid header field value for {name:?}")
            });
            continue;
        };
        if !OF_A_BODY.contains(&key) {
            headers.append(key, value);
        }
    }
    for (name, value) in [(USER_AGENT, user_agent), (ACCEPT, "*/*")] {
        match headers.get(&name).map(HeaderValue::is_empty) {
            // Whoever gives an empty one wants none.
            Some(true) => drop(headers.remove(&name)),
            Some(false) => {}
            None => drop(headers.insert(
                name,
                HeaderValue::from_str(value).map_err(|error| error.to_string())?,
            )),
        }
    }
    Ok((headers, fault))
}

/// The request for a client that knows all of HTTP.
fn full_request(target: &Target, headers: &HeaderMap) -> Result<Request<Empty<Bytes>>, String> {
    let mut request = Request::get(&target.path)
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    *request.headers_mut() = headers.clone();
    let own = headers.get(HOST).filter(|host| !host.is_empty()).cloned();
    let host = match own {
        Some(host) => host,
        None => HeaderValue::from_str(&target.address()).map_err(|error| error.to_string())?,
    };
    request.headers_mut().insert(HOST, host);
    request
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Answer, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await?;
    let mut connection: Driver = Box::pin(async move {
        // The answer tells how it ended.
        let _ = connection.await;
    });
    let response = {
        let response = sender.send_request(request);
        tokio::pin!(response);
        tokio::select! {
            biased;
            response = &mut response => response?,
            () = &mut connection => {
                // Nothing can be polled after its end.
                connection = Box::pin(std::future::pending());
                response.await?
            }
        }
    };
    Ok(Answer::Full {
        response,
        connection,
    })
}

/// What is said of a connection that broke.
fn failed_read(peers: &Peers, error: &io::Error) -> String {
    format!("read tcp {peers}: read: {}", dial::errno(error))
}

/// The system's error behind an error of HTTP.
fn io_error(error: &hyper::Error) -> Option<&std::io::Error> {
    let source = std::error::Error::source(error)?;
    let error = source.downcast_ref::<std::io::Error>()?;
    error.raw_os_error().map(|_| error)
}

/// What went wrong on a connection that was there.
fn cause(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text = format!("{text}: {source}");
    }
    match error.is_parse() {
        true => format!("net/http: HTTP/1.x transport connection broken: {text}"),
        false => text,
    }
}

#[cfg(test)]
pub(in crate::pod) mod tests;
