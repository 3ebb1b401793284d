//! Volumes: which part of them, what shows in them later, and what can be written.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use hanok_runtime::api::{ContainerState, Mount, Propagation, RuntimeService};

use crate::rig::Rig;

pub(crate) fn volume(rig: &Rig, at: &str, from: &str) -> Mount {
    Mount {
        container_path: at.into(),
        host_path: rig.path(from),
        sub_path: String::new(),
        readonly: false,
        recursive_readonly: false,
        propagation: Propagation::Private,
        selinux_relabel: false,
    }
}

/// A tmpfs of the node, and all that was mounted below it, for as long as this lives.
pub(crate) struct HostMount(PathBuf);

impl HostMount {
    pub(crate) fn new(path: PathBuf, propagation: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        run(&["mount", "-t", "tmpfs", "hanok-test", path.to_str().unwrap()]);
        run(&["mount", propagation, path.to_str().unwrap()]);
        HostMount(path)
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        run(&["umount", "-R", self.0.to_str().unwrap()]);
    }
}

pub(crate) fn run(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(status.success(), "{words:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_part_of_a_volume_is_mounted_and_no_link_leads_out() {
    let rig = Rig::new("subpath").await;
    fs::create_dir_all(rig.path("v/a/b")).unwrap();
    fs::write(rig.path("v/a/b/file"), "inside\n").unwrap();
    symlink("a/b", rig.path("v/link")).unwrap();
    symlink("/etc", rig.path("v/absolute")).unwrap();
    symlink("../layer", rig.path("v/up")).unwrap();
    let sandbox = rig.sandbox().await.id;
    for (sub_path, script) in [
        ("a/b", "cat /v/file"),
        ("link", "cat /v/file"),
        ("a/b/file", "cat /v"),
        ("a/./b", "cat /v/file"),
    ] {
        let mut config = rig.script("c", script);
        let mount = volume(&rig, "/v", "v");
        config.mounts = vec![Mount {
            sub_path: sub_path.into(),
            ..mount
        }];
        assert_eq!(rig.output(&sandbox, config).await.1, "inside", "{sub_path}");
    }
    for sub_path in [
        "absolute",
        "up",
        "up/etc",
        "../v",
        "a/../../v",
        "/etc",
        "missing",
    ] {
        let mut config = rig.script("c", "ls /v");
        let mount = volume(&rig, "/v", "v");
        config.mounts = vec![Mount {
            sub_path: sub_path.into(),
            ..mount
        }];
        let id = rig
            .runtime()
            .create_container(&sandbox, config)
            .await
            .unwrap();
        let error = rig.runtime().start_container(&id).await.unwrap_err();
        assert!(error.to_string().contains("below"), "{sub_path}: {error}");
        rig.runtime().remove_container(&id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_part_that_another_container_exchanges_all_the_time_is_never_something_of_the_node()
{
    let rig = Rig::new("subrace").await;
    fs::create_dir_all(rig.path("v/real")).unwrap();
    fs::create_dir(rig.path("secret")).unwrap();
    fs::write(rig.path("secret/canary"), "canary\n").unwrap();
    let sandbox = rig.sandbox().await.id;
    let secret = rig.path("secret");
    let script = format!(
        "ln -s {} /v/evil; while true; do mv -T /v/real /v/kept; mv -T /v/evil /v/real; mv -T /v/real /v/evil; mv -T /v/kept /v/real; done",
        secret.display()
    );
    let mut config = rig.script("attacker", &script);
    config.mounts = vec![volume(&rig, "/v", "v")];
    let attacker = rig.start(&sandbox, config).await;
    let (mut started, mut refused) = (0, 0);
    for _ in 0..40 {
        let mut config = rig.script("victim", "ls /part; echo taken > /part/canary");
        let mount = volume(&rig, "/part", "v");
        config.mounts = vec![Mount {
            sub_path: "real".into(),
            ..mount
        }];
        let id = rig
            .runtime()
            .create_container(&sandbox, config)
            .await
            .unwrap();
        if rig.runtime().start_container(&id).await.is_ok() {
            rig.wait(&id, ContainerState::Exited).await;
            started += 1;
        } else {
            refused += 1;
        }
        rig.runtime().remove_container(&id).await.unwrap();
    }
    assert_eq!(started + refused, 40);
    assert_eq!(
        fs::read_to_string(rig.path("secret/canary")).unwrap(),
        "canary\n"
    );
    rig.runtime()
        .stop_container(&attacker, Duration::ZERO)
        .await
        .unwrap();
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_recursive_read_only_reaches_what_is_mounted_below_and_read_only_does_not() {
    let rig = Rig::new("rro").await;
    let outer = HostMount::new(rig.path("v"), "--make-private");
    fs::create_dir(rig.path("v/below")).unwrap();
    let inner = HostMount::new(rig.path("v/below"), "--make-private");
    let sandbox = rig.sandbox().await.id;
    let script = "touch /v/x 2>&1; touch /v/below/x 2>&1 && echo written";
    for (recursive_readonly, written) in [(false, true), (true, false)] {
        let mut config = rig.script("c", script);
        let mount = volume(&rig, "/v", "v");
        config.mounts = vec![Mount {
            readonly: true,
            recursive_readonly,
            ..mount
        }];
        let (_, text) = rig.output(&sandbox, config).await;
        assert_eq!(text.contains("written"), written, "{text}");
        assert!(text.contains("/v/x: Read-only file system"), "{text}");
    }
    drop((inner, outer));
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_mounts_propagate_as_the_volume_says_and_no_further() {
    let rig = Rig::new("propagate").await;
    let host = HostMount::new(rig.path("v"), "--make-shared");
    for name in ["from-node", "from-container"] {
        fs::create_dir(rig.path("v").join(name)).unwrap();
    }
    let sandbox = rig.sandbox().await.id;
    let kinds = [
        ("none", Propagation::Private, false),
        ("receives", Propagation::HostToContainer, true),
        ("both", Propagation::Bidirectional, true),
    ];
    let mut pids = Vec::new();
    for (name, propagation, sees) in kinds {
        let mut config = rig.script(name, "sleep 600");
        config.security.privileged = propagation == Propagation::Bidirectional;
        let mount = volume(&rig, "/v", "v");
        config.mounts = vec![Mount {
            propagation,
            ..mount
        }];
        let id = rig.start(&sandbox, config).await;
        pids.push((name, rig.status(&id).await.pid, sees));
    }
    let mounted = |pid: i32, at: &str| {
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        table.lines().any(|line| line.split(' ').nth(4) == Some(at))
    };
    run(&[
        "mount",
        "-t",
        "tmpfs",
        "hanok-test",
        rig.path("v/from-node").to_str().unwrap(),
    ]);
    for (name, pid, sees) in &pids {
        assert_eq!(mounted(*pid, "/v/from-node"), *sees, "{name}");
    }
    let both = pids[2].1.to_string();
    run(&[
        "nsenter",
        "-t",
        &both,
        "-m",
        "/bin/mount",
        "-t",
        "tmpfs",
        "x",
        "/v/from-container",
    ]);
    assert!(mounted(
        std::process::id().cast_signed(),
        rig.path("v/from-container").to_str().unwrap()
    ));
    assert!(mounted(pids[1].1, "/v/from-container"));
    assert!(!mounted(pids[0].1, "/v/from-container"));
    // What a container mounts in its own root goes nowhere. Other tests mount meanwhile, elsewhere.
    let below = rig.path("").display().to_string();
    let mounts = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().filter(|line| line.contains(&below)).count()
    };
    let before = mounts();
    run(&[
        "nsenter",
        "-t",
        &both,
        "-m",
        "/bin/mount",
        "-t",
        "tmpfs",
        "x",
        "/tmp",
    ]);
    assert_eq!(mounts(), before);
    drop(host);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_volume_that_cannot_propagate_is_refused_with_the_reason() {
    let rig = Rig::new("noshare").await;
    let private = HostMount::new(rig.path("p"), "--make-private");
    let slave = HostMount::new(rig.path("s"), "--make-shared");
    run(&["mount", "--make-slave", rig.path("s").to_str().unwrap()]);
    let sandbox = rig.sandbox().await.id;
    for (path, propagation, wanted) in [
        (
            "p",
            Propagation::HostToContainer,
            "it is not a shared or slave mount",
        ),
        ("p", Propagation::Bidirectional, "it is not a shared mount"),
        ("s", Propagation::Bidirectional, "it is not a shared mount"),
    ] {
        let mut config = rig.script("c", "true");
        let mount = volume(&rig, "/v", path);
        config.mounts = vec![Mount {
            propagation,
            ..mount
        }];
        let error = rig
            .runtime()
            .create_container(&sandbox, config)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    drop((private, slave));
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_device_as_a_volume_is_there_and_the_cgroup_decides() {
    let rig = Rig::new("devices").await;
    let sandbox = rig.sandbox().await.id;
    let device = |at: &str, path: &str| Mount {
        host_path: path.into(),
        ..volume(&rig, at, "unused")
    };
    let script =
        "head -c 3 /dev/nought | wc -c; stat -c %F /kmsg; head -c 1 /kmsg 2>&1 | head -c 200";
    for (privileged, refused) in [(false, true), (true, false)] {
        let mut config = rig.script("c", script);
        config.security.privileged = privileged;
        config.mounts = vec![
            device("/dev/nought", "/dev/zero"),
            device("/kmsg", "/dev/kmsg"),
        ];
        let (_, text) = rig.output(&sandbox, config).await;
        assert!(text.starts_with("3\ncharacter special file"), "{text}");
        assert_eq!(text.contains("Operation not permitted"), refused, "{text}");
    }
    rig.finish().await;
}
