//! What a pod's containers share with each other and with the node, when they ask for it.

use std::fs;
use std::time::Duration;

use hanok_runtime::api::{
    ContainerId, ContainerState, Error, NamespaceMode, PodSandboxConfig, PodUid, RuntimeService,
};

use crate::rig::{Rig, until};

fn namespace(pid: i32, kind: &str) -> std::path::PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

/// Zombies among the processes of a PID namespace.
fn zombies_of(pid: i32) -> usize {
    let own = namespace(pid, "pid");
    let numbers = crate::rig::entries(std::path::Path::new("/proc"));
    let of_pod = numbers
        .iter()
        .filter_map(|name| name.parse::<i32>().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|found| found == own));
    let is_zombie = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z'))
    };
    of_pod.filter(is_zombie).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pause_reaps_what_containers_leave_and_no_signal_from_inside_ends_it() {
    let rig = Rig::new("reap").await;
    let mut config = rig.sandbox_config();
    config.pid = NamespaceMode::Pod;
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap();
    let script = "for i in $(seq 50); do (sleep 0.01 &); done; for s in TERM INT HUP QUIT KILL USR1; do kill -$s 1; done; \
        echo $(cat /proc/1/comm); touch /dev/shm/sent; sleep 600";
    let id = rig.start(&sandbox.id, rig.script("c", script)).await;
    let pid = rig.status(&id).await.pid;
    let sent = format!("/proc/{pid}/root/dev/shm/sent");
    until("the signals", || fs::metadata(&sent).is_ok()).await;
    until("the end of the orphans", || {
        let children = format!("/proc/{0}/task/{0}/children", sandbox.pid);
        fs::read_to_string(children).unwrap().is_empty() && zombies_of(pid) == 0
    })
    .await;
    let now = rig.runtime().list_pod_sandboxes().await.unwrap();
    assert_eq!(now, std::slice::from_ref(&sandbox));
    // A container that ends takes only its own processes along.
    let (_, seen) = rig
        .output(&sandbox.id, rig.script("other", "ps | grep -c 'sleep 600'"))
        .await;
    assert_ne!(seen, "0");
    assert_eq!(rig.status(&id).await.pid, pid);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_pod_has_the_nodes_processes_and_ipc_when_it_asks_for_them() {
    let rig = Rig::new("hostns").await;
    let mut config = rig.sandbox_config();
    (config.pid, config.ipc) = (NamespaceMode::Node, NamespaceMode::Node);
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap();
    let name = format!("{}-canary", rig.name);
    let script = format!(
        "echo inside > /dev/shm/{name}; test -d /proc/{} && echo sees; sleep 600",
        std::process::id()
    );
    let id = rig.start(&sandbox.id, rig.script("c", &script)).await;
    let pid = rig.status(&id).await.pid;
    let own = std::process::id().cast_signed();
    for (kind, shared) in [
        ("pid", true),
        ("ipc", true),
        ("net", false),
        ("uts", false),
        ("mnt", false),
    ] {
        assert_eq!(
            namespace(pid, kind) == namespace(own, kind),
            shared,
            "{kind}"
        );
    }
    let canary = std::path::Path::new("/dev/shm").join(&name);
    until("the file in the node's shared memory", || canary.exists()).await;
    let log = rig.path("logs/c/0.log");
    until("its word", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("sees"))
    })
    .await;
    fs::remove_file(canary).unwrap();
    // Its end is its own, though it is no PID 1.
    rig.runtime()
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_shared_memory_and_message_queues_are_the_pods_own() {
    let rig = Rig::new("ipc").await;
    let mut other = rig.sandbox_config();
    other.uid.0 = "other".into();
    other.cgroup_parent = "kubepods/podother".into();
    let (one, two) = (
        rig.sandbox().await.id,
        rig.runtime().run_pod_sandbox(other).await.unwrap().id,
    );
    let makes = rig.script("a", "echo x > /dev/shm/x; touch /dev/mqueue/q; grep -c ' /dev/mqueue .* mqueue ' /proc/self/mountinfo");
    assert_eq!(rig.output(&one, makes).await.1, "1");
    let sees = "ls /dev/shm /dev/mqueue | grep -c -x -e x -e q";
    assert_eq!(rig.output(&one, rig.script("b", sees)).await.1, "2");
    assert_eq!(rig.output(&two, rig.script("c", sees)).await.1, "0");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_the_host_name_is_the_pods_and_a_long_one_is_refused() {
    let rig = Rig::new("names").await;
    for hostname in ["short", &format!("{}.sub.ns.svc", "x".repeat(51))] {
        let mut config = rig.sandbox_config();
        config.hostname = hostname.into();
        config.sysctls = [("kernel.domainname".to_owned(), "example.org".to_owned())].into();
        let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap();
        let script = "hostname; cat /etc/hostname /proc/sys/kernel/hostname /proc/sys/kernel/domainname; echo $HOSTNAME";
        let (_, text) = rig.output(&sandbox.id, rig.script("c", script)).await;
        assert_eq!(
            text,
            format!("{hostname}\n{hostname}\n{hostname}\nexample.org\n{hostname}")
        );
        rig.runtime().remove_pod_sandbox(&sandbox.id).await.unwrap();
    }
    let mut config = rig.sandbox_config();
    config.hostname = "x".repeat(65);
    let error = rig.runtime().run_pod_sandbox(config).await.unwrap_err();
    assert!(error.to_string().contains("longer than 64"), "{error}");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_sysctls_are_the_pods_and_never_the_nodes() {
    let rig = Rig::new("sysctls").await;
    let read =
        |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap();
    let wanted = [
        ("kernel.shm_rmid_forced", "1"),
        ("kernel.msgmax", "9000"),
        ("fs.mqueue.msg_max", "12"),
        ("net.ipv4.ip_local_port_range", "40000\t40100"),
        ("net.ipv4.ping_group_range", "0\t1000"),
    ];
    let before: Vec<String> = wanted.iter().map(|(name, _)| read(name)).collect();
    let mut config = rig.sandbox_config();
    config.sysctls = wanted
        .map(|(name, value)| (name.to_owned(), value.replace('\t', " ")))
        .into();
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap();
    let files = wanted
        .map(|(name, _)| format!("/proc/sys/{}", name.replace('.', "/")))
        .join(" ");
    let (_, text) = rig
        .output(&sandbox.id, rig.script("c", &format!("cat {files}")))
        .await;
    assert_eq!(text, wanted.map(|(_, value)| value).join("\n"));
    for (network, name, value) in [
        (
            NamespaceMode::Node,
            "net.ipv4.ip_local_port_range",
            "40000 40100",
        ),
        (NamespaceMode::Pod, "vm.swappiness", "1"),
        (
            NamespaceMode::Pod,
            "net.ipv4.tcp_syncookies",
            "not a number",
        ),
        (NamespaceMode::Pod, "net.no_such.thing", "1"),
        (NamespaceMode::Pod, "net/../kernel/panic", "1"),
        (NamespaceMode::Pod, "net/ipv4/../../kernel/panic", "1"),
        (NamespaceMode::Pod, "net.../../kernel/panic", "1"),
        (
            NamespaceMode::Pod,
            "kernel.shm_rmid_forced\nkernel.panic",
            "1",
        ),
    ] {
        let mut config = rig.sandbox_config();
        config.network = network;
        config.sysctls = [(name.to_owned(), value.to_owned())].into();
        let error = rig
            .runtime()
            .run_pod_sandbox(config)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(name) || error.contains(&name.replace('.', "/")),
            "{error}"
        );
    }
    // Whatever stands in a value, one file is written.
    let panic = read("kernel.panic");
    let mut config = rig.sandbox_config();
    let value = "1 kernel.panic=77+kernel.panic=77";
    config.sysctls = [("kernel.shm_rmid_forced".to_owned(), value.to_owned())].into();
    let _ = rig.runtime().run_pod_sandbox(config).await;
    assert_eq!(read("kernel.panic"), panic);
    let after: Vec<String> = wanted.iter().map(|(name, _)| read(name)).collect();
    assert_eq!(before, after);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_groups_of_the_image_are_merged_or_left_out() {
    let rig = Rig::new("groups").await;
    let sandbox = rig.sandbox().await.id;
    // user of the image, runAsUser, runAsGroup, supplementalGroups, Strict: user, group, all groups.
    type Case = (
        &'static str,
        Option<u32>,
        Option<u32>,
        &'static [u32],
        bool,
        &'static str,
    );
    let table: [Case; 9] = [
        ("", None, None, &[], false, "0 0 0"),
        ("app", None, None, &[], false, "1000 1000 1000 2000"),
        ("app", None, None, &[5], true, "1000 1000 1000 5"),
        ("1234:2345", None, None, &[], false, "1234 2345 2345"),
        ("1234:2345", Some(77), None, &[], false, "77 0 0"),
        (
            "1234:2345",
            Some(1000),
            None,
            &[],
            false,
            "1000 1000 1000 2000",
        ),
        ("1234:2345", None, Some(9), &[5], false, "1234 9 9 5"),
        ("", Some(1000), Some(3), &[4], false, "1000 3 3 4 2000"),
        ("", Some(1000), Some(3), &[4], true, "1000 3 3 4"),
    ];
    for (image, user, group, more, strict, want) in table {
        rig.images.facts.lock().unwrap().user = image.into();
        let mut config = rig.script("c", "echo $(id -u) $(id -g) $(id -G)");
        config.security.run_as_user = user;
        config.security.run_as_group = group;
        config.security.supplemental_groups = more.to_vec();
        config.security.strict_groups = strict;
        let (_, text) = rig.output(&sandbox, config).await;
        assert_eq!(text, want, "{image:?} {user:?} {group:?} {more:?} {strict}");
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_container_that_targets_another_sees_its_processes_and_nothing_else_of_it() {
    let rig = Rig::new("target").await;
    let sandbox = rig.sandbox().await.id;
    let target = rig
        .start(&sandbox, rig.script("app", "touch /mine; sleep 600"))
        .await;
    let mut config = rig.script(
        "debug",
        "cat /proc/1/comm; ls /mine 2>&1; readlink /proc/self/ns/pid",
    );
    config.security.pid = Some(NamespaceMode::Target(target.clone()));
    let (_, text) = rig.output(&sandbox, config).await;
    let pid = rig.status(&target).await.pid;
    let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(["sh", "sleep", "busybox"].contains(&lines[0]), "{text}");
    assert!(lines[1].contains("No such file"), "{text}");
    assert_eq!(lines[2], namespace.to_str().unwrap());
    // One of another pod, or none, is no target.
    let other = rig.runtime().run_pod_sandbox(PodSandboxConfig {
        name: "other".into(),
        uid: PodUid("other".into()),
        cgroup_parent: "kubepods/podother".into(),
        ..rig.sandbox_config()
    });
    let other = other.await.unwrap().id;
    let ended = rig.start(&sandbox, rig.script("over", "true")).await;
    rig.wait(&ended, ContainerState::Exited).await;
    let not_there = "does not exist: not found";
    for (sandbox, id, why) in [
        (&other, target, not_there),
        (&sandbox, ContainerId("none".into()), not_there),
        (
            &sandbox,
            ended,
            "is not running - in state CONTAINER_EXITED",
        ),
    ] {
        let mut config = rig.script("stranger", "true");
        config.security.pid = Some(NamespaceMode::Target(id.clone()));
        let made = rig.runtime().create_container(sandbox, config).await;
        let want = format!("invalid target container: container \"{id}\" {why}");
        assert!(matches!(made, Err(Error::Create(told)) if told == want));
    }
    let all = rig.runtime().list_containers().await.unwrap();
    assert!(all.iter().all(|one| one.config.name != "stranger"));
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_time_is_the_nodes_and_cannot_be_set() {
    let rig = Rig::new("time").await;
    let sandbox = rig.sandbox().await.id;
    let script = "readlink /proc/self/ns/time; tr -s ' ' < /proc/self/timens_offsets; date -s 2001-01-01 2>&1 | tail -n 1; date +%s";
    let (_, text) = rig.output(&sandbox, rig.script("c", script)).await;
    let own = fs::read_link("/proc/self/ns/time").unwrap();
    assert!(text.starts_with(own.to_str().unwrap()), "{text}");
    assert!(
        text.contains("monotonic 0 0") && text.contains("boottime 0 0"),
        "{text}"
    );
    let now: u64 = text.lines().last().unwrap().parse().unwrap();
    assert!(now > 1_600_000_000, "{text}");
    rig.finish().await;
}
