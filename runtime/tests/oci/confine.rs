//! What a container cannot do, and what a hostile bundle cannot reach.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::rig::Bundle;

#[test]
fn root_no_descriptor_of_the_caller_comes_into_the_container() {
    // On purpose without close-on-exec, as a careless caller has them.
    let held = fs::File::open("/etc").unwrap();
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
    let bundle = Bundle::new("ls /proc/self/fd > /out; echo > /done; sleep 100");
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    assert_eq!(
        bundle
            .exec("until [ -e /done ]; do sleep 0.1; done; ls /proc/self/fd > /tmp/exec; ls /proc/1/fd > /tmp/one")
            .unwrap(),
        0
    );
    // The fourth is that of ls on the directory.
    for file in ["out", "tmp/exec"] {
        let fds = fs::read_to_string(bundle.root().join(file)).unwrap();
        assert_eq!(
            fds.split_whitespace().collect::<Vec<_>>(),
            ["0", "1", "2", "3"],
            "{file}"
        );
    }
    let one = fs::read_to_string(bundle.root().join("tmp/one")).unwrap();
    assert!(
        one.split_whitespace().all(|fd| fd == "10" || fd.len() == 1),
        "{one}"
    );
}

#[test]
fn root_a_working_directory_is_inside_or_refused() {
    for fd in 3..24 {
        let mut bundle = Bundle::new("ls > /out");
        bundle.config["process"]["cwd"] = json!(format!("/proc/self/fd/{fd}"));
        assert!(bundle.create().is_err(), "{fd}");
    }
}

#[test]
fn root_the_shim_is_not_written_to_by_what_it_starts() {
    let before = Bundle::shim_bytes();
    let bundle = Bundle::new(
        "while :; do for p in /proc/[0-9]*/exe; do echo x > $p; done; done 2>/dev/null",
    );
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    for _ in 0..20 {
        assert_eq!(bundle.exec("true").unwrap(), 0);
    }
    // A container that runs it by its own link cannot change it either.
    let mut own = Bundle::new("");
    own.config["process"]["args"] = json!(["/proc/self/exe", "oci", "9", "/"]);
    if own.create().is_ok() {
        let _ = own.runtime.start(&own.id);
        own.wait();
    }
    assert_eq!(Bundle::shim_bytes(), before);
}

#[test]
fn root_capabilities_are_those_of_the_document_and_no_more() {
    let mut bundle = Bundle::new("grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status > /out");
    let set = ["CAP_CHOWN", "CAP_KILL"];
    bundle.config["process"]["capabilities"] =
        json!({ "bounding": set, "effective": set, "permitted": set });
    bundle.config["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" }],
    });
    bundle.run();
    let out = bundle.out();
    for (name, value) in [
        ("Inh", 0),
        ("Prm", 0x21),
        ("Eff", 0x21),
        ("Bnd", 0x21),
        ("Amb", 0),
    ] {
        assert!(out.contains(&format!("Cap{name}:\t{value:016x}")), "{out}");
    }
    assert!(
        out.contains("NoNewPrivs:\t1") && out.contains("Seccomp:\t2"),
        "{out}"
    );
}

#[test]
fn root_hidden_and_read_only_paths_stay_so() {
    let mut bundle = Bundle::new(
        "cat /etc/secret > /tmp/seen; ls /etc/dir >> /tmp/seen; echo x > /etc/kept; umount /etc/secret; \
         mount -o remount,rw /; touch /new; cat /etc/secret >> /tmp/seen; cat /etc/kept >> /tmp/seen",
    );
    let etc = bundle.root().join("etc");
    fs::create_dir(etc.join("dir")).unwrap();
    for (file, text) in [
        ("secret", "secret"),
        ("dir/secret", "secret"),
        ("kept", "kept"),
    ] {
        fs::write(etc.join(file), text).unwrap();
    }
    bundle.config["root"]["readonly"] = json!(true);
    bundle.config["linux"]["maskedPaths"] = json!(["/etc/secret", "/etc/dir", "/etc/absent"]);
    bundle.config["linux"]["readonlyPaths"] = json!(["/etc/kept"]);
    let tmp = bundle.dir.path().join("tmp");
    fs::create_dir(&tmp).unwrap();
    let mount = json!({ "destination": "/tmp", "source": "tmp", "options": ["bind", "rw"] });
    bundle.config["mounts"].as_array_mut().unwrap().push(mount);
    bundle.run();
    assert_eq!(fs::read_to_string(tmp.join("seen")).unwrap(), "kept");
    assert!(!bundle.root().join("new").exists());
    assert_eq!(fs::read_to_string(etc.join("kept")).unwrap(), "kept");
}

#[test]
fn root_devices_that_no_rule_names_cannot_be_used() {
    let mut bundle = Bundle::new(
        "mknod /dev/sda b 8 0; mknod /dev/mem c 1 1; mknod /dev/tun c 10 200; for d in sda mem tun; do \
         dd if=/dev/$d of=/dev/null bs=1 count=1 2>>/out; done; dd if=/dev/zero of=/dev/null bs=1 count=1 2>/dev/null \
         && echo fine >> /out",
    );
    let set = ["CAP_MKNOD", "CAP_SYS_RAWIO"];
    bundle.config["process"]["capabilities"] =
        json!({ "bounding": set, "effective": set, "permitted": set });
    bundle.run();
    let out = bundle.out();
    assert_eq!(out.matches("Operation not permitted").count(), 3, "{out}");
    assert!(out.ends_with("fine\n"), "{out}");
}

#[test]
fn root_links_of_the_root_filesystem_do_not_lead_out() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("canary"), "alive").unwrap();
    for name in ["proc", "sys", "dev", "tmp", "etc"] {
        let mut bundle = Bundle::new("true");
        let link = bundle.root().join(name);
        fs::remove_dir(&link).unwrap();
        symlink(outside.path(), &link).unwrap();
        let mount =
            json!({ "destination": format!("/{name}/a/b"), "type": "tmpfs", "source": "tmpfs" });
        bundle.config["mounts"].as_array_mut().unwrap().push(mount);
        // Refused, or made inside.
        if bundle.create().is_ok() {
            bundle.runtime.delete(&bundle.id, true).unwrap();
        }
        let left: Vec<_> = fs::read_dir(outside.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{name}");
        assert_eq!(
            fs::read_to_string(outside.path().join("canary")).unwrap(),
            "alive"
        );
    }
}

#[test]
fn root_account_files_of_any_kind_end_in_a_start_or_an_error_at_once() {
    type Put = fn(&std::path::Path);
    let kinds: [(&str, Put); 4] = [
        ("fifo", |path| {
            let made = std::process::Command::new("mkfifo").arg(path).status();
            assert!(made.unwrap().success());
        }),
        ("zero", |path| symlink("/dev/zero", path).unwrap()),
        ("huge", |path| {
            fs::File::create(path).unwrap().set_len(2 << 30).unwrap();
        }),
        ("lines", |path| {
            fs::write(path, "x\n".repeat(10_000_000)).unwrap();
        }),
    ];
    for (kind, put) in kinds {
        for file in ["passwd", "group"] {
            let mut bundle = Bundle::new("id -u > /tmp/out; echo $HOME >> /tmp/out");
            bundle.config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
            let tmp = bundle.root().join("tmp");
            fs::set_permissions(&tmp, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
            put(&bundle.root().join("etc").join(file));
            let begin = std::time::Instant::now();
            let created = bundle.create();
            assert!(begin.elapsed().as_secs() < 2, "{kind} {file}");
            match created {
                Ok(()) => {
                    bundle.runtime.start(&bundle.id).unwrap();
                    bundle.wait();
                    let out = fs::read_to_string(tmp.join("out")).unwrap();
                    assert_eq!(out, "1000\n/\n", "{kind} {file}");
                }
                // The one that says where the user is at home is looked at, the other is not.
                Err(error) => assert!(file == "passwd", "{kind}: {error}"),
            }
        }
    }
}
