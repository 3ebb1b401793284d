//! Laws of manifests.

use super::*;

fn read(text: &str) -> Result<Manifests, String> {
    let mut manifests = Manifests::default();
    manifests
        .add("m.yaml", text)
        .map_err(|error| error.to_string())?;
    Ok(manifests)
}

fn names(manifests: &Manifests) -> Vec<String> {
    manifests
        .pods
        .iter()
        .filter_map(|pod| pod.metadata.name.clone())
        .collect()
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: c\n    image: i:1\n";

#[test]
fn pods_workloads_and_lists_become_pods() {
    let template = "template: {spec: {containers: [{name: c, image: 'i:1'}]}}";
    let text = format!(
        "{POD}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\n\
         spec: {{replicas: 2, selector: {{}}, {template}}}\n---\n# nothing\n---\n\
         apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: batch/v1, kind: Job, metadata: {{name: j, \
         namespace: n}}, spec: {{{template}}}}}\n- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: c}}}}\n\
         - {{apiVersion: v1, kind: Namespace, metadata: {{name: n}}}}\n"
    );
    let manifests = read(&text).expect("manifests");
    assert_eq!(names(&manifests), ["web", "d-0", "d-1", "j-0"]);
    assert_eq!(manifests.pods[3].metadata.namespace.as_deref(), Some("n"));
    assert_eq!(manifests.ignored, ["Namespace n"]);
}

#[test]
fn a_file_without_pods_is_refused_with_what_is_in_it() {
    let empty = |text: &str| {
        let manifests = read(text).expect("manifests");
        let error = manifests.complete(&["m.yaml".to_owned()]);
        error.expect_err("no pod").to_string()
    };
    let kinds = "kinds with pods are Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet, Job";
    assert_eq!(empty(""), format!("m.yaml: no pod in it: {kinds}"));
    assert_eq!(
        empty("{apiVersion: v1, kind: Teapot}"),
        format!("m.yaml: no pod in it, only Teapot: {kinds}")
    );
    let many = "---\n{apiVersion: v1, kind: Node, metadata: {name: n}}\n".repeat(9);
    assert_eq!(
        empty(&many),
        format!("m.yaml: no pod in it, only Node n, Node n, Node n, ...: {kinds}")
    );
}

#[test]
fn numbers_are_quantities_too() {
    let text = format!(
        "{POD}    resources: {{limits: {{cpu: 1, memory: 64Mi}}, requests: {{cpu: 0.5}}}}\n"
    );
    let manifests = read(&text).expect("a manifest");
    let resources = manifests.pods[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.containers[0].resources.as_ref());
    let limits = resources
        .and_then(|resources| resources.limits.as_ref())
        .expect("limits");
    assert_eq!(limits["cpu"].0, "1");
}

#[test]
fn a_complaint_names_file_document_and_field_in_one_line() {
    let second = |text: &str| format!("{POD}---\n{text}");
    let pod = |spec: &str| {
        second(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec: {spec}\n"
        ))
    };
    let table = [
        ("a: [".to_owned(), "m.yaml: "),
        (second("3"), "document 2: is no object"),
        (second("kind: Pod"), "document 2: apiVersion: is missing"),
        (
            second("{apiVersion: v1, kind: pod}"),
            "document 2: kind: \"pod\": write Pod",
        ),
        (
            second("{apiVersion: apps/v1beta1, kind: Deployment}"),
            "document 2: apiVersion: \"apps/v1beta1\": a Deployment is of apps/v1",
        ),
        (
            pod("{containers: [{name: c, image: i, imagePullPolcy: Always}]}"),
            "document 2: spec.containers[0].imagePullPolcy: unknown field",
        ),
        (
            pod("{containers: [{name: c, image: i, ports: [{containerPort: http}]}]}"),
            "document 2: spec.containers[0].ports[0].containerPort: \"http\": invalid type",
        ),
        (pod("{}"), "document 2: spec"),
        (
            pod("{containers: []}"),
            "document 2: spec.containers: is empty",
        ),
        (
            second(POD),
            "document 2: metadata.name: \"web\" is the name of another pod, too",
        ),
        (
            second(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {}, replicas: 9000, template: {}}",
            ),
            "document 2: spec.replicas: 9000: a run takes on 250 pods at most",
        ),
        (
            second(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {}, template: {spec: {containers: [{name: c}]}}}",
            ),
            "document 2: spec.template.spec.containers[0].image: is missing",
        ),
        (
            second(
                "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: 'A:B:C'}]}}]}",
            ),
            "document 2: items[0].spec.containers[0].image: \"A:B:C\": ",
        ),
    ];
    for (text, want) in table {
        let message = read(&text)
            .map(|manifests| names(&manifests))
            .expect_err(&text);
        assert!(
            message.starts_with("m.yaml: ") && message.contains(want),
            "{message}\n{text}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
