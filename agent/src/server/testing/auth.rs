//! Who gets in, and where.

use std::sync::atomic::Ordering;

use axum::http::Method;
use tokio_tungstenite::tungstenite::Error as WsError;

use super::super::{AuthorizationConfig, Server, ServerConfig, TlsConfig};
use super::client::{Client, Failure};
use super::fixture::{Ca, FakeReviewer, Fixture};

/// Every route, and one that does not exist.
const ROUTES: [&str; 18] = [
    "/pods",
    "/runningpods/",
    "/healthz",
    "/healthz/ping",
    "/configz",
    "/metrics",
    "/metrics/resource",
    "/metrics/cadvisor",
    "/stats/summary",
    "/statusz",
    "/flagz",
    "/containerLogs/default/web/app",
    "/exec/default/web/app?command=x&output=1",
    "/exec/default/web/uid-1/app?command=x&output=1",
    "/attach/default/web/app?output=1",
    "/run/default/web/app?cmd=x",
    "/portForward/default/web",
    "/nothing/here",
];

fn reviewer() -> FakeReviewer {
    FakeReviewer {
        tokens: [
            ("metrics-token", "prometheus"),
            ("stats-token", "autoscaler"),
            ("status-token", "dashboard"),
            ("config-token", "auditor"),
            ("reader-token", "reader"),
            ("runner-token", "runner"),
            ("nobody-token", "nobody"),
        ]
        .into(),
        grants: [
            ("prometheus", "get", "metrics"),
            ("autoscaler", "get", "stats"),
            ("dashboard", "get", "statusz"),
            ("auditor", "get", "configz"),
            ("reader", "get", "proxy"),
            ("runner", "get", "proxy"),
            ("runner", "create", "proxy"),
        ]
        .into(),
        ..FakeReviewer::default()
    }
}

#[tokio::test]
async fn without_a_proof_every_route_is_401() {
    let fixture = Fixture::with(reviewer(), |_| {});
    for token in [None, Some("forged")] {
        let client = Client::new(fixture.address, None, token);
        for route in ROUTES {
            for method in [Method::GET, Method::POST, Method::PUT] {
                let response = client.send(method.clone(), route, &[]).await.unwrap();
                assert_eq!(response.status(), 401, "{method} {route}");
            }
        }
    }
}

#[tokio::test]
async fn a_certificate_of_another_ca_ends_the_handshake() {
    let fixture = Fixture::start();
    let expired = fixture.ca.issue("admin", "system:masters", true);
    for certificate in [Ca::new().issue("admin", "system:masters", false), expired] {
        let client = Client::new(fixture.address, Some(certificate), None);
        let error = client.get("/healthz").await.unwrap_err();
        assert!(whole(&error).contains("alert"), "{error:?}");
    }
}

fn whole(error: &Failure) -> String {
    format!("{error:?}").to_lowercase()
}

#[tokio::test]
async fn an_admin_gets_everywhere_and_nowhere_that_is_not() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    for route in ["/pods", "/runningpods/", "/healthz", "/configz", "/metrics"] {
        assert_eq!(client.get(route).await.unwrap().0, 200, "{route}");
    }
    for route in [
        "/nothing/here",
        "/debug/pprof/",
        "/logs/",
        "/checkpoint/a/b/c",
        "/",
    ] {
        assert_eq!(client.get(route).await.unwrap().0, 404, "{route}");
    }
    assert!(
        client
            .get("/pods")
            .await
            .unwrap()
            .1
            .contains(r#""kind":"PodList""#)
    );
    assert!(client.get("/runningpods/").await.unwrap().1.contains("app"));
    assert!(
        client
            .get("/metrics")
            .await
            .unwrap()
            .1
            .contains("kubelet_running_pods 1\n")
    );
    assert!(client.get("/configz").await.unwrap().1.contains("110"));
    for (path, part) in [
        ("/stats/summary", r#""nodeName":"node-1""#),
        ("/stats/summary?only_cpu_and_memory=true", r#""pods":[]"#),
        ("/metrics/resource", "\nnode_cpu_usage_seconds_total "),
        ("/metrics/cadvisor", "\nmachine_memory_bytes "),
    ] {
        let (status, text) = client.get(path).await.unwrap();
        assert!(status == 200 && text.contains(part), "{path}: {text}");
    }
}

#[tokio::test]
async fn each_subresource_opens_its_routes_only() {
    let fixture = Fixture::with(reviewer(), |_| {});
    let open: [(&str, &[&str]); 6] = [
        ("nobody-token", &[]),
        (
            "metrics-token",
            &["/metrics", "/metrics/resource", "/metrics/cadvisor"],
        ),
        ("stats-token", &["/stats/summary"]),
        ("status-token", &["/statusz"]),
        ("config-token", &["/configz", "/flagz"]),
        (
            "reader-token",
            &[
                "/pods",
                "/runningpods/",
                "/healthz",
                "/healthz/ping",
                "/configz",
            ],
        ),
    ];
    for (token, allowed) in open {
        let client = Client::new(fixture.address, None, Some(token));
        for route in &ROUTES[..11] {
            let expected = if allowed.contains(route) { 200 } else { 403 };
            assert_eq!(
                client.get(route).await.unwrap().0,
                expected,
                "{token} {route}"
            );
        }
    }
}

#[tokio::test]
async fn reading_a_node_does_not_run_anything_on_it() {
    let fixture = Fixture::with(reviewer(), |_| {});
    let paths = [
        "/exec/default/web/app?command=exit&command=0&output=1",
        "/attach/default/web/app?output=1",
    ];
    for path in paths {
        let reader = Client::new(fixture.address, None, Some("reader-token"));
        let error = reader
            .websocket(path, "v5.channel.k8s.io")
            .await
            .unwrap_err();
        let Some(WsError::Http(response)) = error.downcast_ref() else {
            panic!("{error:?}")
        };
        assert_eq!(response.status(), 403, "{path}");
        let runner = Client::new(fixture.address, None, Some("runner-token"));
        runner.websocket(path, "v5.channel.k8s.io").await.unwrap();
    }
    let reader = Client::new(fixture.address, None, Some("reader-token"));
    let (status, text) = reader.get("/portForward/default/web").await.unwrap();
    assert_eq!(status, 403);
    let expected = "Forbidden (user=reader, verb=create, resource=nodes, subresource(s)=[proxy])";
    assert_eq!(text, expected);
}

#[tokio::test]
async fn answers_are_kept_for_a_while() {
    let fixture = Fixture::with(reviewer(), |_| {});
    let client = Client::new(fixture.address, None, Some("metrics-token"));
    for _ in 0..5 {
        assert_eq!(client.get("/metrics").await.unwrap().0, 200);
    }
    // One TokenReview and one SubjectAccessReview.
    assert_eq!(fixture.reviewer.questions.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn nobody_gets_in_while_nobody_can_be_asked() {
    let fixture = Fixture::start();
    *fixture.reviewer.out_of_order.lock().unwrap() = true;
    let (status, text) = Client::admin(&fixture).get("/pods").await.unwrap();
    assert_eq!(status, 500);
    assert!(
        text.starts_with("Authorization error (user=admin, verb=get"),
        "{text}"
    );
}

/// The answer of the port without TLS.
async fn plain(address: std::net::SocketAddr, route: &str) -> u16 {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = axum::http::Request::get(route)
        .header("host", "localhost")
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    sender
        .send_request(request)
        .await
        .unwrap()
        .status()
        .as_u16()
}

#[tokio::test]
async fn the_plain_port_has_one_route() {
    let fixture = Fixture::start();
    for (route, status) in [
        ("/healthz", 200),
        ("/pods", 404),
        ("/metrics", 404),
        ("/", 404),
    ] {
        assert_eq!(plain(fixture.healthz, route).await, status, "{route}");
    }
}

#[tokio::test]
async fn a_new_client_ca_counts_without_a_restart() {
    let fixture = Fixture::start();
    let new = Ca::new();
    let certificate = || Some(new.issue("admin", "system:masters", false));
    let get = async || {
        Client::new(fixture.address, certificate(), None)
            .get("/healthz")
            .await
    };
    assert!(get().await.is_err());
    let file = fixture.dir.path().join("ca.crt");
    std::fs::write(&file, "half a certif").unwrap();
    assert!(get().await.is_err());
    std::fs::write(fixture.dir.path().join("new"), &new.1).unwrap();
    std::fs::rename(fixture.dir.path().join("new"), &file).unwrap();
    let taken_up = async {
        while get().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), taken_up)
        .await
        .unwrap();
}

#[tokio::test]
async fn debugging_handlers_can_be_turned_off() {
    let fixture = Fixture::with(FakeReviewer::default(), |config| {
        config.debugging_handlers = false
    });
    let client = Client::admin(&fixture);
    for (route, status) in [
        ("/exec/default/web/app?command=x&output=1", 405),
        ("/containerLogs/default/web/app", 405),
        ("/runningpods/", 405),
        ("/pods", 200),
        ("/healthz", 200),
    ] {
        assert_eq!(client.get(route).await.unwrap().0, status, "{route}");
    }
}

#[tokio::test]
async fn a_server_that_refuses_nobody_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let tls = TlsConfig {
        cert_dir: dir.path().to_owned(),
        ..TlsConfig::default()
    };
    let mut config = ServerConfig::new("0.0.0.0:0".parse().unwrap(), "node-1", tls);
    config.authentication.anonymous = true;
    config.authorization = AuthorizationConfig::AlwaysAllow;
    let fixture = Fixture::start();
    let error = Server::bind(config.clone(), fixture.deps())
        .unwrap_err()
        .to_string();
    assert!(error.contains("authentication.anonymous"), "{error}");
    // From elsewhere nobody reaches this one.
    config.address = Some("127.0.0.1:0".parse().unwrap());
    Server::bind(config, fixture.deps()).unwrap();
}

#[tokio::test]
async fn without_an_address_health_alone_is_served() {
    let fixture = Fixture::start();
    let any_port = "127.0.0.1:0".parse().unwrap();
    let mut config = ServerConfig::new(any_port, "node-1", TlsConfig::default());
    config.address = None;
    config.healthz_address = Some(any_port);
    let server = Server::bind(config, fixture.deps()).unwrap();
    assert_eq!(server.local_addr(), None);
    let health = server.healthz_addr().unwrap();
    let shutdown = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(server.run(shutdown.clone()));
    assert_eq!(plain(health, "/healthz").await, 200);
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn shutting_down_ends_every_stream() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let path = "/exec/default/web/app?command=hang&input=1&output=1";
    let (_socket, _) = client.websocket(path, "v5.channel.k8s.io").await.unwrap();
    fixture.shutdown.cancel();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), fixture.running).await;
    ended.unwrap().unwrap().unwrap();
}
