//! Variables from files of volumes (`fileKeyRef`), and files that lead out of them.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::{Container, Pod, pod, shell};

const REFUSED: &[&str] = &["container c waiting CreateContainerConfigError"];

/// A pod in which this line has run in the volume before the container starts.
fn after(name: &str, line: &str, container: Container) -> Pod {
    pod(name)
        .volume("v", json!({"emptyDir": {}}))
        .init(shell("i", &format!("cd /v; {line}")).mount("v", "/v"))
        .with(container)
}

/// A container with the variable `KEY` of the file `file`.
fn reading(line: &str, optional: bool) -> Container {
    let source: Value =
        json!({"volumeName": "v", "path": "file", "key": "KEY", "optional": optional});
    shell("c", line).env_from("A", json!({"fileKeyRef": source}))
}

pub(super) fn cases() -> Vec<Case> {
    let wanted = || reading("sleep 600", false);
    let optional = || reading("exit ${#A}", true);
    let link = json!([{"name": "v", "mountPath": "/w", "subPath": "out/passwd"}]);
    let refused = |pod: Pod| case(&pod, REFUSED);
    vec![
        refused(after("no-file-of-variables", "true", wanted())),
        refused(after(
            "no-key-of-file",
            "echo \"OTHER='x'\" > file",
            wanted(),
        )),
        refused(after("no-quotes-in-file", "echo KEY=x > file", wanted())),
        refused(after(
            "no-quotes-in-file-but-optional",
            "echo KEY=x > file",
            optional(),
        )),
        case(
            &after(
                "no-key-of-file-but-optional",
                "echo \"OTHER='x'\" > file",
                optional(),
            )
            .restart("Never"),
            &["phase Succeeded"],
        ),
        case(
            &after(
                "key-of-file",
                "echo \"KEY='two'\" > file",
                reading("exit ${#A}", false),
            )
            .restart("Never"),
            &["container c terminated 3"],
        ),
        refused(after(
            "sub-path-leads-out",
            "ln -s /etc out",
            sleeper("c").set("volumeMounts", link),
        )),
    ]
}
