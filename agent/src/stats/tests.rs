//! The documents for a node with one pod.

use hanok_runtime::api::{
    ContainerId, ContainerStats, CpuStats, DiskUsage, InterfaceStats, MemoryStats, PodUid,
    Pressure, SandboxId, Stall, TrafficStats,
};

use super::*;

fn cgroup(cpu: u64, memory: u64) -> CgroupStats {
    CgroupStats {
        cpu: Some(CpuStats {
            usage: Duration::from_millis(cpu),
            pressure: Some(Pressure {
                some: Stall {
                    total: Duration::from_secs(2),
                    avg10: 1.5,
                    ..Stall::default()
                },
                ..Pressure::default()
            }),
            ..CpuStats::default()
        }),
        memory: Some(MemoryStats {
            usage: memory + 100,
            working_set: memory,
            limit: Some(10_000),
            ..MemoryStats::default()
        }),
        io: None,
        pids: Some(3),
    }
}

fn snapshot() -> Snapshot {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let disk = |bytes| Some(DiskUsage { bytes, inodes: 2 });
    let container = ContainerStats {
        id: ContainerId("c".into()),
        name: "app".into(),
        started_at: Some(at),
        at,
        cgroup: cgroup(1500, 4000),
        rootfs: disk(10),
        logs: disk(20),
    };
    let sandbox = SandboxStats {
        id: SandboxId("s".into()),
        pod: PodUid("uid".into()),
        name: "web".into(),
        namespace: "default".into(),
        created_at: at,
        at,
        cgroup: cgroup(1600, 4100),
        interfaces: vec![InterfaceStats {
            name: "eth0".into(),
            rx: TrafficStats {
                bytes: 7,
                ..TrafficStats::default()
            },
            tx: TrafficStats::default(),
        }],
        containers: vec![container],
    };
    let fs = Some(machine::Filesystem {
        capacity: 1000,
        available: 500,
        used: 400,
        ..Default::default()
    });
    Snapshot {
        node_name: "node-1".into(),
        sandboxes: vec![sandbox],
        rates: [("c".to_owned(), 250_000_000)].into(),
        node_fs: fs,
        image_fs: fs,
        images: Some(300),
        volumes: [(
            "uid".to_owned(),
            vec![VolumeStats {
                name: "data".into(),
                usage: disk(5),
                filesystem: fs,
                is_mount: false,
            }],
        )]
        .into(),
        ..Snapshot::default()
    }
}

#[test]
fn summary_has_the_kubelets_fields() {
    let document = summary(&snapshot(), StatsDetail::All);
    let pod = &document["pods"][0];
    let container = &pod["containers"][0];
    for (found, expected) in [
        (&document["node"]["nodeName"], serde_json::json!("node-1")),
        (&document["node"]["fs"]["usedBytes"], 400.into()),
        (
            &document["node"]["runtime"]["imageFs"]["usedBytes"],
            300.into(),
        ),
        (&pod["podRef"]["uid"], "uid".into()),
        (&pod["startTime"], "2023-11-14T22:13:20Z".into()),
        (&pod["network"]["name"], "eth0".into()),
        (&pod["network"]["interfaces"][0]["rxBytes"], 7.into()),
        (&pod["volume"][0]["name"], "data".into()),
        (&pod["volume"][0]["usedBytes"], 5.into()),
        (&pod["ephemeral-storage"]["usedBytes"], 35.into()),
        (&pod["process_stats"]["process_count"], 3.into()),
        (&pod["cpu"]["usageNanoCores"], serde_json::Value::Null),
        (
            &container["cpu"]["usageCoreNanoSeconds"],
            1_500_000_000u64.into(),
        ),
        (&container["cpu"]["usageNanoCores"], 250_000_000.into()),
        (
            &container["cpu"]["psi"]["some"]["total"],
            2_000_000_000u64.into(),
        ),
        (&container["memory"]["workingSetBytes"], 4000.into()),
        (&container["memory"]["availableBytes"], 6000.into()),
        (&container["rootfs"]["usedBytes"], 10.into()),
        (&container["logs"]["inodesUsed"], 2.into()),
    ] {
        assert_eq!(*found, expected, "{document:#}");
    }
    assert_eq!(document["node"]["systemContainers"][1]["name"], "pods");
    let short = summary(
        &Snapshot {
            node_fs: None,
            ..snapshot()
        },
        StatsDetail::Cgroups,
    );
    assert_eq!(short["pods"][0]["network"], serde_json::Value::Null);
}

#[test]
fn resource_metrics_are_what_metrics_server_reads() {
    let text = resource(&snapshot());
    for line in [
        "container_cpu_usage_seconds_total{container=\"app\",namespace=\"default\",pod=\"web\"} 1.5 1700000000000",
        "container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} 4000 1700000000000",
        "container_start_time_seconds{container=\"app\",namespace=\"default\",pod=\"web\"} 1700000000 1700000000000",
        "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"web\"} 1.6 1700000000000",
        "# TYPE node_cpu_usage_seconds_total counter",
        "resource_scrape_error 0",
    ] {
        assert!(
            text.lines().any(|one| one == line),
            "{line} is not in\n{text}"
        );
    }
}

#[test]
fn cadvisor_metrics_tell_pods_and_containers_apart() {
    let text = cadvisor(&snapshot());
    for line in [
        "container_cpu_usage_seconds_total{container=\"app\",id=\"c\",namespace=\"default\",pod=\"web\",cpu=\"total\"} 1.5 1700000000000",
        "container_memory_working_set_bytes{container=\"\",id=\"s\",namespace=\"default\",pod=\"web\"} 4100 1700000000000",
        "container_network_receive_bytes_total{container=\"\",id=\"s\",interface=\"eth0\",namespace=\"default\",pod=\"web\"} 7 1700000000000",
        "container_pressure_cpu_waiting_seconds_total{container=\"app\",id=\"c\",namespace=\"default\",pod=\"web\"} 2 1700000000000",
        "container_fs_usage_bytes{container=\"app\",id=\"c\",namespace=\"default\",pod=\"web\"} 10 1700000000000",
    ] {
        assert!(
            text.lines().any(|one| one == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("container_fs_reads"), "not counted here");
}

#[test]
fn rates_need_two_readings_a_second_apart() {
    let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
    let mut rates = Rates::default();
    let mut update = |millis, usage| {
        let readings = vec![("c".to_owned(), at(millis), Duration::from_millis(usage))];
        rates.update(readings).get("c").copied()
    };
    assert_eq!(update(0, 100), None);
    assert_eq!(update(500, 400), None, "too close to the first");
    assert_eq!(update(2000, 1100), Some(500_000_000));
    assert_eq!(
        update(2500, 1101),
        Some(500_000_000),
        "too close to the last"
    );
    assert_eq!(update(4000, 50), None, "the counter began anew");
}
