//! Each rule with the words that users and controllers match on.

mod fit;
mod kernel;
mod ports;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::pod::sample;

fn node() -> NodeView {
    let allocatable = [
        ("cpu", "2"),
        ("memory", "4Gi"),
        ("ephemeral-storage", "10Gi"),
        ("pods", "4"),
        ("hugepages-2Mi", "8Mi"),
        ("example.com/gpu", "1"),
    ];
    let allocatable =
        allocatable.map(|(name, text)| (name.to_owned(), Amount::parse(text).expect("a quantity")));
    let labels = [
        ("kubernetes.io/hostname", "n1"),
        ("disk", "ssd"),
        ("cores", "8"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    NodeView {
        placement: Some(Placement {
            name: "n1".to_owned(),
            labels: labels.into(),
            taints: Vec::new(),
            allocatable: allocatable.into(),
        }),
        ..NodeView::default()
    }
}

/// A pod of one container that asks for these resources.
fn asking(requests: Value) -> Pod {
    sample::from(
        json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": requests}}]}),
    )
}

/// A pod with these fields beside its container.
fn with(mut fields: Value) -> Pod {
    if fields["containers"].is_null() {
        fields["containers"] = json!([{"name": "c", "image": "i"}]);
    }
    sample::from(fields)
}

fn named(mut pod: Pod, uid: &str) -> Arc<Pod> {
    pod.metadata.uid = Some(uid.to_owned());
    Arc::new(pod)
}

fn made_static(mut pod: Pod) -> Pod {
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    pod.metadata.annotations = Some(BTreeMap::from([source]));
    pod
}

/// `REASON: message`, or what else becomes of the pod.
fn told(pod: &Pod, node: &NodeView, others: &[Arc<Pod>]) -> String {
    match admit(pod, node, others) {
        Verdict::Admitted => "admitted".to_owned(),
        Verdict::AfterPreemption(victims) => {
            let victims: Vec<&str> = victims.iter().map(PodUid::as_str).collect();
            format!("after {}", victims.join(" "))
        }
        Verdict::Rejected(failure) => format!("{}: {}", failure.reason, failure.message),
    }
}

#[test]
fn a_pod_runs_only_on_the_nodes_that_it_asks_for() {
    let term = |key: &str, operator: &str, values: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]}}}})
    };
    let field = |operator: &str, name: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]}]}}}})
    };
    let terms = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
    let table = [
        (json!({"nodeSelector": {"disk": "ssd"}}), true),
        (json!({"nodeSelector": {"disk": "hdd"}}), false),
        (json!({"nodeSelector": {"disk": "ssd", "more": ""}}), false),
        (term("disk", "In", json!(["hdd", "ssd"])), true),
        (term("disk", "In", json!(["hdd"])), false),
        (term("disk", "NotIn", json!(["hdd"])), true),
        (term("disk", "NotIn", json!(["ssd"])), false),
        (term("none", "NotIn", json!(["x"])), true),
        (term("disk", "Exists", json!([])), true),
        (term("none", "Exists", json!([])), false),
        (term("none", "DoesNotExist", json!([])), true),
        (term("disk", "DoesNotExist", json!([])), false),
        (term("cores", "Gt", json!(["7"])), true),
        (term("cores", "Gt", json!(["8"])), false),
        (term("cores", "Lt", json!(["9"])), true),
        (term("disk", "Lt", json!(["9"])), false),
        (term("disk", "Like", json!(["ssd"])), false),
        (field("In", "n1"), true),
        (field("In", "n2"), false),
        (field("NotIn", "n2"), true),
        // One term is enough, and an empty one matches nothing.
        (
            terms(json!([{}, {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}])),
            true,
        ),
        (terms(json!([{}])), false),
    ];
    for (fields, fits) in table {
        let want = match fits {
            true => "admitted",
            false => {
                "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
            }
        };
        assert_eq!(told(&with(fields.clone()), &node(), &[]), want, "{fields}");
    }
}

#[test]
fn a_pod_of_another_node_is_refused() {
    assert_eq!(
        told(&with(json!({"nodeName": "n1"})), &node(), &[]),
        "admitted"
    );
    assert_eq!(
        told(&with(json!({"nodeName": "n2"})), &node(), &[]),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"
    );
}

#[test]
fn taints_that_end_pods_keep_them_away_but_not_static_ones() {
    let mut node = node();
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: Some(value.to_owned()),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    if let Some(placement) = &mut node.placement {
        placement.taints = vec![
            taint("only", "scheduling", "NoSchedule"),
            taint("k", "v", "NoExecute"),
        ];
    }
    let refused = "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    let table = [
        (json!([]), refused),
        (json!([{"operator": "Exists"}]), "admitted"),
        (
            json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]),
            "admitted",
        ),
        (json!([{"key": "k", "value": "v"}]), "admitted"),
        (
            json!([{"key": "k", "operator": "Equal", "value": "w"}]),
            refused,
        ),
        (
            json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]),
            refused,
        ),
        // Numbers are compared behind a gate that is off.
        (
            json!([{"key": "k", "operator": "Gt", "value": "1"}]),
            refused,
        ),
        (
            json!([{"key": "k", "operator": "Lt", "value": "1"}]),
            refused,
        ),
    ];
    for (tolerations, want) in table {
        let pod = with(json!({"tolerations": tolerations.clone()}));
        assert_eq!(told(&pod, &node, &[]), want, "{tolerations}");
    }
    assert_eq!(told(&made_static(with(json!({}))), &node, &[]), "admitted");
}

#[test]
fn only_linux_pods_run() {
    assert_eq!(
        told(&with(json!({"os": {"name": "linux"}})), &node(), &[]),
        "admitted"
    );
    assert_eq!(
        told(&with(json!({"os": {"name": "windows"}})), &node(), &[]),
        "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"
    );
    let mut pod = with(json!({}));
    pod.metadata.labels = Some(BTreeMap::from([(
        OS_LABEL.to_owned(),
        "windows".to_owned(),
    )]));
    assert_eq!(
        told(&pod, &node(), &[]),
        "PodOSSelectorNodeLabelDoesNotMatch: Failed to admit pod as the `kubernetes.io/os` label doesn't match \
         node label"
    );
}

#[test]
fn features_that_the_node_does_not_declare_are_named() {
    let pod = with(
        json!({"hostNetwork": true, "hostUsers": false, "containers": [{"name": "c", "image": "i",
        "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]}]}),
    );
    let missing = "PodFeatureUnsupported: Pod requires node features that are not available: ";
    let mut node = node();
    assert_eq!(
        told(&pod, &node, &[]),
        format!("{missing}RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport")
    );
    node.features = vec!["RestartAllContainersOnContainerExits".into()];
    assert_eq!(
        told(&pod, &node, &[]),
        format!("{missing}UserNamespacesHostNetworkSupport")
    );
}

#[test]
fn a_critical_pod_takes_the_place_of_lesser_ones() {
    let critical = |requests: Value| {
        let mut pod = asking(requests);
        if let Some(spec) = &mut pod.spec {
            spec.priority = Some(2_000_000_000);
        }
        pod
    };
    let full = |cpu: &str| {
        named(
            with(json!({"containers": [{"name": "c", "image": "i",
                "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}, "requests": {"cpu": cpu, "memory": "1Gi"}}}]})),
            &format!("guaranteed-{cpu}"),
        )
    };
    let burstable = |cpu: &str| named(asking(json!({"cpu": cpu})), &format!("burstable-{cpu}"));
    let best_effort = || named(asking(json!({})), "best-effort");
    let own = named(critical(json!({"cpu": "500m"})), "critical");
    let table: Vec<(Vec<Arc<Pod>>, Value, &str)> = vec![
        (vec![burstable("1")], json!({"cpu": "1"}), "admitted"),
        (
            vec![burstable("1"), full("500m")],
            json!({"cpu": "1"}),
            "after burstable-1",
        ),
        // The one that comes closest, and not both.
        (
            vec![burstable("400m"), burstable("1"), burstable("600m")],
            json!({"cpu": "500m"}),
            "after burstable-600m",
        ),
        // The better class only when the lesser one is not enough.
        (
            vec![burstable("500m"), full("1500m")],
            json!({"cpu": "1500m"}),
            "after guaranteed-1500m",
        ),
        (
            vec![burstable("1"), full("1")],
            json!({"cpu": "2"}),
            "after burstable-1 guaranteed-1",
        ),
        // Too many pods: the least important one goes.
        (
            vec![
                full("100m"),
                burstable("100m"),
                best_effort(),
                best_effort(),
            ],
            json!({}),
            "after best-effort",
        ),
        (
            vec![own, burstable("1")],
            json!({"cpu": "2"}),
            "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission failure: preemption: \
             error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 500), ]",
        ),
    ];
    for (others, requests, want) in table {
        assert_eq!(
            told(&critical(requests.clone()), &node(), &others),
            want,
            "{requests} beside {}",
            others.len()
        );
        let file = made_static(asking(requests));
        assert_eq!(told(&file, &node(), &others), want);
    }
}

#[test]
fn critical_pods_make_room_for_more_critical_ones_only() {
    let priority = |priority: i32| {
        let mut pod = asking(json!({"cpu": "2"}));
        if let Some(spec) = &mut pod.spec {
            spec.priority = Some(priority);
        }
        pod
    };
    let (cluster, node_critical) = (priority(2_000_000_000), priority(2_000_001_000));
    let there = [named(cluster.clone(), "cluster")];
    assert_eq!(told(&node_critical, &node(), &there), "after cluster");
    let there = [named(node_critical, "node")];
    let refused = told(&cluster, &node(), &there);
    assert!(
        refused.starts_with("UnexpectedAdmissionError: "),
        "{refused}"
    );
}

#[test]
fn room_does_not_help_a_critical_pod_that_may_not_be_here() {
    let mut pod = made_static(asking(json!({"cpu": "3"})));
    if let Some(spec) = &mut pod.spec {
        spec.node_selector = Some(BTreeMap::from([("disk".to_owned(), "hdd".to_owned())]));
    }
    assert_eq!(
        told(&pod, &node(), &[named(asking(json!({"cpu": "2"})), "o")]),
        "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
}

#[test]
fn without_a_cluster_no_scheduler_is_missed() {
    let pod = with(
        json!({"nodeSelector": {"disk": "hdd"}, "nodeName": "n7", "containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "64"}}}]}),
    );
    assert_eq!(told(&pod, &NodeView::default(), &[]), "admitted");
}

#[test]
fn a_status_tells_of_the_rejection() {
    let failure = failure("OutOfcpu", "Node didn't have enough".to_owned());
    assert_eq!(
        rejected(&failure).message,
        "Pod was rejected: Node didn't have enough"
    );
}
