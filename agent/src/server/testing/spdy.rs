//! exec over SPDY, with a small client, and what a hostile client gets.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::Method;
use bytes::{Bytes, BytesMut};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::spdy::frame::{self, Control, Decoder, Encoder, Head, Reset};
use super::client::Client;
use super::fixture::{FakeReviewer, Fixture, eventually};

const V4: &str = "v4.channel.k8s.io";

/// A client's end of SPDY.
pub(super) struct SpdyClient<T> {
    io: T,
    encoder: Encoder,
    decoder: Decoder,
    next: u32,
    /// Data by stream.
    pub(super) received: BTreeMap<u32, Vec<u8>>,
    /// Streams that the server has ended, and whether by a reset.
    pub(super) ended: BTreeMap<u32, bool>,
    pub(super) pongs: Vec<u32>,
    pub(super) gone_away: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> SpdyClient<T> {
    pub(super) fn new(io: T) -> Self {
        Self {
            io,
            encoder: Encoder::new(),
            decoder: Decoder::new(),
            next: 1,
            received: BTreeMap::new(),
            ended: BTreeMap::new(),
            pongs: Vec::new(),
            gone_away: false,
        }
    }

    /// Opens a stream; returns its id.
    pub(super) async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let id = self.next;
        self.next += 2;
        let mut wire = BytesMut::new();
        self.encoder.open(id, &headers, false, &mut wire);
        self.write(&wire).await;
        id
    }

    pub(super) async fn send(&mut self, stream: u32, data: &[u8], fin: bool) {
        let mut wire = BytesMut::new();
        frame::data(stream, fin, data.len(), &mut wire);
        wire.extend_from_slice(data);
        self.write(&wire).await;
    }

    pub(super) async fn write(&mut self, wire: &[u8]) {
        self.io.write_all(wire).await.unwrap();
        self.io.flush().await.unwrap();
    }

    /// Takes one frame; false at the end of the connection.
    pub(super) async fn step(&mut self) -> bool {
        let mut head = [0; 8];
        if self.io.read_exact(&mut head).await.is_err() {
            return false;
        }
        match Head::parse(head).unwrap() {
            Head::Data {
                stream,
                fin,
                length,
            } => {
                let mut data = vec![0; length];
                self.io.read_exact(&mut data).await.unwrap();
                self.received
                    .entry(stream)
                    .or_default()
                    .extend_from_slice(&data);
                if fin {
                    self.ended.insert(stream, false);
                }
            }
            Head::Control {
                kind,
                flags,
                length,
            } => {
                let mut payload = vec![0; length];
                self.io.read_exact(&mut payload).await.unwrap();
                match self.decoder.control(kind, flags, &payload).unwrap() {
                    Control::Ping { id } => self.pongs.push(id),
                    Control::GoAway => self.gone_away = true,
                    Control::Reset { stream } => drop(self.ended.insert(stream, true)),
                    _ => {}
                }
            }
        }
        true
    }

    /// Takes frames until something is so, or the connection ends.
    pub(super) async fn until(&mut self, mut is: impl FnMut(&Self) -> bool) {
        let reading = async { while !is(self) && self.step().await {} };
        tokio::time::timeout(Duration::from_secs(20), reading)
            .await
            .expect("frames come");
    }

    pub(super) async fn drain(&mut self) {
        self.until(|_| false).await;
    }
}

type Spdy = SpdyClient<TokioIo<Upgraded>>;

/// Upgrades to SPDY.
pub(super) async fn upgrade(fixture: &Fixture, path: &str, protocol: &'static str) -> Spdy {
    let headers = [
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        ("x-stream-protocol-version", protocol),
    ];
    let response = Client::admin(fixture)
        .send(Method::POST, path, &headers)
        .await
        .unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["x-stream-protocol-version"], protocol);
    SpdyClient::new(TokioIo::new(hyper::upgrade::on(response).await.unwrap()))
}

/// The streams of one exec.
struct Exec {
    client: Spdy,
    ids: BTreeMap<&'static str, u32>,
}

impl Exec {
    async fn start(fixture: &Fixture, command: &str, streams: &[&'static str]) -> Self {
        let mut path = format!("/exec/default/web/app?{command}");
        for stream in streams {
            path += match *stream {
                "stdin" => "&input=1",
                "stdout" => "&output=1",
                "stderr" => "&error=1",
                _ => "&tty=1",
            };
        }
        let mut client = upgrade(fixture, &path, V4).await;
        let mut ids = BTreeMap::new();
        for stream in ["error"].iter().chain(streams) {
            ids.insert(*stream, client.open(&[("streamtype", stream)]).await);
        }
        Self { client, ids }
    }

    fn got(&self, stream: &str) -> &[u8] {
        self.client
            .received
            .get(&self.ids[stream])
            .map_or(&[], Vec::as_slice)
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_slice(self.got("error")).unwrap()
    }
}

#[tokio::test]
async fn output_and_exit_code_come_on_their_streams() {
    let fixture = Fixture::start();
    let mut exec = Exec::start(
        &fixture,
        "command=echo&command=hello",
        &["stdout", "stderr"],
    )
    .await;
    exec.client.drain().await;
    assert_eq!(exec.got("stdout"), b"hello");
    assert_eq!(exec.status()["status"], "Success");
    assert!(exec.client.gone_away);
    for stream in ["stdout", "stderr", "error"] {
        assert_eq!(
            exec.client.ended.get(&exec.ids[stream]),
            Some(&false),
            "{stream}"
        );
    }
    drop(exec);
    let mut exec = Exec::start(&fixture, "command=exit&command=42", &["stdout"]).await;
    exec.client.drain().await;
    assert_eq!(exec.status()["details"]["causes"][0]["message"], "42");
    drop(exec);
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn a_half_closed_stdin_is_the_end_of_input() {
    let fixture = Fixture::start();
    let mut exec = Exec::start(&fixture, "command=cat", &["stdin", "stdout"]).await;
    let stdin = exec.ids["stdin"];
    exec.client.send(stdin, b"one ", false).await;
    exec.client.send(stdin, b"two", true).await;
    exec.client.drain().await;
    assert_eq!(exec.got("stdout"), b"one two");
    assert_eq!(exec.status()["status"], "Success");
}

#[tokio::test]
async fn a_terminal_gets_its_size() {
    let fixture = Fixture::start();
    let streams = ["stdin", "stdout", "resize"];
    let mut exec = Exec::start(&fixture, "command=size", &streams).await;
    let resize = exec.ids["resize"];
    exec.client
        .send(resize, b"{\"Width\":120,\"Height\":40}", false)
        .await;
    exec.client.drain().await;
    assert_eq!(exec.got("stdout"), b"40 120");
}

#[tokio::test]
async fn a_large_output_arrives_whole() {
    let fixture = Fixture::start();
    let length = 64 << 20;
    let command = format!("command=flood&command={length}");
    let mut exec = Exec::start(&fixture, &command, &["stdout"]).await;
    exec.client.drain().await;
    assert_eq!(exec.got("stdout").len(), length);
    assert_eq!(exec.status()["status"], "Success");
}

#[tokio::test]
async fn pings_are_answered() {
    let fixture = Fixture::start();
    let mut exec = Exec::start(&fixture, "command=hang", &["stdin", "stdout"]).await;
    let mut wire = BytesMut::new();
    frame::ping(7, &mut wire);
    exec.client.write(&wire).await;
    exec.client.until(|client| !client.pongs.is_empty()).await;
    assert_eq!(exec.client.pongs, [7]);
}

#[tokio::test]
async fn streams_that_never_come_end_the_session() {
    let fixture = Fixture::with(FakeReviewer::default(), |config| {
        config.stream_creation_timeout = Duration::from_millis(100);
    });
    let path = "/exec/default/web/app?command=hang&output=1&input=1";
    let mut client = upgrade(&fixture, path, V4).await;
    client.open(&[("streamtype", "error")]).await;
    client.drain().await;
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn clients_that_vanish_leave_nothing() {
    let fixture = Fixture::start();
    let commands = [
        "command=hang",
        "command=flood&command=100000000",
        "command=cat",
    ];
    for round in 0..60 {
        let exec = Exec::start(&fixture, commands[round % 3], &["stdin", "stdout"]).await;
        drop(exec);
    }
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn hostile_frames_end_the_connection() {
    let fixture = Fixture::start();
    let mut again = BytesMut::new();
    Encoder::new().open(1, &vec![], false, &mut again);
    let hostile: [&[u8]; 5] = [
        // A version that is not ours.
        &[0x80, 2, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0],
        // A control frame that is too long.
        &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
        // A header block that does not inflate.
        &[
            0x80, 3, 0, 1, 0, 0, 0, 14, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4,
        ],
        // A ping without an id.
        &[0x80, 3, 0, 6, 0, 0, 0, 0],
        // A stream that has been opened already.
        &again,
    ];
    for wire in hostile {
        let mut exec = Exec::start(&fixture, "command=hang", &["stdin", "stdout"]).await;
        exec.client.write(wire).await;
        exec.client.drain().await;
        assert!(exec.client.received.is_empty(), "{wire:?}");
    }
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn data_of_no_stream_is_reset_and_harms_nobody() {
    let fixture = Fixture::start();
    let mut exec = Exec::start(&fixture, "command=cat", &["stdin", "stdout"]).await;
    exec.client.send(99, b"lost", false).await;
    exec.client
        .until(|client| client.ended.get(&99) == Some(&true))
        .await;
    let extra = exec.client.open(&[("streamtype", "other")]).await;
    exec.client
        .until(|client| client.ended.get(&extra) == Some(&true))
        .await;
    let mut wire = BytesMut::new();
    frame::reset(extra, Reset::Cancel, &mut wire);
    exec.client.write(&wire).await;
    exec.client.send(exec.ids["stdin"], b"found", true).await;
    exec.client.drain().await;
    assert_eq!(exec.got("stdout"), Bytes::from_static(b"found"));
}
