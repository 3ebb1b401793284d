//! Pods with users of their own.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use hanok_runtime::api::{
    ContainerState, Error, Mount, NamespaceMode, PodSandbox, Propagation, RuntimeService,
    UserNamespace,
};

use crate::fakes::Fault;
use crate::mounts::{HostMount, run, volume};
use crate::rig::Rig;

const USERS: UserNamespace = UserNamespace {
    host_id: 0x6000_0000,
    length: 65_536,
};

async fn sandbox(rig: &Rig) -> PodSandbox {
    let mut config = rig.sandbox_config();
    config.user_namespace = Some(USERS);
    config.sysctls = [(
        "net.ipv4.ip_unprivileged_port_start".to_owned(),
        "80".to_owned(),
    )]
    .into();
    rig.runtime().run_pod_sandbox(config).await.unwrap()
}

fn uid_of(pid: i32) -> u32 {
    fs::metadata(format!("/proc/{pid}/stat")).unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let uid = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap();
    uid.split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pod_has_users_of_its_own_and_a_new_agent_adopts_it() {
    let mut rig = Rig::new("users").await;
    rig.runtime().user_namespaces().await.unwrap();
    rig.images.facts.lock().unwrap().volumes = vec!["/data".into()];
    fs::create_dir(rig.path("layer/data")).unwrap();
    chown(rig.path("layer/data"), Some(1000), Some(2000)).unwrap();
    fs::create_dir(rig.path("shared")).unwrap();
    let sandbox = sandbox(&rig).await;
    let script = "id -u; stat -c %u:%g / /data /shared /dev/shm; touch /data/x /shared/x /dev/shm/x; \
        cat /proc/sys/net/ipv4/ip_unprivileged_port_start /etc/hostname; cat /sys/class/net/lo/operstate; sleep 600";
    let mut config = rig.script("c", script);
    config.mounts = vec![Mount {
        container_path: "/shared".into(),
        host_path: rig.path("shared"),
        sub_path: String::new(),
        readonly: false,
        recursive_readonly: false,
        propagation: Propagation::Private,
        selinux_relabel: false,
    }];
    let id = rig.start(&sandbox.id, config).await;
    let pid = rig.status(&id).await.pid;
    assert_eq!(uid_of(pid), USERS.host_id);
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = format!("{}/kubepods/poduid/{}", rig.name, id.as_str());
    assert!(
        cgroups.lines().any(|line| line.ends_with(&own)),
        "{cgroups}"
    );
    assert_eq!(uid_of(sandbox.pid), USERS.host_id + 65_535);
    let log = rig.path("logs/c/0.log");
    let mut text = String::new();
    for _ in 0..1000 {
        text = fs::read_to_string(&log).unwrap_or_default();
        if text.lines().count() >= 8 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(
        lines,
        [
            "0",
            "0:0",
            "1000:2000",
            "0:0",
            "0:0",
            "80",
            "pod-host",
            "unknown"
        ]
    );
    let file = fs::metadata(rig.path("shared/x")).unwrap();
    assert_eq!((file.uid(), file.gid()), (0, 0));

    rig.close();
    rig.open().await;
    let adopted = rig.runtime().list_pod_sandboxes().await.unwrap();
    assert_eq!(adopted, std::slice::from_ref(&sandbox));
    assert_eq!(adopted[0].config.user_namespace, Some(USERS));
    let (_, text) = rig
        .output(
            &sandbox.id,
            rig.script("later", "id -u; cat /dev/shm/x && echo shm"),
        )
        .await;
    assert_eq!(text, "0\nshm");
    rig.runtime()
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(rig.wait(&id, ContainerState::Exited).await.exit_code, 137);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failed_network_of_a_pod_with_users_leaves_nothing() {
    let rig = Rig::new("usersfail").await;
    *rig.fault.lock().unwrap() = Fault::Add;
    let mut config = rig.sandbox_config();
    config.user_namespace = Some(USERS);
    let error = rig.runtime().run_pod_sandbox(config).await.unwrap_err();
    assert!(matches!(error, Error::Network { .. }), "{error}");
    rig.assert_nothing_left().await;
    *rig.fault.lock().unwrap() = Fault::None;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_namespaces_of_the_node_do_not_go_with_users_of_the_pod() {
    let rig = Rig::new("usersnode").await;
    for (network, pid, ipc) in [
        (
            NamespaceMode::Node,
            NamespaceMode::Container,
            NamespaceMode::Pod,
        ),
        (NamespaceMode::Pod, NamespaceMode::Node, NamespaceMode::Pod),
        (
            NamespaceMode::Pod,
            NamespaceMode::Container,
            NamespaceMode::Node,
        ),
    ] {
        let mut config = rig.sandbox_config();
        config.user_namespace = Some(USERS);
        (config.network, config.pid, config.ipc) = (network, pid, ipc);
        let error = rig.runtime().run_pod_sandbox(config).await.unwrap_err();
        assert!(
            error.to_string().contains("cannot have the node's"),
            "{error}"
        );
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_unmasked_proc_shows_all_and_still_changes_nothing_of_the_node() {
    let rig = Rig::new("unmasked").await;
    let sandbox = sandbox(&rig).await.id;
    let script = "grep -c ' /proc/' /proc/self/mountinfo; echo 81 > /proc/sys/net/ipv4/ip_unprivileged_port_start && echo set; \
        echo 1 > /proc/sys/vm/drop_caches; echo h > /proc/sysrq-trigger; echo done";
    let mut config = rig.script("c", script);
    config.security.proc_unmasked = true;
    config.security.add_capabilities = vec!["NET_ADMIN".into()];
    let (_, text) = rig.output(&sandbox, config).await;
    assert!(text.starts_with("0\nset\n"), "{text}");
    assert!(text.contains("done"), "{text}");
    let (_, text) = rig
        .output(
            &sandbox,
            rig.script("masked", "grep -c ' /proc/' /proc/self/mountinfo"),
        )
        .await;
    assert_ne!(text, "0");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_privileged_container_of_a_pod_with_users_has_no_rights_over_the_node() {
    let rig = Rig::new("usersroot").await;
    let sandbox = sandbox(&rig).await.id;
    fs::write(rig.path("canary"), "canary").unwrap();
    let script = "grep CapEff /proc/self/status; mount -t tmpfs x /tmp && echo mounted; mknod /tmp/d b 254 0; \
        head -c 4 /dev/vda; echo x > /proc/sys/kernel/core_pattern; cat /proc/1/root/etc/passwd | head -c 4; echo; echo done";
    let mut config = rig.script("c", script);
    config.security.privileged = true;
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let (_, text) = rig.output(&sandbox, config).await;
    assert!(text.contains("mounted"), "{text}");
    assert!(text.contains("done"), "{text}");
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(),
        before
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_volumes_of_a_pod_with_users_do_what_those_of_others_do() {
    let rig = Rig::new("uservolumes").await;
    let sandbox = sandbox(&rig).await.id;
    let host = HostMount::new(rig.path("v"), "--make-shared");
    for path in ["part/deep", "later"] {
        fs::create_dir_all(rig.path("v").join(path)).unwrap();
    }
    fs::write(rig.path("v/part/deep/file"), "deep\n").unwrap();
    let below = HostMount::new(rig.path("v/part/below"), "--make-private");
    let script = "cat /part/deep/file; touch /part/below/x 2>&1 | grep -o Read-only; touch /v/x && stat -c %u /v/x; \
        until grep -q ' /v/later ' /proc/self/mountinfo; do sleep 0.02; done; echo received; sleep 600";
    let mut config = rig.script("c", script);
    config.mounts = vec![
        Mount {
            propagation: Propagation::HostToContainer,
            ..volume(&rig, "/v", "v")
        },
        Mount {
            sub_path: "part".into(),
            readonly: true,
            recursive_readonly: true,
            ..volume(&rig, "/part", "v")
        },
    ];
    let id = rig.start(&sandbox, config.clone()).await;
    let pid = rig.status(&id).await.pid;
    let later = rig.path("v/later");
    run(&[
        "mount",
        "-t",
        "tmpfs",
        "hanok-test",
        later.to_str().unwrap(),
    ]);
    let log = rig.path("logs/c/0.log");
    let mut lines = Vec::new();
    for _ in 0..2000 {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        lines = words.map(str::to_owned).collect();
        if lines.len() == 4 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(lines, ["deep", "Read-only", "0", "received"]);
    assert_eq!(uid_of(pid), USERS.host_id);
    assert_eq!(fs::metadata(rig.path("v/x")).unwrap().uid(), 0);
    // Nothing that it mounts may show on the node.
    config.mounts[0].propagation = Propagation::Bidirectional;
    config.name = "both".into();
    let both = rig
        .runtime()
        .create_container(&sandbox, config)
        .await
        .unwrap();
    let error = rig.runtime().start_container(&both).await.unwrap_err();
    assert!(
        error.to_string().contains("cannot propagate to the node"),
        "{error}"
    );
    rig.runtime()
        .stop_container(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    drop((below, host));
    rig.finish().await;
}
