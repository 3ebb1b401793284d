//! A tmpfs that begins with what the image has at its place: whatever that is, the copy ends, stays inside, and
//! nothing of the node comes into it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use hanok_shim::protocol::*;
use rustix::fs::{CWD, FileType, Mode, RenameFlags, XattrFlags, makedev, mknodat, renameat_with};

use crate::canary::{Canary, mounts_of_the_node};
use crate::rig::{Pod, bind, mount};

/// A new tmpfs of that size at a place.
fn copied(at: &str, size: &str) -> Mount {
    let options = vec![("size".to_owned(), size.to_owned())];
    mount(at, MountSource::CopyUp { options }, 0)
}

/// Runs a script in a container with the copy at /data.
fn sh(pod: &Pod, id: &str, size: &str, script: &str) -> String {
    let mut spec = pod.spec(id, &["sh", "-c", script]);
    spec.mounts.push(copied("/data", size));
    pod.output(&spec).1
}

/// Why a container with the copy at /data does not start.
fn refusal(pod: &Pod, id: &str, size: &str) -> String {
    let mut spec = pod.spec(id, &["true"]);
    spec.mounts.push(copied("/data", size));
    match pod.start(&spec) {
        Reply::Failed { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

fn pod_with_data() -> (Pod, PathBuf) {
    let pod = Pod::started();
    let data = pod.path("layer/data");
    fs::create_dir(&data).unwrap();
    (pod, data)
}

fn node(at: &Path, kind: FileType, (major, minor): (u32, u32)) {
    mknodat(
        CWD,
        at,
        kind,
        Mode::from_raw_mode(0o666),
        makedev(major, minor),
    )
    .unwrap();
}

#[test]
fn root_pipes_sockets_and_devices_are_neither_copied_nor_waited_for() {
    let (pod, data) = pod_with_data();
    fs::create_dir(data.join("sub")).unwrap();
    for dir in [data.clone(), data.join("sub")] {
        node(&dir.join("pipe"), FileType::Fifo, (0, 0));
        node(&dir.join("socket"), FileType::Socket, (0, 0));
        node(&dir.join("zero"), FileType::CharacterDevice, (1, 5));
        node(&dir.join("disk"), FileType::BlockDevice, (7, 250));
        fs::write(dir.join("file"), "text").unwrap();
    }
    let script = "find /data | sort; cat /data/sub/file";
    let want = "/data\n/data/file\n/data/sub\n/data/sub/file\ntext";
    assert_eq!(sh(&pod, "c1", "1m", script), want);
}

#[test]
fn root_links_are_copied_as_links_and_nothing_behind_them() {
    let canary = Canary::new();
    let (pod, data) = pod_with_data();
    let out = canary.path().to_str().unwrap();
    for (name, target) in [
        ("out", out),
        ("up", "../../../../../../../../etc"),
        ("loop", "loop"),
        ("here", "."),
        ("fd", "/proc/self/fd/3"),
    ] {
        symlink(target, data.join(name)).unwrap();
    }
    symlink(canary.path().join("file"), data.join("text")).unwrap();
    let script = "cd /data; for l in out up loop here fd; do readlink $l; done; cat out/file text; find . -type f";
    let text = sh(&pod, "c1", "1m", script);
    let (links, rest) = text.split_at(text.find("cat:").unwrap());
    let want = format!("{out}\n../../../../../../../../etc\nloop\n.\n/proc/self/fd/3\n");
    assert_eq!(links, want);
    assert!(!rest.contains("canary"), "{rest}");
}

#[test]
fn root_a_place_that_is_a_link_is_one_of_the_root_filesystem() {
    let canary = Canary::new();
    let pod = Pod::started();
    symlink(canary.path(), pod.path("layer/data")).unwrap();
    // What is missing is made, inside, and begins empty.
    let script = "find $(readlink /data); echo x >/data/new; mount | grep -c hanok-none";
    let text = sh(&pod, "c1", "1m", script);
    assert_eq!(text, format!("{}\n0\n", canary.path().display()));
}

#[test]
fn root_a_deep_tree_is_refused_and_a_wide_one_is_copied() {
    let (pod, data) = pod_with_data();
    let wide = data.join("wide");
    fs::create_dir(&wide).unwrap();
    for n in 0..20_000 {
        fs::write(wide.join(n.to_string()), "").unwrap();
    }
    let deep = |levels: usize| data.join("d/".repeat(levels));
    fs::create_dir_all(deep(60)).unwrap();
    let script = "ls /data/wide | wc -l; find /data -type d | wc -l";
    assert_eq!(sh(&pod, "c1", "64m", script), "20000\n62\n");
    fs::create_dir_all(deep(500)).unwrap();
    let message = refusal(&pod, "c2", "64m");
    assert!(message.contains("copy what is at /data"), "{message}");
}

#[test]
fn root_the_size_of_the_tmpfs_bounds_what_is_copied_and_holes_take_nothing() {
    let (pod, data) = pod_with_data();
    let file = fs::File::create(data.join("hole")).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", (1 << 40) - 3).unwrap();
    let script = "stat -c %s /data/hole; tail -c 3 /data/hole; head -c 4 /data/hole | tr '\\0' z";
    assert_eq!(sh(&pod, "c1", "1m", script), "1099511627776\nendzzzz");
    fs::write(data.join("full"), vec![1; 4 << 20]).unwrap();
    let message = refusal(&pod, "c2", "1m");
    assert!(message.contains("no space left"), "{message}");
    // Entries take memory as well.
    fs::remove_file(data.join("full")).unwrap();
    let mut spec = pod.spec("c3", &["true"]);
    spec.mounts.push(copied("/data", "1m"));
    let MountSource::CopyUp { options } = &mut spec.mounts.last_mut().unwrap().source else {
        panic!()
    };
    options.push(("nr_inodes".to_owned(), "10".to_owned()));
    for n in 0..20 {
        fs::write(data.join(n.to_string()), "").unwrap();
    }
    assert!(matches!(pod.start(&spec), Reply::Failed { .. }));
}

#[test]
fn root_owners_and_modes_come_along_and_file_capabilities_do_not() {
    let (pod, data) = pod_with_data();
    let program = data.join("program");
    fs::write(&program, "").unwrap();
    std::os::unix::fs::chown(&program, Some(1000), Some(1001)).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o6755)).unwrap();
    // cap_setuid+ep, as setcap(8) writes it.
    let capability = [
        1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for (name, value) in [
        ("security.capability", &capability[..]),
        ("trusted.x", &[7; 256]),
    ] {
        rustix::fs::setxattr(&program, name, value, XattrFlags::empty()).unwrap();
    }
    let mut spec = pod.spec("c1", &["sleep", "1000"]);
    spec.mounts.push(copied("/data", "1m"));
    let pid = pod.run(&spec);
    let inside = PathBuf::from(format!("/proc/{pid}/root/data/program"));
    let stat = fs::metadata(&inside).unwrap();
    assert_eq!(
        (stat.uid(), stat.gid(), stat.mode() & 0o7777),
        (1000, 1001, 0o6755)
    );
    let mut list = vec![0_u8; 4096];
    let length = rustix::fs::listxattr(&inside, &mut list[..]).unwrap();
    assert_eq!(String::from_utf8_lossy(&list[..length]), "");
}

#[test]
fn root_files_that_are_exchanged_or_grow_while_they_are_copied_never_lead_out() {
    let canary = Canary::new();
    let pod = Pod::started();
    // A volume that a sibling may change, and the tmpfs on top of it.
    let volume = pod.path("volume");
    for dir in ["volume/dir", "spare"] {
        fs::create_dir_all(pod.path(dir)).unwrap();
    }
    fs::write(volume.join("dir/text"), "inside").unwrap();
    let spare = pod.path("spare");
    symlink(canary.path().join("file"), spare.join("link")).unwrap();
    symlink(canary.path(), spare.join("dirlink")).unwrap();
    node(&spare.join("pipe"), FileType::Fifo, (0, 0));
    // Nobody has a driver for it: whoever opens it fails, and so would the start.
    node(&spare.join("device"), FileType::CharacterDevice, (240, 77));
    for n in ["link", "pipe", "device"] {
        fs::write(volume.join(n), "inside").unwrap();
    }
    let pairs = [
        ("link", "link"),
        ("pipe", "pipe"),
        ("device", "device"),
        ("dir", "dirlink"),
    ];
    let pairs = pairs.map(|(one, other)| (volume.join(one), spare.join(other)));
    let stop = AtomicBool::new(false);
    let mut started = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (one, other) in &pairs {
                    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                }
            }
        });
        scope.spawn(|| {
            use std::io::Write;
            let mut grows = fs::File::create(volume.join("grows")).unwrap();
            let mut length = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                grows.write_all(&[b'x'; 4096]).unwrap();
                length += 4096;
                if length > 8 << 20 {
                    grows.set_len(0).unwrap();
                    length = 0;
                }
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 0..crate::races::rounds() / 3 {
                let id = format!("c{n}");
                let script = "find /data -type f | grep -v grows | xargs cat; find /data ! -type f ! -type d ! -type l";
                let mut spec = pod.spec(&id, &["sh", "-c", script]);
                spec.mounts
                    .extend([mount("/data", bind(&volume), 0), copied("/data", "32m")]);
                match pod.start(&spec) {
                    Reply::Started { .. } => {
                        started += 1;
                        pod.exit(&id);
                        let text = pod.log_text(&id);
                        assert_eq!(text.replace("inside", ""), "", "{text}");
                        pod.ok(&Request::Delete {
                            container: id.clone(),
                        });
                    }
                    Reply::Failed { message, .. } => {
                        assert!(!message.contains("No such device"), "{message}");
                    }
                    other => panic!("{other:?}"),
                }
                fs::remove_dir_all(pod.path(&id)).unwrap();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(started > 0, "none came through");
    assert_eq!(
        mounts_of_the_node(&[canary.path(), pod.dir.path()]),
        [""; 0]
    );
}
