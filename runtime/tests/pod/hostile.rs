//! Hostile images and containers, against pods as the agent makes them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hanok_runtime::api::{
    ContainerConfig, ContainerId, ContainerState, ExecRequest, NamespaceMode, Resources,
    RuntimeService, StatsDetail, UserNamespace,
};
use tokio::io::AsyncReadExt;

use crate::elf::Program;
use crate::rig::Rig;

const USERS: UserNamespace = UserNamespace {
    host_id: 0x6100_0000,
    length: 65_536,
};

/// What containerd's users know as the default set.
const DEFAULT_CAPABILITIES: &str = "00000000a80425fb";

/// What a shell script says that is run in a container beside its own process.
async fn exec(rig: &Rig, id: &ContainerId, script: &str, tty: bool) -> String {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let request = ExecRequest {
        command,
        tty,
        stdin: false,
        ..ExecRequest::default()
    };
    let mut session = rig.runtime().exec(id, request).await.unwrap();
    let mut out = String::new();
    session.stdout.read_to_string(&mut out).await.unwrap();
    session.process.wait().await.unwrap();
    out
}

async fn sandbox(rig: &Rig, users: bool) -> hanok_runtime::api::SandboxId {
    let mut config = rig.sandbox_config();
    config.user_namespace = users.then_some(USERS);
    rig.runtime().run_pod_sandbox(config).await.unwrap().id
}

/// Executable files that a process has mapped.
fn mapped(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = maps.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let executable = words.nth(1)?.contains('x');
        executable.then(|| words.nth(3).unwrap_or_default().to_owned())
    });
    lines.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn root_no_program_of_an_image_is_run_or_mapped_on_the_node() {
    let rig = Rig::new("foreign").await;
    let told = rig.path("told");
    fs::create_dir(&told).unwrap();
    // Whatever a process of the node could look for in a root filesystem: it makes a directory that only the node has.
    for name in [
        "bin/mount",
        "bin/nsenter",
        "bin/ps",
        "bin/id",
        "bin/cat",
        "bin/kill",
        "sbin/init",
        "sbin/iptables",
        "sbin/modprobe",
        "usr/bin/newuidmap",
        "usr/bin/newgidmap",
        "usr/bin/tar",
        "usr/bin/hanok-shim",
        "usr/bin/hanok-pause",
        "lib64/ld-linux-x86-64.so.2",
        "lib/x86_64-linux-gnu/libnss_files.so.2",
        "lib/x86_64-linux-gnu/libc.so.6",
        "proc/self/exe",
        ".krun_config.json",
    ] {
        let path = rig.path("layer").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        Program::tell_tale(&told.join(path.file_name().unwrap())).write(&path);
    }
    fs::write(
        rig.path("layer/etc/ld.so.preload"),
        "/lib/x86_64-linux-gnu/libnss_files.so.2\n",
    )
    .unwrap();
    fs::write(rig.path("layer/etc/nsswitch.conf"), "passwd: files\n").unwrap();
    rig.images.facts.lock().unwrap().user = "app".into();
    for users in [false, true] {
        let sandbox = sandbox(&rig, users).await;
        let id = rig
            .start(&sandbox, rig.script("c", "cat; exec sleep 600"))
            .await;
        for tty in [false, true] {
            exec(&rig, &id, "id; mount; true", tty).await;
        }
        let attached = rig.runtime().attach(&id, false).await.unwrap();
        rig.runtime().stats(None, StatsDetail::All).await.unwrap();
        let inside = rig.path("layer");
        let shims = fs::read_dir("/proc").unwrap().flatten();
        let shims = shims.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let dir = rig.dir.path().to_str().unwrap().as_bytes().to_vec();
        let shims = shims.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.windows(dir.len()).any(|part| part == dir)
        });
        let shims: Vec<u32> = shims.collect();
        assert!(!shims.is_empty());
        for pid in shims.into_iter().chain([std::process::id()]) {
            let mapped = mapped(pid);
            assert!(!mapped.is_empty(), "{pid}");
            let foreign = mapped
                .iter()
                .find(|file| Path::new(file).starts_with(&inside));
            assert_eq!(foreign, None);
        }
        drop(attached);
        rig.runtime()
            .stop_container(&id, Duration::ZERO)
            .await
            .unwrap();
        rig.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
    }
    assert_eq!(fs::read_dir(&told).unwrap().count(), 0);
    // They do tell, of those who run them here.
    let own = std::process::Command::new(rig.path("layer/bin/mount")).status();
    assert!(own.unwrap().success() && told.join("mount").exists());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_what_is_hidden_stays_hidden_after_an_exec_and_a_restart() {
    let rig = Rig::new("masks").await;
    let masked = "/proc/acpi /proc/asound /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/timer_list \
        /proc/timer_stats /proc/sched_debug /proc/scsi /sys/firmware /sys/devices/virtual/powercap \
        /sys/devices/system/cpu/cpu0/thermal_throttle";
    let script = format!(
        "for p in {masked}; do [ -e $p ] || continue; \
           if [ -d $p ]; then [ -z \"$(ls $p)\" ] || echo seen $p; touch $p/x 2>/dev/null && echo written $p; \
           else [ -z \"$(head -c 1 $p)\" ] || echo seen $p; fi; \
           umount $p 2>/dev/null && echo unmounted $p; done; \
         for p in /proc/bus /proc/fs /proc/irq /proc/sys /proc/sysrq-trigger; do \
           case $(grep \" $p \" /proc/self/mountinfo) in *' ro,'*) ;; *) [ -e $p ] && echo not read-only $p;; esac; \
           umount $p 2>/dev/null && echo unmounted $p; mount -o remount,rw $p 2>/dev/null && echo mounted $p; done; \
         for p in /proc/sysrq-trigger /proc/sys/vm/drop_caches /proc/irq/default_smp_affinity; do \
           [ -e $p ] && (echo 1 > $p) 2>/dev/null && echo written $p; done; echo end"
    );
    let hidden = "end";
    let sandbox = rig.sandbox().await.id;
    for readonly_rootfs in [false, true] {
        // The second is a restart.
        for _ in 0..2 {
            let mut config = rig.script("c", &format!("{script}; exec sleep 600"));
            config.security.readonly_rootfs = readonly_rootfs;
            let id = rig.start(&sandbox, config).await;
            assert_eq!(exec(&rig, &id, &script, false).await.trim_end(), hidden);
            let text = rig.said(&id, "F end").await;
            let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
            assert_eq!(lines.collect::<Vec<_>>().join("\n"), hidden);
            rig.runtime()
                .stop_container(&id, Duration::ZERO)
                .await
                .unwrap();
            let log = rig.status(&id).await.log_path;
            rig.runtime().remove_container(&id).await.unwrap();
            fs::remove_file(log).unwrap();
        }
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_read_only_root_cannot_be_written_or_made_writable() {
    let rig = Rig::new("readonly").await;
    // What a runtime that goes by /proc/self of the image would remount.
    fs::create_dir_all(rig.path("layer/proc/self/fd")).unwrap();
    for fd in 3..12 {
        std::os::unix::fs::symlink("/tmp", rig.path(&format!("layer/proc/self/fd/{fd}"))).unwrap();
    }
    let sandbox = rig.sandbox().await.id;
    let script = "touch /x; mkdir /y; rm /etc/passwd; chmod 777 /bin; ln -s a /z; mv /etc /e; \
        mount -o remount,rw / && touch /x; mount -o remount,rw,bind / && touch /x; dd if=/dev/null of=/etc/passwd; \
        echo x > /bin/sh; grep ' / / ' /proc/self/mountinfo | grep -c ' ro'; echo end";
    let mut config = rig.script("c", script);
    config.security.readonly_rootfs = true;
    let id = rig.start(&sandbox, config).await;
    rig.wait(&id, ContainerState::Exited).await;
    let upper = rig.path("snapshots").join(id.as_str()).join("upper");
    // Mount points apart, nothing came into the writable layer.
    let written = |name: &str| upper.join(name).symlink_metadata().is_ok();
    let log = fs::read_to_string(rig.status(&id).await.log_path).unwrap();
    assert!(log.matches("Read-only file system").count() >= 8, "{log}");
    assert!(log.contains("F 1\n") && log.contains("F end\n"), "{log}");
    for name in ["x", "y", "z", "e", "bin"] {
        assert!(!written(name), "{name}");
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_devices_are_those_of_the_list_also_with_users_and_after_an_update() {
    let rig = Rig::new("devlist").await;
    let script = "mknod /tmp/disk b 8 0; mknod /tmp/mem c 1 1; mknod /tmp/tun c 10 200; mknod /tmp/null c 1 3; \
        for d in disk mem tun; do head -c 1 /tmp/$d >/dev/null 2>&1 && echo opened $d; done; \
        head -c 1 /dev/zero | wc -c; echo x > /dev/null && echo null; head -c 1 /dev/urandom | wc -c; rm -f /tmp/*";
    let want = "1\nnull\n1";
    for users in [false, true] {
        let sandbox = sandbox(&rig, users).await;
        let mut config = rig.script("c", &format!("{script}; exec sleep 600"));
        config.security.add_capabilities = vec!["MKNOD".into(), "SYS_RAWIO".into()];
        let id = rig.start(&sandbox, config).await;
        let quiet = format!("( {script} ) 2>/dev/null");
        let run = || exec(&rig, &id, &quiet, false);
        assert_eq!(run().await.trim_end(), want, "users: {users}");
        let change = Resources {
            pids_limit: 50,
            cpu_shares: 512,
            ..Resources::default()
        };
        rig.runtime()
            .update_container_resources(&id, &change)
            .await
            .unwrap();
        assert_eq!(run().await.trim_end(), want, "users: {users}, updated");
        rig.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_capabilities_of_every_process_are_those_that_were_granted() {
    let rig = Rig::new("caps").await;
    let script = "echo $(grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status)";
    let none = "0000000000000000";
    type Change = fn(&mut ContainerConfig);
    let table: [(&str, Change, &str, &str, &str); 5] = [
        (
            "default",
            |_| {},
            DEFAULT_CAPABILITIES,
            DEFAULT_CAPABILITIES,
            "0",
        ),
        (
            "user",
            |c| c.security.run_as_user = Some(1000),
            none,
            DEFAULT_CAPABILITIES,
            "0",
        ),
        (
            "none",
            |c| c.security.drop_capabilities = vec!["ALL".into()],
            none,
            none,
            "0",
        ),
        (
            "one",
            |c| {
                c.security.drop_capabilities = vec!["ALL".into()];
                c.security.add_capabilities = vec!["NET_BIND_SERVICE".into()];
            },
            "0000000000000400",
            "0000000000000400",
            "0",
        ),
        (
            "closed",
            |c| c.security.no_new_privs = true,
            DEFAULT_CAPABILITIES,
            DEFAULT_CAPABILITIES,
            "1",
        ),
    ];
    for users in [false, true] {
        let sandbox = sandbox(&rig, users).await;
        for (name, change, effective, bounding, closed) in &table {
            let mut config = rig.script(name, &format!("{script}; exec sleep 600"));
            change(&mut config);
            let id = rig.start(&sandbox, config).await;
            let want = format!(
                "CapInh: {none} CapPrm: {effective} CapEff: {effective} CapBnd: {bounding} CapAmb: {none} \
                 NoNewPrivs: {closed} Seccomp: 2"
            );
            for tty in [false, true] {
                let text = exec(&rig, &id, script, tty).await;
                assert_eq!(text.trim_end(), want, "exec of {name}, users: {users}");
            }
            let log = rig.said(&id, "Seccomp").await;
            assert!(log.contains(&want), "{name}: {log}");
            rig.runtime().remove_container(&id).await.unwrap();
            fs::remove_dir_all(rig.path("logs").join(name)).unwrap();
        }
        rig.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_descriptors_of_every_process_are_its_streams() {
    let rig = Rig::new("fds").await;
    let mut config = rig.sandbox_config();
    config.pid = NamespaceMode::Pod;
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap().id;
    for (n, (stdin, tty)) in [(false, false), (true, false), (true, true)]
        .into_iter()
        .enumerate()
    {
        let name = format!("c{n}");
        let mut config = rig.script(&name, "exec sleep 600");
        (config.stdin, config.tty) = (stdin, tty);
        let id = rig.start(&sandbox, config).await;
        let attached = rig.runtime().attach(&id, stdin).await.unwrap();
        let streams = |pid: &str| {
            let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
            let targets = fds.map(|fd| fs::read_link(fd.unwrap().path()).unwrap());
            let targets: Vec<String> = targets.map(|to| to.to_str().unwrap().to_owned()).collect();
            assert_eq!(targets.len(), 3, "{targets:?}");
            for target in targets {
                let fine = target.starts_with("pipe:[")
                    || target.starts_with("socket:[")
                    || target == "/dev/null"
                    || target.starts_with("/dev/pts/")
                    || target == "/dev/console";
                assert!(fine, "{target}");
            }
        };
        streams(&rig.status(&id).await.pid.to_string());
        for tty in [false, true] {
            let text = exec(&rig, &id, "exec ls -l /proc/self/fd", tty).await;
            // The last is that of ls on the directory.
            let targets: Vec<&str> = text
                .lines()
                .filter_map(|line| line.split(" -> ").nth(1))
                .collect();
            let open = text
                .lines()
                .filter(|line| line.starts_with(['l', 'c']) && !line.starts_with("ls:"));
            assert!(open.count() == 4 && targets.len() >= 3, "{text}");
            assert!(
                targets.iter().all(|to| {
                    let kinds = ["pipe:[", "socket:[", "/dev/null", "/dev/pts/", "/proc/"];
                    kinds.iter().any(|kind| to.starts_with(kind))
                }),
                "{text}"
            );
            // Whatever is held by the others of the pod, pause among them, is nothing of the node.
            let all = exec(&rig, &id, "ls -l /proc/[0-9]*/fd 2>/dev/null", tty).await;
            let place = rig.dir.path().to_str().unwrap();
            assert!(!all.contains(place), "{all}");
        }
        drop(attached);
        rig.runtime().remove_container(&id).await.unwrap();
    }
    rig.finish().await;
}
