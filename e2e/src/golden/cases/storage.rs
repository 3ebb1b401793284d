//! Pods that write more than they may.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::{once, sleeper};
use crate::manifest::{Container, shell};

const EVICTED: &[&str] = &["phase Failed", "event Warning Evicted"];

/// A container that writes so many MiB, waits, and ends with that code when it is told to.
fn writer(file: &str, size: u64, code: u8) -> Container {
    let write = format!("dd if=/dev/zero of={file} bs=1M count={size}");
    shell(
        "c",
        &format!("trap 'exit {code}' TERM; {write}; sleep 600 & wait"),
    )
}

fn limited(container: Container, limit: &str) -> Container {
    container.set("resources", json!({"limits": {"ephemeral-storage": limit}}))
}

fn with(name: &str, source: Value, container: Container) -> Case {
    let pod = once(name).volume("v", source);
    case(&pod.with(container.mount("v", "/v")), EVICTED)
}

pub(super) fn cases() -> Vec<Case> {
    let small = json!({"emptyDir": {"sizeLimit": "1Mi"}});
    let memory = json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    let two = once("writes-beyond-container")
        .with(limited(writer("/file", 4, 7), "1Mi"))
        .with(limited(sleeper("other"), "16Mi"));
    let mut full = with(
        "writes-beyond-memory",
        memory,
        shell("c", "dd if=/dev/zero of=/v/file bs=64k count=32 || exit 3"),
    );
    full.until = &["phase Failed"];
    let mut well = with(
        "writes-too-much-and-ends-well",
        small.clone(),
        writer("/v/file", 4, 0),
    );
    well.until = &["event Warning Evicted", "container c terminated 0"];
    vec![
        with("writes-beyond-empty-dir", small, writer("/v/file", 4, 7)),
        with(
            "writes-beyond-pod",
            json!({"emptyDir": {}}),
            limited(writer("/v/file", 4, 7), "1536Ki"),
        ),
        case(&two, EVICTED),
        full,
        well,
    ]
}
