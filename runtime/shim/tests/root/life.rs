//! Life and end: restarts, memory, the OOM killer, the ends of pause and of the shim.

use std::fs;
use std::time::{Duration, Instant};

use hanok_shim::protocol::*;

use crate::rig::{Pod, is_running, wait_for};

/// Proportional set size in KiB.
fn pss(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Memory that the process has written, in KiB: what others have mapped does not change it.
fn dirty(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    text.lines()
        .filter(|l| l.starts_with("Private_Dirty"))
        .map(|l| l.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
        .sum()
}

fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn run_once(pod: &Pod, id: &str) {
    assert_eq!(pod.sh(id, "echo x").0.code, 0);
    pod.ok(&Request::Delete {
        container: id.into(),
    });
}

#[test]
fn root_a_hundred_restarts_leave_no_descriptor_and_no_memory() {
    let pod = Pod::started();
    for n in 0..10 {
        run_once(&pod, &format!("warm{n}"));
    }
    let before = (descriptors(pod.shim_pid), dirty(pod.shim_pid));
    for n in 0..100 {
        run_once(&pod, &format!("c{n}"));
    }
    // The connection of the last call may still be there in either count.
    wait_for("the descriptors to be closed", || {
        (descriptors(pod.shim_pid) <= before.0).then_some(())
    });
    let after = dirty(pod.shim_pid);
    assert!(
        after <= before.1 + 16,
        "{} KiB before, {after} after",
        before.1
    );
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure is worth reading")]
fn root_shim_and_pause_stay_within_their_memory_budget() {
    let pod = Pod::new();
    let pause = pod.start_sandbox(&pod.sandbox());
    pod.run(&pod.spec("c1", &["sleep", "1000"]));
    let other = Pod::started();
    let at_work = pss(pod.shim_pid);
    // Some seconds after its last work it rests.
    let at_rest = wait_for("the shim to be within 0.6 MiB", || {
        let shim = pss(pod.shim_pid);
        (shim <= 614).then_some(shim)
    });
    let pause = pss(pause);
    println!(
        "shim {at_work} KiB PSS at work, {at_rest} at rest ({} written), pause {pause} KiB",
        dirty(pod.shim_pid)
    );
    assert!(pause <= 64, "pause {pause} KiB");
    assert_eq!(pod.sh("c2", "exit 7").0.code, 7, "it works on after a rest");
    drop(other);
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure is worth reading")]
fn root_a_pod_starts_within_milliseconds() {
    let mut launched = Vec::new();
    let mut sandboxed = Vec::new();
    let mut first = Vec::new();
    let mut next = Vec::new();
    for _ in 0..5 {
        let mut pod = Pod::new();
        launched.push(pod.launch_time);
        let cgroups = [pod.make_cgroups(), pod.make_cgroups(), pod.make_cgroups()];
        let mut client = pod.client();
        let mut timed = |request: Request| {
            let start = Instant::now();
            let reply = client.call(&request).unwrap();
            assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
            start.elapsed()
        };
        let mut specs = [pod.spec("c1", &["true"]), pod.spec("c2", &["true"])];
        specs[0].cgroups.clone_from(&cgroups[1]);
        specs[1].cgroups.clone_from(&cgroups[2]);
        let sandbox = SandboxSpec {
            cgroups: cgroups[0].clone(),
            ..pod.sandbox()
        };
        sandboxed.push(timed(Request::StartSandbox(sandbox)));
        let [one, two] = specs;
        first.push(timed(Request::StartContainer(Box::new(one))));
        next.push(timed(Request::StartContainer(Box::new(two))));
        pod.exit("c1");
        pod.exit("c2");
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let [launched, sandboxed, first, next] =
        [&mut launched, &mut sandboxed, &mut first, &mut next].map(median);
    println!(
        "launch {launched:?}, sandbox {sandboxed:?}, first container {first:?}, next {next:?}"
    );
    // Loose: other tests run beside this one. A start takes 2 to 4 ms, and on cgroup v1 the first 15 more.
    assert!(launched + sandboxed + first + next < Duration::from_secs(1));
}

#[test]
fn root_an_oom_kill_is_recorded() {
    let mut pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "head -c 200000000 /dev/zero | tail -c 200000000 | wc -c; exit 3",
        ],
    );
    spec.cgroups = pod.make_cgroups();
    for dir in &spec.cgroups {
        for file in ["memory.limit_in_bytes", "memory.max"] {
            let path = format!("{dir}/{file}");
            if fs::exists(&path).unwrap() {
                fs::write(path, "33554432").unwrap();
            }
        }
    }
    pod.run(&spec);
    assert!(pod.exit("c1").oom_killed);
    // Another container in another cgroup did not suffer.
    assert!(!pod.sh("c2", "exit 3").0.oom_killed);
}

#[test]
fn root_pause_is_in_its_cgroups_and_a_missing_one_fails_the_sandbox() {
    let mut pod = Pod::new();
    let missing = SandboxSpec {
        cgroups: vec!["/sys/fs/cgroup/no/such".into()],
        ..pod.sandbox()
    };
    let reply = pod.call(&Request::StartSandbox(missing));
    assert!(
        matches!(
            reply,
            Reply::Failed {
                kind: FailureKind::System,
                ..
            }
        ),
        "{reply:?}"
    );
    let cgroups = pod.make_cgroups();
    let sandbox = SandboxSpec {
        cgroups: cgroups.clone(),
        ..pod.sandbox()
    };
    let pause = pod.start_sandbox(&sandbox);
    // It joins after the answer, and before the next request is taken.
    pod.call(&Request::State);
    for dir in cgroups {
        let procs = fs::read_to_string(format!("{dir}/cgroup.procs")).unwrap();
        assert_eq!(procs, format!("{pause}\n"), "{dir}");
    }
}

#[test]
fn root_killing_all_reaches_every_process_of_the_cgroup() {
    let mut pod = Pod::new();
    pod.start_sandbox(&SandboxSpec {
        pid: Namespace::New,
        ..pod.sandbox()
    });
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "for i in 1 2 3 4 5; do setsid sleep 1000 & done; wait",
        ],
    );
    spec.namespaces.pid = Namespace::Pod;
    spec.cgroups = pod.make_cgroups();
    pod.run(&spec);
    let dir = spec.cgroups[0].clone();
    let processes = || {
        fs::read_to_string(format!("{dir}/cgroup.procs"))
            .unwrap()
            .lines()
            .count()
    };
    wait_for("the children", || (processes() == 6).then_some(()));
    pod.ok(&Request::Kill {
        id: "c1".into(),
        signal: 9,
        all: true,
    });
    assert_eq!(pod.exit("c1").code, 137);
    wait_for("the end of all", || (processes() == 0).then_some(()));
    // The same when init ends by itself: it takes the rest along.
    let mut spec = pod.spec("c2", &["sh", "-c", "setsid sleep 1000 & exit 0"]);
    spec.namespaces.pid = Namespace::Pod;
    spec.cgroups = vec![dir.clone()];
    pod.run(&spec);
    pod.exit("c2");
    wait_for("the end of all", || (processes() == 0).then_some(()));
}

#[test]
fn root_the_end_of_pause_is_told_and_containers_with_their_own_pids_live_on() {
    let pod = Pod::new();
    let pause = pod.start_sandbox(&pod.sandbox());
    pod.run(&pod.spec("c1", &["sleep", "1000"]));
    let mut events = pod.client();
    assert_eq!(events.call(&Request::Subscribe).unwrap(), Reply::Ok);
    hanok_shim::sys::process::kill(pause, 15).unwrap();
    assert_eq!(events.event().unwrap(), Event::SandboxExited);
    let Reply::State(state) = pod.call(&Request::State) else {
        panic!()
    };
    assert_eq!(state.pause_pid, 0);
    assert_eq!(state.containers[0].exit, None);
    let reply = pod.start(&pod.spec("c2", &["true"]));
    assert!(matches!(reply, Reply::Failed { .. }), "{reply:?}");
}

#[test]
fn root_containers_in_the_pods_pid_namespace_die_with_pause() {
    let pod = Pod::new();
    let pause = pod.start_sandbox(&SandboxSpec {
        pid: Namespace::New,
        ..pod.sandbox()
    });
    let mut spec = pod.spec("c1", &["sleep", "1000"]);
    spec.namespaces.pid = Namespace::Pod;
    pod.run(&spec);
    hanok_shim::sys::process::kill(pause, 9).unwrap();
    assert_eq!(pod.exit("c1").signal, 9);
}

#[test]
fn root_shutdown_leaves_nothing() {
    let mut pod = Pod::new();
    let pause = pod.start_sandbox(&pod.sandbox());
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "trap '' TERM; setsid sleep 1000 & wait; sleep 1000",
        ],
    );
    spec.cgroups = pod.make_cgroups();
    let pids = [
        pause,
        pod.run(&spec),
        pod.run(&pod.spec("c2", &["sleep", "1000"])),
        pod.shim_pid,
    ];
    pod.shut_down();
    for pid in pids {
        assert!(!is_running(pid));
    }
    assert!(!pod.path("shim/shim.pid").exists());
    assert!(pod.path("c1/exit.json").exists(), "every end is recorded");
}

#[test]
fn root_containers_outlive_a_shim_that_is_killed() {
    let pod = Pod::new();
    let pause = pod.start_sandbox(&pod.sandbox());
    let container = pod.run(&pod.spec("c1", &["sleep", "1000"]));
    hanok_shim::sys::process::kill(pod.shim_pid, 9).unwrap();
    wait_for("the end of the shim", || {
        (!is_running(pod.shim_pid)).then_some(())
    });
    let parent = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status
            .lines()
            .find_map(|l| l.strip_prefix("PPid:\t"))
            .unwrap()
            .to_owned()
    };
    // Orphans of PID 1 (or the nearest subreaper): nobody learns their exit codes or reads their output.
    for pid in [pause, container] {
        assert!(is_running(pid));
        assert_ne!(parent(pid), pod.shim_pid.to_string());
        hanok_shim::sys::process::kill(pid, 9).unwrap();
    }
    wait_for("their end", || {
        (!is_running(pause) && !is_running(container)).then_some(())
    });
}

#[test]
fn root_several_clients_are_served_at_once_and_versions_are_checked() {
    let pod = Pod::started();
    let mut clients: Vec<_> = (0..20).map(|_| pod.client()).collect();
    for client in &mut clients {
        assert!(matches!(
            client.call(&Request::State).unwrap(),
            Reply::State(_)
        ));
    }
    let wrong = clients[0]
        .call(&Request::Hello {
            version: VERSION + 1,
        })
        .unwrap();
    assert!(matches!(
        wrong,
        Reply::Failed {
            kind: FailureKind::Invalid,
            ..
        }
    ));
    // Bytes that are no request end the connection, and only that.
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(pod.path("shim.sock")).unwrap();
    stream.write_all(&[0xff; 64]).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(matches!(
        clients[1].call(&Request::State).unwrap(),
        Reply::State(_)
    ));
}

#[test]
fn root_the_program_refuses_to_run_without_its_socket() {
    let binary = crate::rig::programs().join("hanok-shim");
    let run = |args: &[&str]| {
        let output = std::process::Command::new(&binary)
            .args(args)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, text) = run(&[]);
    assert_eq!(code, Some(2));
    assert!(text.contains("--state-dir is missing"), "{text}");
    let (code, text) = run(&["--state-dir", "/tmp", "--socket", "/tmp/x"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("listening socket"), "{text}");
}
