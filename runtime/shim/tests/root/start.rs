//! Starting: the process is what the specification says.

use hanok_shim::protocol::*;

use crate::rig::Pod;

#[test]
fn root_a_container_starts_and_its_exit_is_recorded() {
    let pod = Pod::started();
    let (exit, output) = pod.sh("c1", "echo hello; exit 7");
    assert_eq!(output, "hello\n");
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (7, 0, false));
    let record = std::fs::read_to_string(pod.path("c1/exit.json")).unwrap();
    assert!(record.contains("\"code\":7"), "{record}");
    pod.ok(&Request::Delete {
        container: "c1".into(),
    });
    assert!(!pod.path("c1/exit.json").exists());
}
