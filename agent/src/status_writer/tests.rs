//! The writer against a scripted API server.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Method;
use serde_json::{Value, json};

use super::*;
use crate::client::fake::{Answer, Fake, Seen};

fn pod(deleted: bool) -> Arc<Pod> {
    let time = deleted.then_some("2026-01-01T00:00:00Z");
    let meta = json!({"name": "p", "namespace": "ns", "uid": "u", "deletionTimestamp": time});
    let spec = json!({"nodeName": "n1", "containers": []});
    Arc::new(serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap())
}

fn phase(phase: &str) -> PodStatus {
    PodStatus {
        phase: Some(phase.into()),
        ..PodStatus::default()
    }
}

fn ok() -> Option<Answer> {
    Some(Answer::Object(json!({"metadata": {"name": "p"}})))
}

fn phases(seen: &[Seen]) -> Vec<String> {
    let patches = seen.iter().filter(|seen| seen.method == Method::PATCH);
    patches
        .map(|seen| {
            seen.body["status"]["phase"]
                .as_str()
                .unwrap_or("-")
                .to_owned()
        })
        .collect()
}

/// A writer to a server that gives this answer so often, and then takes everything.
async fn refusing(
    times: usize,
    answer: impl Fn() -> Answer + Send + 'static,
) -> (Arc<Fake>, StatusWriter) {
    let mut left = times;
    let (fake, server) = Fake::start(move |_| match left.checked_sub(1) {
        Some(fewer) => {
            left = fewer;
            Some(answer())
        }
        None => ok(),
    })
    .await;
    (fake, StatusWriter::new(&server))
}

/// Waits until it is so, and fails after a while.
async fn soon(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), wait)
        .await
        .unwrap();
}

fn last_phase_is(wanted: &'static str) -> impl Fn(&[Seen]) -> bool {
    move |seen| phases(seen).last().is_some_and(|phase| phase == wanted)
}

#[tokio::test]
async fn a_change_is_one_patch_with_the_uid_and_the_same_again_is_none() {
    let (fake, server) = Fake::start(|_| ok()).await;
    let writer = StatusWriter::new(&server);
    writer.publish(&pod(false), phase("Pending"));
    let seen = fake.until(|seen| !seen.is_empty()).await;
    assert_eq!(seen[0].path, "/api/v1/namespaces/ns/pods/p/status");
    assert_eq!(seen[0].body["metadata"]["uid"], "u");
    writer.publish(&pod(false), phase("Pending"));
    writer.publish(&pod(false), phase("Running"));
    let seen = fake.until(last_phase_is("Running")).await;
    assert_eq!(phases(&seen), ["Pending", "Running"]);
}

#[tokio::test]
async fn what_is_published_meanwhile_is_coalesced_and_never_two_are_in_flight() {
    let at_once = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (counted, peak) = (at_once.clone(), most.clone());
    let (fake, server) = Fake::start(move |_| {
        let now = counted.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(now, Ordering::SeqCst);
        let counted = counted.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(45)).await;
            counted.fetch_sub(1, Ordering::SeqCst);
        });
        Some(Answer::Late(
            Duration::from_millis(50),
            json!({"metadata": {"name": "p"}}),
        ))
    })
    .await;
    let writer = StatusWriter::new(&server);
    writer.publish(&pod(false), phase("0"));
    fake.until(|seen| !seen.is_empty()).await;
    for n in 1..=20 {
        writer.publish(&pod(false), phase(&n.to_string()));
    }
    let seen = fake.until(last_phase_is("20")).await;
    assert_eq!(phases(&seen), ["0", "20"]);
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_failure_is_tried_again_with_the_newest_status() {
    let (fake, writer) = refusing(2, || Answer::Status(500, "away")).await;
    writer.publish(&pod(false), phase("Pending"));
    fake.until(|seen| seen.len() == 2).await;
    writer.publish(&pod(false), phase("Running"));
    let seen = fake.until(|seen| seen.len() == 3).await;
    assert_eq!(phases(&seen), ["Pending", "Pending", "Running"]);
}

#[tokio::test]
async fn a_pod_that_is_gone_or_replaced_is_dropped() {
    for (code, text) in [
        (404, "not found"),
        (409, "Precondition failed: UID in precondition: u"),
    ] {
        let (fake, server) = Fake::start(move |_| Some(Answer::Status(code, text))).await;
        let writer = StatusWriter::new(&server);
        writer.publish(&pod(true), phase("Running"));
        writer.publish(&pod(true), phase("Failed"));
        fake.until(|seen| !seen.is_empty()).await;
        soon(|| writer.shared.slots().is_empty()).await;
        assert!(phases(&fake.seen()).len() <= 2, "{code}");
    }
}

#[tokio::test]
async fn an_ended_pod_is_deleted_after_its_last_status_and_only_when_that_is_asked_for() {
    let (fake, server) = Fake::start(|_| ok()).await;
    let writer = StatusWriter::new(&server);
    writer.publish(&pod(false), phase("Succeeded"));
    writer.terminated(&pod(false));
    fake.until(last_phase_is("Succeeded")).await;
    writer.publish(&pod(true), phase("Failed"));
    writer.terminated(&pod(true));
    let is_delete = |seen: &Seen| seen.method == Method::DELETE;
    let seen = fake.until(|seen| seen.iter().any(is_delete)).await;
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["PATCH", "PATCH", "DELETE"]);
    let body: &Value = &seen[2].body;
    assert_eq!(body["gracePeriodSeconds"], 0);
    assert_eq!(body["preconditions"]["uid"], "u");
}

#[tokio::test]
async fn a_pod_that_has_been_deleted_is_not_deleted_again() {
    let (fake, server) = Fake::start(|_| ok()).await;
    let writer = StatusWriter::new(&server);
    writer.terminated(&pod(true));
    fake.until(|seen| seen.len() == 1).await;
    soon(|| writer.shared.is_gone(&PodUid("u".into()))).await;
    writer.publish(&pod(true), phase("Failed"));
    writer.terminated(&pod(true));
    assert!(writer.shared.slots().is_empty());
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn a_404_of_somebody_in_between_does_not_end_a_pod() {
    let (fake, writer) = refusing(2, || Answer::Page(404, "404 page not found")).await;
    writer.publish(&pod(false), phase("Running"));
    let seen = fake.until(|seen| seen.len() == 3).await;
    assert_eq!(phases(&seen), ["Running", "Running", "Running"]);
}

#[tokio::test]
async fn a_pod_that_is_listed_is_not_taken_for_gone() {
    let mut refused = 0;
    let (fake, server) = Fake::start(move |seen| match seen.method {
        Method::GET => Some(Answer::Object(json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {},
            "items": [{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"name": "p", "namespace": "ns", "uid": "u"}}]
        }))),
        _ if refused < 2 => {
            refused += 1;
            Some(Answer::Status(404, "not found"))
        }
        _ => ok(),
    })
    .await;
    let writer = StatusWriter::new(&server);
    writer.publish(&pod(false), phase("Running"));
    let seen = fake.until(|seen| seen.len() == 5).await;
    assert_eq!(phases(&seen), ["Running", "Running", "Running"]);
    assert_eq!(seen[1].path, "/api/v1/namespaces/ns/pods");
    let asked = "fieldSelector=metadata.name%3Dp%2Cspec.nodeName%3Dn1";
    assert!(seen[1].query.contains(asked), "{}", seen[1].query);
}

#[tokio::test]
async fn a_pod_is_gone_where_lists_are_forbidden_and_not_where_they_fail() {
    for (code, is_gone) in [(403, true), (429, false)] {
        let (fake, server) = Fake::start(move |seen| match seen.method {
            Method::GET => Some(Answer::Status(code, "not now")),
            _ => Some(Answer::Status(404, "not found")),
        })
        .await;
        let writer = StatusWriter::new(&server);
        writer.publish(&pod(false), phase("Running"));
        match is_gone {
            true => soon(|| writer.shared.is_gone(&PodUid("u".into()))).await,
            false => {
                fake.until(|seen| seen.len() == 3).await;
                assert!(!writer.shared.is_gone(&PodUid("u".into())));
            }
        }
    }
}

#[tokio::test]
async fn a_status_that_is_refused_is_sent_until_it_is_taken() {
    let (fake, writer) = refusing(2, || {
        Answer::Status(400, "admission webhook denied the request")
    })
    .await;
    writer.publish(&pod(false), phase("Running"));
    let seen = fake.until(|seen| seen.len() == 3).await;
    assert_eq!(phases(&seen), ["Running", "Running", "Running"]);
}

#[tokio::test]
async fn a_deletion_that_is_refused_is_asked_for_until_it_is_allowed() {
    let (fake, writer) = refusing(2, || {
        Answer::Status(422, "admission webhook denied the request")
    })
    .await;
    writer.terminated(&pod(true));
    let seen = fake.until(|seen| seen.len() == 3).await;
    assert!(seen.iter().all(|seen| seen.method == Method::DELETE));
}

#[tokio::test]
async fn a_pod_that_is_spoken_of_long_after_it_was_gone_is_there_after_all() {
    let (fake, writer) = refusing(2, || Answer::Status(404, "not found")).await;
    writer.publish(&pod(false), phase("Running"));
    soon(|| writer.shared.slots().is_empty()).await;
    for (since, _) in writer.shared.gone.lock().unwrap().iter_mut() {
        *since -= REMEMBERED_FOR;
    }
    writer.terminated(&pod(true));
    let seen = fake.until(|seen| seen.len() == 3).await;
    assert_eq!(seen[2].method, Method::DELETE);
}

#[tokio::test]
async fn a_status_that_somebody_has_written_over_is_sent_again() {
    let (fake, writer) = refusing(0, || Answer::Status(500, "never")).await;
    writer.publish(&pod(false), phase("Running"));
    fake.until(last_phase_is("Running")).await;
    let seen = |status: &str| {
        let mut pod = Pod::clone(&pod(false));
        pod.status = Some(PodStatus {
            message: Some("theirs".into()),
            ..phase(status)
        });
        Arc::new(pod)
    };
    soon(|| writer.shared.slots().values().all(|slot| !slot.busy)).await;
    writer.publish(&seen("Pending"), phase("Running"));
    let sent = fake.until(|sent| sent.len() == 2).await;
    assert_eq!(
        sent[1].body["status"],
        json!({"phase": "Running", "message": null})
    );
}
