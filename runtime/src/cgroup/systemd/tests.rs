//! The driver against a systemd of the imagination, on a socket of its own.

mod fake;

use std::time::{Duration, Instant};

use super::*;
use bus::Address;
use fake::{Fake, Fault};

/// Of a test that waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

async fn driver(fake: &Fake) -> Systemd {
    let bus = Bus::at(vec![Address::Socket(fake.socket())], PATIENCE * 10);
    Systemd::with(bus, "/nonexistent".into(), true)
        .await
        .unwrap()
}

fn unit(path: &str) -> Unit {
    Unit::of_path("", Path::new(path))
}

fn limit(file: &str, value: &str) -> Vec<Setting> {
    vec![Setting {
        file: file.to_owned(),
        value: value.to_owned(),
    }]
}

const POD: &str = "kubepods-podx.slice";

#[tokio::test]
async fn slice_is_one_call_and_one_that_is_there_gets_the_limits() {
    let fake = Fake::start(&[]);
    let systemd = driver(&fake).await;
    let limits = limit("memory.max", "4096");
    systemd
        .make_slice(&unit("kubepods/podx"), &limits)
        .await
        .unwrap();
    let log = fake.take_log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].starts_with("StartTransientUnit kubepods-podx.slice"),
        "{log:?}"
    );
    assert!(
        log[0].contains("MemoryMax=4096") && !log[0].contains("Delegate"),
        "{log:?}"
    );
    systemd
        .make_slice(&unit("kubepods/podx"), &limits)
        .await
        .unwrap();
    let log = fake.take_log();
    assert_eq!(
        log[1..],
        [
            format!("SetUnitProperties {POD} MemoryMax=4096"),
            format!("StartUnit {POD}")
        ]
    );
}

#[tokio::test]
async fn scope_is_in_the_slice_of_its_pod_with_its_process_and_delegated() {
    let fake = Fake::start(&[]);
    let systemd = driver(&fake).await;
    let id = "0a".repeat(32);
    let scope = unit(&format!("kubepods/podx/{id}"));
    systemd.adopt(&scope, 4711).await.unwrap();
    let log = fake.take_log();
    assert_eq!(log.len(), 1, "{log:?}");
    for part in [
        &format!("cri-containerd-{id}.scope"),
        "Slice=\"kubepods-podx.slice\"",
        "PIDs=[4711]",
        "Delegate=true",
        "DefaultDependencies=false",
    ] {
        assert!(log[0].contains(part), "{part} in {log:?}");
    }
    // An agent that comes back finds it.
    systemd.adopt(&scope, 4711).await.unwrap();
    assert_eq!(
        fake.take_log()[1],
        format!("AttachProcessesToUnit cri-containerd-{id}.scope")
    );
}

#[tokio::test]
async fn scope_that_failed_and_is_kept_is_reset_and_made_anew() {
    let id = "0b".repeat(32);
    let scope = unit(&format!("kubepods/podx/{id}"));
    let fake = Fake::start(&[]);
    fake.keep_failed(&scope.name);
    let systemd = driver(&fake).await;
    systemd.adopt(&scope, 4711).await.unwrap();
    let verbs: Vec<String> = fake
        .take_log()
        .iter()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(
        verbs,
        [
            "StartTransientUnit",
            "AttachProcessesToUnit",
            "ResetFailedUnit",
            "StartTransientUnit"
        ]
    );
}

#[tokio::test]
async fn scope_of_somebody_else_is_not_joined_by_who_wants_a_new_one() {
    let id = "0d".repeat(32);
    let mut scope = unit(&format!("kubepods/podx/{id}"));
    let fake = Fake::start(&[]);
    let systemd = driver(&fake).await;
    systemd.adopt(&scope, 4711).await.unwrap();
    fake.take_log();
    let own = std::process::id();
    let properties = systemd.scope(&scope, own, Vec::new());
    let refused = systemd.start_new(&scope, own, &properties).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, SystemdError::Taken { .. }), "{refused:?}");
    let log = fake.take_log();
    assert!(
        !log.iter().any(|line| line.starts_with("Attach")),
        "{log:?}"
    );
    // The same, but its process is in it: the answer was lost.
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let paths = own_paths(&cgroups).map(|(_, path)| PathBuf::from(path));
    scope.directory = paths.max().unwrap();
    systemd.start_new(&scope, own, &properties).await.unwrap();
    assert_eq!(fake.take_log().len(), 1);
}

#[tokio::test]
async fn scope_that_failed_and_is_kept_does_not_stand_in_the_way_of_a_new_one() {
    let id = "0e".repeat(32);
    let scope = unit(&format!("kubepods/podx/{id}"));
    let fake = Fake::start(&[]);
    fake.keep_failed(&scope.name);
    let systemd = driver(&fake).await;
    let properties = systemd.scope(&scope, 4711, Vec::new());
    systemd.start_new(&scope, 4711, &properties).await.unwrap();
    let log = fake.take_log();
    assert!(log[1].starts_with("ResetFailedUnit"), "{log:?}");
    assert!(log.len() == 3 && log[2] == log[0], "{log:?}");
}

#[tokio::test]
async fn job_that_is_over_before_its_reply_is_not_waited_for() {
    let fake = Fake::start(&[Fault::SignalFirst]);
    let systemd = driver(&fake).await;
    systemd
        .make_slice(&unit("kubepods/podx"), &[])
        .await
        .unwrap();
}

#[tokio::test]
async fn reply_that_is_lost_with_the_connection_is_asked_for_again() {
    let fake = Fake::start(&[Fault::Hangup]);
    let systemd = driver(&fake).await;
    systemd
        .make_slice(&unit("kubepods/podx"), &limit("pids.max", "7"))
        .await
        .unwrap();
    let log = fake.take_log();
    assert!(
        log.contains(&format!("SetUnitProperties {POD} TasksMax=7")),
        "{log:?}"
    );
    // As with every unit that is gone when it is to be stopped.
    fake.next(Fault::Hangup);
    systemd.stop(POD).await.unwrap();
    systemd.stop(POD).await.unwrap();
    let stops = fake.take_log();
    assert_eq!(stops.len(), 3, "{stops:?}");
}

#[tokio::test]
async fn job_that_fails_is_an_error_with_its_unit_and_its_end() {
    let fake = Fake::start(&[Fault::Fails]);
    let systemd = driver(&fake).await;
    let error = systemd
        .make_slice(&unit("kubepods/podx"), &[])
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "systemd could not start kubepods-podx.slice: the job ended as \"failed\""
    );
}

#[tokio::test]
async fn systemd_that_does_not_answer_is_an_error_at_the_deadline() {
    for fault in [Fault::Silence, Fault::LostSignal] {
        let fake = Fake::start(&[fault]);
        let bus = Bus::at(vec![Address::Socket(fake.socket())], PATIENCE);
        let systemd = Systemd::with(bus, "/nonexistent".into(), true)
            .await
            .unwrap();
        let begun = Instant::now();
        let error = systemd
            .make_slice(&unit("kubepods/podx"), &[])
            .await
            .unwrap_err();
        assert!(matches!(error, SystemdError::Late { .. }), "{error:?}");
        let took = begun.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 8, "{took:?}");
    }
}

#[tokio::test]
async fn absent_systemd_is_told_at_once_and_one_that_left_at_the_deadline() {
    let nowhere = vec![Address::Socket("/nonexistent/systemd".into())];
    let begun = Instant::now();
    let opened = Systemd::with(Bus::at(nowhere, PATIENCE * 100), "/".into(), true).await;
    assert!(
        matches!(opened, Err(SystemdError::Unreachable { .. })),
        "{opened:?}"
    );
    assert!(begun.elapsed() < PATIENCE * 50);
    let fake = Fake::start(&[]);
    let bus = Bus::at(vec![Address::Socket(fake.socket())], PATIENCE);
    let systemd = Systemd::with(bus, "/".into(), true).await.unwrap();
    fake.leave().await;
    let error = systemd.stop(POD).await.unwrap_err();
    assert!(
        matches!(error, SystemdError::Unreachable { .. }),
        "{error:?}"
    );
}

/// What systemd says of a unit, and the kernel of its cgroup.
struct Seen {
    unit: String,
    directory: PathBuf,
}

impl Seen {
    fn property(&self, name: &str) -> String {
        let show = std::process::Command::new("systemctl")
            .args(["show", "--value", "--property", name, &self.unit])
            .output()
            .unwrap();
        String::from_utf8(show.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    fn file(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.directory.join(name));
        text.unwrap_or_else(|error| format!("{name}: {error}"))
            .trim_end()
            .to_owned()
    }

    /// Whether the limits are known to systemd and to the kernel.
    fn holds(&self, limit: &str) {
        assert_eq!(self.property("MemoryMax"), limit);
        assert_eq!(self.file("memory.max"), limit);
        assert_eq!(self.property("TasksMax"), "9");
        assert_eq!(self.property("CPUQuotaPerSecUSec"), "500ms");
        assert_eq!(self.property("AllowedCPUs"), "0");
        assert_eq!(self.file("cpu.max"), "50000 100000");
        assert_eq!(self.property("ActiveState"), "active");
    }
}

/// Limits of which only that of memory differs.
fn memory(limit: i64) -> crate::api::Resources {
    crate::api::Resources {
        memory_limit: limit,
        cpu_quota: 50_000,
        pids_limit: 9,
        cpuset_cpus: "0".to_owned(),
        unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    }
}

fn systemctl(verb: &str) {
    let done = std::process::Command::new("systemctl").arg(verb).status();
    assert!(done.unwrap().success(), "{verb}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "wants a machine whose init is systemd: e2e/v2/systemd.sh"]
async fn root_units_of_a_real_systemd_hold_their_limits_until_they_end() {
    use crate::cgroup::{Cgroups, DeviceRule, DriverKind};
    let shim = Path::new(&std::env::var("HANOK_PROGRAMS").unwrap()).join("hanok-shim");
    let open = async || {
        Cgroups::open(DriverKind::Systemd, "/hanok-test", &shim)
            .await
            .unwrap()
    };
    let cgroups = std::sync::Arc::new(open().await);
    let (pod, id) = ("kubepods/burstable/pod1-2", "0c".repeat(32));
    let path = format!("{pod}/{id}");
    cgroups.update(pod, &memory(128 << 20)).await.unwrap();
    let rules = DeviceRule::standard();
    let prepared = cgroups
        .prepare(&path, &memory(64 << 20), &rules)
        .await
        .unwrap();
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    for directory in &prepared.directories {
        std::fs::write(directory.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    let scope = Seen {
        unit: format!("cri-containerd-{id}.scope"),
        directory: prepared.directories[0].clone(),
    };
    prepared.release();
    scope.holds("67108864");
    assert_eq!(scope.file("memory.oom.group"), "1");
    assert_eq!(
        scope.property("Slice"),
        "hanok_test-kubepods-burstable-pod1_2.slice"
    );
    assert_eq!(scope.property("Delegate"), "yes");
    cgroups
        .change(&path, &memory(32 << 20))
        .await
        .unwrap()
        .keep();
    scope.holds("33554432");
    assert_eq!(scope.file("memory.oom.group"), "1");
    // It sets back what it has no property for, and nobody is told.
    systemctl("daemon-reload");
    scope.holds("33554432");
    // The connection is lost.
    systemctl("daemon-reexec");
    cgroups
        .change(&path, &memory(48 << 20))
        .await
        .unwrap()
        .keep();
    scope.holds("50331648");
    assert_eq!(scope.file("memory.oom.group"), "1");
    assert_eq!(cgroups.children(pod).unwrap(), std::slice::from_ref(&id));
    // As an agent that comes back does.
    let again = std::sync::Arc::new(open().await);
    again
        .clone()
        .adopt(pod.to_owned(), &path, child.id().cast_signed())
        .await
        .unwrap();
    again.update(pod, &memory(256 << 20)).await.unwrap();
    again.remove(&path).await.unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(scope.property("LoadState"), "not-found");
    assert!(!scope.directory.exists());
    again.remove("kubepods").await.unwrap();
    let all = "/sys/fs/cgroup/hanok_test.slice";
    assert!(!Path::new(all).join("hanok_test-kubepods.slice").exists());
}
