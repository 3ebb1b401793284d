//! Limits of real containers: what the kernel has of them, and what happens at them.

use std::path::Path;

use hanok_runtime::api::{ContainerState, Resources, RuntimeService};

use crate::mounts::{HostMount, volume};
use crate::rig::{Rig, cgroups_below, memory};
use crate::update::value;

const MIB: i64 = 1 << 20;

fn on_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Whether this machine limits huge pages of 2 MiB.
fn has_huge_pages() -> bool {
    on_v2() || Path::new("/sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes").exists()
}

/// Of each limit: its file of v1 and of v2, and what is in them.
fn assert_in_force(rig: &Rig, cgroup: &str, table: &[(&str, &str, &str, &str)]) {
    for &(v1_file, v1, v2_file, v2) in table {
        let expected = if on_v2() { v2 } else { v1 };
        let found = value(rig, cgroup, [v1_file, v2_file]);
        assert_eq!(found, expected, "{v1_file} or {v2_file}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_every_limit_of_a_container_is_in_force_and_changes_while_it_runs() {
    let rig = Rig::new("limits").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "cat /proc/self/oom_score_adj; exec sleep 600");
    config.resources = Resources {
        cpu_shares: 1024,
        cpu_quota: 50_000,
        cpu_period: 200_000,
        pids_limit: 20,
        oom_score_adj: 345,
        cpuset_cpus: "0".into(),
        hugepages: [("2MB".to_owned(), 4 << 20)].into(),
        ..memory(64 * MIB)
    };
    let id = rig.start(&sandbox, config).await;
    assert!(rig.said(&id, "F ").await.contains("F 345\n"));
    let huge = |bytes: &'static str| {
        let files = ("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max");
        has_huge_pages().then_some((files.0, bytes, files.1, bytes))
    };
    let mut table = vec![
        ("cpu.shares", "1024", "cpu.weight", "100"),
        ("cpu.cfs_quota_us", "50000", "cpu.max", "50000 200000"),
        (
            "memory.limit_in_bytes",
            "67108864",
            "memory.max",
            "67108864",
        ),
        ("pids.max", "20", "pids.max", "20"),
        ("cpuset.cpus", "0", "cpuset.cpus", "0"),
    ];
    table.extend(huge("4194304"));
    assert_in_force(&rig, id.as_str(), &table);

    let change = Resources {
        cpu_shares: 2048,
        cpu_quota: 30_000,
        cpu_period: 100_000,
        pids_limit: 40,
        cpuset_cpus: "0-1".into(),
        hugepages: [("2MB".to_owned(), 2 << 20)].into(),
        ..memory(96 * MIB)
    };
    let changed = rig.runtime().update_container_resources(&id, &change).await;
    changed.unwrap();
    // Twice the shares is not twice the weight, by the runtime's curve.
    let mut table = vec![
        ("cpu.shares", "2048", "cpu.shares", "2048"),
        ("cpu.cfs_quota_us", "30000", "cpu.max", "30000 100000"),
        (
            "memory.limit_in_bytes",
            "100663296",
            "memory.max",
            "100663296",
        ),
        ("pids.max", "40", "pids.max", "40"),
        ("cpuset.cpus", "0-1", "cpuset.cpus", "0-1"),
    ];
    table.extend(huge("2097152"));
    let first = usize::from(on_v2());
    assert_in_force(&rig, id.as_str(), &table[first..]);
    assert_eq!(rig.status(&id).await.state, ContainerState::Running);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_process_beyond_the_limit_of_processes_is_refused_and_others_go_on() {
    let rig = Rig::new("pids").await;
    let sandbox = rig.sandbox().await.id;
    // A shell that cannot fork ends.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; echo all";
    let mut config = rig.script("c", &format!("( {script} ) 2>&1; echo end; exec sleep 600"));
    config.resources.pids_limit = 6;
    let id = rig.start(&sandbox, config).await;
    let log = rig.said(&id, "F end").await;
    assert!(log.contains("can't fork"), "{log}");
    assert!(!log.contains("F all"), "{log}");
    let beside = rig.output(&sandbox, rig.script("d", script)).await;
    assert_eq!(beside.1, "all");
    rig.finish().await;
}

/// v1 has no such thing: there the child alone is killed.
#[tokio::test(flavor = "multi_thread")]
async fn root_a_container_that_ends_as_one_is_killed_with_its_child() {
    let rig = Rig::new("oomgroup").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "sh -c 'exec tail /dev/zero'; exit 0");
    config.resources = memory(16 * MIB);
    let group = ("memory.oom.group".to_owned(), "1".to_owned());
    config.resources.unified = [group].into();
    let id = rig.start(&sandbox, config).await;
    let ended = rig.wait(&id, ContainerState::Exited).await;
    let code = if on_v2() { 137 } else { 0 };
    assert_eq!(
        (ended.exit_code, ended.reason.as_str()),
        (code, "OOMKilled")
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_volume_in_memory_counts_for_who_writes_it() {
    let rig = Rig::new("memvolume").await;
    let mount = HostMount::new(rig.path("memory"), "--make-private");
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "exec dd if=/dev/zero of=/memory/big bs=1M count=64");
    config.resources = memory(16 * MIB);
    config.mounts = vec![volume(&rig, "/memory", "memory")];
    let id = rig.start(&sandbox, config).await;
    let ended = rig.wait(&id, ContainerState::Exited).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (137, "OOMKilled"));
    // What it has written outlives it, and keeps no cgroup.
    rig.runtime().remove_container(&id).await.unwrap();
    assert!(
        !cgroups_below(&rig.name)
            .iter()
            .any(|dir| dir.ends_with(id.as_str()))
    );
    drop(mount);
    rig.finish().await;
}
