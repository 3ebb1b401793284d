//! A gRPC server with nothing but a health check: as much of HTTP/2 as one call on a connection needs.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::{say, serve};

type Code = Result<u8, Box<dyn std::error::Error>>;

/// How long a peer may say nothing.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a client says first.
const PREFACE: usize = 24;
/// The largest frame that is taken.
const MAX_FRAME: usize = 16 * 1024;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Serves until TERM.
pub(crate) fn serve(port: u16, service: &str) -> Code {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    say(&format!("healthy on port {port}"));
    let service = service.as_bytes().to_owned();
    serve::until_told(listener, move |stream| answer(stream, &service))
}

fn answer(mut stream: TcpStream, service: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_exact(&mut [0; PREFACE])?;
    frame(&mut stream, SETTINGS, 0, 0, &[])?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut body = vec![0; length.min(MAX_FRAME)];
        stream.read_exact(&mut body)?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match (head[3], head[4]) {
            (SETTINGS, flags) if flags & ACK == 0 => frame(&mut stream, SETTINGS, ACK, 0, &[])?,
            (PING, flags) if flags & ACK == 0 => frame(&mut stream, PING, ACK, 0, &body)?,
            (DATA, flags) if flags & END_STREAM != 0 => {
                // The message's only field, after five bytes of gRPC and two of its own.
                let known = body.get(7..).unwrap_or_default() == service;
                reply(&mut stream, id, known)?;
            }
            _ => {}
        }
    }
}

/// Healthy, or not found.
fn reply(stream: &mut TcpStream, id: u32, known: bool) -> std::io::Result<()> {
    let mut headers = vec![0x88];
    header(&mut headers, "content-type", "application/grpc");
    frame(stream, HEADERS, END_HEADERS, id, &headers)?;
    if known {
        frame(stream, DATA, 0, id, &[0, 0, 0, 0, 2, 8, 1])?;
    }
    let mut trailers = Vec::new();
    header(&mut trailers, "grpc-status", if known { "0" } else { "5" });
    if !known {
        header(&mut trailers, "grpc-message", "unknown service");
    }
    frame(stream, HEADERS, END_HEADERS | END_STREAM, id, &trailers)
}

/// A header that is written out and not remembered.
fn header(block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(0);
    for text in [name, value] {
        block.push(u8::try_from(text.len()).unwrap_or(0));
        block.extend_from_slice(text.as_bytes());
    }
}

fn frame(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, body: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(body.len()).unwrap_or(0).to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags];
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(body);
    stream.write_all(&frame)
}
