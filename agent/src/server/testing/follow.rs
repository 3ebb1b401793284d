//! Logs over the wire: what is there, what is still to come, rotations, and why there is nothing.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use axum::http::Method;
use hanok_runtime::api::ContainerState;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::client::Client;
use super::fixture::{Fixture, RUNNING, eventually};

const PATH: &str = "/containerLogs/default/web/app";

/// Appends lines as the shim does.
fn append(path: &Path, lines: &[&str]) {
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    for line in lines {
        file.write_all(format!("2026-11-29T12:00:00.000000001Z stdout {line}\n").as_bytes())
            .unwrap();
    }
}

/// Renames the log as a rotation does, without making the next one.
fn rotate(log: &Path, suffix: &str) {
    fs::rename(log, format!("{}.{suffix}", log.display())).unwrap();
}

/// A follower's view of a log.
struct Followed {
    body: Incoming,
    text: String,
}

impl Followed {
    async fn start(client: &Client, query: &str) -> Self {
        let response = client
            .send(Method::GET, &format!("{PATH}?{query}"), &[])
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// Reads until the text so far is this.
    async fn until(&mut self, text: &str) {
        let reading = async {
            while self.text.len() < text.len() {
                let frame = self.body.frame().await.expect("the log goes on").unwrap();
                self.text
                    .push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(10), reading).await;
        assert_eq!(self.text, text);
        done.unwrap();
    }

    /// Reads to the end.
    async fn rest(self) -> String {
        let rest = tokio::time::timeout(Duration::from_secs(10), self.body.collect()).await;
        self.text + std::str::from_utf8(&rest.unwrap().unwrap().to_bytes()).unwrap()
    }
}

#[tokio::test]
async fn a_log_is_read_as_asked() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    append(
        &fixture.logs.join("0.log"),
        &["F one", "P tw", "F o", "F three", "P end"],
    );
    let table = [
        ("", "one\ntwo\nthree\nend"),
        ("?tailLines=2", "three\nend"),
        ("?tailLines=3&limitBytes=5", "two\nt"),
        ("?tailLines=0", ""),
        ("?sinceTime=2026-11-29T12:00:00Z&tailLines=1", "end"),
        ("?sinceTime=2026-11-29T12:00:01Z", ""),
        ("?stream=Stderr", ""),
        (
            "?timestamps=true&tailLines=1",
            "2026-11-29T12:00:00.000000001Z end",
        ),
    ];
    for (query, text) in table {
        let answer = client.get(&format!("{PATH}{query}")).await.unwrap();
        assert_eq!(
            answer,
            (200.try_into().unwrap(), text.to_owned()),
            "{query}"
        );
    }
    assert_eq!(
        client.get(&format!("{PATH}?tailLines=-1")).await.unwrap().0,
        422
    );
}

#[tokio::test]
async fn why_there_is_no_log_is_told() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let get = async |path: &str| {
        let (status, text) = client.get(path).await.unwrap();
        (status.as_u16(), text)
    };
    let (status, text) = get("/containerLogs/default/none/app").await;
    assert_eq!(
        (status, text.as_str()),
        (404, "pod \"none\" does not exist\n")
    );
    let (status, text) = get("/containerLogs/default/web/none").await;
    assert_eq!(
        (status, text.as_str()),
        (404, "container \"none\" not found in pod \"web\"\n")
    );
    let (status, text) = get(&format!("{PATH}?previous=true")).await;
    let expected = "previous terminated container \"app\" in pod \"web\" not found";
    assert_eq!((status, text.as_str()), (400, expected));
    fixture.set_status(r#"{"waiting": {"reason": "ContainerCreating"}}"#, "{}");
    let expected = "container \"app\" in pod \"web\" is waiting to start: ContainerCreating";
    assert_eq!(get(PATH).await, (400, expected.to_owned()));
    // The log is gone, or is a link to somewhere else.
    fixture.set_status(RUNNING, "{}");
    assert_eq!(get(PATH).await.0, 400);
    std::os::unix::fs::symlink("/etc/passwd", fixture.logs.join("0.log")).unwrap();
    let (status, text) = get(PATH).await;
    assert_eq!(status, 400);
    assert!(!text.contains("root:"), "{text}");
}

#[tokio::test]
async fn the_previous_container_has_a_log_of_its_own() {
    let fixture = Fixture::start();
    let last = fixture.logs.join("1.log");
    fixture
        .runtime
        .add("last", "app", ContainerState::Exited, &last);
    append(&last, &["F last words"]);
    let terminated = r#"{"terminated": {"containerID": "hanok://last", "exitCode": 1}}"#;
    fixture.set_status(RUNNING, terminated);
    let client = Client::admin(&fixture);
    for query in ["previous=true", "previous=true&follow=true"] {
        let answer = client.get(&format!("{PATH}?{query}")).await.unwrap();
        assert_eq!(answer.1, "last words\n", "{query}");
    }
}

#[tokio::test]
async fn following_goes_on_until_the_container_ends() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let log = fixture.logs.join("0.log");
    append(&log, &["F one", "F two"]);
    let mut followed = Followed::start(&client, "follow=true&tailLines=1").await;
    followed.until("two\n").await;
    append(&log, &["P thr"]);
    followed.until("two\nthr").await;
    append(&log, &["F ee"]);
    followed.until("two\nthree\n").await;
    append(&log, &["F last"]);
    fixture.runtime.end("now");
    assert_eq!(followed.rest().await, "two\nthree\nlast\n");
    eventually("the follower is gone", || fixture.is_idle()).await;
}

#[tokio::test]
async fn following_misses_nothing_across_rotations() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let log = fixture.logs.join("0.log");
    append(&log, &["F 0"]);
    let mut followed = Followed::start(&client, "follow=true").await;
    let mut expected = "0\n".to_owned();
    followed.until(&expected).await;
    let mut number = 0;
    let mut line = || {
        number += 1;
        (format!("F {number}"), format!("{number}\n"))
    };
    for round in 0..4 {
        // More files in between than the follower has time to look at, and writes after the renaming.
        for generation in 0..3 {
            for _ in 0..50 {
                let (entry, text) = line();
                append(&log, &[&entry]);
                expected += &text;
            }
            let rotated = format!("2026112912000{round}.{generation}");
            rotate(&log, &rotated);
            let (entry, text) = line();
            append(&fixture.logs.join(format!("0.log.{rotated}")), &[&entry]);
            expected += &text;
        }
        let (entry, text) = line();
        append(&log, &[&entry]);
        expected += &text;
        followed.until(&expected).await;
    }
    fixture.runtime.end("now");
    assert_eq!(followed.rest().await, expected);
}

#[tokio::test]
async fn following_survives_truncation_and_deletion() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let log = fixture.logs.join("0.log");
    append(&log, &["F one", "F two"]);
    let mut followed = Followed::start(&client, "follow=true").await;
    followed.until("one\ntwo\n").await;
    fs::OpenOptions::new()
        .write(true)
        .open(&log)
        .unwrap()
        .set_len(0)
        .unwrap();
    append(&log, &["F 3"]);
    followed.until("one\ntwo\n3\n").await;
    fs::remove_file(&log).unwrap();
    append(&log, &["F 4"]);
    followed.until("one\ntwo\n3\n4\n").await;
    fs::remove_dir_all(&fixture.logs).unwrap();
    fixture.runtime.end("now");
    assert_eq!(followed.rest().await, "one\ntwo\n3\n4\n");
}

#[tokio::test]
async fn a_follower_that_goes_away_leaves_nothing() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    append(&fixture.logs.join("0.log"), &["F one"]);
    let mut followers = Vec::new();
    for _ in 0..20 {
        let mut followed = Followed::start(&client, "follow=true").await;
        followed.until("one\n").await;
        followers.push(followed);
    }
    assert_eq!(
        (fixture.hub.watched(), fixture.runtime.listeners()),
        (2, 20)
    );
    drop(followers);
    eventually("the followers are gone", || fixture.is_idle()).await;
}
