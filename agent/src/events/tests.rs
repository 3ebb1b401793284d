//! Events against a scripted API server.

use http::Method;
use serde_json::json;

use super::*;
use crate::client::fake::{Answer, Fake};

fn pod() -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]},
    }))
    .unwrap()
}

#[tokio::test]
async fn an_event_says_who_what_and_where() {
    let (fake, server) = Fake::start(|_| {
        Some(Answer::Object(
            json!({"metadata": {}, "involvedObject": {}}),
        ))
    })
    .await;
    let events = ApiEvents::start(&server, "n1", 50, 100);
    events.pod_event(&pod(), Some("i"), EventKind::Warning, "BackOff", "again");
    events.node_event(EventKind::Normal, "Starting", "Starting kubelet.");
    let seen = fake.until(|seen| seen.len() == 2).await;
    assert_eq!(seen[0].path, "/api/v1/namespaces/ns/events");
    let body = &seen[0].body;
    assert_eq!(
        body["involvedObject"]["fieldPath"],
        "spec.initContainers{i}"
    );
    assert_eq!(
        body["source"],
        json!({"component": "kubelet", "host": "n1"})
    );
    assert_eq!(
        (&body["type"], &body["reason"], &body["count"]),
        (&json!("Warning"), &json!("BackOff"), &json!(1))
    );
    assert_eq!(seen[1].path, "/api/v1/namespaces/default/events");
    assert_eq!(seen[1].body["involvedObject"]["kind"], "Node");
}

#[tokio::test]
async fn the_same_again_is_a_count_and_an_expired_event_is_made_anew() {
    let mut patches = 0;
    let (fake, server) = Fake::start(move |seen| {
        patches += i32::from(seen.method == Method::PATCH);
        match patches {
            2 if seen.method == Method::PATCH => Some(Answer::Status(404, "expired")),
            _ => Some(Answer::Object(
                json!({"metadata": {}, "involvedObject": {}}),
            )),
        }
    })
    .await;
    let events = ApiEvents::start(&server, "n1", 50, 100);
    for _ in 0..3 {
        events.pod_event(&pod(), None, EventKind::Normal, "Pulled", "m");
    }
    let seen = fake.until(|seen| seen.len() == 4).await;
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST"]);
    assert_eq!(seen[1].body["count"], 2);
}

#[tokio::test]
async fn one_object_cannot_crowd_out_the_others() {
    let (fake, server) = Fake::start(|_| {
        Some(Answer::Object(
            json!({"metadata": {}, "involvedObject": {}}),
        ))
    })
    .await;
    let events = ApiEvents::start(&server, "n1", 0, 0);
    for n in 0..40 {
        events.pod_event(&pod(), None, EventKind::Normal, "R", &n.to_string());
    }
    events.node_event(EventKind::Normal, "Starting", "m");
    let seen = fake
        .until(|seen| seen.iter().any(|seen| seen.body["reason"] == "Starting"))
        .await;
    assert_eq!(seen.len(), 26);
}

#[test]
fn a_long_message_is_cut_between_characters() {
    assert_eq!(shorten("short"), "short");
    let cut = shorten(&"ä".repeat(1000));
    assert!(cut.len() <= LONGEST_MESSAGE && cut.ends_with("ä..."));
}
