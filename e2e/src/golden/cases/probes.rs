//! Probes that fail.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::{Container, pod, testapp};

const UNREADY: &[&str] = &["event Warning Unhealthy", "container c running"];
const RESTARTED: &[&str] = &[
    "event Warning Unhealthy",
    "event Normal Killing",
    "container c waiting CrashLoopBackOff",
    "event Warning BackOff",
];

/// A probe that looks each second and gives up at once.
fn probe(kind: &str, action: Value) -> Value {
    json!({kind: action, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 10})
}

/// The same with a second to answer.
fn soon(mut probe: Value) -> Value {
    probe["timeoutSeconds"] = 1.into();
    probe
}

fn exec(line: &str) -> Value {
    probe("exec", json!({"command": ["sh", "-c", line]}))
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = readiness();
    cases.extend(liveness());
    let mut away = probe("httpGet", json!({"path": "/to/192.0.2.1", "port": 8080}));
    // The server listens by then.
    away["initialDelaySeconds"] = 3.into();
    cases.push(case(
        &pod("ready-by-redirect").with(testapp("c", "serve 8080").set("readinessProbe", away)),
        &["event Warning ProbeWarning", "condition Ready True"],
    ));
    cases
}

fn readiness() -> Vec<Case> {
    let server = || testapp("c", "serve 8080");
    let health = || testapp("c", "health 8080 known");
    let slow = soon(exec("sleep 5"));
    let table: Vec<(&str, Container, Value)> = vec![
        ("unready-by-exec", sleeper("c"), exec("echo no; exit 1")),
        ("unready-by-silent-exec", sleeper("c"), exec("exit 7")),
        (
            "unready-by-no-program",
            sleeper("c"),
            probe("exec", json!({"command": ["/nothing"]})),
        ),
        ("unready-by-slow-exec", sleeper("c"), slow),
        (
            "unready-by-status",
            server(),
            probe("httpGet", json!({"path": "/env/NOTHING", "port": 8080})),
        ),
        (
            "unready-by-no-server",
            server(),
            probe("httpGet", json!({"path": "/", "port": 81})),
        ),
        (
            "unready-by-no-tls",
            server(),
            probe(
                "httpGet",
                json!({"path": "/", "port": 8080, "scheme": "HTTPS"}),
            ),
        ),
        (
            "unready-by-no-port",
            server(),
            probe("httpGet", json!({"path": "/", "port": "nothing"})),
        ),
        (
            "unready-by-no-listener",
            server(),
            probe("tcpSocket", json!({"port": 81})),
        ),
        (
            "unready-by-no-answer",
            testapp("c", "deaf 8080"),
            soon(probe("httpGet", json!({"path": "/", "port": 8080}))),
        ),
        (
            "unready-by-no-answer-of-grpc",
            testapp("c", "deaf 8080"),
            soon(probe("grpc", json!({"port": 8080}))),
        ),
        (
            "unready-by-service",
            health(),
            probe("grpc", json!({"port": 8080, "service": "unknown"})),
        ),
        (
            "unready-by-no-grpc",
            health(),
            probe("grpc", json!({"port": 81})),
        ),
    ];
    let case = |(name, container, probe): (&str, Container, Value)| {
        case(
            &pod(name).with(container.set("readinessProbe", probe)),
            UNREADY,
        )
    };
    table.into_iter().map(case).collect()
}

fn liveness() -> Vec<Case> {
    let server = || testapp("c", "serve 8080");
    let no = || exec("echo no; exit 1");
    let http = probe("httpGet", json!({"path": "/env/NOTHING", "port": 8080}));
    let own_grace = {
        let mut probe = no();
        probe["terminationGracePeriodSeconds"] = 1.into();
        probe
    };
    let table = [
        ("not-alive-by-exec", sleeper("c").set("livenessProbe", no())),
        ("not-alive-by-status", server().set("livenessProbe", http)),
        (
            "not-alive-by-no-listener",
            server().set("livenessProbe", probe("tcpSocket", json!({"port": 81}))),
        ),
        (
            "not-alive-by-slow-exec",
            sleeper("c").set("livenessProbe", soon(exec("sleep 5"))),
        ),
        (
            "not-alive-with-a-grace",
            sleeper("c").set("livenessProbe", own_grace),
        ),
        ("not-started", sleeper("c").set("startupProbe", no())),
    ];
    let case = |(name, container): (&str, Container)| case(&pod(name).with(container), RESTARTED);
    table.into_iter().map(case).collect()
}
