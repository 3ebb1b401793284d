//! The life of a container: what comes when, and what is left.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;

use hanok_runtime::oci::{OciError, Status};
use hanok_shim::protocol::FailureKind;
use hanok_shim::sys::socket::receive;
use serde_json::json;

use crate::rig::Bundle;
use crate::static_programs::programs;

#[test]
fn root_a_program_waits_for_its_start_and_leaves_nothing() {
    let bundle = Bundle::new("hostname > /out; read name < /proc/self/cgroup; echo $name >> /out");
    bundle.create().unwrap();
    assert_eq!(bundle.status(), Status::Created);
    assert!(!bundle.root().join("out").exists());
    let cgroups = bundle.runtime.state(&bundle.id).unwrap().cgroups;
    assert!(!cgroups.is_empty() && cgroups.iter().all(|dir| dir.is_dir()));
    assert!(bundle.runtime.start(&bundle.id).unwrap().is_empty());
    bundle.wait();
    let out = bundle.out();
    assert!(out.starts_with("room\n") && out.ends_with(":/\n"), "{out}");
    assert!(bundle.runtime.start(&bundle.id).is_err());
    assert!(bundle.runtime.kill(&bundle.id, "KILL", false).is_err());
    bundle.runtime.delete(&bundle.id, false).unwrap();
    bundle.assert_gone(&cgroups);
}

#[test]
fn root_what_is_not_stopped_is_not_deleted_and_not_created_again() {
    let bundle = Bundle::new("sleep 100");
    bundle.create().unwrap();
    assert!(bundle.runtime.delete(&bundle.id, false).is_err());
    assert!(matches!(bundle.create(), Err(OciError::Exists(_))));
    assert_eq!(bundle.status(), Status::Created);
    bundle.runtime.start(&bundle.id).unwrap();
    assert!(bundle.runtime.delete(&bundle.id, false).is_err());
    assert_eq!(bundle.status(), Status::Running);
    let record = bundle.runtime.state(&bundle.id).unwrap();
    assert_eq!(bundle.runtime.processes(&bundle.id).unwrap(), [record.pid]);
    bundle.runtime.kill(&bundle.id, "SIGKILL", false).unwrap();
    bundle.wait();
    bundle.runtime.delete(&bundle.id, false).unwrap();
    bundle.assert_gone(&record.cgroups);
}

#[test]
fn root_a_failed_creation_leaves_nothing() {
    let mut bundle = Bundle::new("true");
    bundle.config["linux"]["cgroupsPath"] = json!(bundle.id);
    bundle.config["process"]["args"] = json!(["/bin/nothing"]);
    let failed = bundle.create().unwrap_err();
    let kind = FailureKind::CommandNotFound;
    assert!(
        matches!(failed, OciError::Process { kind: k, .. } if k == kind),
        "{failed:?}"
    );
    bundle.assert_gone(&[]);
    bundle.config["process"]["args"] = json!(["/bin/true"]);
    // The process fails while its cgroups are made, which must not be what is told.
    bundle.config["mounts"][0]["options"] = json!(["no-such-option"]);
    let failed = bundle.create().unwrap_err().to_string();
    assert!(failed.contains("no-such-option"), "{failed}");
    bundle.assert_gone(&[]);
    bundle.config["mounts"][0]["options"] = json!([]);
    bundle.config["linux"]["resources"] =
        json!({ "hugepageLimits": [{ "pageSize": "3MB", "limit": 1 }] });
    assert!(bundle.create().is_err());
    bundle.assert_gone(&[]);
    bundle.config["linux"]["resources"] = json!({});
    let process = bundle.config["process"].take();
    bundle.config.as_object_mut().unwrap().remove("process");
    let missing = bundle.create().unwrap_err();
    assert!(
        missing.to_string().contains("process is missing"),
        "{missing}"
    );
    bundle.assert_gone(&[]);
    bundle.config["process"] = process;
    bundle.run();
}

#[test]
fn root_an_exec_is_inside_and_its_exit_code_is_told() {
    let bundle = Bundle::new("sleep 100");
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    assert_eq!(bundle.exec("hostname > /out; exit 7").unwrap(), 7);
    assert_eq!(bundle.out(), "room\n");
    assert_eq!(bundle.exec("kill -9 $$").unwrap(), 128 + 9);
    let options = hanok_runtime::oci::ExecOptions {
        args: vec!["/bin/nothing".into()],
        ..Default::default()
    };
    assert!(bundle.runtime.exec(&bundle.id, &options).is_err());
    bundle.runtime.delete(&bundle.id, true).unwrap();
    assert!(bundle.exec("true").is_err());
}

#[test]
fn root_limits_are_in_force_and_gone_with_the_container() {
    let mut bundle = Bundle::new("sleep 100");
    bundle.config["linux"]["resources"] =
        json!({ "pids": { "limit": 33 }, "memory": { "limit": 50 << 20 } });
    bundle.create().unwrap();
    let record = bundle.runtime.state(&bundle.id).unwrap();
    let read = |file: &str| {
        let path = record
            .cgroups
            .iter()
            .map(|dir| dir.join(file))
            .find(|path| path.exists());
        fs::read_to_string(path.unwrap()).unwrap().trim().to_owned()
    };
    assert_eq!(read("pids.max"), "33");
    let memory = if record.cgroups.len() == 1 {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    };
    assert_eq!(read(memory), (50 << 20).to_string());
    bundle.runtime.delete(&bundle.id, true).unwrap();
    bundle.assert_gone(&record.cgroups);
}

#[test]
fn root_a_process_is_set_up_as_its_document_says() {
    let told = "ulimit -n; ulimit -Hn; umask; cat /proc/self/oom_score_adj; pwd; \
        id -u; id -g; id -G; echo $A; grep NoNew /proc/self/status";
    let mut bundle = Bundle::new(&format!("( {told} ) > /out; touch /told; sleep 100"));
    let process = &mut bundle.config["process"];
    process["rlimits"] = json!([{ "type": "RLIMIT_NOFILE", "soft": 123, "hard": 456 }]);
    process["oomScoreAdj"] = json!(345);
    process["cwd"] = json!("/made/on demand");
    process["env"] = json!(["PATH=/bin", "A=x=y z"]);
    process["user"] = json!({ "uid": 0, "gid": 5, "additionalGids": [7], "umask": 0o027 });
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    // What is exec'd has the same, but for what its own document says.
    assert_eq!(
        bundle
            .exec(&format!(
                "until test -e /told; do sleep 0.02; done; ( {told} ) > /exec"
            ))
            .unwrap(),
        0
    );
    let want = "123\n456\n0027\n345\n/made/on demand\n0\n5\n5 7\nx=y z\nNoNewPrivs:\t1\n";
    let of_exec = fs::read_to_string(bundle.root().join("exec")).unwrap();
    assert_eq!((bundle.out().as_str(), of_exec.as_str()), (want, want));
    bundle.runtime.delete(&bundle.id, true).unwrap();
}

#[test]
fn root_a_terminal_goes_to_who_listens_and_has_its_size() {
    let mut bundle = Bundle::new("read word; echo got $word; busybox stty size; exit 3");
    bundle.config["process"]["terminal"] = json!(true);
    bundle.config["process"]["consoleSize"] = json!({ "height": 33, "width": 77 });
    let pts = json!({ "destination": "/dev/pts", "type": "devpts", "source": "devpts",
        "options": ["newinstance", "ptmxmode=0666", "mode=0620"] });
    bundle.config["mounts"].as_array_mut().unwrap().push(pts);
    let path = bundle.dir.path().join("console.sock");
    let create = |bundle: &Bundle, socket| bundle.create_with(Some(socket));
    // Nobody listens.
    let refused = create(&bundle, path.clone()).unwrap_err().to_string();
    assert!(refused.contains("console.sock"), "{refused}");
    bundle.assert_gone(&[]);
    let listener = UnixListener::bind(&path).unwrap();
    create(&bundle, path).unwrap();
    let (connection, _) = listener.accept().unwrap();
    let (mut name, mut received) = ([0; 64], Vec::new());
    receive(&connection, &mut name, &mut received).unwrap();
    let mut master = fs::File::from(received.pop().unwrap());
    assert!(received.is_empty());
    bundle.runtime.start(&bundle.id).unwrap();
    master.write_all(b"word\n").unwrap();
    // The end of a terminal is an error.
    let mut text = Vec::new();
    assert!(master.read_to_end(&mut text).is_err());
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("got word\r\n33 77\r\n"), "{text:?}");
    bundle.wait();
    bundle.runtime.delete(&bundle.id, false).unwrap();
}

/// A bundle with a user namespace of its own, whose root can write to /tmp.
fn with_users(script: &str) -> Bundle {
    let mut bundle = Bundle::new(script);
    let linux = &mut bundle.config["linux"];
    linux["namespaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "type": "user" }));
    linux["uidMappings"] = json!([{ "containerID": 0, "hostID": 70_000, "size": 1000 }]);
    linux["gidMappings"] = linux["uidMappings"].clone();
    // The bundle's files belong to the node's root, whom the container cannot be.
    let tmp = bundle.root().join("tmp");
    std::os::unix::fs::chown(&tmp, Some(70_000), Some(70_000)).unwrap();
    fs::set_permissions(
        bundle.dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    bundle
}

#[test]
fn root_users_of_a_user_namespace_are_nobody_outside() {
    let script = "cat /proc/self/uid_map > /tmp/out; id -u >> /tmp/out; sleep 100";
    let bundle = with_users(script);
    let tmp = bundle.root().join("tmp");
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    assert_eq!(bundle.exec("id -u > /tmp/exec").unwrap(), 0);
    assert_eq!(fs::read_to_string(tmp.join("exec")).unwrap(), "0\n");
    let pid = bundle.runtime.state(&bundle.id).unwrap().pid;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("Uid:\t70000\t70000"), "{status}");
    bundle.runtime.delete(&bundle.id, true).unwrap();
}

/// The streams are the caller's own, so this test is a program that is started by itself.
#[test]
fn root_a_stream_that_another_container_gets_too_is_no_reason_not_to_run() {
    const INNER: &str = "HANOK_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        return with_users("true").run();
    }
    let (_reader, writer) = std::io::pipe().unwrap();
    let name = "life::root_a_stream_that_another_container_gets_too_is_no_reason_not_to_run";
    let mut inner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(INNER, "")
        .env("HANOK_PROGRAMS", programs())
        // Ours is that of the newest bundle, of any test, and may be gone.
        .current_dir("/")
        .stdout(writer.try_clone().unwrap())
        .spawn()
        .unwrap();
    let status = loop {
        // As it is handed to the node's root.
        std::os::unix::fs::fchown(&writer, Some(0), Some(0)).unwrap();
        if let Some(status) = inner.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success());
}

#[test]
fn root_what_a_hook_leaves_behind_writes_to_nobody() {
    let wait = "i=0; until test -s /out || test $i -gt 500; do sleep 0.02; i=$((i+1)); done";
    let mut bundle = Bundle::new(wait);
    let leave =
        "trap '' PIPE; (while echo on 2>/dev/null; do :; done; echo over > /out) & sleep 0.1";
    bundle.config["hooks"] = json!({ "startContainer": [
        { "path": "/bin/sh", "args": ["sh", "-c", leave], "timeout": 10 }
    ] });
    bundle.run();
    assert_eq!(bundle.out(), "over\n");
}
