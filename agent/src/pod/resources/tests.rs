//! One law per test: limits, classes and scores.

use super::*;
use crate::pod::sample;
use serde_json::{Value, json};

const GIB: u64 = 1 << 30;

fn pod_with(resources: &[Value]) -> Pod {
    let containers: Vec<_> = resources
        .iter()
        .enumerate()
        .map(|(index, resources)| json!({"name": format!("c{index}"), "image": "i", "resources": resources}))
        .collect();
    sample::from(json!({"containers": containers}))
}

#[test]
fn class_follows_requests_and_limits() {
    let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let equal = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
    let less = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1m"}});
    let table = [
        (vec![json!({})], QosClass::BestEffort),
        (vec![json!({"limits": {"cpu": "0"}})], QosClass::BestEffort),
        (vec![full.clone()], QosClass::Guaranteed),
        (vec![equal.clone(), full.clone()], QosClass::Guaranteed),
        (vec![less], QosClass::Burstable),
        (vec![full.clone(), json!({})], QosClass::Burstable),
        (
            vec![json!({"limits": {"example.com/gpu": "1"}})],
            QosClass::BestEffort,
        ),
        // Who asks for nothing in so many words does not ask for the limit.
        (
            vec![
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0", "memory": "1Gi"}}),
            ],
            QosClass::Burstable,
        ),
        (
            vec![json!({"limits": {"cpu": "0", "memory": "1Gi"}})],
            QosClass::Burstable,
        ),
    ];
    for (resources, want) in table {
        assert_eq!(qos_class(&pod_with(&resources)), want, "{resources:?}");
    }
}

#[test]
fn pod_level_resources_decide_when_they_say_anything() {
    let mut pod = pod_with(&[json!({})]);
    let mut set = |resources: Value| {
        let spec = pod.spec.as_mut().expect("a spec");
        spec.resources = serde_json::from_value(resources).expect("resources");
        qos_class(&pod)
    };
    assert_eq!(set(json!({})), QosClass::BestEffort);
    assert_eq!(
        set(json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
        QosClass::Guaranteed
    );
    assert_eq!(set(json!({"requests": {"cpu": "1"}})), QosClass::Burstable);
    assert_eq!(
        set(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0"}})),
        QosClass::Burstable
    );
    // What containers ask for is the pod's request, where that is not written down.
    let asks = json!({"requests": {"cpu": "500m", "memory": "1Gi"}});
    let mut pod = pod_with(&[asks]);
    let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let spec = pod.spec.as_mut().expect("a spec");
    spec.resources = serde_json::from_value(limits).expect("resources");
    assert_eq!(qos_class(&pod), QosClass::Burstable);
    assert_eq!(pod_resources(&pod, 0).cpu_shares, 512);
    // Who has huge pages of its own has what its containers ask for, and none of their limits.
    let mut pod = pod_with(&[json!({"limits": {"cpu": "1", "memory": "1Gi"}})]);
    let spec = pod.spec.as_mut().expect("a spec");
    let huge = json!({"limits": {"hugepages-2Mi": "4Mi"}});
    spec.resources = serde_json::from_value(huge).expect("resources");
    assert_eq!(qos_class(&pod), QosClass::Burstable);
}

#[test]
fn a_container_that_says_nothing_has_its_pods_limits() {
    let table = [
        // Limits and requests of the container, then shares, quota, memory and huge pages.
        (json!({}), (2048, 200_000, 1 << 30, 4 << 20)),
        (
            json!({"limits": {"cpu": "1"}}),
            (1024, 100_000, 1 << 30, 4 << 20),
        ),
        (
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "0"}}),
            (2, 100_000, 1 << 30, 4 << 20),
        ),
        (
            json!({"requests": {"cpu": "500m"}, "limits": {"memory": "1Mi", "hugepages-2Mi": "2Mi"}}),
            (512, 200_000, 1 << 20, 2 << 20),
        ),
    ];
    for (resources, want) in table {
        let mut pod = pod_with(std::slice::from_ref(&resources));
        let whole = json!({"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}});
        let spec = pod.spec.as_mut().expect("a spec");
        spec.resources = serde_json::from_value(whole).expect("resources");
        let has = container_resources(&pod, &spec::app_containers(&pod)[0], GIB);
        let huge = has.hugepages["2MB"];
        assert_eq!(
            (has.cpu_shares, has.cpu_quota, has.memory_limit, huge),
            want,
            "{resources}"
        );
        assert_eq!(pod_resources(&pod, 0).hugepages["2MB"], 4 << 20);
    }
}

#[test]
fn overhead_is_asked_for_also_beside_nothing_and_limited_only_with_limits() {
    let mut pod = pod_with(&[json!({"requests": {"memory": "1Gi"}})]);
    let spec = pod.spec.as_mut().expect("a spec");
    spec.overhead = serde_json::from_value(json!({"cpu": "250m"})).expect("quantities");
    let limits = pod_resources(&pod, 0);
    assert_eq!((limits.cpu_shares, limits.cpu_quota), (256, 0));
    assert_eq!(burstable_shares([&pod].into_iter()), 256);
    // A class above it is not reached by overhead alone.
    let spec = pod.spec.as_mut().expect("a spec");
    spec.containers[0].resources = None;
    let limits = pod_resources(&pod, 0);
    assert_eq!(qos_class(&pod), QosClass::BestEffort);
    assert_eq!((limits.cpu_shares, limits.cpu_quota), (2, 0));
}

#[test]
fn pod_level_resources_that_are_nothing_decide_too() {
    let mut pod = pod_with(&[json!({"requests": {"cpu": "1"}})]);
    let mut set = |resources: Value| {
        let spec = pod.spec.as_mut().expect("a spec");
        spec.resources = serde_json::from_value(resources).expect("resources");
        qos_class(&pod)
    };
    for (resources, want) in [
        (json!({}), QosClass::Burstable),
        (json!({"requests": {}}), QosClass::Burstable),
        (
            json!({"requests": {"example.com/gpu": "1"}}),
            QosClass::Burstable,
        ),
        (json!({"requests": {"cpu": "0"}}), QosClass::BestEffort),
    ] {
        assert_eq!(set(resources.clone()), want, "{resources}");
    }
}

#[test]
fn the_class_is_what_the_api_server_says() {
    let mut pod = pod_with(&[json!({})]);
    for (said, want) in [
        ("Guaranteed", QosClass::Guaranteed),
        ("Burstable", QosClass::Burstable),
        ("", QosClass::BestEffort),
        ("Other", QosClass::BestEffort),
    ] {
        pod.status.get_or_insert_default().qos_class = Some(said.into());
        assert_eq!(qos_class(&pod), want, "{said}");
    }
}

#[test]
fn pods_stand_in_the_cgroup_of_their_class() {
    let uid = sample::UID;
    assert_eq!(
        pod_cgroup(&pod_with(&[json!({})])),
        format!("kubepods/besteffort/pod{uid}")
    );
    let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    assert_eq!(pod_cgroup(&pod_with(&[full])), format!("kubepods/pod{uid}"));
}

#[test]
fn pod_cgroup_is_limited_when_every_container_is() {
    let limited = json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "100m"}});
    let both = pod_resources(&pod_with(&[limited.clone(), limited.clone()]), 100);
    assert_eq!(
        (both.cpu_shares, both.cpu_quota, both.cpu_period),
        (204, 100_000, 100_000)
    );
    assert_eq!((both.memory_limit, both.pids_limit), (128 << 20, 100));
    let one = pod_resources(&pod_with(&[limited, json!({})]), 0);
    assert_eq!(
        (one.cpu_shares, one.cpu_quota, one.memory_limit),
        (102, 0, 0)
    );
    assert_eq!(pod_resources(&pod_with(&[json!({})]), 0).cpu_shares, 2);
}

#[test]
fn init_containers_raise_the_request_only_when_they_are_larger() {
    let pod = |init: &str| {
        sample::from(json!({
            "initContainers": [{"name": "i", "image": "i", "resources": {"requests": {"cpu": init}}}],
            "containers": [{"name": "a", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
        }))
    };
    assert_eq!(pod_resources(&pod("500m"), 0).cpu_shares, 1024);
    assert_eq!(pod_resources(&pod("2"), 0).cpu_shares, 2048);
}

#[test]
fn quota_and_shares_keep_to_the_kernels_bounds() {
    assert_eq!((quota(1), quota(10), quota(1500)), (1000, 1000, 150_000));
    assert_eq!(
        (shares(0), shares(1), shares(1000), shares(i64::MAX)),
        (2, 2, 1024, 262_144)
    );
}

#[test]
fn oom_score_follows_class_and_request() {
    let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let score = |resources: Value| {
        let pod = pod_with(&[resources]);
        container_resources(&pod, &spec::app_containers(&pod)[0], 4 * GIB).oom_score_adj
    };
    assert_eq!(score(full), -997);
    assert_eq!(score(json!({})), 1000);
    assert_eq!(score(json!({"requests": {"memory": "1Gi"}})), 750);
    assert_eq!(score(json!({"requests": {"memory": "1"}})), 999);
    assert_eq!(score(json!({"requests": {"memory": "8Gi"}})), 3);
}

#[test]
fn oom_score_counts_sidecars_and_what_only_the_pod_asks_for() {
    const NODE: u64 = 8_000_000_000;
    let memory = |bytes: u64| json!({"requests": {"memory": bytes.to_string()}});
    let pod = |whole: Option<u64>, sidecar: Option<u64>, apps: &[u64]| {
        let app = |(index, bytes): (usize, &u64)| json!({"name": format!("c{index}"), "image": "i", "resources": memory(*bytes)});
        let apps: Vec<_> = apps.iter().enumerate().map(app).collect();
        let sidecar = sidecar.map(|bytes| json!({"name": "s", "image": "i", "restartPolicy": "Always", "resources": memory(bytes)}));
        sample::from(
            json!({"resources": whole.map(memory), "initContainers": sidecar.into_iter().collect::<Vec<_>>(), "containers": apps}),
        )
    };
    let table = [
        (pod(None, Some(NODE / 20), &[NODE / 8]), vec![875, 875]),
        (pod(None, Some(NODE / 2), &[NODE / 8]), vec![500, 875]),
        // The least that a container of the pod asks for is what counts.
        (
            pod(None, Some(0), &[NODE / 8, NODE / 2]),
            vec![875, 875, 500],
        ),
        (pod(Some(NODE / 4), None, &[0, 0]), vec![875, 875]),
        (
            pod(Some(NODE / 4), None, &[NODE / 8, NODE / 8]),
            vec![875, 875],
        ),
        (pod(Some(NODE / 4), None, &[NODE / 8, 0]), vec![813, 938]),
        (pod(Some(NODE / 2), Some(0), &[NODE / 4]), vec![625, 625]),
    ];
    for (pod, want) in table {
        let all = spec::containers(&pod);
        let scores: Vec<_> = all
            .map(|one| container_resources(&pod, one, NODE).oom_score_adj)
            .collect();
        assert_eq!(scores, want, "{:?}", pod.spec);
    }
}

#[test]
fn huge_pages_are_named_as_the_kernel_names_them() {
    let pod = pod_with(&[json!({"limits": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}})]);
    let pages = container_resources(&pod, &spec::app_containers(&pod)[0], GIB).hugepages;
    assert_eq!(
        pages,
        BTreeMap::from([("2MB".into(), 4 << 20), ("1GB".into(), 1 << 30)])
    );
}
