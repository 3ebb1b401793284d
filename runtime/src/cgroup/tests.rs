//! Tests on this machine's own cgroups, below our own; each root is named by the test.

use std::process::{Command, Stdio};
use std::sync::Arc;

use super::*;

fn cgroups(name: &str) -> Cgroups {
    Cgroups::detect(&format!("hanok-service-test-{name}-{}", std::process::id())).unwrap()
}

/// Removes the root itself.
async fn finish(cgroups: Cgroups) {
    for hierarchy in &cgroups.hierarchies {
        remove::remove_tree(&hierarchy.base, hierarchy.unified)
            .await
            .unwrap();
        assert!(!hierarchy.base.exists());
    }
}

fn value(cgroups: &Cgroups, path: &str, files: &[&str]) -> String {
    let directories = cgroups.directories(path).unwrap();
    let files = directories
        .iter()
        .flat_map(|dir| files.iter().map(move |file| dir.join(file)));
    let found = files
        .filter_map(|file| fs::read_to_string(file).ok())
        .next();
    found.unwrap().trim_end().to_owned()
}

#[test]
fn paths_that_leave_the_root_are_refused() {
    for path in ["", "/", "/a", "..", "a/../b", "./a", "a/../../b"] {
        assert!(matches!(checked(path), Err(CgroupError::Path(_))), "{path}");
    }
    assert!(checked("kubepods/burstable/podx").is_ok());
}

#[tokio::test]
async fn root_limits_are_set_changed_and_gone_with_the_cgroup() {
    let cgroups = cgroups("limits");
    let grow = |memory| Resources {
        memory_limit: memory,
        memory_swap_limit: memory,
        pids_limit: 7,
        cpu_shares: 512,
        ..Resources::default()
    };
    for memory in [64 << 20, 128 << 20, 32 << 20] {
        cgroups.update("a/b", &grow(memory)).await.unwrap();
        let limit = value(&cgroups, "a/b", &["memory.limit_in_bytes", "memory.max"]);
        assert_eq!(limit, memory.to_string());
    }
    assert_eq!(value(&cgroups, "a/b", &["pids.max"]), "7");
    assert_eq!(value(&cgroups, "a", &["pids.max"]), "max");
    assert_eq!(cgroups.children("a").unwrap(), ["b"]);
    cgroups.remove("a").await.unwrap();
    cgroups.remove("a").await.unwrap();
    assert!(cgroups.children("a").unwrap().is_empty());
    finish(cgroups).await;
}

/// Of v2; v1's files are read in the test before.
#[tokio::test]
async fn root_every_limit_of_v2_is_in_force() {
    let cgroups = cgroups("v2limits");
    if !cgroups.is_v2() {
        return finish(cgroups).await;
    }
    let unified = [("memory.high", "50331648"), ("memory.oom.group", "1")];
    let limits = Resources {
        cpu_shares: 1024,
        cpu_quota: 50_000,
        cpu_period: 200_000,
        memory_limit: 64 << 20,
        memory_swap_limit: 64 << 20,
        pids_limit: 9,
        cpuset_cpus: "0".to_owned(),
        hugepages: [("2MB".to_owned(), 4 << 20)].into(),
        unified: unified
            .map(|(file, value)| (file.to_owned(), value.to_owned()))
            .into(),
        ..Resources::default()
    };
    cgroups.update("pod/c", &limits).await.unwrap();
    for (file, expected) in [
        ("cpu.weight", "100"),
        ("cpu.max", "50000 200000"),
        ("memory.max", "67108864"),
        ("memory.high", "50331648"),
        ("memory.oom.group", "1"),
        ("pids.max", "9"),
        ("cpuset.cpus", "0"),
        ("hugetlb.2MB.max", "4194304"),
    ] {
        assert_eq!(value(&cgroups, "pod/c", &[file]), expected, "{file}");
    }
    let less = Resources {
        memory_limit: 32 << 20,
        ..Resources::default()
    };
    let cgroups = Arc::new(cgroups);
    cgroups.change("pod/c", &less).await.unwrap().keep();
    assert_eq!(value(&cgroups, "pod/c", &["memory.max"]), "33554432");
    assert_eq!(
        value(&cgroups, "pod/c", &["memory.high"]),
        "max",
        "nothing stays throttled"
    );
    finish(Arc::into_inner(cgroups).unwrap()).await;
}

#[tokio::test]
async fn root_removal_kills_what_is_left() {
    let cgroups = cgroups("kill");
    cgroups
        .update("pod/one", &Resources::default())
        .await
        .unwrap();
    let mut child = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    for directory in cgroups.directories("pod/one").unwrap() {
        write_file(&directory.join("cgroup.procs"), &child.id().to_string()).unwrap();
    }
    cgroups.remove("pod").await.unwrap();
    assert!(!child.wait().unwrap().success());
    finish(cgroups).await;
}

#[tokio::test]
async fn root_devices_are_denied_by_default() {
    let cgroups = cgroups("devices");
    if cgroups.is_v2() {
        return finish(cgroups).await;
    }
    cgroups.update("c", &Resources::default()).await.unwrap();
    cgroups
        .restrict_devices("c", &DeviceRule::standard())
        .unwrap();
    let list = value(&cgroups, "c", &["devices.list"]);
    assert_eq!(list.lines().count(), DeviceRule::standard().len(), "{list}");
    assert!(!list.contains("a *:* rwm"), "{list}");
    finish(cgroups).await;
}

/// A hybrid machine has the unified hierarchy without controllers: enough for the filter.
#[tokio::test]
async fn root_device_filter_of_v2_denies_what_is_not_listed() {
    // On v2 the first of these tests moves all that is in our cgroup, as an agent does: not the shell below.
    let cgroups = cgroups("filter");
    let unified = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let unified = unified
        .iter()
        .map(Path::new)
        .find(|dir| dir.join("cgroup.procs").exists());
    let unified = unified.unwrap();
    let directory = unified.join(format!("hanok-service-test-bpf-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    devices::restrict_v2(&directory, &DeviceRule::standard()).unwrap();
    let script = format!(
        "echo $$ > {}/cgroup.procs; : < /dev/null && echo null; true < /dev/kmsg || echo no kmsg; \
         : > /dev/zero && echo zero; mknod {}/n b 254 0 && echo made; true < {}/n || echo no disk",
        directory.display(),
        "$1",
        "$1",
    );
    let temporary = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(temporary.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    fs::remove_dir(&directory).unwrap();
    assert_eq!(text, "null\nno kmsg\nzero\nmade\nno disk\n");
    finish(cgroups).await;
}

#[tokio::test]
async fn root_keeping_warm_moves_nobody() {
    let cgroups = cgroups("warm");
    let before = fs::read_to_string("/proc/self/cgroup").unwrap();
    let warmth = Arc::new(Warmth::new(&cgroups));
    warmth.want();
    warmth.want();
    assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
    finish(cgroups).await;
}
