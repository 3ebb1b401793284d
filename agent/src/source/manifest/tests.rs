//! Manifests, good and bad.

use super::*;
use serde_json::json;

const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: 'i:1'}\n";
const FILE: Origin<'_> = Origin::File("/m/web.yaml");

fn one(text: &str, origin: Origin<'_>) -> Pod {
    let mut found = pods(text, "n1", origin).expect("a manifest");
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn a_static_pod_is_named_after_its_node_and_tolerates_its_troubles() {
    let pod = one(WEB, FILE);
    let meta = &pod.metadata;
    let annotations = meta.annotations.as_ref().expect("annotations");
    assert_eq!(meta.name.as_deref(), Some("web-n1"));
    assert_eq!(meta.namespace.as_deref(), Some("default"));
    assert_eq!(annotations[SOURCE], "file");
    assert_eq!(Some(&annotations[HASH]), meta.uid.as_ref());
    let spec = pod.spec.as_ref().expect("a spec");
    assert_eq!(spec.node_name.as_deref(), Some("n1"));
    let toleration = json!([{"operator": "Exists", "effect": "NoExecute"}]);
    assert_eq!(serde_json::to_value(&spec.tolerations).unwrap(), toleration);
    let fetched = one(WEB, Origin::Http("http://h/p"));
    assert_eq!(
        fetched.metadata.annotations.expect("annotations")[SOURCE],
        "http"
    );
    assert_eq!(fetched.spec.expect("a spec").tolerations, None);
}

#[test]
fn a_name_ends_in_the_nodes_in_small_letters_and_an_empty_namespace_is_none() {
    let text = WEB.replace("{name: web}", "{name: web, namespace: ''}");
    for (node, name) in [
        ("n1", "web-n1"),
        ("Node1", "web-node1"),
        ("NODE1", "web-node1"),
    ] {
        let found = pods(&text, node, FILE).expect("a manifest");
        let meta = &found[0].metadata;
        assert_eq!(meta.name.as_deref(), Some(name));
        assert_eq!(meta.namespace.as_deref(), Some("default"));
    }
}

#[test]
fn no_trouble_of_the_node_ends_a_pod_of_a_file_after_a_while() {
    let all = json!({"operator": "Exists", "effect": "NoExecute"});
    let key =
        json!({"operator": "Exists", "effect": "NoExecute", "key": "k", "tolerationSeconds": 3});
    let table = [
        (json!([all]), json!([all])),
        (
            json!([{"operator": "Exists", "effect": "NoExecute", "key": "", "tolerationSeconds": 3}]),
            json!([all]),
        ),
        (json!([key]), json!([key, all])),
    ];
    for (given, want) in table {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}, "spec":
            {"containers": [{"name": "c", "image": "i"}], "tolerations": given}});
        let found = one(&pod.to_string(), FILE).spec.expect("a spec");
        assert_eq!(serde_json::to_value(&found.tolerations).unwrap(), want);
    }
}

#[test]
fn the_uid_follows_from_node_origin_and_contents() {
    let uid = |text: &str, origin| one(text, origin).metadata.uid.expect("a UID");
    let web = uid(WEB, FILE);
    assert_eq!(web.len(), 32);
    assert_eq!(web, uid(WEB, FILE));
    assert_eq!(web, uid(&format!("---\n# a comment\n{WEB}---\n"), FILE));
    assert_ne!(web, uid(&WEB.replace("i:1", "i:2"), FILE));
    assert_ne!(web, uid(WEB, Origin::File("/m/other.yaml")));
    let other = pods(WEB, "n2", FILE).expect("a manifest");
    assert_ne!(Some(web), other[0].metadata.uid);
    assert_eq!(
        uid(&WEB.replace("{name: web}", "{name: web, uid: u-1}"), FILE),
        "u-1"
    );
}

#[test]
fn json_is_read_too_and_lists_only_over_http() {
    let json = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j", "namespace": "kube-system"},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
        "resources": {"requests": {"cpu": 1}}}]}});
    let pod = one(&json.to_string(), FILE);
    let container = &pod.spec.as_ref().expect("a spec").containers[0];
    assert_eq!(
        container.ports.as_ref().expect("ports")[0].host_port,
        Some(80)
    );
    assert_eq!(pod.metadata.namespace.as_deref(), Some("kube-system"));
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [json, json]}).to_string();
    assert_eq!(
        pods(&list, "n1", Origin::Http("u")).expect("a list").len(),
        2
    );
    let refused = |kind: &str| Err(ManifestError::Kind(format!("v1 {kind}")));
    assert_eq!(pods(&list, "n1", FILE), refused("PodList"));
    let any = list.replace("PodList", "List");
    assert_eq!(pods(&any, "n1", Origin::Http("u")), refused("List"));
    let broken = list.replacen("\"image\":\"i\"", "\"image\":\"\"", 1);
    assert!(
        pods(&broken, "n1", Origin::Http("u")).is_err(),
        "all or none"
    );
}

#[test]
fn what_is_no_pod_is_told_in_one_line() {
    let table = [
        ("", "couldn't parse as pod: it is empty"),
        ("a: [", "couldn't parse as pod: "),
        (
            "just text",
            "couldn't parse as pod: it is nothing with apiVersion and kind: a v1 Pod is expected",
        ),
        (
            "{apiVersion: apps/v1, kind: Deployment}",
            "couldn't parse as pod: it is apps/v1 Deployment: a v1 Pod is expected",
        ),
        (
            "{apiVersion: v1, kind: Pod, spec: {containers: []}}",
            "invalid pod: metadata.name: is missing",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: w}, spec: {containers: []}}",
            "invalid pod: spec.containers: is empty",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: w}, spec: {containers: 3}}",
            "invalid pod: spec.containers: ",
        ),
        (
            "{apiVersion: v1betta2, kind: Pod}",
            "couldn't parse as pod: it is v1betta2 Pod: a v1 Pod is expected",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: w}, spec: {containers: [{name: c, image: i}],
                volumes: [{name: _INVALID_, emptyDir: {}}]}}",
            "invalid pod: spec.volumes[0].name: ",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: w}, spec: {containers: [{name: c, image: i}],
                volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]}}",
            "invalid pod: spec.volumes[1].name: ",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: w}, spec: {containers: [{name: '', image: i}]}}",
            "invalid pod: spec.containers[0].name: ",
        ),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: w}, spec: {containers: [{name: _INVALID_, image: i}]}}",
            "invalid pod: spec.containers[0].name: ",
        ),
    ];
    for (text, want) in table {
        let message = pods(text, "n1", FILE).expect_err(text).to_string();
        assert!(message.starts_with(want), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_value_of_a_megabyte_is_not_told_whole() {
    let long = "x".repeat(1 << 20);
    let table = [
        format!("{{apiVersion: {long}, kind: Pod}}"),
        format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {long}}}}}"),
        format!("{{apiVersion: v1, kind: Pod, metadata: {{name: {long}Y}}}}"),
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: w}}, spec: {{containers: {long}}}}}"
        ),
    ];
    for text in table {
        let message = pods(&text, "n1", FILE).expect_err("no pod").to_string();
        assert!(message.len() < 1200, "{} bytes", message.len());
    }
}

#[test]
fn references_to_objects_of_the_api_are_refused_by_kind() {
    let with = |mut spec: Value| {
        if spec["containers"].is_null() {
            spec["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}, "spec": spec});
        pods(&pod.to_string(), "n1", FILE).map(|_| ())
    };
    let mounted = |mut volume: Value| {
        volume["name"] = json!("v");
        json!({"volumes": [volume]})
    };
    let env = |source: Value| json!({"containers": [{"name": "c", "image": "i", "env": [{"name": "E", "valueFrom": source}]}]});
    let table = [
        (json!({"serviceAccountName": "sa"}), "serviceaccounts"),
        (json!({"imagePullSecrets": [{"name": "s"}]}), "secrets"),
        (
            env(json!({"secretKeyRef": {"name": "s", "key": "k"}})),
            "secrets",
        ),
        (
            env(json!({"configMapKeyRef": {"name": "s", "key": "k"}})),
            "configmaps",
        ),
        (
            mounted(json!({"configMap": {"name": "c"}})),
            "configmaps (via configmap volumes)",
        ),
        (
            mounted(json!({"secret": {"secretName": "c"}})),
            "secrets (via secret volumes)",
        ),
        (
            mounted(json!({"persistentVolumeClaim": {"claimName": "c"}})),
            "persistentvolumeclaims",
        ),
        (
            mounted(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
            "serviceaccounts (via projected volumes)",
        ),
        (
            mounted(json!({"projected": {"sources": [{"configMap": {"name": "c"}}]}})),
            "configmaps (via projected volumes)",
        ),
        (
            mounted(json!({"projected": {"sources": [{"secret": {"name": "c"}}]}})),
            "secrets (via projected volumes)",
        ),
        (
            mounted(
                json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "c", "path": "p"}}]}}),
            ),
            "clustertrustbundles",
        ),
        (
            json!({"resourceClaims": [{"name": "c", "resourceClaimName": "o"}]}),
            "resourceclaims",
        ),
    ];
    for (spec, resource) in table {
        assert_eq!(
            with(spec.clone()),
            Err(ManifestError::Reference(resource)),
            "{spec}"
        );
    }
    assert_eq!(
        with(env(json!({"fieldRef": {"fieldPath": "metadata.name"}}))),
        Ok(())
    );
    assert_eq!(with(mounted(json!({"hostPath": {"path": "/etc"}}))), Ok(()));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = pods(&text, "n1", FILE);
    }
}
