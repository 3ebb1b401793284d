//! Registration and podCIDRs against a scripted API server.

use http::Method;
use serde_json::json;

use super::*;
use crate::client::fake::{Answer, Fake};

fn facts() -> Facts {
    Facts {
        name: "n1".into(),
        hostname: "n1".into(),
        ips: vec![[10, 0, 0, 1].into()],
        machine: machine::Machine {
            architecture: "amd64".into(),
            ..machine::Machine::default()
        },
        max_pods: 110,
        reserved: std::collections::BTreeMap::new(),
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        taints: Vec::new(),
        provider_id: String::new(),
        attach_detach: true,
        port: 10250,
        handlers: Vec::new(),
        user_namespaces: false,
        max_images: None,
    }
}

#[tokio::test]
async fn a_node_that_is_missing_is_made_and_a_failure_is_tried_again() {
    let mut failures = 2;
    let (fake, server) = Fake::start(move |seen| match seen.method.as_str() {
        "POST" if failures > 0 => {
            failures -= 1;
            Some(Answer::Status(500, "broken"))
        }
        "POST" => Some(Answer::Object(seen.body.clone())),
        _ => None,
    })
    .await;
    let api = Api::all(server.requests.clone());
    let node = register::register(&api, &facts(), &NodeStatus::default(), true).await;
    assert_eq!(node.metadata.name.as_deref(), Some("n1"));
    assert_eq!(
        fake.seen()
            .iter()
            .filter(|seen| seen.method == Method::POST)
            .count(),
        3
    );
}

#[tokio::test]
async fn a_node_that_is_there_keeps_its_taints_and_gets_its_labels_right() {
    let (fake, server) = Fake::start(|_| {
        Some(Answer::Object(json!({
            "metadata": {"name": "n1", "labels": {
                "kubernetes.io/hostname": "wrong", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64", "disk": "hdd",
            }},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        })))
    })
    .await;
    let api = Api::all(server.requests.clone());
    register::register(&api, &facts(), &NodeStatus::default(), true).await;
    let seen = fake.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[1].body,
        json!({"metadata": {
            "labels": {"kubernetes.io/hostname": "n1"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        }})
    );
}

#[tokio::test]
async fn pod_cidrs_are_awaited_on_our_own_object() {
    let (fake, server) = Fake::start(|seen| {
        let node = |version: &str, spec| json!({"metadata": {"name": "n1", "resourceVersion": version}, "spec": spec});
        if seen.query.contains("watch=true") {
            let object = node("2", json!({"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24", "fd00:3::/64"]}));
            let mut object = object;
            object["kind"] = json!("Node");
            object["apiVersion"] = json!("v1");
            return Some(Answer::Open(vec![json!({"type": "MODIFIED", "object": object})]));
        }
        Some(Answer::Object(json!({
            "kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
            "items": [node("1", json!({}))],
        })))
    })
    .await;
    let (sender, mut receiver) = watch::channel(None);
    let task = tokio::spawn(async move { follow(&server, "n1", sender).await });
    let has_cidr = |node: &Option<Arc<Node>>| {
        node.as_ref()
            .is_some_and(|node| !pod_cidrs(node).is_empty())
    };
    let wait = receiver.wait_for(has_cidr);
    let node = tokio::time::timeout(Duration::from_secs(10), wait)
        .await
        .unwrap()
        .unwrap()
        .clone()
        .unwrap();
    task.abort();
    let cidrs: Vec<_> = pod_cidrs(&node).iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.244.3.0/24", "fd00:3::/64"]);
    let own = |query: &str| query.contains("fieldSelector=metadata.name%3Dn1");
    assert!(
        fake.seen().iter().all(|seen| own(&seen.query)),
        "{:?}",
        fake.seen()
    );
}
