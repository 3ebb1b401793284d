//! How containers end, and pods.

use serde_json::json;

use super::super::case::{Case, case};
use super::{once, sleeper};
use crate::manifest::{pod, shell, testapp};

const SUCCEEDED: &[&str] = &["phase Succeeded"];
const FAILED: &[&str] = &["phase Failed"];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = plain();
    cases.extend(messages());
    cases.extend(programs());
    cases
}

fn plain() -> Vec<Case> {
    let by_turns = || shell("b", "exit 0");
    vec![
        case(&once("succeeds").with(shell("c", "exit 0")), SUCCEEDED),
        case(
            &pod("succeeds-on-failure")
                .restart("OnFailure")
                .with(shell("c", "exit 0")),
            SUCCEEDED,
        ),
        case(&once("fails").with(shell("c", "exit 3")), FAILED),
        case(
            &once("fails-in-part")
                .with(shell("a", "exit 1"))
                .with(by_turns()),
            FAILED,
        ),
        case(
            &once("ends-in-part").with(sleeper("a")).with(by_turns()),
            &[
                "container b terminated 0",
                "container a running",
                "phase Running",
            ],
        ),
        case(
            &once("fails-beside-another")
                .with(sleeper("a"))
                .with(shell("b", "exit 1")),
            &[
                "container b terminated 1",
                "container a running",
                "phase Running",
            ],
        ),
        case(
            &once("out-of-memory").with(testapp("c", "eat 64").limits("24Mi", "20m")),
            FAILED,
        ),
        case(
            &once("out-of-memory-in-a-child").with(
                shell("c", "dd if=/dev/zero of=/dev/null bs=64M count=1; exit 0")
                    .limits("24Mi", "20m"),
            ),
            &["container c terminated"],
        ),
        case(
            &once("out-of-memory-in-a-volume")
                .volume("v", json!({"emptyDir": {"medium": "Memory"}}))
                .with(
                    shell("c", "exec dd if=/dev/zero of=/v/f bs=1M count=64")
                        .limits("24Mi", "20m")
                        .mount("v", "/v"),
                ),
            FAILED,
        ),
        case(
            &pod("too-long")
                .set("activeDeadlineSeconds", 8)
                .with(sleeper("c")),
            &["phase Failed", "container c terminated"],
        ),
        case(
            &pod("too-long-in-init")
                .set("activeDeadlineSeconds", 8)
                .init(sleeper("i"))
                .with(sleeper("c")),
            &["phase Failed", "init i terminated"],
        ),
    ]
}

fn messages() -> Vec<Case> {
    let policy = "terminationMessagePolicy";
    let loud = "for i in $(seq 100); do echo line $i; done; exit 4";
    vec![
        case(
            &once("says-why").with(shell("c", "echo because > /dev/termination-log; exit 4")),
            FAILED,
        ),
        case(
            &once("says-why-elsewhere").with(
                shell("c", "echo because > /tmp/why; exit 4")
                    .set("terminationMessagePath", "/tmp/why"),
            ),
            FAILED,
        ),
        case(
            &once("says-why-in-its-log")
                .with(shell("c", loud).set(policy, "FallbackToLogsOnError")),
            FAILED,
        ),
        case(
            &once("says-why-twice").with(
                shell("c", "echo log; echo file > /dev/termination-log; exit 4")
                    .set(policy, "FallbackToLogsOnError"),
            ),
            FAILED,
        ),
        case(
            &once("says-nothing-when-it-succeeds")
                .with(shell("c", "echo log").set(policy, "FallbackToLogsOnError")),
            SUCCEEDED,
        ),
        case(
            &once("says-too-much").with(shell(
                "c",
                "yes word | head -c 5000 > /dev/termination-log; exit 4",
            )),
            FAILED,
        ),
    ]
}

fn programs() -> Vec<Case> {
    let with = |name: &str, command: &str| {
        once(name).with(shell("c", "").set("command", json!([command])))
    };
    vec![
        case(&with("no-program", "/nothing"), FAILED),
        case(&with("no-program-in-path", "nothing"), FAILED),
        case(&with("program-that-cannot-run", "/etc/passwd"), FAILED),
        case(
            &once("directory-is-a-file").with(sleeper("c").set("workingDir", "/etc/passwd")),
            FAILED,
        ),
        case(
            &pod("no-program-again").with(shell("c", "").set("command", json!(["/nothing"]))),
            &[
                "container c waiting CrashLoopBackOff",
                "event Warning BackOff",
            ],
        ),
        case(
            &once("no-program-in-init")
                .init(shell("i", "").set("command", json!(["/nothing"])))
                .with(sleeper("c")),
            FAILED,
        ),
    ]
}
