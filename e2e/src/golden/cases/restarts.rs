//! What is started again, and init containers.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::{once, sleeper};
use crate::manifest::{Container, pod, shell};

const BACK_OFF: &[&str] = &[
    "container c waiting CrashLoopBackOff",
    "event Warning BackOff",
];

fn sidecar(name: &str, line: &str) -> Container {
    shell(name, line).set("restartPolicy", "Always")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = policies();
    cases.extend(inits());
    cases
}

/// A container's own policy.
fn ruled(line: &str, policy: &str, codes: Value) -> Container {
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": codes}}]);
    shell("c", line)
        .set("restartPolicy", policy)
        .set("restartPolicyRules", rule)
}

/// A container whose first end makes all of the pod's begin anew.
fn ends_all() -> Container {
    let rule = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]);
    let line = "[ -e /v/once ] || { touch /v/once; sleep 3; exit 42; }; sleep 600";
    shell("c", line)
        .set("restartPolicy", "Never")
        .set("restartPolicyRules", rule)
        .mount("v", "/v")
}

fn policies() -> Vec<Case> {
    vec![
        case(&pod("crashes").with(shell("c", "exit 1")), BACK_OFF),
        case(
            &pod("crashes-on-failure")
                .restart("OnFailure")
                .with(shell("c", "exit 1")),
            BACK_OFF,
        ),
        case(&pod("ends-again").with(shell("c", "exit 0")), BACK_OFF),
        case(
            &pod("crashes-beside-another")
                .with(shell("c", "exit 1"))
                .with(sleeper("d")),
            BACK_OFF,
        ),
        case(
            &once("crashes-by-its-rule").with(ruled("exit 42", "Never", json!([42]))),
            BACK_OFF,
        ),
        case(
            &once("fails-by-its-rule").with(ruled("exit 41", "Never", json!([42]))),
            &["phase Failed"],
        ),
        case(
            &once("restarts-all")
                .volume("v", json!({"emptyDir": {}}))
                .with(ends_all())
                .with(sleeper("d")),
            &[
                "container c before terminated",
                "container c running",
                "container d before terminated",
                "container d running",
                "event Normal Killing",
                "condition Ready True",
            ],
        ),
        case(
            &pod("waits-for-a-gate")
                .set(
                    "readinessGates",
                    json!([{"conditionType": "example.com/open"}]),
                )
                .with(sleeper("c")),
            &["phase Running"],
        ),
        case(&pod("runs").with(sleeper("c")), &["phase Running"]),
        case(
            &pod("runs-with-limits").with(sleeper("c").limits("32Mi", "10m")),
            &["phase Running"],
        ),
        case(
            &pod("runs-in-the-hosts-network")
                .set("hostNetwork", true)
                .with(sleeper("c")),
            &["phase Running"],
        ),
    ]
}

fn inits() -> Vec<Case> {
    let both = &["init s running", "container c running", "phase Running"];
    vec![
        case(
            &once("init-fails").init(shell("i", "exit 2")).with(sleeper("c")),
            &["phase Failed"],
        ),
        case(
            &pod("init-crashes")
                .init(shell("i", "exit 2"))
                .init(shell("j", "exit 0"))
                .with(sleeper("c")),
            &["init i waiting CrashLoopBackOff", "event Warning BackOff"],
        ),
        case(
            &pod("init-runs").init(sleeper("i")).with(sleeper("c")),
            &["init i running", "container c waiting"],
        ),
        case(
            &pod("init-succeeds")
                .init(shell("i", "exit 0"))
                .init(shell("j", "exit 0"))
                .with(sleeper("c")),
            &["phase Running"],
        ),
        case(
            &pod("sidecar-runs")
                .init(sidecar("s", "sleep 600"))
                .with(sleeper("c")),
            both,
        ),
        case(
            &once("sidecar-ends-last")
                .init(sidecar("s", "sleep 600"))
                .with(shell("c", "exit 0")),
            &["phase Succeeded"],
        ),
        case(
            &pod("sidecar-crashes")
                // Long enough to be seen to have started, without which no app does.
                .init(sidecar("s", "sleep 3; exit 1"))
                .with(sleeper("c")),
            &["init s waiting CrashLoopBackOff", "event Warning BackOff", "container c running"],
        ),
        case(
            &pod("sidecar-does-not-start")
                .init(sidecar("s", "sleep 600").set(
                    "startupProbe",
                    json!({"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 60}),
                ))
                .with(sleeper("c")),
            &["init s running", "event Warning Unhealthy"],
        ),
        case(
            &pod("sidecar-is-ill")
                .init(ill("s", "sleep 600", "livenessProbe").set("restartPolicy", "Always"))
                .with(sleeper("c")),
            &["event Normal Killing", "init s waiting CrashLoopBackOff", "event Warning BackOff"],
        ),
        case(
            &pod("sidecar-fails-to-start")
                .init(ill("s", "sleep 600", "startupProbe").set("restartPolicy", "Always"))
                .with(sleeper("c")),
            &["event Normal Killing", "init s waiting CrashLoopBackOff", "event Warning BackOff"],
        ),
        case(
            &pod("ill-and-ends-well")
                .restart("OnFailure")
                .volume("once", json!({"emptyDir": {}}))
                .with(ill_once("c", "trap 'exit 0' TERM; sleep 600 & wait")),
            &["event Normal Killing", "container c started again"],
        ),
    ]
}

/// A container whose liveness probe fails once in the pod's life.
fn ill_once(name: &str, line: &str) -> Container {
    let asked = "test -e /once/asked || ! touch /once/asked";
    let probe = json!({"exec": {"command": ["sh", "-c", asked]}, "periodSeconds": 1,
        "initialDelaySeconds": 3, "failureThreshold": 1});
    let container = shell(name, line).set("livenessProbe", probe);
    container.mount("once", "/once")
}

/// A container with a probe that fails for good after some seconds.
fn ill(name: &str, line: &str, probe: &str) -> Container {
    let action = json!({"exec": {"command": ["false"]}, "periodSeconds": 1,
        "initialDelaySeconds": 3, "failureThreshold": 1});
    shell(name, line).set(probe, action)
}
