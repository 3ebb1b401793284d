//! exec and run before any stream: what is refused, and how.

use axum::http::Method;
use http_body_util::BodyExt;

use super::client::Client;
use super::fixture::Fixture;

const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];

async fn ask(
    client: &Client,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> (u16, String) {
    let response = client.send(Method::POST, path, headers).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_the_upgrade() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let table = [
        (
            "/exec/default/none/app?command=x&output=1",
            404,
            "pod does not exist",
        ),
        (
            "/exec/default/web/other-uid/app?command=x&output=1",
            404,
            "pod not found",
        ),
        (
            "/exec/default/web/none?command=x&output=1",
            500,
            "container not found (\"none\")",
        ),
        (
            "/exec/default/web/app?command=x",
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            "/exec/default/web/app?output=1",
            400,
            "you must specify a command",
        ),
    ];
    for (path, status, text) in table {
        assert_eq!(
            ask(&client, path, &UPGRADE).await,
            (status, text.to_owned()),
            "{path}"
        );
    }
    let path = "/exec/default/web/app?command=x&output=1";
    let (status, text) = ask(&client, path, &[]).await;
    assert_eq!(status, 400);
    assert!(
        text.starts_with("unable to upgrade: missing upgrade headers"),
        "{text}"
    );
    let version = ("x-stream-protocol-version", "v9.channel.k8s.io");
    let (status, text) = ask(&client, path, &[UPGRADE[0], UPGRADE[1], version]).await;
    assert_eq!(status, 403);
    assert!(text.contains("unable to negotiate protocol"), "{text}");
}

#[tokio::test]
async fn a_container_that_does_not_run_has_nothing_to_exec_in() {
    let fixture = Fixture::start();
    fixture.runtime.end("now");
    let path = "/exec/default/web/app?command=x&output=1";
    let answer = ask(&Client::admin(&fixture), path, &UPGRADE).await;
    assert_eq!(answer, (500, "container not found (\"app\")".to_owned()));
}

#[tokio::test]
async fn run_answers_with_the_output() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let run = async |command: &str| {
        ask(&client, &format!("/run/default/web/app?cmd={command}"), &[]).await
    };
    assert_eq!(run("echo+hello").await, (200, "hello".to_owned()));
    assert_eq!(run("exit+3").await.0, 500);
    assert_eq!(run("missing").await.0, 500);
    // More than is kept is read all the same, so that the command ends.
    let (status, output) = run(&format!("flood+{}", 40 << 20)).await;
    assert_eq!((status, output.len()), (200, 16 << 20));
}
