//! The short way of an exec, by the shim's zygote: it does what the long way does, for whom it may, and is never missed.

use std::fs;
use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hanok_shim::client::Client;
use hanok_shim::protocol::*;
use hanok_shim::sys::process::kill;
use hanok_shim::sys::zygote::NAME;

use crate::rig::{Pod, is_running, wait_for};

const SYS_PTRACE: u64 = 1 << 19;

/// A run that has begun.
pub(crate) struct Run {
    client: Client,
    stdout: PipeReader,
}

fn begin(pod: &Pod, container: &str, exec: &str, args: &[&str]) -> Run {
    let mut client = pod.client();
    let (stdout, far) = std::io::pipe().unwrap();
    let request = Request::Run(Box::new(RunSpec {
        container: container.into(),
        exec: exec.into(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
    }));
    client.send(&request, &[far.as_fd(), far.as_fd()]).unwrap();
    Run { client, stdout }
}

impl Run {
    pub(crate) fn end(mut self) -> (Reply, String) {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).unwrap();
        (self.client.reply().unwrap(), text)
    }
}

/// How a command ends, and what it says.
pub(crate) fn run(pod: &Pod, container: &str, args: &[&str]) -> (Reply, String) {
    begin(pod, container, "e", args).end()
}

pub(crate) fn said(pod: &Pod, container: &str, script: &str) -> String {
    let (reply, text) = run(pod, container, &["sh", "-c", script]);
    assert_eq!(reply, Reply::ExecExited { code: 0 }, "{text}");
    text
}

pub(crate) fn sleeper(pod: &Pod, id: &str) -> ContainerSpec {
    pod.spec(id, &["sleep", "1000"])
}

/// The shim's zygote, while no exec is under way.
pub(crate) fn zygote(pod: &Pod) -> Option<i32> {
    let shim = pod.shim_pid;
    let name = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let wanted = NAME.to_str().unwrap();
    let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).unwrap();
    let mut children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    children.find(|pid| is_running(*pid) && name(*pid).trim_end() == wanted)
}

/// Has a second exec asked for, and so a zygote made.
pub(crate) fn with_zygote(pod: &Pod, container: &str) -> i32 {
    for _ in 0..2 {
        assert_eq!(said(pod, container, "echo up"), "up\n");
    }
    let zygote = zygote(pod).unwrap();
    wait_for_rest(zygote);
    zygote
}

/// Waits until it sleeps as it does without an order. Until a child has exec'd it cannot be interrupted.
fn wait_for_rest(zygote: i32) {
    wait_for("the zygote's rest", || {
        let stat = fs::read_to_string(format!("/proc/{zygote}/stat")).unwrap();
        stat.contains(") S ").then_some(())
    });
}

/// Everything that a process can tell of itself and is not its own.
const CONFESSION: &str = "id; pwd; umask; env | sort; tty; \
    grep -vE '^(Pid|PPid|Tgid|Ngid|NSpid|NStgid|NSpgid|NSsid|Vm|Rss|Hugetlb|Threads|.*ctxt|Cpus|Mems|Speculation|SigQ)' /proc/self/status; \
    cat /proc/self/cgroup /proc/self/limits /proc/self/oom_score_adj /proc/self/timerslack_ns; \
    for fd in /proc/self/fd/*; do echo $fd; done; readlink /proc/self/root /proc/self/cwd; \
    for n in /proc/self/ns/*; do readlink $n; done; \
    set -- $(cat /proc/self/stat); echo $(( $1 == $5 )) $(( $5 == $6 )) $7; cat /proc/keys | wc -l";

/// The first exec goes the long way, the second the short one, and the third is made where the zygote has moved, if it has.
pub(crate) fn compare(pod: &Pod, container: &str) {
    let long = said(pod, container, CONFESSION);
    assert_eq!(zygote(pod), None);
    for _ in 0..2 {
        let short = said(pod, container, CONFESSION);
        let zygote = zygote(pod).expect("the short way was not gone");
        assert_eq!(short, long);
        wait_for_rest(zygote);
    }
    assert!(
        long.contains("Seccomp") && long.contains("Max open files"),
        "{long}"
    );
}

#[test]
fn root_both_ways_lead_to_the_same_process() {
    let mut pod = Pod::started();
    let mut container = sleeper(&pod, "c1");
    container.cgroups = pod.make_cgroups();
    container.process.oom_score_adj = Some(321);
    pod.run(&container);
    compare(&pod, "c1");
}

#[test]
fn root_both_ways_lead_to_the_same_user_with_the_same_rights() {
    for cwd in ["/srv/here", "/"] {
        compare_with_rights(cwd);
    }
}

fn compare_with_rights(cwd: &str) {
    let pod = Pod::started();
    let mut container = sleeper(&pod, "c1");
    let process = &mut container.process;
    process.user = User {
        spec: "app".into(),
        gid: None,
        additional_gids: vec![7],
        strict_groups: false,
    };
    process.cwd = cwd.into();
    process.umask = Some(0o077);
    process.no_new_privileges = true;
    process.rlimits = vec![(7, 100, 200), (4, 0, 0)];
    process.capabilities = Capabilities {
        bounding: 0x401,
        effective: 0x400,
        permitted: 0x400,
        inheritable: 0x400,
        ambient: 0x400,
    };
    // `ret ALLOW`.
    process.seccomp = [
        6_u16.to_ne_bytes().as_slice(),
        &[0, 0],
        &0x7fff_0000_u32.to_ne_bytes(),
    ]
    .concat();
    process.env.push("TEXT=of several\nlines".into());
    pod.run(&container);
    compare(&pod, "c1");
}

#[test]
fn root_a_zygote_serves_containers_of_different_rights() {
    let pod = Pod::started();
    let bounded = |id: &str, bounding| {
        let mut container = sleeper(&pod, id);
        container.process.capabilities.bounding = bounding;
        pod.run(&container);
    };
    let set = |id: &str| {
        let status = said(&pod, id, "grep CapBnd /proc/self/status");
        u64::from_str_radix(status.trim().rsplit('\t').next().unwrap(), 16).unwrap()
    };
    bounded("narrow", 0x1);
    assert_eq!((set("narrow"), set("narrow")), (0x1, 0x1));
    let first = zygote(&pod).unwrap();
    bounded("wide", 0x3ff);
    wait_for("its end", || zygote(&pod).is_none().then_some(()));
    for _ in 0..2 {
        assert_eq!((set("narrow"), set("wide")), (0x1, 0x3ff));
    }
    assert!(zygote(&pod).unwrap() != first);
}

#[test]
fn root_what_fails_on_the_short_way_is_told_by_the_long_one() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    with_zygote(&pod, "c1");
    let (reply, _) = run(&pod, "c1", &["foo"]);
    let message = "exec: \"foo\": executable file not found in $PATH".into();
    let kind = FailureKind::CommandNotFound;
    assert_eq!(reply, Reply::Failed { kind, message });
    assert_eq!(said(&pod, "c1", "echo still"), "still\n");
    // As is what has no room on the board.
    let long = "x".repeat(100 << 10);
    let (reply, text) = run(&pod, "c1", &["echo", "-n", &long, &long, &long]);
    assert_eq!(reply, Reply::ExecExited { code: 0 });
    assert_eq!(text.len(), 3 * long.len() + 2);
    let (reply, _) = run(&pod, "c1", &["sh", "-c", "kill -9 $$"]);
    assert_eq!(reply, Reply::ExecExited { code: 137 });
}

#[test]
fn root_of_many_execs_at_once_each_is_answered() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    with_zygote(&pod, "c1");
    for round in 0..10 {
        let begun: Vec<Run> = (0..20)
            .map(|n| begin(&pod, "c1", &format!("e{n}"), &["echo", &n.to_string()]))
            .collect();
        for (n, run) in begun.into_iter().enumerate() {
            let (reply, text) = run.end();
            assert_eq!(reply, Reply::ExecExited { code: 0 }, "{round}: {n}");
            assert_eq!(text, format!("{n}\n"));
        }
    }
}

#[test]
fn root_one_missing_program_does_not_take_the_zygote_from_others() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    let first = with_zygote(&pod, "c1");
    for _ in 0..5 {
        assert!(matches!(run(&pod, "c1", &["foo"]).0, Reply::Failed { .. }));
        assert_eq!(said(&pod, "c1", "echo still"), "still\n");
    }
    wait_for_rest(first);
    kill(first, libc::SIGSTOP).unwrap();
    let waiting = begin(&pod, "c1", "waiting", &["echo", "waited"]);
    // It goes the long way, after what is before it.
    assert_eq!(said(&pod, "c1", "echo other"), "other\n");
    let terminate = pod.call(&Request::Kill {
        id: "waiting".into(),
        signal: 15,
        all: true,
    });
    assert!(matches!(terminate, Reply::Failed { .. }), "{terminate:?}");
    kill(first, libc::SIGCONT).unwrap();
    let (reply, text) = waiting.end();
    assert_eq!(reply, Reply::ExecExited { code: 0 });
    assert_eq!(text, "waited\n");
}

#[test]
fn root_a_zygote_holds_nothing_that_others_wait_for() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    let zygote = with_zygote(&pod, "c1");
    // The standard streams, and where orders come from.
    let held = || fs::read_dir(format!("/proc/{zygote}/fd")).unwrap().count();
    wait_for("the end of an order", || (held() == 4).then_some(()));
}

#[test]
fn root_a_zygote_that_hangs_or_dies_is_not_missed() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    let stop = |zygote| kill(zygote, libc::SIGSTOP).unwrap();
    // Whoever comes next goes the long way, and what it had begun is done when it is gone.
    let zygote = with_zygote(&pod, "c1");
    stop(zygote);
    let waiting = begin(&pod, "c1", "waiting", &["echo", "waited"]);
    assert_eq!(said(&pod, "c1", "echo other"), "other\n");
    kill(zygote, libc::SIGKILL).unwrap();
    let (reply, text) = waiting.end();
    assert_eq!(
        (reply, text.as_str()),
        (Reply::ExecExited { code: 0 }, "waited\n")
    );
    // An exec can be killed before there is a process.
    let zygote = with_zygote(&pod, "c1");
    stop(zygote);
    let waiting = begin(&pod, "c1", "waiting", &["sleep", "1000"]);
    assert_eq!(said(&pod, "c1", "echo other"), "other\n");
    let signal = |signal| {
        pod.call(&Request::Kill {
            id: "waiting".into(),
            signal,
            all: true,
        })
    };
    assert!(matches!(signal(15), Reply::Failed { .. }));
    assert_eq!(signal(9), Reply::Ok);
    let (reply, _) = waiting.end();
    assert!(matches!(reply, Reply::Failed { .. }), "{reply:?}");
    assert!(with_zygote(&pod, "c1") != zygote);
}

/// Freezes what is in some cgroups. Returns the file and what thaws them again.
pub(crate) fn freeze(cgroups: &[String]) -> (PathBuf, &'static str) {
    let switches = [
        ("freezer.state", "FROZEN", "THAWED"),
        ("cgroup.freeze", "1", "0"),
    ];
    let found = cgroups
        .iter()
        .flat_map(|place| switches.map(|(file, on, off)| (Path::new(place).join(file), on, off)))
        .find(|(file, ..)| file.exists());
    let (file, frozen, thawed) = found.expect("a cgroup that can be frozen");
    fs::write(&file, frozen).unwrap();
    (file, thawed)
}

/// A run in c1, whose init is alone, that has come as far as to be frozen.
pub(crate) fn begin_frozen(pod: &Pod, switch: &Path, args: &[&str]) -> Run {
    let begun = begin(pod, "c1", "e", args);
    wait_for("its set-up", || {
        let processes = fs::read_to_string(switch.with_file_name("cgroup.procs")).unwrap();
        (processes.lines().count() == 2).then_some(())
    });
    begun
}

#[test]
fn root_what_a_dead_zygote_has_begun_is_told_as_it_ends() {
    let mut pod = Pod::started();
    let mut container = sleeper(&pod, "c1");
    container.cgroups = pod.make_cgroups();
    pod.run(&container);
    let zygote = with_zygote(&pod, "c1");
    let (switch, thawed) = freeze(&container.cgroups);
    let begun = begin_frozen(&pod, &switch, &["foo"]);
    kill(zygote, libc::SIGKILL).unwrap();
    let entry = format!("/proc/{zygote}");
    wait_for("its end", || (!Path::new(&entry).exists()).then_some(()));
    fs::write(switch, thawed).unwrap();
    let (reply, _) = begun.end();
    let message = "exec: \"foo\": executable file not found in $PATH".into();
    let kind = FailureKind::CommandNotFound;
    assert_eq!(reply, Reply::Failed { kind, message });
}

#[test]
fn root_a_shim_with_an_order_that_nobody_follows_shuts_down() {
    let mut pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    let zygote = with_zygote(&pod, "c1");
    kill(zygote, libc::SIGSTOP).unwrap();
    let _waiting = begin(&pod, "c1", "waiting", &["true"]);
    pod.shut_down();
    assert!(!is_running(zygote));
}

#[test]
fn root_a_zygote_ends_with_its_shim_and_when_nothing_happens() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    with_zygote(&pod, "c1");
    wait_for("its rest", || zygote(&pod).is_none().then_some(()));
    let second = with_zygote(&pod, "c1");
    let init = fs::read_to_string(format!("/proc/{0}/task/{0}/children", pod.shim_pid)).unwrap();
    kill(pod.shim_pid, libc::SIGKILL).unwrap();
    wait_for("its end", || (!is_running(second)).then_some(()));
    // The pod's processes outlive their shim; nobody else ends them here.
    for pid in init.split_whitespace().map(|pid| pid.parse().unwrap()) {
        let _ = kill(pid, libc::SIGKILL);
    }
}

#[test]
fn root_who_can_trace_the_nodes_processes_finds_no_zygote() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    with_zygote(&pod, "c1");
    // A debugger comes.
    let mut debugger = sleeper(&pod, "c2");
    debugger.process.capabilities.bounding |= SYS_PTRACE;
    pod.run(&debugger);
    wait_for("its end", || zygote(&pod).is_none().then_some(()));
    for container in ["c1", "c2", "c1"] {
        assert_eq!(said(&pod, container, "echo up"), "up\n");
        assert_eq!(zygote(&pod), None);
    }
}

#[test]
fn root_what_the_zygote_makes_cannot_be_looked_into() {
    for user in ["0", "1000"] {
        let pod = Pod::started();
        // Its memory is the zygote's for a moment.
        let script = "exec 2>/dev/null; \
            { readlink /proc/$$/exe && tr '\\0' ' ' < /proc/$$/environ && cat /proc/$$/maps && \
            head -c 1 /proc/$$/exe; } > /dev/null || echo blind; while :; do for p in /proc/[0-9]*; do [ $p = /proc/1 ] || \
            case $(readlink $p/exe; tr '\\0' ' ' < $p/environ; cat $p/maps; head -c 1 $p/mem) in \
            *hanok*) echo caught $p;; esac; done; done";
        let mut spec = pod.spec("c1", &["sh", "-c", script]);
        spec.process.user.spec = user.into();
        pod.run(&spec);
        for _ in 0..200 {
            let (reply, _) = run(&pod, "c1", &["true"]);
            assert_eq!(reply, Reply::ExecExited { code: 0 });
        }
        assert!(zygote(&pod).is_some());
        assert_eq!(pod.log_text("c1"), "", "{user}");
        // What can be looked into is caught.
        said(&pod, "c1", "SIGN=hanok sleep 2");
        wait_for("the catch", || {
            pod.log_text("c1").contains("caught").then_some(())
        });
    }
}
