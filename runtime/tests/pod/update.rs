//! Limits that change while the container runs.

use std::fs;
use std::time::Duration;

use hanok_runtime::api::{ContainerId, ContainerState, Error, Resources, RuntimeService};

use crate::rig::{PATIENCE, Rig, cgroups_below, memory};

const MIB: i64 = 1 << 20;

/// The first of these files that a cgroup with this name has.
pub(crate) fn value(rig: &Rig, cgroup: &str, files: [&str; 2]) -> String {
    let dirs = cgroups_below(&rig.name);
    let dirs = dirs.iter().filter(|dir| dir.ends_with(cgroup));
    let files = dirs.flat_map(|dir| files.map(|file| dir.join(file)));
    let text = files
        .filter_map(|file| fs::read_to_string(file).ok())
        .next();
    text.unwrap().trim_end().to_owned()
}

fn memory_limit(rig: &Rig, cgroup: &str) -> String {
    value(rig, cgroup, ["memory.max", "memory.limit_in_bytes"])
}

/// CPU quota in microseconds.
fn quota(rig: &Rig, cgroup: &str) -> String {
    let text = value(rig, cgroup, ["cpu.max", "cpu.cfs_quota_us"]);
    text.split(' ').next().unwrap().to_owned()
}

fn cpu(quota: i64, period: u64) -> Resources {
    Resources {
        cpu_quota: quota,
        cpu_period: period,
        ..Resources::default()
    }
}

/// A container that holds some 40 MiB of memory.
async fn big(rig: &Rig, sandbox: &hanok_runtime::api::SandboxId) -> ContainerId {
    let script =
        "dd if=/dev/zero of=/dev/shm/big bs=1M count=40 2>/dev/null; echo up; exec sleep 600";
    let mut config = rig.script("big", script);
    config.resources = memory(96 * MIB);
    let id = rig.start(sandbox, config).await;
    let log = rig.status(&id).await.log_path;
    let up = async {
        while !fs::read_to_string(&log).unwrap_or_default().contains("up") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, up).await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn root_limits_of_a_running_container_change_and_outlive_the_agent() {
    let mut rig = Rig::new("update").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "exec sleep 600");
    config.resources = memory(64 * MIB);
    config.resources.pids_limit = 30;
    let id = rig.start(&sandbox, config).await;
    let pid = rig.status(&id).await.pid;
    // Memory alone: the swap beside it stays what it was, none.
    for limit in [128 * MIB, 32 * MIB, 256 * MIB] {
        let change = Resources {
            memory_limit: limit,
            ..cpu(limit / 1024, 100_000)
        };
        rig.runtime()
            .update_container_resources(&id, &change)
            .await
            .unwrap();
        assert_eq!(memory_limit(&rig, id.as_str()), limit.to_string());
        assert_eq!(quota(&rig, id.as_str()), (limit / 1024).to_string());
    }
    rig.open().await;
    let after = rig.status(&id).await;
    assert_eq!((after.state, after.pid), (ContainerState::Running, pid));
    let known = after.config.resources;
    assert_eq!(
        (
            known.memory_limit,
            known.memory_swap_limit,
            known.pids_limit
        ),
        (256 * MIB, 256 * MIB, 30)
    );
    assert_eq!(value(&rig, id.as_str(), ["pids.max", "pids.max"]), "30");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_memory_limit_below_the_usage_is_refused_and_nothing_changes() {
    let rig = Rig::new("inuse").await;
    let sandbox = rig.sandbox().await.id;
    let id = big(&rig, &sandbox).await;
    let before = rig.status(&id).await;
    let change = Resources {
        memory_limit: 16 * MIB,
        pids_limit: 9,
        ..cpu(20_000, 100_000)
    };
    let refused = rig
        .runtime()
        .update_container_resources(&id, &change)
        .await
        .unwrap_err();
    let Error::MemoryInUse { usage, limit } = refused else {
        panic!("{refused}")
    };
    assert!(usage >= 40 << 20 && limit == 16 << 20, "{usage} {limit}");
    assert_eq!(rig.status(&id).await, before);
    assert_eq!(memory_limit(&rig, id.as_str()), (96 * MIB).to_string());
    assert_eq!(value(&rig, id.as_str(), ["pids.max", "pids.max"]), "max");
    let fits = Resources {
        memory_limit: 64 * MIB,
        ..Resources::default()
    };
    rig.runtime()
        .update_container_resources(&id, &fits)
        .await
        .unwrap();
    assert_eq!(memory_limit(&rig, id.as_str()), (64 * MIB).to_string());
    assert_eq!(rig.status(&id).await.state, ContainerState::Running);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_page_cache_does_not_stand_against_a_lower_limit() {
    let rig = Rig::new("cache").await;
    let sandbox = rig.sandbox().await.id;
    let script =
        "dd if=/dev/zero of=/file bs=1M count=40 2>/dev/null; sync; echo up; exec sleep 600";
    let mut config = rig.script("c", script);
    config.resources = memory(96 * MIB);
    let id = rig.start(&sandbox, config).await;
    let log = rig.status(&id).await.log_path;
    let up = async {
        while !fs::read_to_string(&log).unwrap_or_default().contains("up") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, up).await.unwrap();
    rig.runtime()
        .update_container_resources(&id, &memory(20 * MIB))
        .await
        .unwrap();
    assert_eq!(memory_limit(&rig, id.as_str()), (20 * MIB).to_string());
    assert_eq!(rig.status(&id).await.state, ContainerState::Running);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_change_that_fails_half_way_is_taken_back() {
    let rig = Rig::new("halfway").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "exec sleep 600");
    config.resources = memory(64 * MIB);
    let id = rig.start(&sandbox, config).await;
    let before = rig.status(&id).await;
    for limit in [128 * MIB, 32 * MIB] {
        let change = Resources {
            cpuset_cpus: "4000-4001".into(),
            ..memory(limit)
        };
        let refused = rig.runtime().update_container_resources(&id, &change).await;
        assert!(refused.is_err());
        assert_eq!(memory_limit(&rig, id.as_str()), (64 * MIB).to_string());
        assert_eq!(rig.status(&id).await, before);
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pod_grows_before_its_container_and_shrinks_after_it() {
    let rig = Rig::new("resize").await;
    let pod = rig.sandbox_config().cgroup_parent;
    let runtime = rig.runtime();
    let limits = |quota, bytes| Resources {
        memory_limit: bytes,
        ..cpu(quota, 100_000)
    };
    runtime
        .update_cgroup(&pod, &limits(50_000, 64 * MIB))
        .await
        .unwrap();
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "exec sleep 600");
    config.resources = limits(50_000, 64 * MIB);
    let id = rig.start(&sandbox, config).await;

    let larger = limits(90_000, 128 * MIB);
    runtime.update_cgroup(&pod, &larger).await.unwrap();
    let grown = runtime.update_container_resources(&id, &larger).await;
    grown.unwrap();
    // Another period on the way down: neither order of quota and period alone is always valid.
    let smaller = Resources {
        memory_limit: 32 * MIB,
        ..cpu(4_000, 10_000)
    };
    let shrunk = runtime.update_container_resources(&id, &smaller).await;
    shrunk.unwrap();
    runtime
        .update_cgroup(&pod, &limits(40_000, 32 * MIB))
        .await
        .unwrap();
    let back = cpu(40_000, 100_000);
    let changed = runtime.update_container_resources(&id, &back).await;
    changed.unwrap();
    assert_eq!(quota(&rig, id.as_str()), "40000");
    assert_eq!(quota(&rig, "poduid"), "40000");
    assert_eq!(memory_limit(&rig, "poduid"), (32 * MIB).to_string());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_created_container_starts_with_its_new_limits_and_an_ended_one_has_none() {
    let rig = Rig::new("created").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "exec sleep 600");
    config.resources = memory(64 * MIB);
    let runtime = rig.runtime();
    let id = runtime.create_container(&sandbox, config).await.unwrap();
    runtime
        .update_container_resources(&id, &memory(80 * MIB))
        .await
        .unwrap();
    runtime.start_container(&id).await.unwrap();
    assert_eq!(memory_limit(&rig, id.as_str()), (80 * MIB).to_string());
    runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    let refused = runtime
        .update_container_resources(&id, &memory(64 * MIB))
        .await;
    assert!(refused.unwrap_err().to_string().contains("does not run"));
    let missing = ContainerId("0".repeat(64));
    let refused = runtime
        .update_container_resources(&missing, &memory(MIB))
        .await;
    assert!(matches!(refused, Err(Error::NotFound { .. })));
    rig.finish().await;
}
