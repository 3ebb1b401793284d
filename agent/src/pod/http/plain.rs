//! A request without TLS and its answer, with as little work as there can be: one write of what was made ready once, and
//! one read, as most answers to probes are a few short lines.
//!
//! An answer that is out of the ordinary goes on to a client that knows all of HTTP ([`Replay`]).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use http::header::{CONNECTION, HOST};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::MAX_BODY;
use super::target::Target;
use super::wire::Wire;

/// Bytes in which the head of an ordinary answer ends, mostly with its body.
const ROOM: usize = 2 * 1024;
/// Most headers of an ordinary answer.
const MAX_HEADERS: usize = 64;

/// What came of a request.
pub(super) enum Came {
    /// An answer that nobody has to think about.
    Answer(Answer),
    /// Something else, which begins with what was read.
    Other(Replay),
}

/// A status of success; the body is as long as the head says, and may be still to come.
pub(in crate::pod) struct Answer {
    pub(super) status: u16,
    wire: Wire,
    /// The body, as far as it came with the head.
    body: Vec<u8>,
    length: usize,
}

/// The head of a request, as it is sent.
pub(super) fn request(target: &Target, headers: &HeaderMap) -> Vec<u8> {
    let mut text = format!("GET {} HTTP/1.1\r\nHost: ", target.path).into_bytes();
    match headers.get(HOST).filter(|host| !host.is_empty()) {
        Some(host) => text.extend_from_slice(host.as_bytes()),
        None => text.extend_from_slice(target.address().as_bytes()),
    }
    text.extend_from_slice(b"\r\n");
    for (name, value) in headers
        .iter()
        .filter(|(name, _)| **name != HOST && **name != CONNECTION)
    {
        text.extend_from_slice(titled(name.as_str()).as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"Connection: close\r\n\r\n");
    text
}

/// A header's name as it is written: `X-Name`.
pub(super) fn titled(name: &str) -> String {
    let mut first = true;
    let letter = |letter: char| {
        let is_first = std::mem::replace(&mut first, letter == '-');
        match is_first {
            true => letter.to_ascii_uppercase(),
            false => letter,
        }
    };
    name.chars().map(letter).collect()
}

/// Sends a request and reads the head of its answer.
pub(super) async fn ask(mut wire: Wire, request: &[u8]) -> io::Result<Came> {
    wire.write_all(request).await?;
    // Others run now, and the one that was asked may be among them: what is there when it is our turn again need not be
    // waited for.
    tokio::task::yield_now().await;
    let mut read = Vec::with_capacity(ROOM);
    loop {
        let count = wire.read_buf(&mut read).await?;
        match Head::of(&read) {
            Look::Ordinary(head) => {
                let body = read.split_off(head.bytes);
                return Ok(Came::Answer(Answer {
                    status: head.status,
                    wire,
                    body,
                    length: head.length,
                }));
            }
            Look::Unfinished if count > 0 && read.len() < ROOM => {}
            Look::Unfinished | Look::Other => return Ok(Came::Other(Replay::new(wire, read))),
        }
    }
}

impl Answer {
    /// The body, as far as anybody wants to know it.
    pub(super) async fn body(mut self) -> Result<String, io::Error> {
        let wanted = self.length.min(MAX_BODY);
        while self.body.len() < wanted {
            if self.wire.read_buf(&mut self.body).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.body.truncate(wanted);
        Ok(String::from_utf8_lossy(&self.body).into_owned())
    }
}

/// The head of an ordinary answer.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    /// Of the head.
    bytes: usize,
    /// Of the body.
    length: usize,
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Ordinary(Head),
    /// There may be a head when more has come.
    Unfinished,
    Other,
}

impl Head {
    fn of(read: &[u8]) -> Look {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        let bytes = match answer.parse(read) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) => return Look::Unfinished,
            Err(_) => return Look::Other,
        };
        let Some(status @ 200..300) = answer.code else {
            return Look::Other;
        };
        let mut length = None;
        for header in answer.headers.iter() {
            if header.name.eq_ignore_ascii_case("transfer-encoding") {
                return Look::Other;
            }
            if header.name.eq_ignore_ascii_case("content-length") {
                let Some(number) = digits(header.value).filter(|_| length.is_none()) else {
                    return Look::Other;
                };
                length = Some(number);
            }
        }
        // The one status that never has a body.
        let length = if status == 204 { Some(0) } else { length };
        match length {
            Some(length) => Look::Ordinary(Head {
                status,
                bytes,
                length,
            }),
            None => Look::Other,
        }
    }
}

/// A number of nothing but digits.
fn digits(text: &[u8]) -> Option<usize> {
    let text = str::from_utf8(text).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// A connection on which the request has been sent and something was read, for a client that wants to do both itself:
/// what it writes goes nowhere, and what it reads begins with what was read.
#[derive(Debug)]
pub(super) struct Replay {
    wire: Wire,
    read: Vec<u8>,
    at: usize,
    /// It has written its request; it takes an answer to nothing for a fault.
    asked: bool,
    reader: Option<Waker>,
}

impl Replay {
    fn new(wire: Wire, read: Vec<u8>) -> Self {
        Self {
            wire,
            read,
            at: 0,
            asked: false,
            reader: None,
        }
    }
}

impl AsyncRead for Replay {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.asked {
            this.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let rest = this.read.get(this.at..).unwrap_or_default();
        if rest.is_empty() {
            return Pin::new(&mut this.wire).poll_read(context, buffer);
        }
        let count = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..count]);
        this.at += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Replay {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.asked = true;
        if let Some(reader) = this.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_success_of_a_known_length_is_ordinary() {
        let ordinary = |status, length| {
            move |bytes| {
                Look::Ordinary(Head {
                    status,
                    bytes,
                    length,
                })
            }
        };
        let is = |text: &str, want: &dyn Fn(usize) -> Look| {
            let bytes = text.find("\r\n\r\n").map_or(0, |at| at + 4);
            assert_eq!(Head::of(text.as_bytes()), want(bytes), "{text:?}");
        };
        is(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            &ordinary(200, 2),
        );
        is(
            "HTTP/1.0 299 X\r\ncontent-length:0\r\n\r\n",
            &ordinary(299, 0),
        );
        is("HTTP/1.1 204 X\r\n\r\n", &ordinary(204, 0));
        for text in [
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nok",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\nok",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 302 X\r\ncontent-length: 2\r\n\r\nok",
            "HTTP/1.1 503 X\r\ncontent-length: 2\r\n\r\nok",
            "no HTTP",
        ] {
            is(text, &|_| Look::Other);
        }
        for text in ["", "HTTP/1.1 200 OK\r\ncontent-le"] {
            is(text, &|_| Look::Unfinished);
        }
    }
}
