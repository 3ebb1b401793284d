//! Hostile images: whatever the root filesystem holds, the node is untouched.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use hanok_shim::protocol::*;

use crate::canary::{Canary, replace_by_link};
use crate::rig::{Pod, bind, mount, programs};

#[test]
fn root_proc_sys_and_dev_must_be_real_directories() {
    for name in ["proc", "sys", "dev"] {
        let canary = Canary::new();
        let pod = Pod::started();
        replace_by_link(&pod.path("layer").join(name), canary.path());
        // /dev as a link is followed inside the root by its tmpfs mount, but not used for nodes.
        let reply = pod.start(&pod.spec("c1", &["true"]));
        assert!(matches!(reply, Reply::Failed { .. }), "{name}: {reply:?}");
    }
}

#[test]
fn root_links_in_dev_of_the_image_are_not_followed() {
    let canary = Canary::new();
    let pod = Pod::started();
    let dev = pod.path("layer/dev");
    for name in ["console", "ptmx", "stdin", "fd"] {
        symlink(canary.path().join(name), dev.join(name)).unwrap();
    }
    // Without a tmpfs the image's own /dev is what is filled.
    let mut spec = pod.spec("c1", &["sh", "-c", "readlink /dev/ptmx; readlink /dev/fd"]);
    spec.mounts.retain(|m| !m.destination.starts_with("/dev"));
    assert_eq!(pod.output(&spec).1, "pts/ptmx\n/proc/self/fd\n");
    // A null device that is something else is refused, not used for masks.
    symlink(canary.path().join("null"), dev.join("null")).unwrap();
    let mut spec = pod.spec("c2", &["true"]);
    spec.mounts.retain(|m| !m.destination.starts_with("/dev"));
    assert!(matches!(pod.start(&spec), Reply::Failed { .. }));
}

#[test]
fn root_mount_destinations_stay_inside_the_root() {
    let canary = Canary::new();
    let pod = Pod::started();
    symlink(canary.path(), pod.path("layer/escape")).unwrap();
    symlink(
        "../../../../../../../../../../tmp/up",
        pod.path("layer/climb"),
    )
    .unwrap();
    fs::create_dir(pod.path("volume")).unwrap();
    fs::write(pod.path("volume/here"), "").unwrap();
    let inside = canary.path().join("new/dir");
    let script = format!("ls {} /tmp/up/new", inside.display());
    let mut spec = pod.spec("c1", &["sh", "-c", &script]);
    spec.mounts
        .push(mount("/escape/new/dir", bind(&pod.path("volume")), 0));
    spec.mounts
        .push(mount("/climb/new", bind(&pod.path("volume")), 0));
    assert!(pod.output(&spec).1.matches("here").count() == 2);
    assert!(!Path::new("/tmp/up").exists());
}

#[test]
fn root_nothing_may_cover_proc() {
    let pod = Pod::started();
    fs::create_dir(pod.path("volume")).unwrap();
    symlink("/proc", pod.path("layer/p")).unwrap();
    for destination in [
        "/proc",
        "/proc/self/attr",
        "/p/sys",
        "/proc/../proc/sys/kernel",
    ] {
        let mut spec = pod.spec("c1", &["true"]);
        spec.mounts
            .push(mount(destination, bind(&pod.path("volume")), 0));
        let reply = pod.start(&spec);
        assert!(
            matches!(reply, Reply::Failed { .. }),
            "{destination}: {reply:?}"
        );
    }
}

#[test]
fn root_a_working_directory_cannot_be_a_descriptor() {
    let pod = Pod::started();
    for (n, path) in (0..=64).map(|n| format!("/proc/self/fd/{n}")).enumerate() {
        let mut spec = pod.spec(&format!("c{n}"), &["pwd"]);
        spec.process.cwd = path.clone();
        let reply = pod.start(&spec);
        assert!(matches!(reply, Reply::Failed { .. }), "{path}: {reply:?}");
    }
    symlink("/proc/self/fd/7/../..", pod.path("layer/work")).unwrap();
    let mut spec = pod.spec("link", &["pwd"]);
    spec.process.cwd = "/work".into();
    assert!(matches!(pod.start(&spec), Reply::Failed { .. }));
}

#[test]
fn root_passwd_and_group_of_any_kind_end_in_a_user_or_an_error() {
    let pod = Pod::started();
    let passwd = pod.path("layer/etc/passwd");
    let mut n = 0;
    let mut start = |user: &str| {
        n += 1;
        let mut spec = pod.spec(&format!("c{n}"), &["id", "-u"]);
        spec.process.user.spec = user.into();
        spec
    };
    fs::remove_file(&passwd).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&passwd)
            .status()
            .unwrap()
            .success()
    );
    assert!(matches!(
        pod.start(&start("app")),
        Reply::Failed {
            kind: FailureKind::Invalid,
            ..
        }
    ));
    fs::remove_file(&passwd).unwrap();
    symlink("/dev/zero", &passwd).unwrap();
    assert!(matches!(
        pod.start(&start("app")),
        Reply::Failed {
            kind: FailureKind::Invalid,
            ..
        }
    ));
    fs::remove_file(&passwd).unwrap();
    fs::File::create(&passwd).unwrap().set_len(2 << 30).unwrap();
    assert!(matches!(
        pod.start(&start("app")),
        Reply::Failed {
            kind: FailureKind::Invalid,
            ..
        }
    ));
    fs::remove_file(&passwd).unwrap();
    assert_eq!(pod.output(&start("1234")).1, "1234\n");
    assert!(matches!(
        pod.start(&start("app")),
        Reply::Failed {
            kind: FailureKind::Invalid,
            ..
        }
    ));
    for user in [
        "4294967296",
        "-1",
        "99999999999999999999",
        "2147483648",
        "+0",
        " 0",
    ] {
        let reply = pod.start(&start(user));
        assert!(
            matches!(
                reply,
                Reply::Failed {
                    kind: FailureKind::Invalid,
                    ..
                }
            ),
            "{user}: {reply:?}"
        );
    }
}

#[test]
fn root_the_shims_program_cannot_be_written_from_inside() {
    let pod = Pod::started();
    let binary = programs().join("hanok-shim");
    let before = fs::read(&binary).unwrap();
    // The entry point is the process's own executable: the shim runs itself inside, and ends.
    pod.run(&pod.spec("c1", &["/proc/self/exe"]));
    assert_eq!(pod.exit("c1").code, 2);
    // Seen from a container that shares the node's processes.
    let shim = pod.shim_pid;
    let script = format!(
        "echo x > /proc/{shim}/exe; echo x > /proc/self/exe; cat /proc/{shim}/fd/0; readlink /proc/{shim}/exe"
    );
    let mut spec = pod.spec("c2", &["sh", "-c", &script]);
    spec.namespaces.pid = Namespace::Host;
    let (_, output) = pod.output(&spec);
    assert_eq!(output.matches("Permission denied").count(), 2, "{output}");
    assert!(!output.contains("hanok-shim\n"), "{output}");
    assert_eq!(before, fs::read(&binary).unwrap());
}
