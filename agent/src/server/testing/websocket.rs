//! exec and attach over WebSocket.

use std::time::Duration;

use axum::http::HeaderMap;
use futures::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::client::Client;
use super::fixture::{Fixture, eventually};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// What came over the channels until the server closed.
#[derive(Debug, Default)]
struct Received {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Vec<u8>,
    closed: bool,
}

impl Received {
    fn status(&self) -> serde_json::Value {
        serde_json::from_slice(&self.status).unwrap()
    }
}

fn exec(command: &[&str], streams: &str) -> String {
    let command: Vec<_> = command
        .iter()
        .map(|word| format!("command={word}"))
        .collect();
    format!("/exec/default/web/app?{}&{streams}", command.join("&"))
}

async fn open(fixture: &Fixture, path: &str, protocol: &'static str) -> Socket {
    Client::admin(fixture)
        .websocket(path, protocol)
        .await
        .unwrap()
        .0
}

async fn receive(socket: &mut Socket) -> Received {
    let mut received = Received::default();
    let reading = async {
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Binary(bytes) => match bytes[0] {
                    1 => received.stdout.extend_from_slice(&bytes[1..]),
                    2 => received.stderr.extend_from_slice(&bytes[1..]),
                    3 => received.status.extend_from_slice(&bytes[1..]),
                    channel => panic!("channel {channel}"),
                },
                Message::Close(_) => received.closed = true,
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading)
        .await
        .expect("the session ends");
    received
}

#[tokio::test]
async fn output_comes_before_the_exit_code() {
    let fixture = Fixture::start();
    for protocol in [V5, V4] {
        let path = exec(&["echo", "hello"], "output=1&error=1");
        let received = receive(&mut open(&fixture, &path, protocol).await).await;
        assert_eq!(received.stdout, b"hello");
        assert_eq!(received.status()["status"], "Success");
        assert!(received.closed);
        let path = exec(&["complain", "oh"], "output=1&error=1");
        let received = receive(&mut open(&fixture, &path, protocol).await).await;
        assert_eq!(received.stderr, b"oh");
        let path = exec(&["exit", "3"], "output=1");
        let status = receive(&mut open(&fixture, &path, protocol).await)
            .await
            .status();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(status["details"]["causes"][0]["message"], "3");
    }
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn what_cannot_start_says_so() {
    let fixture = Fixture::start();
    let path = exec(&["missing"], "output=1&error=1");
    let received = receive(&mut open(&fixture, &path, V5).await).await;
    assert_eq!(received.status()["details"]["causes"][0]["message"], "127");
    assert!(
        String::from_utf8(received.stderr)
            .unwrap()
            .contains("not found in $PATH")
    );
    let path = exec(&["broken"], "output=1&error=1");
    let status = receive(&mut open(&fixture, &path, V5).await).await.status();
    assert_eq!(status["reason"], "InternalError");
}

#[tokio::test]
async fn stdin_ends_with_the_close_signal() {
    let fixture = Fixture::start();
    let path = exec(&["cat"], "input=1&output=1");
    let mut socket = open(&fixture, &path, V5).await;
    for piece in [&b"\x00one "[..], b"\x00two"] {
        socket
            .send(Message::Binary(piece.to_vec().into()))
            .await
            .unwrap();
    }
    socket
        .send(Message::Binary(vec![255, 0].into()))
        .await
        .unwrap();
    let received = receive(&mut socket).await;
    assert_eq!(received.stdout, b"one two");
    assert_eq!(received.status()["status"], "Success");
}

#[tokio::test]
async fn without_stdin_its_end_is_there_at_once() {
    let fixture = Fixture::start();
    let path = exec(&["cat"], "output=1");
    let received = receive(&mut open(&fixture, &path, V5).await).await;
    assert_eq!(received.status()["status"], "Success");
}

#[tokio::test]
async fn a_terminal_gets_its_size() {
    let fixture = Fixture::start();
    let path = exec(&["size"], "input=1&output=1&tty=1");
    let mut socket = open(&fixture, &path, V5).await;
    let size = b"\x04{\"Width\":120,\"Height\":40}".to_vec();
    socket.send(Message::Binary(size.into())).await.unwrap();
    assert_eq!(receive(&mut socket).await.stdout, b"40 120");
}

#[tokio::test]
async fn old_clients_get_what_they_understand() {
    let fixture = Fixture::start();
    let path = exec(&["exit", "3"], "output=1");
    let received = receive(&mut open(&fixture, &path, "channel.k8s.io").await).await;
    assert!(
        String::from_utf8(received.status)
            .unwrap()
            .contains("exit status 3")
    );
    let received = receive(&mut open(&fixture, &path, "").await).await;
    assert!(!received.status.is_empty());

    let path = exec(&["echo", "hello"], "output=1");
    let mut socket = open(&fixture, &path, "v4.base64.channel.k8s.io").await;
    let mut texts = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Text(text) = message {
            texts.push(text.to_string());
        }
    }
    assert_eq!(texts[..2], ["1", "1aGVsbG8="]);
    assert!(texts[2].starts_with('3'));
}

#[tokio::test]
async fn the_best_offered_protocol_is_chosen() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let path = exec(&["echo", "x"], "output=1");
    let chosen = |headers: HeaderMap| {
        headers["sec-websocket-protocol"]
            .to_str()
            .unwrap()
            .to_owned()
    };
    let offer = "v4.channel.k8s.io, v5.channel.k8s.io";
    assert_eq!(chosen(client.websocket(&path, offer).await.unwrap().1), V5);
    assert!(client.websocket(&path, "v9.channel.k8s.io").await.is_err());
}

#[tokio::test]
async fn attach_joins_the_containers_streams() {
    let fixture = Fixture::start();
    let path = "/attach/default/web/uid-1/app?input=1&output=1";
    let mut socket = open(&fixture, path, V5).await;
    socket
        .send(Message::Binary(b"\x00hello".to_vec().into()))
        .await
        .unwrap();
    socket
        .send(Message::Binary(vec![255, 0].into()))
        .await
        .unwrap();
    assert_eq!(receive(&mut socket).await.stdout, b"hello");
}

#[tokio::test]
async fn clients_that_vanish_leave_nothing() {
    let fixture = Fixture::start();
    let commands: [&[&str]; 3] = [&["hang"], &["flood", "100000000"], &["cat"]];
    for round in 0..60 {
        let path = exec(commands[round % 3], "input=1&output=1&error=1");
        let socket = open(&fixture, &path, V5).await;
        // Not closed: the connection just breaks.
        drop(socket);
    }
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn a_large_output_arrives_whole() {
    let fixture = Fixture::start();
    let length = 64 << 20;
    let path = exec(&["flood", &length.to_string()], "output=1");
    let received = receive(&mut open(&fixture, &path, V5).await).await;
    assert_eq!(received.stdout.len(), length);
    assert_eq!(received.status()["status"], "Success");
}

#[tokio::test]
async fn a_message_too_long_closes_the_session() {
    let fixture = Fixture::start();
    let path = exec(&["hang"], "input=1&output=1");
    let mut socket = open(&fixture, &path, V5).await;
    let _ = socket.send(Message::Binary(vec![0; 8 << 20].into())).await;
    let received = receive(&mut socket).await;
    assert!(received.status.is_empty());
    eventually("nothing is left", || fixture.is_idle()).await;
}

#[tokio::test]
async fn a_silent_session_is_closed() {
    let fixture = Fixture::with(super::fixture::FakeReviewer::default(), |config| {
        config.stream_idle_timeout = Duration::from_millis(100);
    });
    let path = exec(&["hang"], "input=1&output=1");
    let received = receive(&mut open(&fixture, &path, V5).await).await;
    assert!(received.status.is_empty());
    eventually("nothing is left", || fixture.is_idle()).await;
}
