//! One law per test: what a resize changes.

use super::*;
use crate::pod::sample::{self, running};
use serde_json::{Value, json};

fn pod(resources: Value) -> Pod {
    sample::from(json!({"containers": [{"name": "a", "image": "i", "resources": resources}]}))
}

fn of(cpu: &str, memory: &str) -> Value {
    json!({"limits": {"cpu": cpu, "memory": memory, "example.com/x": "1"},
        "requests": {"cpu": cpu, "memory": memory}})
}

#[test]
fn a_promise_covers_what_is_written_another_way() {
    let promise = Allocation::of(&pod(of("1", "1Gi")));
    assert!(promise.covers(&pod(of("1000m", "1024Mi"))));
    assert!(!promise.covers(&pod(of("1001m", "1Gi"))));
    assert!(!promise.covers(&pod(json!({}))));
    assert!(Allocation::of(&pod(json!({}))).is_empty() && !promise.is_empty());
    let text = serde_json::to_vec(&promise).expect("JSON");
    let read: Allocation = serde_json::from_slice(&text).expect("an allocation");
    assert_eq!(read, promise);
}

#[test]
fn a_pod_is_seen_with_what_it_was_promised() {
    let promise = Allocation::of(&pod(of("1", "1Gi")));
    let wish = pod(
        json!({"limits": {"cpu": "2", "memory": "1Gi", "example.com/x": "1"},
        "requests": {"cpu": "2"}}),
    );
    let seen = promise.apply(&wish);
    assert_eq!(seen, pod(of("1", "1Gi")));
    let same = pod(of("1000m", "1Gi"));
    assert_eq!(promise.apply(&same), same);
}

#[test]
fn changes_are_what_the_record_has_otherwise() {
    let before = pod(of("1", "1Gi"));
    let container = &spec::app_containers(&before)[0];
    let mut record = running(&before, "a");
    record.config.resources = resources::container_resources(&before, container, 1 << 32);
    let table = [
        (of("1", "1Gi"), None),
        (of("2", "1Gi"), Some((true, false))),
        (of("1", "2Gi"), Some((false, true))),
        (of("500m", "512Mi"), Some((true, true))),
    ];
    for (resources, want) in table {
        let pod = pod(resources);
        let found = change(&pod, &spec::app_containers(&pod)[0], &record);
        assert_eq!(found.map(|change| (change.cpu, change.memory)), want);
    }
}

#[test]
fn a_policy_restarts_for_its_own_resource() {
    let pod = sample::from(
        json!({"containers": [{"name": "a", "image": "i", "resizePolicy": [
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"}]}]}),
    );
    let container = &spec::app_containers(&pod)[0];
    let needs = |cpu, memory| Change { cpu, memory }.needs_restart(container);
    assert_eq!(
        [needs(true, false), needs(false, true), needs(true, true)],
        [false, true, true]
    );
}

#[test]
fn a_request_for_memory_alone_restarts_where_the_policy_says_so() {
    let pod = |request: &str, policy: &str| {
        sample::from(json!({"containers": [{"name": "a", "image": "i",
            "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": request}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}))
    };
    let table = [
        ("RestartContainer", "512Mi", false),
        ("RestartContainer", "0.5Gi", false),
        ("RestartContainer", "600Mi", true),
        ("NotRequired", "600Mi", false),
    ];
    for (policy, request, want) in table {
        let before = pod("512Mi", policy);
        let mut record = running(&before, "a");
        let asked = memory_request(&spec::app_containers(&before)[0]);
        let asked = asked.map(|bytes| (labels::MEMORY_REQUEST.to_owned(), bytes.to_string()));
        record.config.annotations.extend(asked);
        let after = pod(request, policy);
        let container = &spec::app_containers(&after)[0];
        let restarts = change(&after, container, &record)
            .is_some_and(|change| change.needs_restart(container));
        assert_eq!(restarts, want, "{policy} {request}");
    }
}

#[test]
fn a_limit_that_goes_is_named_and_then_in_force() {
    let before = pod(of("1", "1Gi"));
    let mut record = running(&before, "a");
    let after = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}}));
    let container = &spec::app_containers(&after)[0];
    let wanted = wanted(&after, container, &record);
    assert_eq!((wanted.cpu_quota, wanted.memory_limit), (-1, -1));
    record.config.resources.cpu_quota = wanted.cpu_quota;
    record.config.resources.memory_limit = wanted.memory_limit;
    assert_eq!(change(&after, container, &record), None);
}

#[test]
fn the_lesser_of_two_limits_is_never_none() {
    let resources = |quota, memory| Resources {
        cpu_quota: quota,
        memory_limit: memory,
        ..Resources::default()
    };
    let least = least(&resources(100, 0), &resources(200, 64));
    assert_eq!((least.cpu_quota, least.memory_limit), (100, 64));
}

#[test]
fn events_name_every_container_with_what_it_gets() {
    let pod = sample::from(json!({
        "initContainers": [{"name": "c0", "image": "i", "restartPolicy": "Always",
            "resources": {"limits": {"cpu": "200m"}, "requests": {"cpu": "100m"}}}],
        "containers": [{"name": "c1", "image": "i",
            "resources": {"requests": {"memory": "100"}, "limits": {"memory": "200"}}},
            {"name": "c2", "image": "i"}],
    }));
    let containers = "\"containers\":[{\"name\":\"c1\",\"resources\":{\"limits\":{\"memory\":\"200\"},\
        \"requests\":{\"memory\":\"100\"}}},{\"name\":\"c2\",\"resources\":{}}]";
    let init = "\"initContainers\":[{\"name\":\"c0\",\"resources\":{\"limits\":{\"cpu\":\"200m\"},\
        \"requests\":{\"cpu\":\"100m\"}}}]";
    assert_eq!(
        message("completed", &pod, 2, None),
        format!("Pod resize completed: {{{init},{containers},\"generation\":2}}")
    );
    assert_eq!(
        message("Deferred", &pod, 3, Some("no room")),
        format!(
            "Pod resize Deferred: {{{init},{containers},\"generation\":3,\"error\":\"no room\"}}"
        )
    );
}

#[test]
fn a_wish_that_would_change_swap_is_one_for_a_restart() {
    let pod = |request: &str, policy: &str| {
        sample::from(json!({"containers": [{"name": "a", "image": "i",
            "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": request}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}))
    };
    let table = [
        ("512Mi", "NotRequired", 1 << 30, false),
        ("256Mi", "NotRequired", 1 << 30, true),
        ("256Mi", "NotRequired", 0, false),
        ("256Mi", "RestartContainer", 1 << 30, false),
        ("1Gi", "NotRequired", 1 << 30, true),
    ];
    for (request, policy, swap, want) in table {
        let touches = touches_swap(&pod(request, policy), &pod("512Mi", policy), swap);
        assert_eq!(touches, want, "{request} {policy} {swap}");
    }
}

#[test]
fn more_is_what_the_whole_pod_asks_for() {
    let pod = |whole: Value, cpu: [&str; 2]| {
        let container = |name: &str, cpu: &str| json!({"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}});
        sample::from(
            json!({"resources": whole, "containers": [container("a", cpu[0]), container("b", cpu[1])]}),
        )
    };
    let whole = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let none = Value::Null;
    let table = [
        (pod(none.clone(), ["1", "1"]), false),
        (pod(none.clone(), ["1500m", "500m"]), false),
        (pod(none.clone(), ["1500m", "501m"]), true),
        (pod(none, ["500m", "1"]), false),
        (pod(whole("1500m"), ["1", "500m"]), false),
        (pod(whole("2500m"), ["1", "1"]), true),
    ];
    for (wish, want) in table {
        let had = pod(Value::Null, ["1", "1"]);
        assert_eq!(is_more(&wish, &had), want, "{:?}", wish.spec);
    }
}
