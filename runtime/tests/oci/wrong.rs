//! What goes wrong beside a container: others in its cgroup, files that nobody can write, a caller that is killed.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use hanok_runtime::oci::{ExecOptions, OciError, Runtime, Status};
use serde_json::json;

use crate::rig::Bundle;
use crate::static_programs::programs;

fn cgroups(bundle: &Bundle) -> Vec<PathBuf> {
    bundle.runtime.state(&bundle.id).unwrap().cgroups
}

#[test]
fn root_a_cgroup_that_others_are_in_is_not_taken_and_nobody_in_it_is_killed() {
    let mut first = Bundle::new("sleep 100");
    first.config["linux"]["cgroupsPath"] = json!(format!("{}/a", first.id));
    first.create().unwrap();
    first.runtime.start(&first.id).unwrap();
    let mut second = Bundle::new("sleep 100");
    for path in ["", "/a"] {
        second.config["linux"]["cgroupsPath"] = json!(format!("{}{path}", first.id));
        let refused = second.create().unwrap_err().to_string();
        assert!(refused.contains("is in use"), "{refused}");
        second.assert_gone(&[]);
        assert_eq!(first.status(), Status::Running);
    }
    let made = cgroups(&first);
    first.runtime.delete(&first.id, true).unwrap();
    first.assert_gone(&made);
    // One that is empty is as good as none.
    second.create().unwrap();
    second.runtime.delete(&second.id, true).unwrap();
    for directory in made {
        let above = directory.parent().unwrap();
        assert!(!above.exists() || fs::remove_dir(above).is_ok());
    }
}

/// Where a unit is that systemd knows of, but has no controllers for.
fn tracked() -> PathBuf {
    let mounts = ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup"].map(PathBuf::from);
    let is_mounted = |mount: &PathBuf| mount.join("cgroup.procs").exists();
    mounts.into_iter().find(is_mounted).unwrap()
}

#[test]
fn root_a_unit_that_others_are_in_is_not_taken_and_nobody_in_it_is_killed() {
    let mut bundle = Bundle::new("true");
    let name = bundle.id.replace('-', "_");
    bundle.config["linux"]["cgroupsPath"] = json!(format!("{name}.slice:x:{name}"));
    bundle.runtime = bundle.runtime.clone().by_systemd();
    let slice = tracked().join(format!("{name}.slice"));
    let scope = slice.join(format!("x-{name}.scope"));
    fs::create_dir_all(&scope).unwrap();
    let mut other = Command::new("sleep").arg("100").spawn().unwrap();
    let joined = fs::write(scope.join("cgroup.procs"), other.id().to_string());
    let refused = bundle.create();
    let lives = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    other.wait().unwrap();
    for directory in [&scope, &slice] {
        fs::remove_dir(directory).unwrap();
    }
    joined.unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("is in use") && lives, "{refused}");
    bundle.assert_gone(&[]);
}

#[test]
fn root_an_exec_that_nobody_can_know_of_does_not_run_on() {
    let bundle = Bundle::new("sleep 100");
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    let options = ExecOptions {
        args: ["/bin/sleep", "50"].map(str::to_owned).to_vec(),
        detach: true,
        pid_file: Some(bundle.dir.path().join("absent/pid")),
        ..ExecOptions::default()
    };
    let failed = bundle.runtime.exec(&bundle.id, &options).unwrap_err();
    assert!(failed.to_string().contains("absent/pid"), "{failed}");
    let record = bundle.runtime.state(&bundle.id).unwrap();
    assert_eq!(bundle.runtime.processes(&bundle.id).unwrap(), [record.pid]);
    bundle.runtime.delete(&bundle.id, true).unwrap();
    bundle.assert_gone(&record.cgroups);
}

#[test]
fn root_a_process_for_exec_is_named_by_its_field() {
    let bundle = Bundle::new("sleep 100");
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    let path = bundle.dir.path().join("process.json");
    for (text, named) in [
        (r#"{"cwd":"/","args":["a"],"user":{"uid":-1}}"#, "user.uid"),
        (r#"{"cwd":"/","args":[7],"user":{}}"#, "args[0]"),
        (r#"{"cwd":"/","args":"a","user":{}}"#, "args"),
        (r#"{"cwd":"/","args":["a"],"user":7}"#, "user"),
        ("7", "the document"),
    ] {
        fs::write(&path, text).unwrap();
        let options = ExecOptions {
            process: Some(path.clone()),
            ..ExecOptions::default()
        };
        let error = bundle.runtime.exec(&bundle.id, &options).unwrap_err();
        match &error {
            OciError::Field { field, .. } => assert_eq!(field, named, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    bundle.runtime.delete(&bundle.id, true).unwrap();
}

#[test]
fn root_a_killed_create_leaves_its_cgroups_on_record() {
    let mut bundle = Bundle::new("true");
    // Looks at what there is as soon as anything is, which is what a caller that is killed then leaves.
    let script = format!(
        "#!/bin/sh\ncd $3/../{}; i=0; until test -s state.json || test $i -gt 500; do sleep 0.02; i=$((i+1)); done\n\
         cp state.json ../../seen\n",
        bundle.id
    );
    let shim = bundle.dir.path().join("shim");
    fs::write(&shim, script).unwrap();
    fs::set_permissions(&shim, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    bundle.runtime = Runtime::new(bundle.dir.path().join("containers"), shim);
    assert!(bundle.create().is_err());
    bundle.assert_gone(&[]);
    let seen = fs::read(bundle.dir.path().join("seen")).unwrap();
    let seen: serde_json::Value = serde_json::from_slice(&seen).unwrap();
    assert!(!seen["cgroups"].as_array().unwrap().is_empty(), "{seen}");
}

/// On v1: on v2 the cgroups come first, and there is no process yet when they fail.
#[test]
fn root_a_process_ends_with_a_creation_whose_cgroups_fail() {
    let mut bundle = Bundle::new("true");
    bundle.config["linux"]["cgroupsPath"] = json!(bundle.id);
    bundle.config["linux"]["resources"] =
        json!({ "hugepageLimits": [{ "pageSize": "3MB", "limit": 1 }] });
    assert!(bundle.create().is_err());
    bundle.assert_gone(&[]);
    // Its root filesystem would be mounted below the bundle, in its own mount namespace.
    let place = bundle.dir.path().to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mounts = processes.map(|entry| fs::read_to_string(entry.path().join("mountinfo")));
    assert!(!mounts.flatten().any(|mounts| mounts.contains(place)));
}

#[test]
fn root_a_place_for_records_that_cannot_be_written_is_named() {
    let mut bundle = Bundle::new("true");
    let place = bundle.dir.path().join("sealed");
    fs::create_dir(&place).unwrap();
    let mount = |words: &[&str]| {
        let status = Command::new("mount").args(words).arg(&place).status();
        assert!(status.unwrap().success());
    };
    mount(&["-t", "tmpfs", "-o", "ro", "hanok-test"]);
    for below in ["", "deep/below"] {
        bundle.runtime = Runtime::new(place.join(below), programs().join("hanok-shim"));
        let refused = bundle.create().unwrap_err();
        let cause = refused.source().map(ToString::to_string);
        assert!(refused.to_string().contains("/sealed/"), "{refused}");
        assert!(cause.is_some_and(|cause| cause.contains("Read-only file system")));
        assert!(bundle.runtime.list().unwrap().0.is_empty());
    }
    let status = Command::new("umount").arg(&place).status();
    assert!(status.unwrap().success());
}
