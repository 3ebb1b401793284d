//! The words for what an attempt came to.

use super::*;
use crate::pod::fake::Fake;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn one(probe: Value, answer: Option<i32>) -> Answer {
    let fake = Fake::new();
    fake.state().answer = answer;
    let container =
        json!({"name": "c", "env": [{"name": "A", "value": "x"}, {"name": "B", "valueFrom": {}}]});
    let container: Container = serde_json::from_value(container).expect("a container");
    let probe: Probe = serde_json::from_value(probe).expect("a probe");
    let id = ContainerId("c.0".into());
    let question = Question::new(&probe, &container, "127.0.0.1");
    let limit = Duration::from_secs(1);
    question.ask(&*fake, &id, limit, Look::AtOnce).await
}

#[tokio::test]
async fn commands_pass_fail_or_time_out() {
    let exec = json!({"exec": {"command": ["sleep", "$(A)$(B)$(C)"]}});
    assert_eq!(one(exec.clone(), Some(0)).await, Answer::Passed);
    assert_eq!(
        one(exec.clone(), Some(1)).await,
        Answer::Failed("the answer".into())
    );
    let late = "command timed out: \"sleep x$(C)\" timed out after 1s";
    assert_eq!(one(exec, None).await, Answer::Failed(late.into()));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_command_is_found_at_once_or_with_that_of_others_but_never_past_its_limit() {
    let (passed, late) = (Some(0), None);
    for (look, answer, millis) in [
        (Look::AtOnce, passed, 0),
        (Look::Later, passed, 50),
        (Look::AtOnce, late, 1000),
        (Look::Later, late, 1000),
    ] {
        let fake = Fake::new();
        fake.state().answer = answer;
        let question = Question::Exec(vec!["true".into()]);
        let id = ContainerId("c.0".into());
        let began = Instant::now();
        let limit = Duration::from_secs(1);
        let ended = question.ask(&*fake, &id, limit, look).await;
        assert_eq!(ended == Answer::Passed, answer.is_some(), "{ended:?}");
        assert_eq!(began.elapsed().as_millis(), millis, "{look:?} {answer:?}");
    }
}

#[tokio::test]
async fn statuses_pass_from_200_and_warn_from_300() {
    let table = [
        ("200 OK", Answer::Passed),
        ("299 X", Answer::Passed),
        (
            "300 X",
            Answer::Warning("Probe terminated redirects, Response body: b".into()),
        ),
        (
            "400 X",
            Answer::Failed("HTTP probe failed with statuscode: 400".into()),
        ),
        (
            "503 X",
            Answer::Failed("HTTP probe failed with statuscode: 503".into()),
        ),
        (
            "200 X\r\nx-much: 1",
            Answer::BrokenOff("unexpected EOF".into()),
        ),
    ];
    for (status, want) in table {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let serve = async {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let _ = stream.read(&mut [0; 1024]).await.expect("a request");
            let length = if status.contains("much") { 2 } else { 1 };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\nb");
            stream.write_all(answer.as_bytes()).await.expect("answered");
        };
        let probe = one(json!({"httpGet": {"port": port}}), None);
        let (answer, ()) = tokio::join!(probe, serve);
        assert_eq!(answer, want, "{status}");
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_unknown_and_what_does_not_answer_has_failed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    assert_eq!(
        one(json!({"tcpSocket": {"port": port}}), None).await,
        Answer::Passed
    );
    let late = format!(
        "Get \"http://127.0.0.1:{port}/\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    );
    let get = json!({"httpGet": {"port": port, "path": "/"}});
    assert_eq!(one(get, None).await, Answer::Failed(late));
    drop(listener);
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(
        one(json!({"tcpSocket": {"port": port}}), None).await,
        Answer::Failed(refused)
    );
    let unnamed = "port \"no\" not found";
    for kind in ["tcpSocket", "httpGet"] {
        let probe = json!({kind: {"port": "no"}});
        assert_eq!(one(probe, None).await, Answer::Unknown(unnamed.into()));
    }
    assert_eq!(
        one(json!({}), None).await,
        Answer::Unknown("missing probe handler for c".into())
    );
}
