//! Starting: the process is what the specification says.

use hanok_shim::protocol::*;

use crate::rig::{Pod, wait_for};

#[test]
fn root_a_container_starts_and_its_exit_is_recorded() {
    let pod = Pod::started();
    let (exit, output) = pod.sh("c1", "echo hello; exit 7");
    assert_eq!(output, "hello\n");
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (7, 0, false));
    let record = std::fs::read_to_string(pod.path("c1/exit.json")).unwrap();
    assert!(record.contains("\"code\":7"), "{record}");
    pod.ok(&Request::Delete {
        container: "c1".into(),
    });
    assert!(!pod.path("c1/exit.json").exists());
}

#[test]
fn root_arguments_environment_and_directory_are_as_asked() {
    let pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "echo $#,$1,$2; pwd; echo $A,$HOME,$PATH",
            "sh",
            "a b",
            "",
        ],
    );
    spec.process.env.push("A=x=y z".into());
    spec.process.cwd = "/made/on demand".into();
    assert_eq!(
        pod.output(&spec).1,
        "2,a b,\n/made/on demand\nx=y z,/root,/bin:/usr/bin\n"
    );
}

#[test]
fn root_a_large_environment_is_given_where_the_stack_has_room_and_else_named() {
    let pod = Pod::started();
    let mut spec = pod.spec("c1", &["sh", "-c", "echo ${#V7} ${#V49}"]);
    let variables = (0..50).map(|n| format!("V{n}={}", "x".repeat(100_000 + n)));
    spec.process.env.extend(variables);
    let Reply::Failed { kind, message } = pod.start(&spec) else {
        panic!("the stack has 8 MiB, and a quarter of them is less")
    };
    assert_eq!(kind, FailureKind::CommandNotExecutable);
    for part in [
        "argument list too long",
        "variable \"V49\" alone 100062",
        "6291456",
    ] {
        assert!(message.contains(part), "{message}");
    }
    spec.process.rlimits = vec![(3, u64::MAX, u64::MAX)];
    assert_eq!(pod.output(&spec).1, "100007 100049\n");
}

#[test]
fn root_the_user_and_its_groups_come_from_the_containers_files() {
    let pod = Pod::started();
    for (n, spec, gid, additional, strict, want) in [
        (
            0,
            "",
            None,
            &[][..],
            false,
            "uid=0(root) gid=0(root) groups=0(root)",
        ),
        (
            1,
            "app",
            None,
            &[7],
            false,
            "uid=1000(app) gid=1001 groups=7,50(staff),1001",
        ),
        (
            2,
            "1000:50",
            None,
            &[7],
            true,
            "uid=1000(app) gid=50(staff) groups=7,50(staff)",
        ),
        (3, "4711", Some(12), &[], false, "uid=4711 gid=12 groups=12"),
    ] {
        let mut container = pod.spec(&format!("c{n}"), &["id"]);
        container.process.user = User {
            spec: spec.into(),
            gid,
            additional_gids: additional.to_vec(),
            strict_groups: strict,
        };
        assert_eq!(pod.output(&container).1.trim(), want);
    }
}

#[test]
fn root_a_program_that_is_missing_or_not_executable_fails_the_start_with_its_kind() {
    let pod = Pod::started();
    for (n, args, kind, text) in [
        (
            0,
            &["nope"][..],
            FailureKind::CommandNotFound,
            "exec: \"nope\": executable file not found in $PATH",
        ),
        (
            1,
            &["/nope"],
            FailureKind::CommandNotFound,
            "exec: \"/nope\": stat /nope: no such file or directory",
        ),
        (
            2,
            &["/etc/passwd"],
            FailureKind::CommandNotExecutable,
            "exec: \"/etc/passwd\": permission denied",
        ),
        (
            3,
            &["/etc"],
            FailureKind::CommandNotExecutable,
            "exec: \"/etc\": is a directory",
        ),
        (4, &[], FailureKind::Invalid, "no program is given"),
    ] {
        let spec = pod.spec(&format!("c{n}"), args);
        let want = Reply::Failed {
            kind,
            message: text.into(),
        };
        assert_eq!(pod.start(&spec), want);
        // Nothing of it is left: the same id may be started again.
        assert_eq!(pod.start(&spec), want);
    }
    assert_eq!(
        pod.call(&Request::State),
        Reply::State(ShimState {
            pause_pid: match pod.call(&Request::State) {
                Reply::State(state) => state.pause_pid,
                other => panic!("{other:?}"),
            },
            containers: vec![],
        })
    );
}

#[test]
fn root_signals_end_a_container_with_128_and_the_number() {
    let pod = Pod::started();
    // PID 1 of a namespace gets only what it asks for, but KILL.
    pod.run(&pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done",
        ],
    ));
    wait_for("the trap", || (pod.log_text("c1") == "up\n").then_some(()));
    pod.ok(&Request::Kill {
        id: "c1".into(),
        signal: 15,
        all: false,
    });
    assert_eq!(pod.exit("c1").code, 3);
    pod.run(&pod.spec("c2", &["sleep", "1000"]));
    pod.ok(&Request::Kill {
        id: "c2".into(),
        signal: 9,
        all: false,
    });
    let exit = pod.exit("c2");
    assert_eq!((exit.code, exit.signal), (137, 9));
    // Gone is as good as killed; unknown is not.
    pod.ok(&Request::Kill {
        id: "c2".into(),
        signal: 9,
        all: true,
    });
    let unknown = pod.call(&Request::Kill {
        id: "c3".into(),
        signal: 9,
        all: false,
    });
    assert!(matches!(
        unknown,
        Reply::Failed {
            kind: FailureKind::NotFound,
            ..
        }
    ));
}

#[test]
fn root_namespaces_are_shared_in_the_pod_and_apart_from_the_node() {
    let pod = Pod::started();
    let script =
        "for n in pid mnt ipc uts net cgroup; do readlink /proc/self/ns/$n; done; hostname";
    let lines = |text: String| -> Vec<String> { text.lines().map(String::from).collect() };
    // Alive while the other one looks: the number of a namespace that is gone is given to the next.
    pod.run(&pod.spec("a", &["sh", "-c", &format!("{script}; sleep 1000")]));
    let a = wait_for("what the first one sees", || {
        Some(lines(pod.log_text("a"))).filter(|lines| lines.len() == 7)
    });
    let b = lines(pod.sh("b", script).1);
    let node = |kind: &str| {
        std::fs::read_link(format!("/proc/self/ns/{kind}"))
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    for (index, kind, shared) in [
        (0, "pid", false),
        (1, "mnt", false),
        (2, "ipc", true),
        (3, "uts", true),
        (5, "cgroup", false),
    ] {
        assert_eq!(a[index] == b[index], shared, "{kind}");
        assert_ne!(a[index], node(kind), "{kind}");
    }
    // This sandbox asked for the node's network.
    assert_eq!(a[4], node("net"));
    assert_eq!(a[6], "pod-host");
    assert_eq!(pod.sh("c", "echo $$").1, "1\n");
}

#[test]
fn root_a_shared_pid_namespace_has_pause_as_its_init() {
    let pod = Pod::new();
    let sandbox = SandboxSpec {
        pid: Namespace::New,
        ..pod.sandbox()
    };
    pod.start_sandbox(&sandbox);
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "cat /proc/1/comm; (sleep 0.05 & ) ; sleep 0.2; ps -o stat,args",
        ],
    );
    spec.namespaces.pid = Namespace::Pod;
    let (_, output) = pod.output(&spec);
    assert!(output.starts_with("pause\n"), "{output}");
    assert!(!output.contains("\nZ"), "pause reaps orphans: {output}");
    // The next one starts in the same namespace, and the shim itself stays in the node's.
    let mut spec = pod.spec("c2", &["cat", "/proc/1/comm"]);
    spec.namespaces.pid = Namespace::Pod;
    assert_eq!(pod.output(&spec).1, "pause\n");
    let link = |path: String| std::fs::read_link(path).unwrap();
    let children = link(format!("/proc/{}/ns/pid_for_children", pod.shim_pid));
    assert_eq!(children, link("/proc/self/ns/pid".into()));
}

#[test]
fn root_sysctls_and_the_host_name_stay_in_the_pod() {
    let pod = Pod::new();
    let before = std::fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    let mut sandbox = pod.sandbox();
    sandbox
        .sysctls
        .insert("kernel.shm_rmid_forced".into(), "1".into());
    pod.start_sandbox(&sandbox);
    assert_eq!(
        pod.sh("c1", "cat /proc/sys/kernel/shm_rmid_forced").1,
        "1\n"
    );
    let after = std::fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap();
    assert_eq!(before, after);
}

#[test]
fn root_the_pods_shm_is_one_for_its_containers_and_nobody_elses() {
    let pod = Pod::started();
    pod.sh("c1", "echo shared > /dev/shm/x; chmod 666 /dev/shm/x");
    assert_eq!(
        pod.sh(
            "c2",
            "cat /dev/shm/x; df /dev/shm | tail -n 1 | awk '{print $2}'"
        )
        .1,
        "shared\n1024\n"
    );
    let other = Pod::started();
    assert_eq!(other.sh("c1", "ls /dev/shm").1, "");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(pod.dir.path().to_str().unwrap()),
        "nothing is mounted on the node"
    );
}

#[test]
fn root_a_container_without_shm_takes_it_from_nobody_after_it() {
    let pod = Pod::started();
    let mut without = pod.spec("c1", &["sh", "-c", "test ! -e /shm && df /dev | wc -l"]);
    let is_shm = |mount: &Mount| matches!(mount.source, MountSource::Shm { .. });
    without.mounts.retain(|mount| !is_shm(mount));
    assert_eq!(pod.output(&without).1, "2\n");
    pod.sh("c2", "echo shared > /dev/shm/x; chmod 666 /dev/shm/x");
    let mut without = pod.spec("c3", &["sh", "-c", "test ! -e /dev/shm/x"]);
    without.mounts.retain(|mount| !is_shm(mount));
    assert_eq!(pod.output(&without).0.code, 0);
    assert_eq!(pod.sh("c4", "cat /dev/shm/x").1, "shared\n");
}

#[test]
fn root_limits_umask_and_oom_score_are_set() {
    let pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "ulimit -n; ulimit -Hn; umask; cat /proc/self/oom_score_adj",
        ],
    );
    spec.process.rlimits = vec![(7, 123, 456)];
    spec.process.umask = Some(0o027);
    spec.process.oom_score_adj = Some(345);
    assert_eq!(pod.output(&spec).1, "123\n456\n0027\n345\n");
    // More than the shim has itself is cut down to that.
    let mut spec = pod.spec("c2", &["true"]);
    spec.process.rlimits = vec![(7, 1 << 30, 1 << 30)];
    pod.run(&spec);
}

#[test]
fn root_a_wrong_order_is_refused_and_names_what_is_wrong() {
    let pod = Pod::started();
    type Change = fn(&mut ContainerSpec);
    let changes: [(&str, Change); 6] = [
        ("container id", |s| s.id = "a/b".into()),
        ("state directory", |s| s.state_dir = "x".into()),
        ("layers", |s| {
            s.rootfs = Rootfs::Overlay {
                lower: vec![],
                upper: "/".into(),
                work: "/".into(),
            }
        }),
        ("sysctl", |s| {
            s.sysctls.insert("../x".into(), "1".into());
        }),
        ("absolute", |s| s.mounts[3].destination = "relative".into()),
        ("propagation", |s| s.mounts[3].propagation = 3),
    ];
    for (text, change) in changes {
        let mut spec = pod.spec("c1", &["true"]);
        change(&mut spec);
        match pod.start(&spec) {
            Reply::Failed {
                kind: FailureKind::Invalid,
                message,
            } => {
                assert!(message.contains(text), "{message}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let twice = pod.call(&Request::StartSandbox(pod.sandbox()));
    assert!(matches!(
        twice,
        Reply::Failed {
            kind: FailureKind::Exists,
            ..
        }
    ));
}
