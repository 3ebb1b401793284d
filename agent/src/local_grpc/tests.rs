use std::os::unix::fs::PermissionsExt as _;

use axum::routing::post;
use http::Request as HttpRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;

use super::testing::Served;
use super::*;

/// Its text comes back.
#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

const ECHO: &str = "/test/Echo";

fn served(places: usize) -> Served {
    let gate = Gate::new(rate(), places);
    let echo = async |request: Request| unary(request, |text: Text| Ok::<Text, Status>(text)).await;
    let routes = Router::new()
        .route(ECHO, post(echo))
        .layer(axum::middleware::from_fn_with_state(gate, admit));
    Served::start(|dir| dir.join("test/test.sock"), routes)
}

async fn echo(served: &Served, length: usize) -> Result<usize, Code> {
    let text = "x".repeat(length);
    let answer = served.call::<Text, Text>(ECHO, Text { text }).await;
    answer
        .map(|answer| answer.text.len())
        .map_err(|status| status.code())
}

#[tokio::test]
async fn a_message_longer_than_any_that_makes_sense_is_not_read() {
    let served = served(4);
    assert_eq!(echo(&served, 1 << 10).await, Ok(1 << 10));
    assert_eq!(echo(&served, 1 << 20).await, Err(Code::OutOfRange));
    assert_eq!(echo(&served, 3).await, Ok(3));
}

#[tokio::test]
async fn what_is_not_grpc_ends_its_own_connection_alone() {
    let served = served(4);
    for bytes in [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".as_slice(),
        &[0xff; 64 << 10],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00",
    ] {
        let mut stream = served.connect().await;
        // It may be shut before it has taken everything.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the connection stays");
    }
    let other: Result<Text, Status> = served.call("/test/Other", Text::default()).await;
    assert_eq!(other.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(echo(&served, 3).await, Ok(3));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_message_does_not_come_gives_its_place_back() {
    let served = served(1);
    let mut client = served.client().await;
    let body = tonic::body::Body::new(http_body_util::StreamBody::new(futures::stream::pending::<
        Result<hyper::body::Frame<bytes::Bytes>, Status>,
    >()));
    let request = HttpRequest::post("http://localhost/test/Echo")
        .header("content-type", "application/grpc")
        .body(body)
        .unwrap();
    let hanging = tokio::spawn(async move { client.sender.send_request(request).await });
    let refused = async {
        while echo(&served, 3).await != Err(Code::ResourceExhausted) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE / 2, refused).await.unwrap();
    let answer = hanging.await.unwrap().unwrap();
    assert_eq!(answer.headers()["grpc-status"], "4");
    drop(answer);
    let served = async {
        while echo(&served, 3).await != Ok(3) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, served).await.unwrap();
}

#[tokio::test]
async fn connections_are_counted_and_the_next_one_waits() {
    let served = served(4);
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(served.connect().await);
    }
    let waits = timeout(Duration::from_millis(100), echo(&served, 3)).await;
    assert!(waits.is_err(), "{waits:?}");
    idle.pop();
    assert_eq!(timeout(PATIENCE, echo(&served, 3)).await, Ok(Ok(3)));
}

#[tokio::test]
async fn a_socket_takes_the_place_of_one_before_it_and_is_closed_in_the_end() {
    let served = served(4);
    let directory = served.socket().parent().unwrap();
    let mode = fs::metadata(directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
    let again = bind(served.socket()).unwrap();
    let names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|one| one.file_name())
        .collect();
    assert_eq!(names, ["test.sock"]);
    drop(again);
    let path = served.socket().to_owned();
    let _dir = served.stop().await;
    assert!(UnixStream::connect(&path).await.is_err());
}
