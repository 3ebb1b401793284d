//! Objects against a scripted API server.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::client::fake::{Answer, Fake, Seen};

fn pod(uid: &str) -> Arc<Pod> {
    let value = json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "cm"}}]}]},
    });
    Arc::new(serde_json::from_value(value).unwrap())
}

fn config_map(version: &str, value: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "cm", "namespace": "ns", "resourceVersion": version}, "data": {"k": value},
    })
}

fn is_watch(seen: &Seen) -> bool {
    seen.query.contains("watch=true")
}

fn about_config_maps(seen: &[Seen]) -> Vec<&Seen> {
    seen.iter()
        .filter(|seen| seen.path.contains("/configmaps"))
        .collect()
}

async fn value(objects: &ApiObjects) -> String {
    let object = objects.config_map("ns", "cm").await.unwrap();
    object.data.as_ref().unwrap()["k"].clone()
}

async fn rung(changed: &mut mpsc::UnboundedReceiver<PodUid>) -> PodUid {
    tokio::time::timeout(Duration::from_secs(10), changed.recv())
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn an_object_is_read_once_for_all_pods_and_followed_by_its_name() {
    let (fake, server) =
        Fake::start(
            |seen| match (seen.path.contains("configmaps"), is_watch(seen)) {
                (true, false) => Some(Answer::Object(config_map("1", "old"))),
                (true, true) => Some(Answer::Open(vec![
                    json!({"type": "MODIFIED", "object": config_map("2", "new")}),
                ])),
                _ => None,
            },
        )
        .await;
    let (sender, mut changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    objects.register(&pod("a"));
    objects.register(&pod("a"));
    let uid = rung(&mut changed).await;
    assert_eq!(uid, PodUid("a".into()));
    assert_eq!(value(&objects).await, "new");
    let seen = fake.seen();
    let asked = about_config_maps(&seen);
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[0].path, "/api/v1/namespaces/ns/configmaps/cm");
    assert!(
        asked[1].query.contains("fieldSelector=metadata.name%3Dcm"),
        "{}",
        asked[1].query
    );
    assert!(
        asked[1].query.contains("resourceVersion=1"),
        "{}",
        asked[1].query
    );
}

#[tokio::test]
async fn an_immutable_object_is_not_watched() {
    let (fake, server) = Fake::start(|seen| {
        let mut object = config_map("1", "v");
        object["immutable"] = json!(true);
        seen.path
            .contains("configmaps")
            .then_some(Answer::Object(object))
    })
    .await;
    let (sender, _changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    objects.register(&pod("a"));
    value(&objects).await;
    value(&objects).await;
    assert_eq!(about_config_maps(&fake.seen()).len(), 1);
}

#[tokio::test]
async fn a_missing_object_is_told_at_once_and_rings_when_it_appears() {
    let (_fake, server) =
        Fake::start(
            |seen| match (seen.path.contains("configmaps"), is_watch(seen)) {
                (true, true) => Some(Answer::Open(vec![
                    json!({"type": "ADDED", "object": config_map("5", "here")}),
                ])),
                _ => None,
            },
        )
        .await;
    let (sender, mut changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    let lonely = objects.config_map("ns", "cm").await.unwrap_err();
    assert_eq!(lonely.to_string(), "configmap \"cm\" not found");
    objects.register(&pod("a"));
    rung(&mut changed).await;
    assert_eq!(value(&objects).await, "here");
}

#[tokio::test]
async fn a_watch_that_breaks_is_resumed_and_one_that_is_too_old_reads_again() {
    let mut watches = 0;
    let mut gets = 0;
    let (_fake, server) = Fake::start(move |seen| {
        if !seen.path.contains("configmaps") {
            return None;
        }
        if !is_watch(seen) {
            gets += 1;
            let object = config_map(&format!("{gets}00"), &format!("get {gets}"));
            return Some(Answer::Object(if gets == 1 {
                object
            } else {
                assert!(seen.query.contains("fieldSelector=metadata.name%3Dcm"));
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "300"},
                       "items": [object]})
            }));
        }
        watches += 1;
        Some(match watches {
            1 => Answer::Lines(vec![
                json!({"type": "MODIFIED", "object": config_map("101", "watch 1")}),
            ]),
            2 if seen.query.contains("resourceVersion=101") => Answer::Status(500, "broken"),
            3 => Answer::Lines(vec![
                json!({"type": "ERROR", "object": {"kind": "Status", "code": 410,
                "status": "Failure", "message": "too old", "reason": "Expired"}}),
            ]),
            // The version of the object itself, 200, may be as old as the one that was refused.
            4 => {
                assert!(seen.query.contains("resourceVersion=300"), "{}", seen.query);
                Answer::Open(Vec::new())
            }
            _ => Answer::Open(Vec::new()),
        })
    })
    .await;
    let (sender, mut changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    objects.register(&pod("a"));
    rung(&mut changed).await;
    rung(&mut changed).await;
    assert_eq!(value(&objects).await, "get 2");
}

#[tokio::test]
async fn what_the_server_keeps_refusing_is_told_and_asked_for_again() {
    let mut refusals = 7;
    let (_fake, server) = Fake::start(move |seen| {
        if !seen.path.contains("configmaps") || is_watch(seen) {
            return Some(Answer::Open(Vec::new()));
        }
        refusals -= 1;
        Some(if refusals > 0 {
            Answer::Status(403, "no relationship found")
        } else {
            Answer::Object(config_map("1", "at last"))
        })
    })
    .await;
    let (sender, mut changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    objects.register(&pod("a"));
    let error = objects.config_map("ns", "cm").await.unwrap_err();
    assert_eq!(error.to_string(), "no relationship found");
    loop {
        rung(&mut changed).await;
        if let Ok(object) = objects.config_map("ns", "cm").await {
            assert_eq!(object.data.as_ref().unwrap()["k"], "at last");
            break;
        }
    }
}

#[tokio::test]
async fn nothing_is_followed_for_pods_that_are_gone_or_over() {
    let (_fake, server) = Fake::start(|_| Some(Answer::Object(config_map("1", "v")))).await;
    let (sender, _changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    objects.register(&pod("a"));
    objects.register(&pod("b"));
    objects.unregister(&PodUid("a".into()));
    assert_eq!(objects.config_maps.len(), 1);
    let mut over = (*pod("b")).clone();
    over.status.get_or_insert_default().phase = Some("Succeeded".into());
    objects.register(&Arc::new(over));
    assert_eq!(objects.config_maps.len(), 0);
}

#[tokio::test]
async fn callers_that_ask_at_once_share_one_token_and_a_refresh_that_fails_keeps_the_old_one() {
    let mut tokens = 0;
    let (fake, server) = Fake::start(move |seen| {
        if !seen.path.ends_with("/serviceaccounts/sa/token") {
            return None;
        }
        tokens += 1;
        // At once due for renewal, and valid for a while.
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1500);
        Some(if tokens > 1 {
            Answer::Status(500, "away")
        } else {
            Answer::Object(json!({"spec": {"audiences": []}, "status": {"token": "jwt", "expirationTimestamp": expires}}))
        })
    })
    .await;
    let (sender, _changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    let request = token_request();
    let (one, two) = tokio::join!(objects.token(&request), objects.token(&request));
    assert_eq!(
        (one.unwrap().token, two.unwrap().token),
        ("jwt".to_owned(), "jwt".to_owned())
    );
    let seen = fake.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].path,
        "/api/v1/namespaces/ns/serviceaccounts/sa/token"
    );
    let bound = &seen[0].body["spec"]["boundObjectRef"];
    assert_eq!(
        (&bound["kind"], &bound["name"], &bound["uid"]),
        (&json!("Pod"), &json!("a"), &json!("a"))
    );
    assert_eq!(seen[0].body["spec"]["expirationSeconds"], 3607);
}

#[tokio::test]
async fn a_token_of_ten_minutes_is_another_one_after_eight() {
    let mut tokens = 0;
    let (_fake, server) = Fake::start(move |seen| {
        if !seen.path.ends_with("/token") {
            return None;
        }
        tokens += 1;
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(10);
        Some(Answer::Object(json!({
            "spec": {"audiences": [], "expirationSeconds": 600},
            "status": {"token": format!("jwt-{tokens}"), "expirationTimestamp": expires},
        })))
    })
    .await;
    let (sender, _changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    let request = TokenRequest {
        expiration_seconds: 600,
        ..token_request()
    };
    // As often as a pod that runs looks after its volumes.
    for minute in 0..20 {
        let given = objects.token(&request).await.unwrap().token;
        assert_eq!(given, format!("jwt-{}", 1 + minute / 8), "minute {minute}");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::resume();
    }
}

fn token_request() -> TokenRequest {
    let mut pod = (*pod("a")).clone();
    pod.spec.as_mut().unwrap().service_account_name = Some("sa".into());
    TokenRequest {
        pod: Arc::new(pod),
        audience: String::new(),
        expiration_seconds: 3607,
    }
}

#[tokio::test]
async fn a_token_is_asked_for_again_while_the_server_does_not_know_the_pod() {
    let mut asked = 0;
    let (fake, server) = Fake::start(move |seen| {
        if !seen.path.ends_with("/token") {
            return None;
        }
        asked += 1;
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
        Some(match asked {
            1 => Answer::Status(404, "pod \"a\" not found"),
            2 => Answer::Status(403, "no relationship found"),
            _ => Answer::Object(json!({"spec": {"audiences": []}, "status": {"token": "jwt", "expirationTimestamp": expires}})),
        })
    })
    .await;
    let (sender, _changed) = mpsc::unbounded_channel();
    let objects = ApiObjects::new(&server, sender);
    assert_eq!(objects.token(&token_request()).await.unwrap().token, "jwt");
    assert_eq!(fake.seen().len(), 3);
}
