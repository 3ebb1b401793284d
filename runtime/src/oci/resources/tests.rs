//! Laws of the limits of bundles, on v1 and v2.

use super::*;

fn resources(text: &str) -> LinuxResources {
    serde_json::from_str(text).unwrap()
}

fn lines(writes: Vec<Write>) -> Vec<String> {
    let line = |write: Write| format!("{}={}", write.file, write.value);
    writes.into_iter().map(line).collect()
}

const ALL: &str = r#"{
        "cpu":{"shares":1024,"quota":50000,"period":200000,"cpus":"0-1","mems":"0"},
        "memory":{"limit":1048576,"swap":3145728,"reservation":524288,"kernel":1,"swappiness":10,"disableOOMKiller":true},
        "pids":{"limit":7},
        "hugepageLimits":[{"pageSize":"2MB","limit":4}],
        "blockIO":{"throttleReadBpsDevice":[{"major":8,"minor":0,"rate":9}]},
        "network":{"classID":5,"priorities":[{"name":"lo","priority":3}]}
    }"#;

#[test]
fn limits_on_v1_are_files_of_their_controllers() {
    let all = resources(ALL);
    for (controller, want) in [
        (
            "cpu",
            &[
                "cpu.shares=1024",
                "cpu.cfs_period_us=200000",
                "cpu.cfs_quota_us=50000",
            ][..],
        ),
        ("cpuset", &["cpuset.cpus=0-1", "cpuset.mems=0"]),
        (
            "memory",
            &[
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=3145728",
                "memory.soft_limit_in_bytes=524288",
                "memory.swappiness=10",
                "memory.oom_control=1",
            ],
        ),
        ("pids", &["pids.max=7"]),
        (
            "hugetlb",
            &[
                "hugetlb.2MB.limit_in_bytes=4",
                "hugetlb.2MB.rsvd.limit_in_bytes=4",
            ],
        ),
        ("blkio", &["blkio.throttle.read_bps_device=8:0 9"]),
        ("net_cls", &["net_cls.classid=5"]),
        ("net_prio", &["net_prio.ifpriomap=lo 3"]),
        ("devices", &[]),
    ] {
        assert_eq!(
            lines(v1(&all, &[controller.to_owned()])),
            want,
            "{controller}"
        );
    }
    assert_eq!(other_controllers(&all), ["blkio", "net_cls", "net_prio"]);
    let more = ["cpu", "cpuset", "memory", "pids", "hugetlb"];
    assert_eq!(needed_controllers(&all)[3..], more);
    assert!(needed_controllers(&resources("{}")).is_empty());
    assert!(other_controllers(&resources("{}")).is_empty());
}

#[test]
fn limits_on_v2_are_converted() {
    assert_eq!(
        lines(v2(&resources(ALL))),
        [
            "cpu.weight=100",
            "cpu.max=50000 200000",
            "cpuset.cpus=0-1",
            "cpuset.mems=0",
            "memory.max=1048576",
            "memory.swap.max=2097152",
            "memory.low=524288",
            "io.max=8:0 rbps=9",
            "pids.max=7",
            "hugetlb.2MB.max=4",
            "hugetlb.2MB.rsvd.max=4",
        ]
    );
}

#[test]
fn huge_pages_are_limited_also_where_the_kernel_does_not_count_reservations() {
    let huge = resources(r#"{"hugepageLimits":[{"pageSize":"2MB","limit":0}]}"#);
    let (limit, reserved) = ("hugetlb.2MB.max=0", "hugetlb.2MB.rsvd.max=0");
    for (files, want) in [
        (
            &["hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"][..],
            &[limit, reserved][..],
        ),
        (&["hugetlb.2MB.max"], &[limit]),
        // Without the limit itself it fails.
        (&[], &[limit]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        let place = Place {
            directory: dir.path().to_owned(),
            controllers: Vec::new(),
            unified: true,
        };
        assert_eq!(lines(writes(&place, &huge)), want, "{files:?}");
    }
}
