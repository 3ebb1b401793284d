//! What hooks do, and what is said of those that fail.

use super::*;
use crate::pod::http::tests::answer_all;
use crate::pod::{fake::Fake, sample};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Runs a hook; gives what it told, or the message of its failure.
async fn run(handler: Value, answer: Option<i32>) -> Result<Told, String> {
    let fake = Fake::new();
    fake.state().answer = answer;
    let pod = sample::pod("Always", &[], &["a"]);
    let handler: LifecycleHandler = serde_json::from_value(handler).expect("a handler");
    let hook = Hook {
        pod: &pod,
        container: &spec::app_containers(&pod)[0],
        id: &ContainerId("a.0".into()),
        pod_ip: "127.0.0.1",
        handler: &handler,
    };
    let result = hook.run(&*fake).await;
    result.map_err(|error| hook.message(&error))
}

fn of(what: &str, cause: &str) -> String {
    let pod = format!("web_default({})", sample::UID);
    format!("{what} for Container \"a\" in Pod \"{pod}\" failed - error: {cause}")
}

#[tokio::test(start_paused = true)]
async fn commands_and_pauses_end_as_they_end() {
    let exec = json!({"exec": {"command": ["no", "way"]}});
    assert_eq!(run(exec.clone(), Some(0)).await, Ok(None));
    let what = of(
        "Exec lifecycle hook ([no way])",
        "command 'no way' exited with 3: the answer",
    );
    assert_eq!(
        run(exec, Some(3)).await,
        Err(format!("{what}, message: \"the answer\""))
    );
    let began = tokio::time::Instant::now();
    assert_eq!(run(json!({"sleep": {"seconds": 5}}), None).await, Ok(None));
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    assert_eq!(run(json!({"sleep": {"seconds": 0}}), None).await, Ok(None));
    let none = run(json!({}), None).await.expect_err("no action");
    assert!(
        none.starts_with("Cannot run handler: invalid handler"),
        "{none}"
    );
}

#[tokio::test]
async fn any_answer_to_a_request_is_success_and_none_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let handler = json!({"httpGet": {"port": port, "path": "/x"}});
    let (ran, requests) = tokio::join!(
        run(handler.clone(), None),
        answer_all(&listener, &["HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"])
    );
    assert_eq!(ran, Ok(None));
    assert!(
        requests[0].contains("User-Agent: kube-lifecycle/1.37"),
        "{requests:?}"
    );
    drop(listener);
    let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    let cause = format!("Get \"http://127.0.0.1:{port}/x\": {refused}");
    assert_eq!(
        run(handler, None).await,
        Err(of("HTTP lifecycle hook (/x)", &cause))
    );
}

#[tokio::test]
async fn an_https_hook_reaches_a_server_without_tls_but_keeps_its_credentials() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let secret = json!([{"name": "Authorization", "value": "secret"}]);
    let handler = json!({"httpGet": {"scheme": "HTTPS", "port": port, "httpHeaders": secret}});
    let answers = [
        "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ];
    let (ran, requests) = tokio::join!(run(handler, None), answer_all(&listener, &answers));
    let told = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    );
    assert_eq!(ran, Ok(Some(told)));
    assert!(requests[1].starts_with("GET / ") && !requests[1].contains("secret"));
}
