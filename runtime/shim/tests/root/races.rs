//! Races: what somebody in the pod changes while a container is made or joined never changes what is meant.
//!
//! `HANOK_RACES` is how often each of them is tried: a few hundred by default, which takes seconds.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use hanok_shim::protocol::*;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::canary::{Canary, mounts_of_the_node};
use crate::elf::Program;
use crate::rig::{Pod, bind, copy_program, mount, process, wait_for};

/// How often by default.
const ROUNDS: usize = 300;

pub(crate) fn rounds() -> usize {
    let asked = std::env::var("HANOK_RACES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(ROUNDS)
}

/// Exchanges two paths for as long as something else is done.
fn while_exchanging(pairs: &[(PathBuf, PathBuf)], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for (one, other) in pairs {
                    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                }
            }
        });
        // Also when it panics: the thread would go on for ever.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

/// The lines of a container's mountinfo that show something of a directory of the node: root and place.
fn shown<'a>(table: &'a str, name: &str) -> Vec<(&'a str, &'a str)> {
    let lines = table.lines().map(|line| line.split(' '));
    let pairs = lines.filter_map(|mut words| Some((words.nth(3)?, words.next()?)));
    pairs.filter(|(root, _)| root.contains(name)).collect()
}

#[test]
fn root_destinations_parts_and_directories_that_are_exchanged_never_lead_out() {
    let canary = Canary::new();
    let pod = Pod::started();
    let volume = pod.path("volume");
    for dir in ["volume/real/sub", "volume/part", "source"] {
        fs::create_dir_all(pod.path(dir)).unwrap();
    }
    symlink(canary.path(), volume.join("link")).unwrap();
    symlink(canary.path(), volume.join("bait")).unwrap();
    let pairs = [("real", "link"), ("part", "bait")];
    let pairs = pairs.map(|(one, other)| (volume.join(one), volume.join(other)));
    let name = canary.path().file_name().unwrap().to_str().unwrap();
    let mut started = 0;
    while_exchanging(&pairs, || {
        for n in 0..rounds() {
            let id = format!("c{n}");
            let mut spec = pod.spec(&id, &["cat", "/proc/self/mountinfo"]);
            let source = || bind(&pod.path("source"));
            let part = MountSource::BindBelow {
                root: volume.to_str().unwrap().into(),
                path: "part".into(),
                recursive: false,
            };
            spec.mounts.extend([
                mount("/vol", bind(&volume), 0),
                mount("/vol/real/sub", source(), 0),
                mount("/vol/link/new", source(), 0),
                mount("/part", part, 0),
            ]);
            spec.process.cwd = "/vol/real/work".into();
            // It may fail in the middle of an exchange; it may not touch the canary.
            if let Reply::Started { .. } = pod.start(&spec) {
                started += 1;
                pod.exit(&id);
                pod.ok(&Request::Delete {
                    container: id.clone(),
                });
                let table = pod.log_text(&id);
                assert_eq!(shown(&table, name), [], "{table}");
                let places = shown(&table, "/source");
                assert!(places.iter().all(|(_, at)| at.starts_with('/')), "{table}");
            }
            fs::remove_dir_all(pod.path(&id)).unwrap();
        }
    });
    assert!(started > 0, "none came through");
    assert_eq!(
        mounts_of_the_node(&[canary.path(), pod.dir.path()]),
        [""; 0]
    );
}

#[test]
fn root_a_root_filesystem_that_a_sibling_exchanges_never_leads_out() {
    let canary = Canary::new();
    let pod = Pod::started();
    // Two containers of one directory, as a bundle can have it: what one changes the other is made of.
    let root = pod.path("layer");
    let kept = pod.path("kept");
    fs::create_dir(&kept).unwrap();
    let mut pairs = Vec::new();
    for name in ["proc", "dev", "etc"] {
        symlink(canary.path(), kept.join(name)).unwrap();
        pairs.push((root.join(name), kept.join(name)));
    }
    fs::write(pod.path("file"), "").unwrap();
    let forced = || fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    let value = forced();
    let (mut started, mut refused) = (0, 0);
    while_exchanging(&pairs, || {
        for n in 0..rounds() {
            let id = format!("c{n}");
            let script = "cat /proc/sys/kernel/shm_rmid_forced; grep Seccomp: /proc/self/status; \
                grep -c . /proc/self/mountinfo; cat /etc/hosts";
            let mut spec = pod.spec(&id, &["sh", "-c", script]);
            spec.rootfs = Rootfs::Dir(root.to_str().unwrap().into());
            spec.namespaces.ipc = Namespace::New;
            spec.sysctls = [("kernel.shm_rmid_forced".to_owned(), "1".to_owned())].into();
            spec.process.seccomp = allow_all();
            spec.mounts
                .push(mount("/etc/hosts", bind(&pod.path("file")), 0));
            match pod.start(&spec) {
                Reply::Started { .. } => {
                    started += 1;
                    pod.exit(&id);
                    let text = pod.log_text(&id);
                    // Whether its /proc was exchanged meanwhile or not, what it sees there is its own.
                    if !text.is_empty() && !text.contains("No such file") {
                        assert!(text.starts_with("1\nSeccomp:\t2\n"), "{text}");
                    }
                    pod.ok(&Request::Delete {
                        container: id.clone(),
                    });
                }
                _ => refused += 1,
            }
            assert_eq!(forced(), value, "the node's own");
            fs::remove_dir_all(pod.path(&id)).unwrap();
        }
    });
    assert!(started > 0 && refused > 0, "{started} {refused}");
    assert_eq!(
        mounts_of_the_node(&[canary.path(), pod.dir.path()]),
        [""; 0]
    );
}

/// A seccomp filter that allows everything: one RET.
fn allow_all() -> Vec<u8> {
    let mut bytes = 0x06u16.to_ne_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(0x7fff_0000u32.to_ne_bytes());
    bytes
}

#[test]
fn root_sysctls_and_filters_hold_while_a_sibling_swaps_mounts_over_proc() {
    let pod = Pod::started();
    // What a sibling with all capabilities can do in the pod: mount over the files that are about to be written.
    let volume = pod.path("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("trap"), "0\n").unwrap();
    let script = "while :; do mount --bind /volume/trap /proc/sys/kernel/shm_rmid_forced; \
        mount -t tmpfs none /proc/self/attr; mount -t tmpfs none /proc/thread-self/attr; \
        umount /proc/sys/kernel/shm_rmid_forced /proc/self/attr /proc/thread-self/attr; done 2>/dev/null";
    let mut sibling = pod.spec("sibling", &["sh", "-c", script]);
    let all = u64::MAX >> 23;
    sibling.process.capabilities = Capabilities {
        bounding: all,
        effective: all,
        permitted: all,
        ..Capabilities::default()
    };
    (sibling.masked_paths, sibling.readonly_paths) = (vec![], vec![]);
    sibling.mounts.push(mount("/volume", bind(&volume), 0));
    pod.run(&sibling);
    let forced = || fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    let before = forced();
    for n in 0..rounds() {
        let id = format!("c{n}");
        let script = "cat /proc/sys/kernel/shm_rmid_forced; grep -E '^Seccomp:' /proc/self/status";
        let mut spec = pod.spec(&id, &["sh", "-c", script]);
        spec.namespaces.ipc = Namespace::New;
        spec.sysctls = [("kernel.shm_rmid_forced".to_owned(), "1".to_owned())].into();
        spec.process.seccomp = allow_all();
        spec.mounts.push(mount("/volume", bind(&volume), 0));
        assert_eq!(pod.output(&spec).1, "1\nSeccomp:\t2\n");
        pod.ok(&Request::Delete {
            container: id.clone(),
        });
        fs::remove_dir_all(pod.path(&id)).unwrap();
    }
    assert_eq!(forced(), before);
    assert_eq!(mounts_of_the_node(&[pod.dir.path()]), [""; 0]);
    assert_eq!(fs::read_to_string(volume.join("trap")).unwrap(), "0\n");
}

#[test]
fn root_nobody_of_the_same_user_gets_hold_of_a_process_that_joins() {
    let pod = Pod::started();
    let rounds = rounds();
    let layer = pod.path("layer");
    fs::set_permissions(layer.join("tmp"), fs::Permissions::from_mode(0o777)).unwrap();
    let last = u32::try_from(rounds).unwrap() + 64;
    Program::tracer(last, "/tmp/traced").write(&layer.join("bin/tracer"));
    // Its user may not read it, so that it stays as closed as what becomes it: every success is one too many.
    fs::create_dir(layer.join("closed")).unwrap();
    let closed = layer.join("closed/true");
    copy_program(Path::new("/bin/busybox"), &closed);
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o711)).unwrap();
    let script = "tracer & tracer=$!; echo up; while :; do for p in /proc/[0-9]*; do \
        case $p in /proc/1|/proc/$tracer) continue;; esac; \
        { true < $p/mem; } 2>/dev/null && echo mem > /tmp/caught; \
        { true < $p/environ; } 2>/dev/null && echo environ > /tmp/caught; \
        [ -e $p/ns/mnt ] && echo ns > /tmp/caught; [ -e $p/root/bin ] && echo root > /tmp/caught; \
        [ -e $p/exe ] && echo exe > /tmp/caught; \
        set -- $p/fd/*; [ -e $1 ] && echo $1 > /tmp/caught; done; done";
    let mut attacker = pod.spec("c1", &["sh", "-c", script]);
    attacker.process.user.spec = "1000".into();
    attacker.process.capabilities = Capabilities::default();
    pod.run(&attacker);
    // Otherwise the tracer could have another number than those below 3, which it leaves alone.
    wait_for("the attacker", || {
        (pod.log_text("c1") == "up\n").then_some(())
    });
    for n in 0..rounds {
        let mut process = process(&["/closed/true"]);
        process.user.spec = "1000".into();
        process.capabilities = Capabilities::default();
        run_quietly(&pod, &format!("e{n}"), process);
    }
    let tmp = pod.path("c1/upper/tmp");
    let caught = fs::read_to_string(tmp.join("caught")).unwrap_or_default();
    assert_eq!(caught, "");
    assert!(!tmp.join("traced").exists());
    // The traps do catch what is open: a program that everybody may read, by the same user.
    let mut process = process(&["sleep", "0.5"]);
    process.user.spec = "1000".into();
    process.capabilities = Capabilities::default();
    run_quietly(&pod, "open", process);
    assert!(tmp.join("caught").exists() && tmp.join("traced").exists());
}

fn run_quietly(pod: &Pod, id: &str, process: Process) {
    let exec = ExecSpec {
        container: "c1".into(),
        exec: id.into(),
        process,
        inherit: false,
        stdin: false,
        stdout: false,
        stderr: false,
        tty: false,
    };
    let mut client = pod.client();
    let reply = client.call(&Request::Exec(Box::new(exec))).unwrap();
    assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
    client.reply().unwrap();
}
