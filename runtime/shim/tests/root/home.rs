//! The zygote that moves into the one container that is asked again and again.

use std::fs;

use hanok_shim::protocol::{ContainerSpec, Namespace, Reply, Request};
use hanok_shim::sys::process::kill;

use crate::rig::{Pod, is_running, wait_for};
use crate::zygote::{begin_frozen, freeze, said, sleeper, with_zygote, zygote};

/// Bit of CAP_SYS_ADMIN.
const SYS_ADMIN: u64 = 1 << 21;

/// `struct sock_filter`s: an `action` for one call, and for another what follows.
fn filter(call: libc::c_long, action: u32) -> Vec<u8> {
    let call = u32::try_from(call).unwrap();
    let allow = 0x7fff_0000;
    let program: [(u16, u8, u8, u32); 4] = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, call),
        (0x06, 0, 0, action),
        (0x06, 0, 0, allow),
    ];
    let bytes = |(code, yes, no, k): (u16, u8, u8, u32)| {
        let (code, k): ([u8; 2], [u8; 4]) = (code.to_ne_bytes(), k.to_ne_bytes());
        [&code[..], &[yes, no], &k].concat()
    };
    program.into_iter().flat_map(bytes).collect()
}

/// Refuses mkdir, which no zygote needs.
fn usual() -> Vec<u8> {
    filter(libc::SYS_mkdir, 0x0005_0001)
}

fn namespace(pid: i32, kind: &str) -> String {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
    link.to_str().unwrap().to_owned()
}

/// The lines of a process's status about user, rights and filter. What it is permitted may change as it executes a program,
/// which a zygote has not done.
fn rights(pid: i32) -> Vec<String> {
    let names = [
        "Uid:",
        "Gid:",
        "Groups:",
        "CapInh",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs:",
        "Seccomp",
    ];
    lines(pid, &names)
}

fn lines(pid: i32, names: &[&str]) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = status.lines().map(str::to_owned);
    lines
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .collect()
}

#[test]
fn root_a_zygote_becomes_what_its_children_are_but_for_cgroups_and_processes() {
    for (user, no_new_privileges) in [("0", false), ("1000", false), ("1000", true)] {
        let pod = Pod::started();
        let mut container = sleeper(&pod, "c1");
        container.process.user.spec = user.into();
        container.process.no_new_privileges = no_new_privileges;
        container.process.seccomp = usual();
        let init = pod.run(&container);
        let zygote = with_zygote(&pod, "c1");
        for kind in ["mnt", "net", "ipc", "uts", "cgroup"] {
            assert_eq!(namespace(zygote, kind), namespace(init, kind), "{kind}");
        }
        assert_eq!(namespace(zygote, "pid"), namespace(pod.shim_pid, "pid"));
        assert_eq!(rights(zygote), rights(init));
        let permitted = container.process.capabilities.permitted;
        let permitted = ["CapPrm", "CapEff"].map(|name| format!("{name}:\t{permitted:016x}"));
        assert_eq!(lines(zygote, &["CapPrm", "CapEff"]), permitted);
        let cgroups = |pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert_eq!(cgroups(zygote), cgroups(pod.shim_pid));
        // The bond to its maker has held.
        kill(pod.shim_pid, libc::SIGKILL).unwrap();
        wait_for("its end", || (!is_running(zygote)).then_some(()));
        let _ = kill(init, libc::SIGKILL);
    }
}

#[test]
fn root_a_zygote_that_others_need_too_moves_out_and_stays_on_the_node() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    let other = pod.run(&sleeper(&pod, "c2"));
    let first = with_zygote(&pod, "c1");
    // The long way, as the zygote is in the wrong place.
    assert_eq!(said(&pod, "c2", "echo other"), "other\n");
    wait_for("its end", || (!is_running(first)).then_some(()));
    for container in ["c2", "c2", "c1"] {
        assert_eq!(said(&pod, container, "echo up"), "up\n");
        let zygote = zygote(&pod).unwrap();
        assert_eq!(namespace(zygote, "mnt"), namespace(pod.shim_pid, "mnt"));
        assert_ne!(namespace(zygote, "mnt"), namespace(other, "mnt"));
    }
}

#[test]
fn root_a_zygote_ends_with_the_container_that_it_has_moved_into() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    pod.run(&sleeper(&pod, "c2"));
    let zygote = with_zygote(&pod, "c1");
    pod.ok(&Request::Kill {
        id: "c2".into(),
        signal: 9,
        all: true,
    });
    pod.exit("c2");
    assert!(is_running(zygote), "it is another's");
    pod.ok(&Request::Kill {
        id: "c1".into(),
        signal: 9,
        all: true,
    });
    pod.exit("c1");
    wait_for("its end", || (!is_running(zygote)).then_some(()));
}

#[test]
fn root_a_filter_under_which_a_zygote_cannot_live_or_would_be_logged_keeps_it_out() {
    // SECCOMP_RET_KILL_PROCESS, ERRNO and LOG.
    for action in [0x8000_0000, 0x0005_0001, 0x7ffc_0000] {
        for call in [libc::SYS_recvmsg, libc::SYS_setsid] {
            let pod = Pod::started();
            let mut container = sleeper(&pod, "c1");
            container.process.seccomp = filter(call, action);
            pod.run(&container);
            let zygote = with_zygote(&pod, "c1");
            assert_eq!(namespace(zygote, "mnt"), namespace(pod.shim_pid, "mnt"));
        }
    }
}

#[test]
fn root_children_of_a_zygote_that_has_moved_in_have_one_filter_and_keep_to_it() {
    let pod = Pod::started();
    let mut container = sleeper(&pod, "c1");
    container.process.seccomp = usual();
    pod.run(&container);
    with_zygote(&pod, "c1");
    for _ in 0..3 {
        let filters = said(&pod, "c1", "grep Seccomp_filters /proc/self/status");
        assert_eq!(filters, "Seccomp_filters:\t1\n");
        let refused = said(&pod, "c1", "mkdir /tmp/x 2>&1 || true");
        assert!(refused.contains("not permitted"), "{refused}");
    }
    assert!(zygote(&pod).is_some());
}

#[test]
fn root_a_zygote_that_has_moved_in_is_not_seen_in_the_container() {
    let pod = Pod::started();
    pod.run(&sleeper(&pod, "c1"));
    let zygote = with_zygote(&pod, "c1");
    let script = "for p in /proc/[0-9]*; do cat $p/comm; done";
    let (reply, text) = crate::zygote::run(&pod, "c1", &["sh", "-c", script]);
    assert_eq!(reply, Reply::ExecExited { code: 0 }, "{text}");
    assert!(text.contains("sleep") && !text.contains("hanok"), "{text}");
    assert!(is_running(zygote));
}

#[test]
fn root_a_zygote_does_not_move_where_it_could_be_seen_or_left_behind() {
    let changes: [fn(&mut ContainerSpec); 4] = [
        |spec| spec.namespaces.pid = Namespace::Host,
        |spec| spec.namespaces.pid = Namespace::Pod,
        |spec| spec.process.cwd = "/srv".into(),
        |spec| spec.process.capabilities.bounding |= SYS_ADMIN,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let pod = Pod::new();
        let mut sandbox = pod.sandbox();
        sandbox.pid = Namespace::New;
        pod.start_sandbox(&sandbox);
        let mut container = sleeper(&pod, "c1");
        change(&mut container);
        pod.run(&container);
        let zygote = with_zygote(&pod, "c1");
        let shim = namespace(pod.shim_pid, "mnt");
        assert_eq!(namespace(zygote, "mnt"), shim, "{n}");
    }
}

#[test]
fn root_every_exec_has_the_working_directory_that_is_there_then() {
    let pod = Pod::started();
    let mut container = sleeper(&pod, "c1");
    container.process.cwd = "/srv".into();
    pod.run(&container);
    with_zygote(&pod, "c1");
    for name in ["one", "two"] {
        said(
            &pod,
            "c1",
            &format!("rm -r /srv; mkdir /srv; touch /srv/{name}"),
        );
        assert_eq!(said(&pod, "c1", "ls"), format!("{name}\n"));
    }
}

#[test]
fn root_a_container_that_ends_with_an_order_in_flight_takes_the_zygote_with_it() {
    let mut pod = Pod::started();
    let mut container = sleeper(&pod, "c1");
    container.cgroups = pod.make_cgroups();
    let init = pod.run(&container);
    let zygote = with_zygote(&pod, "c1");
    let (switch, thawed) = freeze(&container.cgroups);
    let begun = begin_frozen(&pod, &switch, &["sleep", "1000"]);
    kill(init, libc::SIGKILL).unwrap();
    fs::write(switch, thawed).unwrap();
    pod.exit("c1");
    let (reply, _) = begun.end();
    // Whether it had come to its program or not.
    let killed = Reply::ExecExited { code: 137 };
    assert!(
        reply == killed || matches!(reply, Reply::Failed { .. }),
        "{reply:?}"
    );
    wait_for("its end", || (!is_running(zygote)).then_some(()));
}
