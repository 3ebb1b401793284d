//! Trust bundles against a scripted API server.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::client::fake::{Answer, Fake, Seen};

const ROOT: &str = "/apis/certificates.k8s.io";

fn pem(body: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

fn bundle(name: &str, signer: Option<&str>, pem: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
        "metadata": {"name": name, "resourceVersion": "7"},
        "spec": {"signerName": signer, "trustBundle": pem},
    })
}

/// A server that has one version, two bundles, and this news of them.
fn serve(version: &'static str, news: Vec<Value>) -> impl FnMut(&Seen) -> Option<Answer> {
    move |seen| {
        if seen.path == format!("{ROOT}/{version}") {
            return Some(Answer::Object(json!({
                "kind": "APIResourceList", "groupVersion": format!("certificates.k8s.io/{version}"),
                "resources": [{"name": PLURAL, "singularName": "", "namespaced": false, "kind": "ClusterTrustBundle", "verbs": []}],
            })));
        }
        if seen.path != format!("{ROOT}/{version}/{PLURAL}") {
            return None;
        }
        if seen.query.contains("watch=true") {
            return Some(Answer::Open(news.clone()));
        }
        Some(Answer::Object(json!({
            "kind": "ClusterTrustBundleList", "apiVersion": format!("certificates.k8s.io/{version}"),
            "metadata": {"resourceVersion": "8"},
            "items": [bundle("a", None, &pem("YQ==")), bundle("x:s:b", Some("x/s"), &pem("Yg=="))],
        })))
    }
}

fn watched(server: &ApiServer) -> (Arc<TrustBundles>, mpsc::UnboundedReceiver<PodUid>) {
    let (sender, changed) = mpsc::unbounded_channel();
    (Arc::new(TrustBundles::new(server.clone(), sender)), changed)
}

fn uid(name: &str) -> PodUid {
    PodUid(name.to_owned())
}

fn of_name(name: &str) -> BTreeSet<TrustBundle> {
    [TrustBundle::Name(name.to_owned())].into()
}

fn of_signer(name: &str) -> BTreeSet<TrustBundle> {
    [TrustBundle::Signer(name.to_owned())].into()
}

async fn ask(bundles: &TrustBundles, wanted: Value) -> String {
    match bundles
        .anchors(&serde_json::from_value(wanted).unwrap())
        .await
    {
        Ok(pem) => String::from_utf8(pem).unwrap(),
        Err(error) => error.to_string(),
    }
}

fn about_bundles(seen: &[Seen]) -> Vec<&Seen> {
    let asked = seen.iter().filter(|seen| seen.path.ends_with(PLURAL));
    asked.collect()
}

#[tokio::test]
async fn bundles_are_listed_once_for_all_pods_in_the_version_that_the_server_has() {
    for version in VERSIONS {
        let (fake, server) = Fake::start(serve(version, Vec::new())).await;
        let (bundles, _changed) = watched(&server);
        bundles.set(&uid("one"), of_name("a"));
        bundles.set(&uid("two"), of_signer("x/s"));
        assert_eq!(
            ask(&bundles, json!({"name": "a", "path": "p"})).await,
            pem("YQ==")
        );
        let signer = json!({"signerName": "x/s", "labelSelector": {}, "path": "p"});
        assert_eq!(ask(&bundles, signer).await, pem("Yg=="));
        let seen = fake.until(|seen| about_bundles(seen).len() == 2).await;
        let asked = about_bundles(&seen);
        assert!(asked[1].query.contains("watch=true"), "{asked:?}");
        assert_eq!(asked[0].path, format!("{ROOT}/{version}/{PLURAL}"));
    }
}

#[tokio::test]
async fn a_change_rings_the_pods_that_ask_for_the_bundle_and_no_others() {
    let news = [
        ("MODIFIED", bundle("a", None, &pem("YzE="))),
        ("ADDED", bundle("x:s:new", Some("x/s"), &pem("YzI="))),
        ("DELETED", bundle("x:s:b", Some("x/s"), "")),
        // What changes nothing that is of interest.
        ("MODIFIED", bundle("a", None, &pem("YzE="))),
        ("ADDED", bundle("last", None, "")),
    ];
    let news = news.map(|(kind, object)| json!({"type": kind, "object": object}));
    let (_fake, server) = Fake::start(serve("v1", news.to_vec())).await;
    let (bundles, mut changed) = watched(&server);
    for (pod, wanted) in [
        ("of-a", of_name("a")),
        ("of-s", of_signer("x/s")),
        ("of-b", of_name("x:s:b")),
        ("of-none", of_name("none")),
        ("of-t", of_signer("x/t")),
        ("of-last", of_name("last")),
    ] {
        bundles.set(&uid(pod), wanted);
    }
    let mut rung = Vec::new();
    while !rung.contains(&uid("of-last")) {
        let next = tokio::time::timeout(Duration::from_secs(10), changed.recv()).await;
        rung.push(next.unwrap().unwrap());
    }
    rung.sort();
    let expected = ["of-a", "of-b", "of-last", "of-s", "of-s"];
    assert_eq!(rung, expected.map(uid));
    assert_eq!(
        ask(&bundles, json!({"name": "a", "path": "p"})).await,
        pem("YzE=")
    );
    let signer = json!({"signerName": "x/s", "labelSelector": {}, "path": "p"});
    assert_eq!(ask(&bundles, signer).await, pem("YzI="));
}

#[tokio::test]
async fn nothing_is_asked_while_no_pod_wants_it_and_the_watch_ends_with_the_last_pod() {
    let (fake, server) = Fake::start(serve("v1", Vec::new())).await;
    let (bundles, _changed) = watched(&server);
    bundles.set(&uid("plain"), BTreeSet::new());
    let wanted = json!({"name": "a", "path": "p"});
    let unsynced = "ClusterTrustBundle informer has not yet synced";
    assert_eq!(ask(&bundles, wanted.clone()).await, unsynced);
    assert!(fake.seen().is_empty());
    bundles.set(&uid("one"), of_name("a"));
    bundles.set(&uid("two"), of_name("a"));
    bundles.set(&uid("one"), BTreeSet::new());
    assert_eq!(ask(&bundles, wanted.clone()).await, pem("YQ=="));
    bundles.set(&uid("two"), BTreeSet::new());
    assert_eq!(ask(&bundles, wanted.clone()).await, unsynced);
    // A new watch begins with a list of its own.
    bundles.set(&uid("three"), of_name("a"));
    assert_eq!(ask(&bundles, wanted).await, pem("YQ=="));
    let lists = |seen: &[Seen]| {
        let asked = about_bundles(seen).into_iter();
        asked.filter(|seen| !seen.query.contains("watch")).count()
    };
    assert_eq!(lists(&fake.seen()), 2);
}

#[tokio::test]
async fn a_server_without_such_objects_is_told_in_a_kubelets_words() {
    let (_fake, server) = Fake::start(|_| None).await;
    let (bundles, _changed) = watched(&server);
    bundles.set(&uid("one"), of_name("a"));
    let answer = ask(
        &bundles,
        json!({"name": "a", "path": "p", "optional": true}),
    )
    .await;
    assert_eq!(answer, NO_TRUST_BUNDLES);
}
