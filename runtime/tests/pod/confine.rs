//! What a container sees and may do.

use std::fs;

use hanok_runtime::api::{Mount, NamespaceMode, Propagation, RuntimeService, SeccompProfile};

use crate::rig::Rig;

#[tokio::test(flavor = "multi_thread")]
async fn root_default_filter_denies_what_the_policy_denies() {
    let rig = Rig::new("seccomp").await;
    let sandbox = rig.sandbox().await.id;
    let script =
        "unshare -U true 2>&1; mount -t tmpfs x /tmp 2>&1; grep -i '^seccomp:' /proc/self/status";
    let (_, text) = rig.output(&sandbox, rig.script("c", script)).await;
    assert!(
        text.contains("unshare(0x10000000): Operation not permitted"),
        "{text}"
    );
    assert!(text.contains("mount: permission denied"), "{text}");
    assert!(text.contains("Seccomp:\t2"), "{text}");

    let mut config = rig.script(
        "u",
        "unshare -U true; grep -i '^seccomp:' /proc/self/status",
    );
    config.security.seccomp = SeccompProfile::Unconfined;
    let (_, text) = rig.output(&sandbox, config).await;
    assert_eq!(text, "Seccomp:\t0");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_profile_of_a_file_is_loaded_and_a_missing_one_is_an_error() {
    let rig = Rig::new("localhost").await;
    let sandbox = rig.sandbox().await.id;
    let profile = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
        {"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":28}]}"#;
    fs::write(rig.path("seccomp/p.json"), profile).unwrap();
    let mut config = rig.script("c", "mkdir /tmp/x 2>&1");
    config.security.seccomp = SeccompProfile::Localhost(rig.path("seccomp/p.json"));
    let (code, text) = rig.output(&sandbox, config.clone()).await;
    assert_eq!(code, 1);
    assert!(text.contains("No space left on device"), "{text}");
    config.security.seccomp = SeccompProfile::Localhost("missing.json".into());
    let error = rig
        .runtime()
        .create_container(&sandbox, config)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("missing.json"), "{error}");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_container_is_confined() {
    let rig = Rig::new("confine").await;
    let sandbox = rig.sandbox().await;
    let script = "
        grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status
        wc -c < /proc/kcore; ls /sys/firmware | wc -l
        echo x 2>&1 > /proc/sysrq-trigger
        mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk 2>&1 | head -c 100
        touch /sys/fs/cgroup/x 2>&1
        echo $HOSTNAME; hostname; cat /etc/hostname
        echo $$; ls /proc | grep -c '^[0-9]'";
    let (_, text) = rig.output(&sandbox.id, rig.script("c", script)).await;
    let held = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
    };
    assert_eq!((held("CapInh"), held("CapAmb")), (0, 0), "{text}");
    assert_eq!(
        (held("CapBnd"), held("CapEff"), held("CapPrm")),
        (0xa804_25fb, 0xa804_25fb, 0xa804_25fb)
    );
    assert!(
        text.contains("Operation not permitted"),
        "the disk opened: {text}"
    );
    assert!(text.matches("Read-only file system").count() >= 1, "{text}");
    assert_eq!(text.matches("pod-host").count(), 3, "{text}");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pod_shares_network_ipc_and_shm_and_nothing_else() {
    let rig = Rig::new("share").await;
    let sandbox = rig.sandbox().await;
    let one = rig
        .start(
            &sandbox.id,
            rig.script("a", "echo one > /dev/shm/x; sleep 600"),
        )
        .await;
    let two = rig.script("b", "until cat /dev/shm/x 2>/dev/null; do sleep 0.02; done; grep ' /dev/shm ' /proc/self/mountinfo; sleep 600");
    let two = rig.start(&sandbox.id, two).await;
    let (one, two) = (rig.status(&one).await.pid, rig.status(&two).await.pid);
    let same = |kind: &str| {
        let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert_ne!(of(one), ours, "{kind} is the node's");
        of(one) == of(two)
    };
    for (kind, shared) in [
        ("net", true),
        ("ipc", true),
        ("uts", true),
        ("pid", false),
        ("mnt", false),
        ("cgroup", false),
    ] {
        assert_eq!(same(kind), shared, "{kind}");
    }
    let log = rig.path("logs/b/0.log");
    let seen = || fs::read_to_string(&log).unwrap_or_default();
    for _ in 0..1000 {
        if seen().contains("mountinfo") || seen().contains("/dev/shm") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(seen().contains("F one"), "{}", seen());
    assert!(
        seen().contains("65536k") || seen().contains("size="),
        "{}",
        seen()
    );
    let cgroup = fs::read_to_string(format!("/proc/{one}/cgroup")).unwrap();
    assert!(
        cgroup
            .lines()
            .filter(|line| line.contains("kubepods/poduid"))
            .count()
            >= 1,
        "{cgroup}"
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_shared_pid_namespace_has_pause_as_its_init() {
    let rig = Rig::new("sharepid").await;
    let mut config = rig.sandbox_config();
    config.pid = NamespaceMode::Pod;
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap();
    let (_, text) = rig
        .output(&sandbox.id, rig.script("c", "cat /proc/1/comm; echo $$"))
        .await;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("pause"), "{text}");
    assert_ne!(lines[1], "1");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_process_runs_as_whom_and_where_it_is_told() {
    let rig = Rig::new("whom").await;
    {
        let mut facts = rig.images.facts.lock().unwrap();
        facts.user = "app".into();
        facts.env = vec!["FROM=image".into()];
        facts.working_dir = "/tmp".into();
    }
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "id -u; id -g; id -G; pwd; echo $FROM $PATH; echo $POD");
    config.envs = vec![("POD".into(), "yes".into())];
    let (_, text) = rig.output(&sandbox, config.clone()).await;
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(
        text,
        format!("1000\n1000\n1000 2000\n/tmp\nimage {path}\nyes")
    );
    config.security.run_as_user = Some(5);
    config.security.run_as_group = Some(6);
    config.security.supplemental_groups = vec![7];
    config.working_dir = "/etc".into();
    let (_, text) = rig.output(&sandbox, config).await;
    assert!(text.starts_with("5\n6\n6 7\n/etc\n"), "{text}");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_volumes_and_a_read_only_root_are_as_asked() {
    let rig = Rig::new("volumes").await;
    rig.images.facts.lock().unwrap().volumes = vec!["/data".into()];
    fs::create_dir(rig.path("shared")).unwrap();
    fs::write(rig.path("file"), "content\n").unwrap();
    let sandbox = rig.sandbox().await.id;
    let mount = |path: &str, host: &str, readonly| Mount {
        container_path: path.into(),
        host_path: rig.path(host),
        sub_path: String::new(),
        readonly,
        recursive_readonly: false,
        propagation: Propagation::Private,
        selinux_relabel: false,
    };
    let script = "touch /data/a && echo data; touch /shared/b && echo shared; touch /ro/c 2>&1;
        cat /etc/one; touch /x 2>&1; touch /dev/shm/y && echo shm";
    let mut config = rig.script("c", script);
    config.security.readonly_rootfs = true;
    config.mounts = vec![
        mount("/shared", "shared", false),
        mount("/ro", "made/by/us", true),
        mount("/etc/one", "file", true),
    ];
    let (_, text) = rig.output(&sandbox, config).await;
    for expected in ["data", "shared", "content", "shm"] {
        assert!(
            text.lines().any(|line| line == expected),
            "{expected}: {text}"
        );
    }
    assert_eq!(text.matches("Read-only file system").count(), 2, "{text}");
    assert!(rig.path("shared/b").exists());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_privileged_container_has_the_nodes_devices_and_capabilities() {
    let rig = Rig::new("privileged").await;
    let sandbox = rig.sandbox().await.id;
    let script = "mount -t tmpfs x /tmp && echo mounted; test -c /dev/kmsg && echo kmsg; grep CapEff /proc/self/status";
    let mut config = rig.script("c", script);
    config.security.privileged = true;
    let (_, text) = rig.output(&sandbox, config).await;
    assert!(text.contains("mounted") && text.contains("kmsg"), "{text}");
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find(|line| line.starts_with("CapEff")).unwrap();
    assert!(text.contains(own), "{text}");
    rig.finish().await;
}
