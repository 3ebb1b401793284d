//! Pods with users of their own: what they are inside, what they are to the node, and what they cannot reach.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use hanok_shim::protocol::*;

use crate::rig::{Pod, bind, copy_program, is_running, mount, process, programs, unique, wait_for};

const FIRST: u32 = 0x7000_0000;
const IDMAP: u64 = 0x10_0000;

/// A pod with users of its own, and its pinned network namespace, which goes with it.
struct Users {
    pod: Pod,
    netns: PathBuf,
    pause: i32,
}

impl Users {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut SandboxSpec)) -> Self {
        let pod = Pod::new();
        let netns = PathBuf::from("/run/netns").join(unique("users"));
        pod.ok(&Request::MakeUserNamespace(UserNamespace {
            host_id: FIRST,
            length: 65_536,
            netns: netns.to_str().unwrap().into(),
        }));
        let mut sandbox = pod.sandbox();
        sandbox.net = Namespace::Path(netns.to_str().unwrap().into());
        change(&mut sandbox);
        let pause = pod.start_sandbox(&sandbox);
        Self { pod, netns, pause }
    }

    fn spec(&self, id: &str, script: &str) -> ContainerSpec {
        self.pod.spec(id, &["sh", "-c", script])
    }

    fn sh(&self, id: &str, script: &str) -> (Exit, String) {
        self.pod.output(&self.spec(id, script))
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.netns, rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::remove_file(&self.netns).unwrap();
    }
}

fn namespace(pid: i32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

fn owner_of(pid: i32) -> u32 {
    fs::metadata(format!("/proc/{pid}/stat")).map_or(0, |_| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .unwrap();
        uid.split_whitespace().next().unwrap().parse().unwrap()
    })
}

#[test]
fn root_is_root_inside_and_nobody_to_the_node() {
    let users = Users::new();
    let script = "id -u; cat /proc/self/uid_map | tr -s ' '; grep CapEff /proc/self/status; \
        stat -c '%u:%g' / /bin /proc /sys /dev /dev/null /dev/pts /dev/shm /dev/mqueue /sys/fs/cgroup; \
        touch /new /tmp/new /dev/new && stat -c %u:%g /new; echo x > /dev/null; head -c 1 /dev/zero | wc -c; sleep 1000";
    let pid = users.pod.run(&users.spec("c1", script));
    let log = wait_for("the output", || {
        let text = users.pod.log_text("c1");
        text.ends_with("\n1\n").then_some(text)
    });
    // Roots of procfs and sysfs are nobody's in every user namespace.
    let mut owners = "0:0\n0:0\n65534:65534\n65534:65534\n".to_owned() + &"0:0\n".repeat(5);
    // v2's cgroups are the node's; around v1's there is a directory of the container's own.
    let v2 = fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap();
    owners += if v2 { "65534:65534\n" } else { "0:0\n" };
    owners += "0:0\n";
    let want = format!("0\n 0 {FIRST} 65536\nCapEff:\t00000000a80425fb\n{owners}1\n");
    assert_eq!(log, want);
    assert_eq!(owner_of(pid), FIRST);
    assert_eq!(owner_of(users.pause), FIRST + 65_535);
    // On disk a file is what it is in the container.
    let file = fs::metadata(users.pod.path("c1/upper/new")).unwrap();
    assert_eq!((file.uid(), file.gid()), (0, 0));
    for kind in ["user", "net", "ipc", "uts", "pid", "mnt", "cgroup"] {
        assert_ne!(
            namespace(pid, kind),
            namespace(users.pod.shim_pid, kind),
            "{kind}"
        );
    }
    for kind in ["user", "net", "ipc", "uts"] {
        assert_eq!(namespace(pid, kind), namespace(users.pause, kind), "{kind}");
    }
}

#[test]
fn root_a_joining_process_is_closed_to_the_pods_root_with_every_capability() {
    let users = Users::new();
    let script = "while :; do for p in /proc/[0-9]*; do \
        [ $p = /proc/1 ] || case $(readlink $p/exe 2>/dev/null) in *hanok*) echo caught $p;; esac; done; done";
    let mut attacker = users.spec("c1", script);
    let all = u64::MAX >> 23;
    attacker.process.capabilities = Capabilities {
        bounding: all,
        effective: all,
        permitted: all,
        ..Capabilities::default()
    };
    users.pod.run(&attacker);
    for n in 0..150 {
        let exec = ExecSpec {
            container: "c1".into(),
            exec: format!("e{n}"),
            process: process(&["true"]),
            inherit: true,
            stdin: false,
            stdout: false,
            stderr: false,
            tty: false,
        };
        let mut client = users.pod.client();
        let reply = client.call(&Request::Exec(Box::new(exec))).unwrap();
        assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
        client.reply().unwrap();
    }
    assert_eq!(users.pod.log_text("c1"), "");
}

#[test]
fn root_files_of_layers_and_volumes_keep_their_owners_and_bits() {
    let users = Users::new();
    let layer = users.pod.path("layer");
    fs::write(layer.join("etc/owned"), "").unwrap();
    chown(layer.join("etc/owned"), Some(1000), Some(50)).unwrap();
    // Not busybox: that gives up what it gets by the bit.
    copy_program(&programs().join("hanok-pause"), &layer.join("bin/suid"));
    fs::set_permissions(layer.join("bin/suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    let volume = users.pod.path("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("of-app"), "").unwrap();
    chown(volume.join("of-app"), Some(1000), Some(1001)).unwrap();
    fs::write(volume.join("of-nobody"), "").unwrap();
    chown(volume.join("of-nobody"), Some(100_000), Some(100_000)).unwrap();
    let script = "stat -c %u:%g /etc/owned /vol/of-app /vol/of-nobody; touch /vol/new /etc/owned; stat -c %u:%g /vol/new; \
        suid & until grep -q pause /proc/$!/comm; do sleep 0.01; done; grep Uid /proc/$!/status | tr -s '\\t' ' '; kill $!";
    let mut spec = users.spec("c1", script);
    spec.process.user.spec = "app".into();
    chown(&volume, Some(1000), None).unwrap();
    spec.mounts.push(mount("/vol", bind(&volume), IDMAP));
    let (exit, output) = users.pod.output(&spec);
    assert_eq!(
        output,
        "1000:50\n1000:1001\n65534:65534\n1000:1001\nUid: 1000 0 0 0\n"
    );
    assert_eq!(exit.code, 0);
    let new = fs::metadata(volume.join("new")).unwrap();
    assert_eq!((new.uid(), new.gid()), (1000, 1001));
}

#[test]
fn root_what_root_does_in_its_namespaces_reaches_nothing_of_the_node() {
    let users = Users::new();
    let canary = users.pod.path("canary");
    fs::write(&canary, "untouched").unwrap();
    fs::set_permissions(&canary, fs::Permissions::from_mode(0o600)).unwrap();
    // Not id-mapped, as a mistake would have it: root of the pod is nobody there.
    let script = "exec 2>&1; cat /canary; echo x > /canary; chown 0:0 /canary; chmod 777 /canary; \
        mknod /tmp/disk b 254 0; mount -t tmpfs x /mnt && echo mounted; hostname inside && hostname; \
        echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; kill -9 $NODE; \
        mount -o remount,rw /sys; echo 1 > /sys/kernel/mm/ksm/run; echo 0 > /proc/sys/kernel/printk; dmesg | head -c 1; \
        mkdir /sys/fs/cgroup/memory/x; echo done";
    let mut spec = users.spec("c1", script);
    fs::create_dir(users.pod.path("layer/mnt")).unwrap();
    spec.mounts.push(mount("/canary", bind(&canary), 0));
    let all = u64::MAX >> (64 - 41);
    let sets = &mut spec.process.capabilities;
    (sets.bounding, sets.effective, sets.permitted) = (all, all, all);
    spec.process
        .env
        .push(format!("NODE={}", users.pod.shim_pid));
    spec.readonly_paths.clear();
    spec.masked_paths.clear();
    let before = fs::read_to_string("/proc/sys/kernel/printk").unwrap();
    let (_, output) = users.pod.output(&spec);
    assert!(output.contains("mounted\ninside\n"), "{output}");
    assert!(output.ends_with("done\n"), "{output}");
    for refused in [
        "/canary: Permission denied",
        "/canary: Operation not permitted",
        "/tmp/disk: Operation not permitted",
    ] {
        assert!(output.contains(refused), "{refused}: {output}");
    }
    assert_eq!(fs::read_to_string(&canary).unwrap(), "untouched");
    let stat = fs::metadata(&canary).unwrap();
    assert_eq!((stat.uid(), stat.mode() & 0o777), (0, 0o600));
    assert!(is_running(users.pod.shim_pid));
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/printk").unwrap(),
        before
    );
}

#[test]
fn root_devices_of_the_pod_work_and_a_node_that_is_made_does_not() {
    let users = Users::new();
    let script = "exec 2>&1; stat -c '%n %u:%g %t:%T %a' /dev/deep/er/zero; head -c 2 /dev/deep/er/zero | wc -c; \
        mknod /dev/mine c 1 5; ls /dev/mine 2>&1 | wc -l";
    let mut spec = users.spec("c1", script);
    spec.devices.push(Device {
        path: "/dev/deep/er/zero".into(),
        mode: 0o020_640,
        major: 1,
        minor: 5,
        uid: 4,
        gid: 5,
    });
    let (_, output) = users.pod.output(&spec);
    assert_eq!(
        output,
        "/dev/deep/er/zero 4:5 1:5 640\n2\nmknod: /dev/mine: Operation not permitted\n1\n"
    );
}

#[test]
fn root_an_exec_and_a_terminal_are_in_the_pods_users_too() {
    let users = Users::new();
    let mut spec = users.spec("c1", "sleep 1000");
    spec.process.user.spec = "app".into();
    users.pod.run(&spec);
    let look = "id -u; id -G; stat -c %u / /etc; cat /proc/self/uid_map | tr -s ' '; echo e > /dev/stderr; tty";
    for tty in [false, true] {
        let mut client = users.pod.client();
        let (reader, writer) = std::io::pipe().unwrap();
        let request = Request::Exec(Box::new(ExecSpec {
            container: "c1".into(),
            exec: format!("e{tty}"),
            process: crate::rig::process(&["sh", "-c", look]),
            inherit: true,
            stdin: false,
            stdout: true,
            stderr: false,
            tty,
        }));
        let reply = client
            .call_with_fds(&request, &[std::os::fd::AsFd::as_fd(&writer)])
            .unwrap();
        assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
        drop(writer);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut { reader }, &mut text).unwrap();
        let text = text.replace('\r', "");
        assert!(
            text.starts_with(&format!("1000\n1001 50\n0\n0\n 0 {FIRST} 65536\n")),
            "{text}"
        );
        assert_eq!(text.contains("/dev/pts/0"), tty, "{text}");
    }
}

#[test]
fn root_a_shared_pid_namespace_belongs_to_the_pods_users() {
    let users = Users::with(|sandbox| sandbox.pid = Namespace::New);
    let mut other = users.spec("c0", "sleep 1000");
    other.namespaces.pid = Namespace::Pod;
    let other = users.pod.run(&other);
    let mut spec = users.spec(
        "c1",
        "cat /proc/1/comm; stat -c %u /proc/1 /proc/2 /proc/self; ls -l /proc/1/exe 2>&1 | wc -l",
    );
    spec.namespaces.pid = Namespace::Pod;
    let (_, output) = users.pod.output(&spec);
    assert!(output.starts_with("pause\n"), "{output}");
    assert_eq!(namespace(other, "pid"), namespace(users.pause, "pid"));
}

#[test]
fn root_sysctls_of_the_pod_are_set_and_the_nodes_stay() {
    let before = fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    let users = Users::with(|sandbox| {
        sandbox.sysctls = [
            ("kernel.shm_rmid_forced", "1"),
            ("net.ipv4.ip_unprivileged_port_start", "80"),
            ("fs.mqueue.msg_max", "17"),
            ("user.max_inotify_watches", "1234"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    });
    let script = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/fs/mqueue/msg_max /proc/sys/user/max_inotify_watches";
    assert_eq!(users.sh("c1", script).1, "1\n80\n17\n1234\n");
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap(),
        before
    );
    let watches = fs::read_to_string("/proc/sys/user/max_inotify_watches").unwrap();
    assert_ne!(watches, "1234\n");
}

#[test]
fn root_what_cannot_be_is_refused_with_its_reason_and_leaves_nothing() {
    let users = Users::new();
    let failure = |change: &dyn Fn(&mut ContainerSpec)| {
        let mut spec = users.spec("bad", "true");
        change(&mut spec);
        match users.pod.start(&spec) {
            Reply::Failed { message, .. } => message,
            other => panic!("{other:?}"),
        }
    };
    let volume = |path: &str, propagation| Mount {
        propagation,
        ..mount("/v", bind(path.as_ref()), IDMAP)
    };
    let sys = failure(&|spec| spec.mounts.push(volume("/sys", 0)));
    assert!(
        sys.contains("the filesystem of /sys has no id-mapped mounts"),
        "{sys}"
    );
    let shared = failure(&|spec| spec.mounts.push(volume("/tmp", 1 << 20)));
    assert!(shared.contains("cannot propagate to the node"), "{shared}");
    let host = failure(&|spec| spec.namespaces.pid = Namespace::Host);
    assert!(host.contains("cannot have the node's processes"), "{host}");
    let unmapped = failure(&|spec| spec.process.user.spec = "70000".into());
    assert!(unmapped.contains("70000"), "{unmapped}");
    let missing = failure(&|spec| spec.process.args = vec!["no-such".into()]);
    assert!(missing.contains("no-such"), "{missing}");
    // The pod is as good as before.
    assert_eq!(users.sh("good", "echo good").1, "good\n");
    let second = users.pod.call(&Request::MakeUserNamespace(UserNamespace {
        host_id: FIRST,
        length: 65_536,
        netns: String::new(),
    }));
    assert!(
        matches!(
            second,
            Reply::Failed {
                kind: FailureKind::Exists,
                ..
            }
        ),
        "{second:?}"
    );
}

#[test]
fn root_a_copy_of_what_belongs_to_nobody_of_the_pod_is_nobodys() {
    let users = Users::new();
    let data = users.pod.path("layer/data");
    fs::create_dir(&data).unwrap();
    for (name, owner) in [("own", 7), ("foreign", 70_000)] {
        let file = data.join(name);
        fs::write(&file, "").unwrap();
        chown(&file, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
    }
    let mut spec = users.spec("c1", "stat -c '%u:%g %a' /data/own /data/foreign");
    let options = vec![("size".to_owned(), "1m".to_owned())];
    spec.mounts
        .push(mount("/data", MountSource::CopyUp { options }, 0));
    // Its set-id bit is worth nothing: nobody of the node has that number either.
    assert_eq!(users.pod.output(&spec).1, "7:7 4755\n65534:65534 4755\n");
}

#[test]
fn root_the_containers_first_process_dies_with_its_container() {
    let users = Users::new();
    let pid = users.pod.run(&users.spec("c1", "sleep 1000 & sleep 1000"));
    users.pod.ok(&Request::Kill {
        id: "c1".into(),
        signal: 9,
        all: false,
    });
    assert_eq!(users.pod.exit("c1").signal, 9);
    wait_for("the end of its process", || {
        (!is_running(pid)).then_some(())
    });
}

#[test]
fn root_this_machine_can_have_user_namespaces_and_sysfs_cannot() {
    let check = |dir: &str| {
        let program = crate::rig::programs().join("hanok-shim");
        std::process::Command::new(program)
            .args(["check-user-namespaces", "--state-dir", dir])
            .output()
            .unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let output = check(dir.path().to_str().unwrap());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let refused = check("/no/such/directory");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("/no/such/directory"));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn root_both_ways_of_an_exec_lead_to_the_same_user_inside() {
    let users = Users::new();
    let mut spec = users.spec("c1", "sleep 1000");
    spec.process.user.spec = "1000:1000".into();
    // Over what the user namespace owns, which the zygote is not in.
    spec.process.capabilities.bounding |= 1 << 19;
    users.pod.run(&spec);
    crate::zygote::compare(&users.pod, "c1");
}
