//! Pods that a node does not take, or does not get a sandbox for.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::{Container, Pod, pod};

const REJECTED: &[&str] = &["phase Failed", "event Warning"];

fn asking(name: &str, resource: &str, amount: &str) -> Container {
    sleeper(name).set("resources", json!({"requests": {resource: amount}}))
}

fn rejected(name: &str, field: &str, value: Value) -> Case {
    case(&pod(name).set(field, value).with(sleeper("c")), REJECTED)
}

pub(super) fn cases() -> Vec<Case> {
    let sysctl = |name: &str, value: &str| json!({"sysctls": [{"name": name, "value": value}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "nothing", "operator": "Exists"}]}],
    }}});
    let mut cases = vec![
        case(
            &pod("out-of-cpu").with(asking("c", "cpu", "1000")),
            REJECTED,
        ),
        case(
            &pod("out-of-memory-to-give").with(asking("c", "memory", "900Ti")),
            REJECTED,
        ),
        case(
            &pod("out-of-disk").with(asking("c", "ephemeral-storage", "900Pi")),
            REJECTED,
        ),
        case(
            &pod("out-of-huge-pages").with(sleeper("c").set(
                "resources",
                json!({"limits": {"hugepages-2Mi": "2Mi", "cpu": "1m"}}),
            )),
            REJECTED,
        ),
        case(
            &pod("out-of-cpu-and-memory").with(sleeper("c").set(
                "resources",
                json!({"requests": {"cpu": "1000", "memory": "900Ti"}}),
            )),
            REJECTED,
        ),
        case(
            &pod("out-of-everything-for-a-critical-pod")
                .set("priorityClassName", "system-node-critical")
                .with(asking("c", "cpu", "1000")),
            REJECTED,
        ),
        rejected(
            "elsewhere",
            "nodeSelector",
            json!({"kubernetes.io/hostname": "nowhere"}),
        ),
        rejected("elsewhere-by-affinity", "affinity", affinity),
        rejected("other-system", "os", json!({"name": "windows"})),
        rejected(
            "other-system-by-selector",
            "nodeSelector",
            json!({"kubernetes.io/os": "windows"}),
        ),
        rejected(
            "forbidden-sysctl",
            "securityContext",
            sysctl("kernel.core_pattern", "x"),
        ),
        rejected(
            "unsafe-sysctl",
            "securityContext",
            sysctl("kernel.msgmax", "65536"),
        ),
        case(&pod("other-system-by-label").with(sleeper("c")), REJECTED)
            .metadata("labels", json!({"kubernetes.io/os": "windows"})),
        case(
            &pod("unknown-handler")
                .set("runtimeClassName", "golden-nowhere")
                .with(sleeper("c")),
            &["event Warning FailedCreatePodSandBox"],
        ),
    ];
    cases.extend(beside_others());
    cases
}

/// Pods that do not fit beside others.
fn beside_others() -> Vec<Case> {
    let port = |name: &str| -> Pod {
        let ports = json!([{"containerPort": 80, "hostPort": 18180}]);
        pod(name).with(sleeper("c").set("ports", ports))
    };
    vec![
        case(&port("host-port"), &["phase Running"]),
        case(&port("host-port-taken"), REJECTED).after("host-port", "phase Running"),
        case(
            &pod("preempted").with(asking("c", "cpu", "1200m")),
            &[
                "phase Failed",
                "event Warning Preempting",
                "container c terminated",
            ],
        )
        // A node that is full defers resizes.
        .after("resized-by-restart", "event Normal ResizeCompleted"),
        case(
            &pod("preempting")
                .set("priorityClassName", "system-node-critical")
                .with(asking("c", "cpu", "1200m")),
            &["phase Running"],
        )
        .after("preempted", "phase Running"),
    ]
}
