//! A small HTTP/1.1 server and client.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use crate::{say, signals};

type Code = Result<u8, Box<dyn std::error::Error>>;

/// How long a peer may say nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves until TERM.
pub(crate) fn serve(port: u16, text: &str) -> Code {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    say(&format!("serving on port {port}"));
    let text = text.to_owned();
    until_told(listener, move |stream| answer(&stream, &text))
}

/// Lets the kernel take connections until TERM, and answers none.
pub(crate) fn deaf(port: u16) -> Code {
    let _listener = TcpListener::bind(("0.0.0.0", port))?;
    say(&format!("deaf on port {port}"));
    signals::sleep(None)
}

/// Answers every connection until TERM.
pub(crate) fn until_told(
    listener: TcpListener,
    answer: impl Fn(TcpStream) -> std::io::Result<()> + Send + 'static,
) -> Code {
    // Spawned before the signals are blocked for this thread; TERM may reach either, so the loop is in the other.
    let server = move || {
        for stream in listener.incoming().flatten() {
            answer(stream).ok();
        }
    };
    let mut set = nix::sys::signal::SigSet::empty();
    set.add(nix::sys::signal::Signal::SIGTERM);
    set.add(nix::sys::signal::Signal::SIGINT);
    set.thread_block()?;
    thread::spawn(server);
    signals::sleep(None)
}

fn answer(stream: &TcpStream, text: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("/").to_owned();
    // The rest of the head is read, so that closing does not reset the connection.
    while reader.read_line(&mut line)? > 2 {}
    let mut stream = stream;
    // In one packet, as servers do.
    if let Some(host) = path.strip_prefix("/to/") {
        let head = format!(
            "HTTP/1.1 302 Found\r\nLocation: http://{host}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        return stream.write_all(head.as_bytes());
    }
    let (status, body) = resource(&path, text);
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes())?;
    if let Some(code) = path.strip_prefix("/exit/") {
        stream.flush()?;
        std::process::exit(code.parse().unwrap_or(1));
    }
    Ok(())
}

fn resource(path: &str, text: &str) -> (&'static str, String) {
    if let Some(name) = path.strip_prefix("/env/") {
        return env::var(name).map_or(("404 Not Found", String::new()), |v| ("200 OK", v));
    }
    if let Some(file) = path.strip_prefix("/file") {
        return fs::read_to_string(file)
            .map_or(("404 Not Found", String::new()), |v| ("200 OK", v));
    }
    match path {
        "/hostname" => (
            "200 OK",
            fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(),
        ),
        _ => ("200 OK", format!("{text}\n")),
    }
}

/// Connects and asks with as few calls as can be and with the packets of any client, and leaves nothing in TIME-WAIT.
pub(crate) fn knock(address: &str, times: u32, pause: Duration) -> Code {
    let address: SocketAddr = address.parse()?;
    let open = || -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        let linger = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&stream, sockopt::Linger, &linger)?;
        Ok(stream)
    };
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let before = crate::cpu_micros()?;
    for _ in 0..times {
        thread::sleep(pause);
        drop(open()?);
        let mut stream = open()?;
        stream.write_all(request.as_bytes())?;
        if stream.read(&mut [0; 2048])? == 0 {
            return Err("no answer".into());
        }
    }
    let each = (crate::cpu_micros()? - before) / u64::from(times.max(1));
    say(&each.to_string());
    Ok(0)
}

/// Prints the body of a URL.
pub(crate) fn get(url: &str) -> Code {
    let rest = url
        .strip_prefix("http://")
        .ok_or("only http:// is spoken")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no HTTP answer")?;
    say(body.trim_end());
    Ok(u8::from(head.split(' ').nth(1) != Some("200")))
}
