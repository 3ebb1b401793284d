//! What is done to pods that run: they are deleted, resized, debugged, edited.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::{once, sleeper};
use crate::manifest::{Container, pod, shell, testapp};

const RUNNING: &[&str] = &["container c running"];
const STOPPED: &[&str] = &["container c terminated"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = deleted();
    cases.extend(resized());
    cases.extend(debugged());
    let sidecar = shell("s", "sleep 600").set("restartPolicy", "Always");
    cases.push(
        case(
            &pod("edited-sidecar").init(sidecar).with(sleeper("c")),
            &["init s before", "init s running"],
        )
        .patched(
            &["container c running", "init s running"],
            "",
            json!({"spec": {"initContainers": [{"name": "s", "image": "REGISTRY/nonroot:1"}]}}),
        ),
    );
    cases.push(
        case(
            &pod("edited").with(sleeper("c")),
            &["container c before", "container c running"],
        )
        .patched(
            RUNNING,
            "",
            json!({"spec": {"containers": [{"name": "c", "image": "REGISTRY/nonroot:1"}]}}),
        ),
    );
    cases
}

fn deleted() -> Vec<Case> {
    let sidecar = shell("s", "sleep 600").set("restartPolicy", "Always");
    let never = || sleeper("c").image("nowhere:5");
    let trap = || shell("c", "trap 'exit 7' TERM; sleep 600 & wait");
    vec![
        case(&pod("deleted").with(sleeper("c")), STOPPED).deleted(RUNNING),
        case(&pod("deleted-and-fails").with(trap()), STOPPED).deleted(RUNNING),
        case(&once("deleted-once").with(sleeper("c")), STOPPED).deleted(RUNNING),
        case(
            &pod("deleted-and-obeys").with(testapp("c", "sleep")),
            STOPPED,
        )
        .deleted(RUNNING),
        case(
            &pod("deleted-with-sidecar").init(sidecar).with(sleeper("c")),
            &["container c terminated", "init s terminated"],
        )
        .deleted(&["container c running", "init s running"]),
        case(
            &pod("deleted-in-init").init(sleeper("i")).with(sleeper("c")),
            &["init i terminated"],
        )
        .deleted(&["init i running"]),
        case(&pod("deleted-without-image").with(never()), &["phase"])
            .deleted(&["container c waiting ImagePullBackOff"]),
        case(
            &pod("deleted-in-back-off").with(shell("c", "exit 1")),
            &["phase"],
        )
        .deleted(&["container c waiting CrashLoopBackOff"]),
    ]
}

fn sized(cpu: &str, memory: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": memory});
    json!({"requests": amounts, "limits": amounts})
}

fn resize_to(cpu: &str, memory: &str) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": sized(cpu, memory)}]}})
}

fn resized() -> Vec<Case> {
    let small = || -> Container { sleeper("c").set("resources", sized("10m", "32Mi")) };
    let restart = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    // More than the node has is refused by the API server, so no case is infeasible.
    let pending = &["condition PodResizePending"];
    vec![
        case(
            &pod("resized").with(small()),
            &["event Normal ResizeCompleted"],
        )
        .patched(RUNNING, "resize", resize_to("20m", "48Mi")),
        case(
            &pod("resized-by-restart").with(small().set("resizePolicy", restart)),
            &[
                "event Normal ResizeCompleted",
                "container c before",
                "container c running",
            ],
        )
        .patched(RUNNING, "resize", resize_to("10m", "48Mi")),
        case(&pod("resize-deferred").with(small()), pending).patched(
            RUNNING,
            "resize",
            resize_to("1999m", "32Mi"),
        ),
    ]
}

fn debugged() -> Vec<Case> {
    let with = |image: &str, line: &str| {
        json!({"spec": {"ephemeralContainers": [{
            "name": "e",
            "image": format!("REGISTRY/{image}"),
            "command": ["sh", "-c", line],
        }]}})
    };
    let targeted = |name: &str| {
        let mut patch = with("busybox:1", "exit 3");
        patch["spec"]["ephemeralContainers"][0]["targetContainerName"] = name.into();
        patch
    };
    let kind = "ephemeralcontainers";
    vec![
        case(
            &pod("debugged").with(sleeper("c")),
            &["ephemeral e terminated 3"],
        )
        .patched(RUNNING, kind, with("busybox:1", "exit 3")),
        case(
            &pod("debugged-in-what-is-not-there")
                .with(sleeper("c").image("nowhere:8"))
                .with(sleeper("d")),
            &["ephemeral e waiting CreateContainer"],
        )
        .patched(
            &[
                "container c waiting ImagePullBackOff",
                "container d running",
            ],
            kind,
            targeted("c"),
        ),
        case(
            &pod("debugged-in-what-has-ended")
                .restart("Never")
                .with(shell("c", "exit 0"))
                .with(sleeper("d")),
            &["ephemeral e waiting CreateContainer"],
        )
        .patched(
            &["container c terminated 0", "container d running"],
            kind,
            targeted("c"),
        ),
        case(
            &pod("debugged-by-no-image").with(sleeper("c")),
            &["ephemeral e waiting ImagePullBackOff"],
        )
        .patched(RUNNING, kind, with("nowhere:6", "exit 3")),
    ]
}
