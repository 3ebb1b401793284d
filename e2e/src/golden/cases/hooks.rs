//! Hooks that fail.

use serde_json::{Value, json};

use super::super::case::{Case, case};
use super::{once, sleeper};
use crate::manifest::{Pod, pod, shell};

fn hooked(pod: Pod, name: &str, handler: Value) -> Pod {
    pod.with(sleeper("c").set("lifecycle", json!({name: handler})))
}

pub(super) fn cases() -> Vec<Case> {
    let no = || json!({"exec": {"command": ["sh", "-c", "echo no; exit 3"]}});
    let nothing = || json!({"exec": {"command": ["/nothing"]}});
    let nobody = || json!({"httpGet": {"path": "/", "port": 81}});
    let hangs = || json!({"exec": {"command": ["sleep", "600"]}});
    let sleep = || json!({"sleep": {"seconds": 1}});
    let crashed = &[
        "event Warning FailedPostStartHook",
        "container c waiting CrashLoopBackOff",
        "event Warning BackOff",
    ];
    let running = &["container c running"];
    let stopped = &["container c terminated"];
    vec![
        case(&hooked(pod("post-start-fails"), "postStart", no()), crashed),
        case(
            &hooked(pod("post-start-has-no-program"), "postStart", nothing()),
            crashed,
        ),
        case(
            &hooked(pod("post-start-finds-nobody"), "postStart", nobody()),
            crashed,
        ),
        case(
            &hooked(once("post-start-fails-once"), "postStart", no()),
            &["phase Failed"],
        ),
        case(
            &hooked(pod("post-start-sleeps"), "postStart", sleep()),
            running,
        ),
        falls_back(),
        case(&hooked(pod("pre-stop-hangs"), "preStop", hangs()), stopped).deleted(running),
        case(&hooked(pod("pre-stop-fails"), "preStop", no()), stopped).deleted(running),
        case(
            &hooked(pod("pre-stop-has-no-program"), "preStop", nothing()),
            stopped,
        )
        .deleted(running),
        case(
            &hooked(pod("pre-stop-finds-nobody"), "preStop", nobody()),
            stopped,
        )
        .deleted(running),
        case(&hooked(pod("pre-stop-sleeps"), "preStop", sleep()), stopped).deleted(running),
    ]
}

/// Answers whatever it is asked in HTTP.
const PLAIN: &str = "exec nc -ll -p 8080 -e sh -c \"head -c 10 > /dev/null; \
    printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n'; cat > /dev/null\"";

/// A hook that asks by HTTPS, of a sidecar that has been serving by HTTP for a while.
fn falls_back() -> Case {
    let server = shell("s", PLAIN).set("restartPolicy", "Always");
    let https = json!({"httpGet": {"path": "/", "port": 8080, "scheme": "HTTPS"}});
    let pod = pod("post-start-falls-back")
        .init(server)
        .init(shell("i", "sleep 3"));
    case(&hooked(pod, "postStart", https), &["container c running"])
}
