//! Resources: too little of them, and whose count.

use super::*;

#[test]
fn what_there_is_too_little_of_is_told_with_its_numbers() {
    let other = named(
        asking(json!({"cpu": "1500m", "memory": "1Gi", "example.com/gpu": "1"})),
        "o",
    );
    let lacks = |name: &str, requested: i64, used: i64, capacity: i64| {
        format!(
            "OutOf{name}: Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    };
    let gib = 1i64 << 30;
    let table = [
        (json!({}), "admitted".to_owned()),
        (
            json!({"cpu": "500m", "memory": "3Gi"}),
            "admitted".to_owned(),
        ),
        (json!({"cpu": "501m"}), lacks("cpu", 501, 1500, 2000)),
        (
            json!({"memory": "3221225473"}),
            lacks("memory", 3 * gib + 1, gib, 4 * gib),
        ),
        // Only the first one is told.
        (
            json!({"cpu": "1", "memory": "9Gi"}),
            lacks("cpu", 1000, 1500, 2000),
        ),
        (
            json!({"ephemeral-storage": "11Gi"}),
            lacks("ephemeral-storage", 11 * gib, 0, 10 * gib),
        ),
        (
            json!({"hugepages-2Mi": "10Mi"}),
            lacks("hugepages-2Mi", 10 << 20, 0, 8 << 20),
        ),
        (
            json!({"hugepages-1Gi": "1Gi"}),
            lacks("hugepages-1Gi", gib, 0, 0),
        ),
        (
            json!({"example.com/gpu": "1"}),
            lacks("example.com/gpu", 1, 1, 1),
        ),
        // Nobody on this node has ever heard of it: a matter of the cluster.
        (json!({"example.com/unknown": "1"}), "admitted".to_owned()),
        // Kubernetes' own are no such matter.
        (
            json!({"test.kubernetes.io/x": "1"}),
            lacks("test.kubernetes.io/x", 1, 0, 0),
        ),
    ];
    for (requests, want) in table {
        assert_eq!(
            told(
                &asking(requests.clone()),
                &node(),
                std::slice::from_ref(&other)
            ),
            want,
            "{requests}"
        );
    }
}

#[test]
fn a_node_takes_so_many_pods() {
    let others: Vec<_> = (0..4)
        .map(|n| named(asking(json!({})), &n.to_string()))
        .collect();
    assert_eq!(told(&asking(json!({})), &node(), &others[..3]), "admitted");
    assert_eq!(
        told(&asking(json!({})), &node(), &others),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 4, capacity: 4"
    );
}

#[test]
fn init_containers_sidecars_overhead_and_pod_level_resources_count() {
    let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
    let container =
        |name: &str, amount: &str| json!({"name": name, "image": "i", "resources": cpu(amount)});
    let sidecar = |amount: &str| json!({"name": "s", "image": "i", "restartPolicy": "Always", "resources": cpu(amount)});
    let table = [
        // The larger of the init container and the apps.
        (
            json!({"initContainers": [container("i", "1800m")], "containers": [container("a", "1")]}),
            1800,
        ),
        (
            json!({"initContainers": [container("i", "1")], "containers": [container("a", "1"), container("b", "900m")]}),
            1900,
        ),
        // A sidecar runs beside both.
        (
            json!({"initContainers": [sidecar("500m"), container("i", "1")], "containers": [container("a", "600m")]}),
            1500,
        ),
        (
            json!({"initContainers": [container("i", "1"), sidecar("500m")], "containers": [container("a", "600m")]}),
            1100,
        ),
        (
            json!({"overhead": {"cpu": "100m"}, "containers": [container("a", "1")]}),
            1100,
        ),
        (
            json!({"overhead": {"cpu": "100m"}, "containers": [{"name": "a", "image": "i"}]}),
            100,
        ),
        (
            json!({"resources": cpu("300m"), "containers": [container("a", "200m")]}),
            300,
        ),
        (
            json!({"resources": cpu("300m"), "overhead": {"cpu": "50m"}, "containers": [container("a", "200m")]}),
            350,
        ),
    ];
    let one = asking(json!({"cpu": "1"}));
    for (fields, used) in table {
        let other = named(sample::from(fields.clone()), "o");
        let want = if used <= 1000 {
            "admitted".to_owned()
        } else {
            format!(
                "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: {used}, capacity: 2000"
            )
        };
        assert_eq!(told(&one, &node(), &[other]), want, "{fields}");
    }
}

#[test]
fn what_a_pod_has_been_promised_or_still_has_is_not_given_to_others() {
    let asks = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let container = |cpu: &str| json!([{"name": "a", "image": "i", "resources": asks(cpu)}]);
    let status = |promised: Value, in_force: Value| {
        json!({"containerStatuses": [{"name": "a", "image": "i", "imageID": "", "ready": true,
        "restartCount": 0, "allocatedResources": promised, "resources": in_force}]})
    };
    let plain = json!({"containers": container("500m")});
    let overhead = json!({"overhead": {"cpu": "100m"}, "containers": container("500m")});
    let whole = json!({"resources": asks("500m"), "containers": container("100m")});
    let table = [
        (&plain, json!({}), 500),
        // A resize to less that is promised, and not in force yet.
        (&plain, status(json!({"cpu": "500m"}), asks("1")), 1000),
        (&plain, status(json!({"cpu": "1"}), asks("200m")), 1000),
        (&plain, status(json!({"cpu": "1"}), Value::Null), 1000),
        (&plain, status(Value::Null, Value::Null), 500),
        (&overhead, status(Value::Null, asks("1")), 1100),
        (&whole, status(Value::Null, asks("1")), 500),
        (
            &whole,
            json!({"allocatedResources": {"cpu": "500m"}, "resources": asks("1")}),
            1000,
        ),
    ];
    for (spec, status, used) in table {
        let mut pod = sample::from(spec.clone());
        pod.status = serde_json::from_value(status.clone()).expect("a status");
        assert_eq!(
            told(&asking(json!({"cpu": "2"})), &node(), &[named(pod, "o")]),
            format!(
                "OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: {used}, capacity: 2000"
            ),
            "{status}"
        );
    }
}
