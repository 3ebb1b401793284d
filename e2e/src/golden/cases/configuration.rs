//! Containers that cannot be made as they are described.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::{Container, Pod, pod};

const REFUSED: &[&str] = &["container c waiting CreateContainerConfigError"];

fn from(name: &str, source: Value) -> Pod {
    pod(name).with(sleeper("c").env_from("A", source))
}

fn secured(name: &str, context: Value) -> Pod {
    pod(name).with(sleeper("c").set("securityContext", context))
}

pub(super) fn cases() -> Vec<Case> {
    let all_of = |source: Value| sleeper("c").set("envFrom", json!([source]));
    let mut cases = vec![
        case(
            &from(
                "no-config-map",
                json!({"configMapKeyRef": {"name": "nowhere", "key": "k"}}),
            ),
            REFUSED,
        ),
        case(
            &from(
                "no-key-of-config-map",
                json!({"configMapKeyRef": {"name": "here", "key": "k"}}),
            ),
            REFUSED,
        ),
        case(
            &from(
                "no-secret",
                json!({"secretKeyRef": {"name": "nowhere", "key": "k"}}),
            ),
            REFUSED,
        ),
        case(
            &from(
                "no-key-of-secret",
                json!({"secretKeyRef": {"name": "here", "key": "k"}}),
            ),
            REFUSED,
        ),
        case(
            &pod("no-config-map-of-all").with(all_of(json!({"configMapRef": {"name": "nowhere"}}))),
            REFUSED,
        ),
        case(
            &pod("no-secret-of-all").with(all_of(json!({"secretRef": {"name": "nowhere"}}))),
            REFUSED,
        ),
        case(
            &from(
                "no-container-of-resource",
                json!({"resourceFieldRef": {"containerName": "other", "resource": "limits.cpu"}}),
            ),
            REFUSED,
        ),
        case(
            &secured("root-that-may-not", json!({"runAsNonRoot": true})),
            REFUSED,
        ),
        case(
            &secured(
                "asked-to-be-root",
                json!({"runAsNonRoot": true, "runAsUser": 0}),
            ),
            REFUSED,
        ),
        case(
            &secured(
                "no-seccomp-profile",
                json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "nowhere.json"}}),
            ),
            &["container c waiting CreateContainerError"],
        ),
    ];
    cases.extend(sub_paths());
    cases
}

fn sub_paths() -> Vec<Case> {
    let mounted = |field: &str, path: &str| -> Container {
        let mount = json!([{"name": "v", "mountPath": "/v", field: path}]);
        sleeper("c").set("volumeMounts", mount)
    };
    let here = json!({"configMap": {"name": "here"}});
    vec![
        case(
            &pod("sub-path-below-a-file")
                .volume("v", here)
                .with(mounted("subPath", "key/below")),
            REFUSED,
        ),
        case(
            &pod("sub-path-of-no-variable")
                .volume("v", json!({"emptyDir": {}}))
                .with(mounted("subPathExpr", "$(NOTHING)")),
            REFUSED,
        ),
    ]
}
