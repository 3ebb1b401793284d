//! Volumes that cannot be made.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::pod;

const FAILED: &[&str] = &["event Warning FailedMount", "container c waiting"];

fn with(name: &str, source: Value) -> Case {
    let pod = pod(name).volume("v", source);
    case(&pod.with(sleeper("c").mount("v", "/v")), FAILED)
}

pub(super) fn cases() -> Vec<Case> {
    let items = json!([{"key": "nothing", "path": "p"}]);
    let mut cases = vec![
        with(
            "volume-of-no-config-map",
            json!({"configMap": {"name": "nowhere"}}),
        ),
        with(
            "volume-of-no-secret",
            json!({"secret": {"secretName": "nowhere"}}),
        ),
        with(
            "volume-of-no-key-of-config-map",
            json!({"configMap": {"name": "here", "items": items}}),
        ),
        with(
            "volume-of-no-key-of-secret",
            json!({"secret": {"secretName": "here", "items": items}}),
        ),
        with(
            "volume-projecting-nothing",
            json!({"projected": {"sources": [{"configMap": {"name": "nowhere"}}]}}),
        ),
        with(
            "volume-projecting-two-nothings",
            json!({"projected": {"sources": [
                {"configMap": {"name": "nowhere"}},
                {"secret": {"name": "nowhere"}},
            ]}}),
        ),
        with(
            "volume-projecting-no-key",
            json!({"projected": {"sources": [{"secret": {"name": "here", "items": items}}]}}),
        ),
        with(
            "volume-of-no-resource",
            json!({"downwardAPI": {"items": [{
                "path": "p",
                "resourceFieldRef": {"containerName": "other", "resource": "limits.cpu"},
            }]}}),
        ),
    ];
    cases.extend(host_paths());
    cases
}

fn host_paths() -> Vec<Case> {
    let table = [
        ("host-path-is-no-directory", "/etc/passwd", "Directory"),
        ("host-path-is-no-file", "/etc", "File"),
        ("host-path-is-no-socket", "/etc", "Socket"),
        ("host-path-is-no-device", "/etc", "CharDevice"),
        ("host-path-is-no-disk", "/dev/null", "BlockDevice"),
        ("host-path-is-nowhere", "/nowhere", "Directory"),
        ("host-path-file-is-nowhere", "/nowhere", "File"),
        (
            "host-path-cannot-be-made",
            "/etc/passwd",
            "DirectoryOrCreate",
        ),
    ];
    let case = |(name, path, kind): (&str, &str, &str)| {
        with(name, json!({"hostPath": {"path": path, "type": kind}}))
    };
    table.into_iter().map(case).collect()
}
