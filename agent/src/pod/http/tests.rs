//! What is sent, and what comes of it.

use super::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Serves one answer for each connection; gives the requests.
pub(in crate::pod) async fn answer_all(
    listener: &TcpListener,
    answers: &[impl AsRef<str>],
) -> Vec<String> {
    let mut requests = Vec::new();
    for answer in answers {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.expect("a request");
        requests.push(String::from_utf8_lossy(&request[..read]).into_owned());
        // The client may have heard enough.
        let _ = stream.write_all(answer.as_ref().as_bytes()).await;
    }
    requests
}

/// A server that gives these answers, one to a connection, and keeps the requests.
async fn server(answers: &[&str]) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let answers: Vec<String> = answers.iter().map(|&answer| answer.to_owned()).collect();
    let task = tokio::spawn(async move { answer_all(&listener, &answers).await });
    (port, task)
}

fn get(port: u16, extra: Value) -> Get {
    let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": port}]});
    let container: Container = serde_json::from_value(container).expect("a container");
    let mut action = json!({"port": "web"});
    let fields = extra.as_object().expect("a map").clone();
    action.as_object_mut().expect("a map").extend(fields);
    let action: HTTPGetAction = serde_json::from_value(action).expect("an action");
    Get::new(&action, &container, "127.0.0.1", "kube-probe/1.37").expect("a request")
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_has_the_usual_headers_and_those_of_its_action() {
    let none: [&str; 0] = [];
    let table: [(Value, &[&str], &[&str]); 5] = [
        (
            json!([]),
            &[
                "User-Agent: kube-probe/1.37",
                "Accept: */*",
                "Connection: close",
                "Host: 127.0.0.1:",
            ],
            &none,
        ),
        (
            json!([{"name": "host", "value": "a.example"}, {"name": "user-agent", "value": "me"}]),
            &["Host: a.example", "User-Agent: me"],
            &["kube-probe", "127.0.0.1"],
        ),
        (
            json!([{"name": "Accept", "value": ""}, {"name": "X-A", "value": "1"}, {"name": "X-A", "value": "2"}]),
            &["X-A: 1", "X-A: 2"],
            &["Accept"],
        ),
        (
            json!([{"name": "User-Agent", "value": ""}]),
            &none,
            &["User-Agent"],
        ),
        (
            json!([
                {"name": "content-length", "value": "9"}, {"name": "Transfer-Encoding", "value": "chunked"},
                {"name": "Trailer", "value": "X"}, {"name": "X-A", "value": "1"},
            ]),
            &["X-A: 1"],
            &["Content-Length", "Transfer-Encoding", "Trailer"],
        ),
    ];
    for (headers, present, absent) in table {
        let (port, requests) = server(&[OK]).await;
        let get = get(port, json!({"httpHeaders": headers, "path": "x?y"}));
        let full = full_request(&get.target, &get.headers).expect("a request");
        for name in absent {
            assert!(!full.headers().contains_key(*name), "{name}");
        }
        let answer = get.send().await.expect("an answer");
        assert_eq!(
            (answer.status(), answer.body().await.expect("a body")),
            (200, "ok".into())
        );
        let request = requests.await.expect("a server").remove(0);
        assert!(request.starts_with("GET /x?y HTTP/1.1\r\n"), "{request}");
        for line in present {
            assert!(
                request.contains(&format!("\r\n{line}")),
                "{line}: {request}"
            );
        }
        for text in absent {
            assert!(!request.contains(text), "{text}: {request}");
        }
    }
}

#[tokio::test]
async fn redirects_are_followed_on_the_host_and_nowhere_else() {
    let found =
        |to: &str| format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 3\r\n\r\nhey");
    let (port, requests) = server(&[&found("/ok?z"), OK]).await;
    let headers = json!([{"name": "Host", "value": "a.example"}]);
    let answer = get(port, json!({"path": "/a", "httpHeaders": headers}))
        .send()
        .await;
    assert_eq!(answer.expect("an answer").status(), 200);
    let requests = requests.await.expect("a server");
    assert!(requests[1].starts_with("GET /ok?z ") && requests[1].contains("Host: a.example"));
    let referer = format!("Referer: http://127.0.0.1:{port}/a\r\n");
    assert!(!requests[0].contains("Referer") && requests[1].contains(&referer));

    let (port, _requests) = server(&[&found("http://other.example/x")]).await;
    let answer = get(port, json!({"path": "/b"}))
        .send()
        .await
        .expect("an answer");
    assert_eq!(
        (answer.status(), answer.body().await.expect("a body")),
        (302, "hey".into())
    );

    let (port, _requests) = server(&["HTTP/1.1 304 Not Modified\r\n\r\n"]).await;
    assert_eq!(
        get(port, json!({}))
            .send()
            .await
            .expect("an answer")
            .status(),
        304
    );

    let circle = found("/c");
    let (port, requests) = server(&[circle.as_str(); 10]).await;
    let error = get(port, json!({"path": "/c"}))
        .send()
        .await
        .expect_err("a circle");
    assert_eq!(error, "Get \"/c\": stopped after 10 redirects");
    assert_eq!(requests.await.expect("a server").len(), 10);
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_fails_the_request() {
    for (name, value, fault) in [
        ("X A", "1", "name \"X A\""),
        ("x-a", "1\n2", "value for \"X-A\""),
    ] {
        let request = get(
            80,
            json!({"path": "/", "httpHeaders": [{"name": name, "value": value}]}),
        );
        let error = request.send().await.expect_err("nothing is sent");
        assert_eq!(
            error,
            format!("Get \"http://127.0.0.1:80/\": net/http: invalid header field {fault}")
        );
    }
    let (port, requests) = server(&[OK]).await;
    let headers = json!([{"name": "X-A", "value": "\u{fc}"}]);
    let answer = get(port, json!({"httpHeaders": headers})).send().await;
    assert_eq!(answer.expect("an answer").status(), 200);
    assert!(requests.await.expect("a server")[0].contains("X-A: \u{fc}\r\n"));
}

#[tokio::test]
async fn failures_read_as_users_know_them() {
    let (port, _requests) = server(&[""]).await;
    let error = get(port, json!({"path": "/x"}))
        .send()
        .await
        .expect_err("no answer");
    assert_eq!(error, format!("Get \"http://127.0.0.1:{port}/x\": EOF"));
    let (port, _requests) = server(&["no HTTP at all\r\n\r\n"]).await;
    let error = get(port, json!({})).send().await.expect_err("no answer");
    let transport = "net/http: HTTP/1.x transport connection broken: ";
    assert!(error.contains(transport), "{error}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let error = get(port, json!({"path": "/"}))
        .send()
        .await
        .expect_err("nobody");
    let cause = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(error, format!("Get \"http://127.0.0.1:{port}/\": {cause}"));
}

#[tokio::test]
async fn a_body_is_read_to_ten_kibibytes_and_not_further() {
    let long = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n{}",
        "x".repeat(20_000)
    );
    let (port, _requests) = server(&[&long]).await;
    let answer = get(port, json!({})).send().await.expect("an answer");
    assert_eq!(answer.body().await.expect("a body").len(), MAX_BODY);
}

/// What comes of an answer that is sent in these pieces, and all that the client has sent.
async fn in_pieces(pieces: &[&str]) -> (Result<(u16, Result<String, String>), String>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serve = async {
        let (mut stream, _) = listener.accept().await.expect("a client");
        stream.set_nodelay(true).expect("no delay");
        let mut sent = vec![0; 4096];
        let mut length = stream.read(&mut sent).await.expect("a request");
        for piece in pieces {
            stream.write_all(piece.as_bytes()).await.expect("answered");
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        stream.shutdown().await.expect("the end");
        // It goes without a farewell.
        while let Ok(more @ 1..) = stream.read(&mut sent[length..]).await {
            length += more;
        }
        String::from_utf8_lossy(&sent[..length]).into_owned()
    };
    let ask = async {
        let answer = get(port, json!({})).send().await?;
        Ok((answer.status(), answer.body().await))
    };
    tokio::join!(ask, serve)
}

#[tokio::test]
async fn an_answer_of_any_form_is_understood_and_asked_for_once() {
    let ok = |text: &str| Ok((200, Ok(text.to_owned())));
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let early = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let filler = format!("x-filler: {}\r\n", "x".repeat(3000));
    let table: [(&[&str], _); 8] = [
        (&[OK], ok("ok")),
        (
            &["HTTP/1.1 200 OK\r\ncontent-le", "ngth: 2\r\n\r\no", "k"],
            ok("ok"),
        ),
        (
            &["HTTP/1.1 200 OK\r\n", "content-length: 0\r\n\r\n"],
            ok(""),
        ),
        (&[chunked, "2\r\nok\r\n", "0\r\n\r\n"], ok("ok")),
        (&["HTTP/1.0 200 OK\r\n\r\no", "k"], ok("ok")),
        (&[early, OK], ok("ok")),
        (
            &[
                "HTTP/1.1 200 OK\r\n",
                &filler,
                "content-length: 2\r\n\r\nok",
            ],
            ok("ok"),
        ),
        (
            &["HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\no", "k"],
            Ok((200, Err("unexpected EOF".to_owned()))),
        ),
    ];
    for (pieces, want) in table {
        let (got, sent) = in_pieces(pieces).await;
        assert_eq!(got, want, "{pieces:?}");
        assert_eq!(sent.matches("GET ").count(), 1, "{pieces:?}: {sent}");
        assert!(sent.ends_with("\r\n\r\n"), "{pieces:?}: {sent}");
    }
}

#[tokio::test]
async fn https_believes_any_certificate_and_tells_a_server_without_tls() {
    let key =
        rcgen::generate_simple_self_signed(vec!["nobody.example".into()]).expect("a certificate");
    let config = rustls::ServerConfig::builder_with_provider(
        rustls::crypto::ring::default_provider().into(),
    )
    .with_safe_default_protocol_versions()
    .expect("versions")
    .with_no_client_auth()
    .with_single_cert(
        vec![key.cert.der().clone()],
        rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).expect("a key"),
    )
    .expect("a server");
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serve = async {
        let (stream, _) = listener.accept().await.expect("a client");
        let mut stream = acceptor.accept(stream).await.expect("a handshake");
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await.expect("a request");
        stream.write_all(OK.as_bytes()).await.expect("answered");
    };
    let request = get(port, json!({"scheme": "HTTPS"}));
    let (answer, ()) = tokio::join!(request.send(), serve);
    assert_eq!(answer.expect("an answer").status(), 200);

    let bad = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    let (port, _requests) = server(&[bad]).await;
    let request = get(port, json!({"scheme": "HTTPS", "path": "/"}));
    let error = request.send().await.expect_err("no TLS");
    assert_eq!(
        error,
        format!("Get \"https://127.0.0.1:{port}/\": {NO_TLS}")
    );
    assert!(
        request
            .in_the_clear()
            .is_some_and(|clear| clear.in_the_clear().is_none())
    );
}

#[test]
fn ports_have_numbers_or_names() {
    let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]});
    let container: Container = serde_json::from_value(container).expect("a container");
    let named = |name: &str| port(&IntOrString::String(name.into()), &container);
    assert_eq!(named("web"), Ok(8080));
    for name in ["no", "81", "-1", ""] {
        assert_eq!(named(name), Err(format!("port \"{name}\" not found")));
    }
    for number in [0, -1, 65536] {
        let error = port(&IntOrString::Int(number), &container);
        assert_eq!(error, Err(format!("invalid port number: {number}")));
    }
}
