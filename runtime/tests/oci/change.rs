//! What is done to a container that runs: paused, resumed, given other limits, measured, listed.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hanok_runtime::oci::{OciError, Record, Status};
use serde_json::{Value, json};

use crate::rig::Bundle;

/// Counts in /tmp/count for as long as it runs.
const COUNTING: &str = "n=0; while :; do n=$((n+1)); echo $n > /tmp/count; done";

fn count(bundle: &Bundle) -> String {
    fs::read_to_string(bundle.root().join("tmp/count")).unwrap_or_default()
}

/// Waits until the container has counted on.
fn goes_on(bundle: &Bundle) {
    let before = count(bundle);
    let begin = Instant::now();
    while count(bundle) == before || count(bundle).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it stands still");
        std::thread::yield_now();
    }
}

fn running(bundle: &Bundle) -> Record {
    bundle.create().unwrap();
    bundle.runtime.start(&bundle.id).unwrap();
    bundle.runtime.state(&bundle.id).unwrap()
}

/// The first of these files that the container's cgroups have.
fn value(record: &Record, files: [&str; 2]) -> String {
    let paths = record.cgroups.iter();
    let mut paths = paths.flat_map(|dir| files.map(|file| dir.join(file)));
    let path: PathBuf = paths.find(|path| path.exists()).unwrap();
    fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn root_a_paused_container_stands_still_until_it_is_resumed() {
    // A second process, whose children come while the first pause moves them.
    let script = format!("while :; do true | true; done & {COUNTING}");
    let bundle = Bundle::new(&script);
    running(&bundle);
    for _ in 0..3 {
        goes_on(&bundle);
        bundle.runtime.pause(&bundle.id).unwrap();
        assert_eq!(bundle.status(), Status::Paused);
        let before = count(&bundle);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(count(&bundle), before);
        let states = bundle
            .runtime
            .processes(&bundle.id)
            .unwrap()
            .into_iter()
            .map(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let state = status.lines().find(|line| line.starts_with("State"));
                state.unwrap_or_default().to_owned()
            });
        // Frozen, or dead and not waited for; v2 shows them asleep.
        let moves: Vec<String> = states.filter(|state| state.contains("R (")).collect();
        assert!(moves.is_empty(), "{moves:?}");
        let paused = bundle.runtime.pause(&bundle.id).unwrap_err();
        assert!(matches!(paused, OciError::Status { .. }), "{paused}");
        assert!(bundle.exec("true").is_err());
        assert!(bundle.runtime.delete(&bundle.id, false).is_err());
        bundle.runtime.resume(&bundle.id).unwrap();
        assert_eq!(bundle.status(), Status::Running);
    }
    assert!(bundle.runtime.resume(&bundle.id).is_err());
    assert_eq!(bundle.exec("true").unwrap(), 0);
    let cgroups = bundle.runtime.state(&bundle.id).unwrap().cgroups;
    bundle.runtime.delete(&bundle.id, true).unwrap();
    bundle.assert_gone(&cgroups);
}

#[test]
fn root_a_paused_container_can_be_killed_and_deleted() {
    for force in [false, true] {
        let bundle = Bundle::new(COUNTING);
        running(&bundle);
        bundle.runtime.pause(&bundle.id).unwrap();
        let cgroups = bundle.runtime.state(&bundle.id).unwrap().cgroups;
        if !force {
            bundle.runtime.kill(&bundle.id, "KILL", false).unwrap();
            bundle.wait();
        }
        bundle.runtime.delete(&bundle.id, force).unwrap();
        bundle.assert_gone(&cgroups);
    }
}

#[test]
fn root_a_created_container_can_be_paused_before_its_start() {
    let bundle = Bundle::new("true");
    bundle.create().unwrap();
    bundle.runtime.pause(&bundle.id).unwrap();
    assert!(bundle.runtime.start(&bundle.id).is_err());
    bundle.runtime.resume(&bundle.id).unwrap();
    assert_eq!(bundle.status(), Status::Created);
    bundle.runtime.start(&bundle.id).unwrap();
    bundle.wait();
    bundle.runtime.delete(&bundle.id, false).unwrap();
}

#[test]
fn root_an_update_changes_what_it_names_or_nothing() {
    let bundle = Bundle::new("sleep 100");
    let record = running(&bundle);
    let update = |document: Value| bundle.runtime.update(&bundle.id, &document);
    let memory = || value(&record, ["memory.max", "memory.limit_in_bytes"]);
    let pids = || value(&record, ["pids.max", "pids.max"]);
    let quota = || value(&record, ["cpu.max", "cpu.cfs_quota_us"]);
    update(json!({ "pids": { "limit": 20 } })).unwrap();
    assert_eq!(pids(), "20");
    for mebibytes in [64, 128, 32] {
        let limit: u64 = mebibytes << 20;
        let both = json!({ "memory": { "limit": limit, "swap": limit }, "cpu": { "quota": 50_000, "period": 100_000 } });
        // Where swap is not counted its limit cannot be set.
        if update(both).is_err() {
            update(json!({ "memory": { "limit": limit }, "cpu": { "quota": 50_000, "period": 100_000 } })).unwrap();
        }
        assert_eq!(memory(), limit.to_string());
        assert!(quota().starts_with("50000"), "{}", quota());
    }
    assert_eq!(pids(), "20");
    let refused = update(json!({ "pids": { "limit": 7 }, "cpu": { "cpus": "4000" } }));
    assert!(refused.is_err());
    assert_eq!(pids(), "20");
    let wrong = update(json!({ "pids": { "limit": "many" } })).unwrap_err();
    assert!(matches!(wrong, OciError::Field { .. }), "{wrong}");
    update(json!({ "pids": { "limit": -1 } })).unwrap();
    assert_eq!(pids(), "max");
    // Rules for devices are no part of it.
    update(json!({ "devices": [{ "allow": true, "access": "rwm" }] })).unwrap();
    let opened =
        bundle.exec("mknod /tmp/mem c 1 1; dd if=/tmp/mem of=/dev/null bs=1 count=1 2>/dev/null");
    assert_ne!(opened.unwrap(), 0);
    bundle.runtime.delete(&bundle.id, true).unwrap();
    assert!(matches!(update(json!({})), Err(OciError::NotFound(_))));
}

#[test]
fn root_use_is_told_once_or_until_the_end() {
    let bundle = Bundle::new("sleep 1.5");
    let record = running(&bundle);
    let once = bundle.runtime.usage(&bundle.id).unwrap();
    assert_eq!(
        (&once["type"], &once["id"]),
        (&json!("stats"), &json!(bundle.id))
    );
    let number = |path: &str| once.pointer(path).and_then(Value::as_u64);
    assert!(number("/data/memory/usage/usage").unwrap() > 0, "{once}");
    assert!(number("/data/pids/current").unwrap() > 0, "{once}");
    assert!(number("/data/cpu/usage/total").is_some(), "{once}");
    assert!(
        once.pointer("/data/memory/raw")
            .unwrap()
            .as_object()
            .unwrap()
            .len()
            > 3
    );
    assert!(
        number("/data/blkio/ioServicedRecursive/0/value").is_some(),
        "{once}"
    );
    let mut events = Vec::new();
    let interval = Duration::from_millis(100);
    let watched = bundle.runtime.watch(&bundle.id, interval, |event| {
        events.push(event["type"].as_str().unwrap().to_owned());
        true
    });
    watched.unwrap();
    assert!(
        events.len() > 2 && events.iter().all(|kind| kind == "stats"),
        "{events:?}"
    );
    assert_eq!(bundle.status(), Status::Stopped);
    let ended = bundle.runtime.usage(&bundle.id).unwrap_err();
    assert!(matches!(ended, OciError::Status { .. }), "{ended}");
    bundle.runtime.delete(&bundle.id, false).unwrap();
    bundle.assert_gone(&record.cgroups);
}

#[test]
fn root_want_of_memory_is_an_event() {
    let mut bundle =
        Bundle::new("read go < /tmp/go; dd if=/dev/zero of=/dev/null bs=200M count=1; sleep 100");
    bundle.config["linux"]["resources"] = json!({ "memory": { "limit": 30 << 20 } });
    let go = bundle.root().join("tmp/go");
    let made = std::process::Command::new("mkfifo").arg(&go).status();
    assert!(made.unwrap().success());
    running(&bundle);
    let mut told = false;
    let interval = Duration::from_millis(20);
    let mut rounds = 0;
    let watched = bundle.runtime.watch(&bundle.id, interval, |event| {
        if rounds == 0 {
            fs::write(&go, "go\n").unwrap();
        }
        rounds += 1;
        told |= event["type"] == "oom";
        !told && rounds < 500
    });
    watched.unwrap();
    assert!(told, "{rounds}");
    bundle.runtime.delete(&bundle.id, true).unwrap();
}

#[test]
fn root_containers_are_listed_with_what_they_do() {
    let bundle = Bundle::new("sleep 100");
    assert!(bundle.runtime.list().unwrap().0.is_empty());
    let listed = || {
        let (records, _) = bundle.runtime.list().unwrap();
        let pairs = records
            .into_iter()
            .map(|record| (record.id.clone(), record.status()));
        pairs.collect::<Vec<_>>()
    };
    bundle.create().unwrap();
    assert_eq!(listed(), [(bundle.id.clone(), Status::Created)]);
    bundle.runtime.start(&bundle.id).unwrap();
    assert_eq!(listed(), [(bundle.id.clone(), Status::Running)]);
    bundle.runtime.kill(&bundle.id, "KILL", false).unwrap();
    bundle.wait();
    assert_eq!(listed(), [(bundle.id.clone(), Status::Stopped)]);
    bundle.runtime.delete(&bundle.id, false).unwrap();
    assert!(listed().is_empty());
}

#[test]
fn root_limits_of_devices_are_set_where_there_is_a_controller_and_refused_elsewhere() {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let numbers = devices.filter_map(|device| fs::read_to_string(device.path().join("dev")).ok());
    let number = numbers.map(|text| text.trim().to_owned()).min().unwrap();
    let (major, minor) = number.split_once(':').unwrap();
    let (major, minor): (i64, i64) = (major.parse().unwrap(), minor.parse().unwrap());
    let limit = json!([{ "major": major, "minor": minor, "rate": 1 << 20 }]);
    let mut bundle = Bundle::new("sleep 100");
    bundle.config["linux"]["resources"] = json!({
        "blockIO": { "throttleReadBpsDevice": limit, "throttleWriteBpsDevice": limit },
        "cpu": { "cpus": "0", "mems": "0" },
    });
    let has = |paths: [&str; 2]| paths.iter().any(|path| fs::exists(path).unwrap());
    let v2 = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    if !has([
        "/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device",
        "/sys/fs/cgroup/io.stat",
    ]) && !v2.contains("io")
    {
        let refused = bundle.create().unwrap_err();
        assert!(
            refused.to_string().contains("no blkio controller"),
            "{refused}"
        );
        return;
    }
    let record = running(&bundle);
    let read = value(&record, ["io.max", "blkio.throttle.read_bps_device"]);
    assert!(read.contains(&number) && read.contains("1048576"), "{read}");
    assert_eq!(value(&record, ["cpuset.cpus", "cpuset.cpus"]), "0");
    let change = json!({ "blockIO": { "throttleReadBpsDevice": [{ "major": major, "minor": minor, "rate": 2 << 20 }] } });
    bundle.runtime.update(&bundle.id, &change).unwrap();
    let read = value(&record, ["io.max", "blkio.throttle.read_bps_device"]);
    assert!(read.contains("2097152"), "{read}");
    bundle.runtime.delete(&bundle.id, true).unwrap();
    bundle.assert_gone(&record.cgroups);
}
