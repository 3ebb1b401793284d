//! A health check against servers of every kind.

use super::*;
use h2::server;
use http::{HeaderValue, Response};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const SECOND: Duration = Duration::from_secs(1);

/// What a server does with the first call.
#[derive(Debug, Clone, Copy)]
enum Server {
    /// Answers with this message and status OK.
    Says(&'static [u8]),
    /// Answers with a status and a message, in the headers alone.
    Refuses(&'static str, &'static str),
    /// Answers as a web server does.
    Web(u16),
    /// Takes the call and says nothing.
    Hangs,
    /// Takes the connection and says nothing.
    Deaf,
    /// Speaks something else.
    Other,
}

async fn serve(listener: TcpListener, kind: Server) {
    let (mut stream, _) = listener.accept().await.expect("a client");
    match kind {
        Server::Deaf => std::future::pending().await,
        Server::Other => {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            return;
        }
        _ => {}
    }
    let mut connection = server::handshake(stream).await.expect("HTTP/2");
    let mut hung = Vec::new();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        assert_eq!(request.headers()["user-agent"], "kube-probe/1.37");
        match kind {
            Server::Says(message) => {
                let head = Response::new(());
                let mut stream = respond.send_response(head, false).expect("head");
                let body = Bytes::from_static(message);
                stream.send_data(body, false).expect("body");
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                stream.send_trailers(trailers).expect("trailers");
            }
            Server::Refuses(code, message) => {
                let head = Response::builder()
                    .header("grpc-status", code)
                    .header("grpc-message", message);
                let head = head.body(()).expect("a response");
                respond.send_response(head, true).expect("head");
            }
            Server::Web(status) => {
                let head = Response::builder().status(status);
                let head = head.body(()).expect("a response");
                respond.send_response(head, true).expect("head");
            }
            _ => hung.push(respond),
        }
    }
}

#[tokio::test]
async fn answers_read_as_users_know_them() {
    let rpc = "error: health rpc probe failed: rpc error: code =";
    let unhealthy = "service unhealthy (responded with";
    let unconnected =
        "timeout: failed to connect service \"ADDRESS\" within 1s: context deadline exceeded";
    let table: [(Server, String); 11] = [
        (Server::Says(&[0, 0, 0, 0, 2, 8, 1]), String::new()),
        (
            Server::Says(&[0, 0, 0, 0, 2, 8, 2]),
            format!("{unhealthy} \"NOT_SERVING\")"),
        ),
        (
            Server::Says(&[0, 0, 0, 0, 0]),
            format!("{unhealthy} \"UNKNOWN\")"),
        ),
        (
            Server::Says(&[0, 0]),
            format!("{rpc} Internal desc = the answer is no HealthCheckResponse"),
        ),
        (
            Server::Refuses("5", "unknown%20service"),
            format!("{rpc} NotFound desc = unknown service"),
        ),
        (
            Server::Refuses("12", "unknown service grpc.health.v1.Health"),
            "error: this server does not implement the grpc health protocol \
             (grpc.health.v1.Health): unknown service grpc.health.v1.Health"
                .into(),
        ),
        (Server::Refuses("99", ""), format!("{rpc} Code(99) desc = ")),
        (
            Server::Web(503),
            format!(
                "{rpc} Unavailable desc = unexpected HTTP status code received from server: 503 \
                 (Service Unavailable)"
            ),
        ),
        (
            Server::Hangs,
            "timeout: health rpc did not complete within 1s".into(),
        ),
        (Server::Deaf, unconnected.into()),
        (Server::Other, unconnected.into()),
    ];
    let checks = table.map(|(kind, want)| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = tokio::spawn(serve(listener, kind));
        let result = check("127.0.0.1", port, "a", "kube-probe/1.37", SECOND).await;
        server.abort();
        let got = result.err().unwrap_or_default();
        let want = want.replace("ADDRESS", &format!("127.0.0.1:{port}"));
        assert_eq!(got, want, "{kind:?}");
    });
    futures::future::join_all(checks).await;
}

#[test]
fn the_message_names_the_service() {
    assert_eq!(&message("")[..], [0, 0, 0, 0, 0]);
    assert_eq!(&message("ab")[..], [0, 0, 0, 0, 4, 10, 2, b'a', b'b']);
    let long = "x".repeat(300);
    assert_eq!(&message(&long)[..8], [0, 0, 0, 1, 47, 10, 0xac, 2]);
}

proptest! {
    #[test]
    fn no_answer_panics(answer in proptest::collection::vec(any::<u8>(), 0..40), text in ".{0,20}") {
        let _ = serving_status(&answer);
        let _ = unescape(&answer);
        let plain = text.replace('%', "");
        prop_assert_eq!(unescape(plain.as_bytes()), plain);
    }
}
