//! Isolation: what a container cannot see, write or become.

use std::fs;
use std::path::Path;

use hanok_shim::protocol::*;

use crate::rig::{DEFAULT_CAPABILITIES, NODEV, NOEXEC, NOSUID, Pod, READONLY, bind, mount};

/// `true` for every seccomp instruction list that only allows: one RET.
fn filter(instructions: &[(u16, u8, u8, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (code, jt, jf, k) in instructions {
        bytes.extend(code.to_ne_bytes());
        bytes.extend([*jt, *jf]);
        bytes.extend(k.to_ne_bytes());
    }
    bytes
}

/// Answers mkdir and mkdirat with EPERM.
fn no_mkdir() -> Vec<u8> {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    filter(&[
        (LOAD, 0, 0, 0),
        (JUMP_EQUAL, 1, 0, 83),
        (JUMP_EQUAL, 0, 1, 258),
        (RETURN, 0, 0, 0x0005_0001),
        (RETURN, 0, 0, 0x7fff_0000),
    ])
}

#[test]
fn root_masked_paths_are_empty_and_read_only_paths_cannot_be_written() {
    let pod = Pod::started();
    let script = "cat /proc/version /proc/cpuinfo | wc -c; ls /sys/kernel | wc -l; \
        for f in /proc/sys/kernel/domainname /proc/sysrq-trigger /sys/kernel/x /proc/irq/x; do \
        (echo 1 > $f) 2>&1 | grep -c -e Read-only -e nonexistent; done; \
        umount /proc/version 2>&1 | sed 's/.*: //'; echo x > /proc/version && echo taken";
    let mut spec = pod.spec("c1", &["sh", "-c", script]);
    spec.masked_paths = [
        "/proc/version",
        "/proc/cpuinfo",
        "/sys/kernel",
        "/proc/no-such",
        "/proc/version/x",
    ]
    .map(String::from)
    .to_vec();
    let (_, output) = pod.output(&spec);
    assert_eq!(output, "0\n0\n1\n1\n1\n1\nOperation not permitted\ntaken\n");
}

#[test]
fn root_a_read_only_root_stays_so_and_volumes_stay_writable() {
    let pod = Pod::started();
    let volume = pod.path("volume");
    fs::create_dir(&volume).unwrap();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "exec 2>&1; touch /x; touch /vol/x /dev/shm/y && echo written; touch /ro/y",
        ],
    );
    spec.readonly_rootfs = true;
    spec.mounts.push(mount("/vol", bind(&volume), 0));
    spec.mounts.push(mount("/ro", bind(&volume), READONLY));
    spec.process.cwd = "/made/for/it".into();
    let (_, output) = pod.output(&spec);
    assert_eq!(
        output,
        "touch: /x: Read-only file system\nwritten\ntouch: /ro/y: Read-only file system\n"
    );
    assert!(volume.join("x").exists());
}

#[test]
fn root_file_and_directory_binds_make_their_destinations() {
    let pod = Pod::started();
    fs::write(pod.path("file"), "content").unwrap();
    fs::create_dir(pod.path("directory")).unwrap();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "cat /new/place/file; stat -c %F /new/dir; cat /etc/passwd",
        ],
    );
    spec.mounts
        .push(mount("/new/place/file", bind(&pod.path("file")), READONLY));
    spec.mounts
        .push(mount("/new/dir", bind(&pod.path("directory")), 0));
    spec.mounts
        .push(mount("/etc/passwd", bind(&pod.path("file")), 0));
    assert_eq!(pod.output(&spec).1, "contentdirectory\ncontent");
}

#[test]
fn root_capabilities_are_exactly_those_granted_and_none_is_inheritable() {
    let pod = Pod::started();
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own
        .lines()
        .find_map(|l| l.strip_prefix("CapPrm:\t"))
        .unwrap();
    let own = u64::from_str_radix(own, 16).unwrap();
    let script = "grep -E '^Cap|^NoNew' /proc/self/status | tr -d '\\t'";
    let all = format!("{:016x}", own & DEFAULT_CAPABILITIES);
    let none = "0".repeat(16);
    let cases = [
        ("c1", "", all.as_str(), "CapAmb:", 0),
        ("c2", "app", none.as_str(), "CapAmb:", 1),
    ];
    for (id, user, effective, _, nnp) in cases {
        let mut spec = pod.spec(id, &["sh", "-c", script]);
        spec.process.user.spec = user.into();
        spec.process.no_new_privileges = nnp == 1;
        let want = format!(
            "CapInh:{none}\nCapPrm:{effective}\nCapEff:{effective}\nCapBnd:{all}\nCapAmb:{none}\nNoNewPrivs:{nnp}\n"
        );
        assert_eq!(pod.output(&spec).1, want);
    }
    // Ambient ones, when asked for, reach a user's program.
    let mut spec = pod.spec("c3", &["sh", "-c", script]);
    spec.process.user.spec = "app".into();
    let net_bind = 1 << 10;
    spec.process.capabilities.inheritable = net_bind;
    spec.process.capabilities.ambient = net_bind;
    assert!(pod.output(&spec).1.contains("CapEff:0000000000000400"));
}

#[test]
fn root_the_seccomp_filter_applies_with_and_without_new_privileges() {
    let pod = Pod::started();
    for (id, user, nnp) in [
        ("c1", "", false),
        ("c2", "", true),
        ("c3", "app", false),
        ("c4", "app", true),
    ] {
        let mut spec = pod.spec(
            id,
            &["sh", "-c", "grep Seccomp: /proc/self/status; mkdir /tmp/x"],
        );
        spec.process.seccomp = no_mkdir();
        spec.process.user.spec = user.into();
        spec.process.no_new_privileges = nnp;
        let (_, output) = pod.output(&spec);
        assert!(output.contains("Seccomp:\t2"), "{output}");
        assert!(output.contains("Operation not permitted"), "{output}");
    }
    let mut spec = pod.spec("c5", &["true"]);
    spec.process.seccomp = vec![1, 2, 3];
    assert!(matches!(
        pod.start(&spec),
        Reply::Failed {
            kind: FailureKind::System,
            ..
        }
    ));
}

#[test]
fn root_a_label_that_the_kernel_cannot_apply_fails_the_start() {
    let pod = Pod::started();
    let mut spec = pod.spec("c1", &["true"]);
    spec.process.apparmor = Some("hanok-no-such-profile".into());
    match pod.start(&spec) {
        Reply::Failed { message, .. } => assert!(message.contains("AppArmor"), "{message}"),
        other => panic!("{other:?}"),
    }
    let mut spec = pod.spec("c2", &["true"]);
    spec.process.selinux = Some("system_u:system_r:hanok_no_such_type_t:s0".into());
    match pod.start(&spec) {
        Reply::Failed { message, .. } => assert!(message.contains("SELinux"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn root_devices_and_links_are_there() {
    let pod = Pod::started();
    let script = "cd /dev; stat -c '%n %F %t:%T %a' null zero full random urandom tty made; \
        for l in fd stdin stdout stderr ptmx; do readlink $l; done; echo out > /dev/stdout; \
        stat -c '%u:%g' made";
    let mut spec = pod.spec("c1", &["sh", "-c", script]);
    spec.devices.push(Device {
        path: "/dev/made".into(),
        mode: 0o020_640,
        major: 1,
        minor: 3,
        uid: 4,
        gid: 5,
    });
    let special = |name: &str, minor: u32, mode: &str| {
        format!("{name} character special file 1:{minor} {mode}\n")
    };
    let mut want = String::new();
    for (name, minor) in [
        ("null", 3),
        ("zero", 5),
        ("full", 7),
        ("random", 8),
        ("urandom", 9),
    ] {
        want += &special(name, minor, "666");
    }
    want += "tty character special file 5:0 666\n";
    want += &special("made", 3, "640");
    want +=
        "/proc/self/fd\n/proc/self/fd/0\n/proc/self/fd/1\n/proc/self/fd/2\npts/ptmx\nout\n4:5\n";
    assert_eq!(pod.output(&spec).1, want);
}

#[test]
fn root_only_the_standard_streams_are_open() {
    let pod = Pod::started();
    pod.run(&pod.spec("other", &["sleep", "1000"]));
    let pid = pod.run(&pod.spec("c1", &["sleep", "1000"]));
    let mut targets: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|fd| {
            fs::read_link(fd.unwrap().path())
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    targets.sort();
    assert_eq!(targets.len(), 3, "{targets:?}");
    assert_eq!(targets[0], "/dev/null");
    assert!(
        targets[1..].iter().all(|t| t.starts_with("pipe:")),
        "{targets:?}"
    );
}

#[test]
fn root_a_users_program_may_open_its_standard_streams() {
    let pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &["sh", "-c", "echo a > /dev/stdout; echo b > /dev/stderr"],
    );
    spec.process.user.spec = "app".into();
    let (_, output) = pod.output(&spec);
    assert_eq!(output.len(), "a\nb\n".len(), "{output}");
    let mode = fs::metadata("/dev/null").unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&mode), 0);
}

#[test]
fn root_the_cgroup_view_begins_at_the_containers_own_and_is_read_only() {
    let mut pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "cat /proc/self/cgroup; ls /sys/fs/cgroup; cat /sys/fs/cgroup/memory/cgroup.procs; \
           cat /sys/fs/cgroup/cgroup.procs; echo $$ > /sys/fs/cgroup/pids/cgroup.procs; \
           echo $$ > /sys/fs/cgroup/cgroup.procs",
        ],
    );
    spec.cgroups = pod.make_cgroups();
    let (_, output) = pod.output(&spec);
    assert!(!output.contains("hanok-shim-test"), "{output}");
    assert!(output.contains("\n1\n"), "{output}");
    assert!(output.contains("Read-only file system"), "{output}");
}

#[test]
fn root_every_mount_is_private_and_as_it_was_asked_for() {
    const WORDS: [(u64, &str); 4] = [
        (READONLY, "ro"),
        (NOSUID, "nosuid"),
        (NODEV, "nodev"),
        (NOEXEC, "noexec"),
    ];
    let mut pod = Pod::started();
    let mut spec = pod.spec("c1", &["cat", "/proc/self/mountinfo"]);
    spec.cgroups = pod.make_cgroups();
    let (_, output) = pod.output(&spec);
    let hidden = spec.masked_paths.iter().chain(&spec.readonly_paths);
    let hidden = hidden.map(|path| (path, READONLY));
    let mounts = spec.mounts.iter();
    let mounts = mounts.map(|mount| (&mount.destination, mount.attr_set));
    let wanted: Vec<_> = mounts.chain(hidden).collect();
    let mut seen = 0;
    for line in output.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, _, _, _, place, options, ..] = fields[..] else {
            panic!("{line}")
        };
        assert_eq!(fields[6], "-", "not private: {line}");
        // What has nothing of its own has what it lies in.
        let nearest = wanted
            .iter()
            .filter(|(path, _)| Path::new(place).starts_with(path))
            .max_by_key(|(path, _)| path.len());
        let Some((_, attributes)) = nearest else {
            continue;
        };
        seen += 1;
        for (bit, word) in WORDS {
            let has = options.split(',').any(|option| option == word);
            assert!(has || attributes & bit == 0, "{word}: {line}");
        }
    }
    assert!(seen > spec.mounts.len(), "{output}");
}

#[test]
fn root_a_mount_below_the_view_of_cgroups_is_above_it() {
    let mut pod = Pod::started();
    let file = pod.path("word");
    fs::write(&file, "here\n").unwrap();
    let below = match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => "/sys/fs/cgroup/cgroup.procs",
        false => "/sys/fs/cgroup/pids/cgroup.procs",
    };
    let mut spec = pod.spec("c1", &["cat", below]);
    spec.mounts.push(mount(below, bind(&file), 0));
    spec.cgroups = pod.make_cgroups();
    let (_, output) = pod.output(&spec);
    assert_eq!(output, "here\n");
}
