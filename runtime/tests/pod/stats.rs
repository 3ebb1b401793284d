//! What running containers use, as it is counted.

use std::fs;
use std::time::Duration;

use hanok_runtime::api::{RuntimeService, StatsDetail};

use crate::rig::{PATIENCE, Rig, memory};

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn root_stats_count_what_a_running_container_uses() {
    let rig = Rig::new("stats").await;
    let sandbox = rig.sandbox().await;
    let script = "dd if=/dev/zero of=/dev/shm/m bs=1M count=20 2>/dev/null
        dd if=/dev/zero of=/file bs=1M count=5 2>/dev/null
        i=0; while test $i -lt 3000; do i=$((i+1)); done
        echo up; exec sleep 600";
    let mut config = rig.script("busy", script);
    config.resources = memory(96 << 20);
    let busy = rig.start(&sandbox.id, config).await;
    let (_, _) = rig.output(&sandbox.id, rig.script("ended", "true")).await;
    rig.said(&busy, "up").await;

    let runtime = rig.runtime();
    let found = runtime.stats(None, StatsDetail::All).await.unwrap();
    assert_eq!(found.len(), 1);
    let pod = &found[0];
    assert_eq!((&pod.id, &pod.pod), (&sandbox.id, &sandbox.config.uid));
    assert_eq!(pod.containers.len(), 1, "those that run");
    let stats = &pod.containers[0];
    assert_eq!((&stats.id, stats.name.as_str()), (&busy, "busy"));
    let cpu = stats.cgroup.cpu.clone().unwrap();
    assert!(
        cpu.usage > Duration::ZERO && cpu.usage < PATIENCE,
        "{cpu:?}"
    );
    let used = stats.cgroup.memory.clone().unwrap();
    assert!(used.usage >= 20 * MIB && used.usage <= 96 * MIB, "{used:?}");
    assert!(used.working_set >= 20 * MIB && used.working_set <= used.usage);
    assert_eq!((used.limit, used.oom_kills), (Some(96 * MIB), 0));
    // Its own memory is not the 20 MiB of files.
    assert!(used.page_faults > 0 && used.rss > 0 && used.rss < 20 * MIB);
    assert_eq!(stats.cgroup.pids, Some(1));
    let rootfs = stats.rootfs.unwrap();
    assert!(rootfs.bytes >= 5 * MIB && rootfs.inodes >= 2, "{rootfs:?}");
    assert!(stats.logs.unwrap().bytes > 0);
    // The pod has it all.
    assert!(pod.cgroup.cpu.clone().unwrap().usage >= cpu.usage);
    assert!(pod.cgroup.memory.clone().unwrap().usage >= 20 * MIB);
    if fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap() {
        assert!(cpu.pressure.is_some() && used.pressure.is_some());
        assert!(stats.cgroup.io.clone().unwrap().pressure.is_some());
    } else if fs::exists("/sys/fs/cgroup/blkio").unwrap() {
        assert!(stats.cgroup.io.is_some() && pod.cgroup.io.is_some());
    }

    let all = runtime.cgroup_stats("kubepods").await.unwrap();
    assert!(all.memory.unwrap().usage >= 20 * MIB);
    let short = runtime.stats(Some(&pod.pod), StatsDetail::Cgroups).await;
    assert_eq!(short.unwrap()[0].containers[0].rootfs, None);
    let other = hanok_runtime::api::PodUid("other".into());
    let nothing = runtime.stats(Some(&other), StatsDetail::All).await;
    assert_eq!(nothing.unwrap(), []);
    runtime.stop_pod_sandbox(&sandbox.id).await.unwrap();
    assert_eq!(runtime.stats(None, StatsDetail::All).await.unwrap(), []);
    rig.finish().await;
}
