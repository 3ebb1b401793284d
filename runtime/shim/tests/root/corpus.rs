//! Tables of what an image may hold where something is mounted, made, read or entered.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hanok_shim::protocol::*;

use crate::canary::{Canary, mounts_of_the_node};
use crate::rig::{Pod, bind, mount};

/// Longest that a start takes, whatever the image holds; in an emulated machine as well.
const PROMPT: Duration = Duration::from_secs(10);

/// Where things are mounted and made.
const PLACES: [&str; 20] = [
    "proc",
    "sys",
    "dev",
    "dev/null",
    "dev/console",
    "dev/ptmx",
    "dev/pts",
    "dev/shm",
    "dev/mqueue",
    "etc",
    "etc/hosts",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/mtab",
    "etc/passwd",
    "etc/group",
    "run",
    "tmp",
    "work",
    "vol",
];

const KINDS: [&str; 6] = [
    "absolute", "relative", "dangling", "looping", "file", "fifo",
];

fn put(path: &Path, kind: &str, canary: &Path) {
    match kind {
        "absolute" => symlink(canary, path).unwrap(),
        "relative" => {
            let up = "../".repeat(24) + canary.to_str().unwrap().trim_start_matches('/');
            symlink(up, path).unwrap();
        }
        "dangling" => symlink("/no/such/place", path).unwrap(),
        "looping" => symlink(path.file_name().unwrap(), path).unwrap(),
        "file" => fs::write(path, "").unwrap(),
        _ => {
            let made = Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        }
    }
}

fn clear(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path).unwrap();
    } else if path.is_symlink() || path.exists() {
        fs::remove_file(path).unwrap();
    }
}

/// A container with something at every place, as whom the files say.
fn spec(pod: &Pod, id: &str, place: &str) -> ContainerSpec {
    let mut spec = pod.spec(id, &["true"]);
    spec.process.user.spec = "app".into();
    spec.process.cwd = "/work/below".into();
    for file in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        spec.mounts.push(mount(file, bind(&pod.path("file")), 0));
    }
    for directory in ["/run/secrets/token", "/vol/here", "/tmp/x"] {
        spec.mounts
            .push(mount(directory, bind(&pod.path("given")), 0));
    }
    if place.starts_with("dev/") {
        // The image's own is what is filled.
        spec.mounts.retain(|mount| mount.destination != "/dev");
        spec.tty = true;
    }
    spec
}

#[test]
fn root_whatever_stands_where_something_is_mounted_or_made_is_contained_or_refused() {
    let (mut started, mut refused) = (0, 0);
    for place in PLACES {
        let canary = Canary::new();
        let pod = Pod::started();
        fs::write(pod.path("file"), "of the pod").unwrap();
        fs::create_dir(pod.path("given")).unwrap();
        let path = pod.path("layer").join(place);
        let kept = pod.path("kept");
        if path.exists() {
            fs::rename(&path, &kept).unwrap();
        }
        for kind in KINDS {
            put(&path, kind, canary.path());
            let id = format!("c-{kind}");
            let begin = Instant::now();
            match pod.start(&spec(&pod, &id, place)) {
                Reply::Started { .. } => {
                    started += 1;
                    pod.exit(&id);
                }
                Reply::Failed { message, .. } => {
                    refused += 1;
                    assert!(!message.is_empty());
                }
                other => panic!("{other:?}"),
            }
            assert!(begin.elapsed() < PROMPT, "{place} {kind}");
            clear(&path);
        }
        assert_eq!(fs::read_to_string(pod.path("file")).unwrap(), "of the pod");
        if kept.exists() {
            fs::rename(&kept, &path).unwrap();
        }
        let reply = pod.start(&spec(&pod, "as-usual", place));
        assert!(matches!(reply, Reply::Started { .. }), "{place}: {reply:?}");
        pod.exit("as-usual");
        assert_eq!(
            mounts_of_the_node(&[canary.path(), pod.dir.path()]),
            [""; 0]
        );
    }
    assert!(started > 20 && refused > 20, "{started} {refused}");
}

#[test]
fn root_a_user_is_the_number_or_the_name_and_never_root_by_mistake() {
    let pod = Pod::started();
    let passwd = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/a\u{1}b:/bin/sh\n\
        1234:x:0:0::/:\n-1:x:0:0::/:\n0x0:x:77:78::/:\nbig:x:4294967296:0::/:\nzero:x:00:0::/:\n";
    let path = pod.path("layer/etc/passwd");
    fs::write(&path, passwd).unwrap();
    let wants = [
        ("", Some("0:0 /root")),
        ("00", Some("0:0 /root")),
        ("zero", Some("0:0 /")),
        ("app", Some("1000:1001 /")),
        ("1234", Some("1234:0 /")),
        ("1234:5", Some("1234:5 /")),
        ("0x0", Some("77:78 /")),
        ("2147483647", Some("2147483647:0 /")),
        ("2147483648", None),
        ("4294967295", None),
        ("4294967296", None),
        ("99999999999999999999", None),
        ("1000:99999999999", None),
        ("1000:-1", None),
        ("-1", None),
        ("+0", None),
        (" 0", None),
        ("0 ", None),
        ("0\n", None),
        ("big", None),
        ("nobody", None),
    ];
    for (n, (user, want)) in wants.into_iter().enumerate() {
        let script = "echo $(id -u):$(id -g) $HOME";
        let mut spec = pod.spec(&format!("c{n}"), &["sh", "-c", script]);
        spec.process.user.spec = user.into();
        match want {
            Some(want) => assert_eq!(pod.output(&spec).1.trim_end(), want, "{user:?}"),
            None => {
                let reply = pod.start(&spec);
                let kind = FailureKind::Invalid;
                assert!(
                    matches!(&reply, Reply::Failed { kind: k, .. } if *k == kind),
                    "{user:?}: {reply:?}"
                );
            }
        }
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), passwd);
}

/// Gives the cgroups a memory limit.
fn limit_memory(cgroups: &[String], bytes: u64) {
    let files = ["memory.max", "memory.limit_in_bytes"];
    let mut paths = cgroups
        .iter()
        .flat_map(|dir| files.map(|file| Path::new(dir).join(file)));
    let path = paths.find(|path| path.exists()).unwrap();
    fs::write(path, bytes.to_string()).unwrap();
}

#[test]
fn root_account_files_cost_a_start_little_time_and_memory() {
    let mut pod = Pod::started();
    let cgroups = pod.make_cgroups();
    limit_memory(&cgroups, 16 << 20);
    let etc = pod.path("layer/etc");
    let start = |id: &str| {
        let mut spec = pod.spec(id, &["id", "-u"]);
        spec.process.user.spec = "app".into();
        spec.cgroups = cgroups.clone();
        let begin = Instant::now();
        let reply = pod.start(&spec);
        assert!(begin.elapsed() < PROMPT, "{id}");
        reply
    };
    // As long as they may be, with the one that is looked for at the end.
    let filler = |line: &str| line.repeat((4 << 20) / line.len() - 4);
    let passwd = filler("somebody:x:4711:4711:Some Body:/home:/bin/sh\n") + "app:x:1000:1::/:\n";
    fs::write(etc.join("passwd"), &passwd).unwrap();
    fs::write(etc.join("group"), filler("group:x:9:nobody,app\n")).unwrap();
    assert!(matches!(start("long"), Reply::Started { .. }));
    assert_eq!(pod.exit("long").code, 0);
    assert_eq!(pod.log_text("long"), "1000\n");
    assert_eq!(fs::read_to_string(etc.join("passwd")).unwrap(), passwd);
    // Longer: ten million lines.
    for file in ["passwd", "group"] {
        let kept = fs::read(etc.join(file)).unwrap();
        fs::write(etc.join(file), "\n".repeat(10_000_000)).unwrap();
        let reply = start(file);
        assert!(
            matches!(&reply, Reply::Failed { message, .. } if message.contains("larger than")),
            "{reply:?}"
        );
        fs::write(etc.join(file), kept).unwrap();
    }
}
