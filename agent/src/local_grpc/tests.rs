use std::os::unix::fs::PermissionsExt as _;

use axum::routing::{get, post};
use http_body_util::Full;
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
/// Answered with a head, and nothing more.
const HANG: &str = "/test/Hang";

fn pending() -> futures::stream::Pending<Result<Bytes, Status>> {
    futures::stream::pending()
}

/// A request to say three letters again.
fn request() -> HttpRequest<tonic::body::Body> {
    let body = Full::new(Bytes::from_static(b"\0\0\0\0\x05\x0a\x03abc"));
    HttpRequest::post(format!("http://localhost{ECHO}"))
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::new(body))
        .unwrap()
}

/// Waits for a place.
async fn echo_again(served: &Served) {
    let echoed = async {
        while echo(served, 3).await != Ok(3) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, echoed).await.unwrap();
}

fn served(places: usize) -> Served {
    let gate = Gate::of_calls(places);
    let echo = async |request: Request| unary(request, |text: Text| Ok::<Text, Status>(text)).await;
    let routes = Router::new()
        .route(ECHO, post(echo))
        .route(HANG, get(async || Body::from_stream(pending())))
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
    let body = tonic::body::Body::new(Body::from_stream(pending()));
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
    echo_again(&served).await;
}

#[tokio::test]
async fn an_answer_has_its_place_until_its_client_has_read_it() {
    let served = served(4);
    let stream = TokioIo::new(served.connect().await);
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1)
        .handshake(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut unread = Vec::new();
    for _ in 0..4 {
        unread.push(sender.send_request(request()).await.unwrap());
    }
    assert_eq!(echo(&served, 3).await, Err(Code::ResourceExhausted));
    let read = unread.pop().unwrap().collect().await.unwrap();
    assert_eq!(read.trailers().unwrap()["grpc-status"], "0");
    assert!(read.to_bytes().ends_with(b"abc"));
    echo_again(&served).await;
    // Whoever goes without reading gives its place back too.
    let again = sender.send_request(request()).await.unwrap();
    assert_eq!(echo(&served, 3).await, Err(Code::ResourceExhausted));
    drop(again);
    echo_again(&served).await;
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_ends_and_a_quiet_one_stays() {
    let served = served(4);
    let mut quiet = served.client().await.sender;
    quiet.send_request(request()).await.unwrap();
    let mut silent = Vec::new();
    for bytes in [
        b"".as_slice(),
        b"PRI * HTTP",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ] {
        let mut stream = served.connect().await;
        stream.write_all(bytes).await.unwrap();
        silent.push(stream);
    }
    // They were there before this one, so that they have been taken.
    assert_eq!(echo(&served, 3).await, Ok(3));
    tokio::time::pause();
    for mut stream in silent {
        let mut answer = Vec::new();
        let read = timeout(PATIENCE * 2, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "the connection stays");
    }
    quiet.send_request(request()).await.unwrap();
}

#[tokio::test]
async fn connections_are_counted_and_the_next_one_waits() {
    let served = served(4);
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = served.client().await;
        // One that has asked may stay, whatever it was told.
        client.sender.send_request(request()).await.unwrap();
        open.push(client);
    }
    let waits = timeout(Duration::from_millis(100), echo(&served, 3)).await;
    assert!(waits.is_err(), "{waits:?}");
    open.pop();
    assert_eq!(timeout(PATIENCE, echo(&served, 3)).await, Ok(Ok(3)));
}

#[tokio::test]
async fn a_socket_takes_the_place_of_one_before_it() {
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
}

#[tokio::test]
async fn the_order_to_stop_ends_the_socket_and_every_connection() {
    let served = served(4);
    let mut client = served.client().await;
    let request = HttpRequest::get(format!("http://localhost{HANG}"));
    let request = request.body(tonic::body::Body::empty()).unwrap();
    let mut answer = client.sender.send_request(request).await.unwrap();
    let open = timeout(Duration::from_millis(50), answer.frame()).await;
    assert!(open.is_err(), "{open:?}");
    let path = served.socket().to_owned();
    let _dir = served.stop().await;
    assert!(UnixStream::connect(&path).await.is_err());
    let end = timeout(PATIENCE, answer.frame()).await.unwrap();
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
}
