//! Exec: another process in a container, with its own streams and end.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use hanok_shim::client::Client;
use hanok_shim::protocol::*;

use crate::rig::{Pod, is_running, process, wait_for};

/// An exec with pipes.
struct Session {
    client: Client,
    stdin: Option<PipeWriter>,
    stdout: PipeReader,
    stderr: PipeReader,
}

fn spec(container: &str, exec: &str, args: &[&str]) -> ExecSpec {
    ExecSpec {
        container: container.into(),
        exec: exec.into(),
        process: process(args),
        inherit: true,
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    }
}

fn start(pod: &Pod, spec: &ExecSpec) -> (Reply, Session) {
    let mut client = pod.client();
    let (child_in, stdin) = std::io::pipe().unwrap();
    let (stdout, child_out) = std::io::pipe().unwrap();
    let (stderr, child_err) = std::io::pipe().unwrap();
    let fds: [BorrowedFd<'_>; 3] = [child_in.as_fd(), child_out.as_fd(), child_err.as_fd()];
    let reply = client
        .call_with_fds(&Request::Exec(Box::new(spec.clone())), &fds)
        .unwrap();
    (
        reply,
        Session {
            client,
            stdin: Some(stdin),
            stdout,
            stderr,
        },
    )
}

/// Runs to the end: code, stdout, stderr.
fn run(pod: &Pod, spec: &ExecSpec, input: &str) -> (i32, String, String) {
    let (reply, mut session) = start(pod, spec);
    assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
    session
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.read_to_string(&mut out).unwrap();
    session.stderr.read_to_string(&mut err).unwrap();
    let Reply::ExecExited { code } = session.client.reply().unwrap() else {
        panic!()
    };
    (code, out, err)
}

fn sleeper(pod: &Pod) {
    pod.run(&pod.spec("c1", &["sleep", "1000"]));
}

#[test]
fn root_exec_has_its_own_streams_and_exit_code() {
    let pod = Pod::started();
    sleeper(&pod);
    let script = "cat; echo error >&2; exit 5";
    let got = run(&pod, &spec("c1", "e1", &["sh", "-c", script]), "typed");
    assert_eq!(got, (5, "typed".into(), "error\n".into()));
    let got = run(&pod, &spec("c1", "e1", &["sh", "-c", "kill -9 $$"]), "");
    assert_eq!(got.0, 137);
}

#[test]
fn root_exec_joins_every_namespace_and_the_cgroups() {
    let mut pod = Pod::started();
    let mut container = pod.spec("c1", &["sleep", "1000"]);
    container.cgroups = pod.make_cgroups();
    pod.run(&container);
    let script = "for n in pid mnt ipc uts net cgroup; do \
        [ $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) ] || echo $n differs; done; \
        cmp /proc/self/cgroup /proc/1/cgroup && echo same";
    let (_, out, err) = run(&pod, &spec("c1", "e1", &["sh", "-c", script]), "");
    assert_eq!((out.as_str(), err.as_str()), ("same\n", ""));
    // As the node sees it.
    let (reply, session) = start(&pod, &spec("c1", "e2", &["sleep", "1000"]));
    let Reply::Started { pid } = reply else {
        panic!("{reply:?}")
    };
    for dir in &container.cgroups {
        let procs = std::fs::read_to_string(format!("{dir}/cgroup.procs")).unwrap();
        assert!(procs.lines().any(|l| l == pid.to_string()), "{dir}");
    }
    drop(session);
}

#[test]
fn root_exec_inherits_what_the_container_is() {
    let pod = Pod::started();
    let mut container = pod.spec("c1", &["sleep", "1000"]);
    container.process.user = User {
        spec: "app".into(),
        gid: None,
        additional_gids: vec![7],
        strict_groups: false,
    };
    container.process.env.push("A=1".into());
    container.process.cwd = "/work".into();
    container.process.no_new_privileges = true;
    container.process.capabilities.bounding = 1;
    pod.run(&container);
    let script = "id; pwd; echo $A $HOME; grep -E 'CapBnd|NoNew' /proc/self/status | tr -d '\\t'";
    let (_, out, _) = run(&pod, &spec("c1", "e1", &["sh", "-c", script]), "");
    assert_eq!(
        out,
        "uid=1000(app) gid=1001 groups=7,50(staff),1001\n/work\n1 /home/app\n\
         CapBnd:0000000000000001\nNoNewPrivs:1\n"
    );
    // Or brings its own.
    let mut own = spec("c1", "e2", &["sh", "-c", "id -u; pwd; echo $A"]);
    own.inherit = false;
    own.process.env = vec![];
    assert_eq!(run(&pod, &own, "").1, "0\n/\n1\n");
}

#[test]
fn root_exec_of_a_missing_program_fails_with_its_kind() {
    let pod = Pod::started();
    sleeper(&pod);
    let (reply, _) = start(&pod, &spec("c1", "e1", &["foo"]));
    let message = "exec: \"foo\": executable file not found in $PATH".into();
    assert_eq!(
        reply,
        Reply::Failed {
            kind: FailureKind::CommandNotFound,
            message
        }
    );
    let (reply, _) = start(&pod, &spec("c1", "e1", &["/etc/passwd"]));
    assert!(matches!(
        reply,
        Reply::Failed {
            kind: FailureKind::CommandNotExecutable,
            ..
        }
    ));
    let (reply, _) = start(&pod, &spec("nobody", "e1", &["true"]));
    assert!(matches!(
        reply,
        Reply::Failed {
            kind: FailureKind::NotFound,
            ..
        }
    ));
}

#[test]
fn root_killing_an_exec_kills_all_it_started() {
    let mut pod = Pod::started();
    let mut container = pod.spec("c1", &["sleep", "1000"]);
    container.cgroups = pod.make_cgroups();
    pod.run(&container);
    let script = "sleep 1001 & sh -c 'set -m; sleep 1002 & wait' & echo up; wait";
    let (reply, mut session) = start(&pod, &spec("c1", "e1", &["sh", "-c", script]));
    let Reply::Started { pid } = reply else {
        panic!("{reply:?}")
    };
    let mut up = [0; 3];
    session.stdout.read_exact(&mut up).unwrap();
    let members = |session: i32| -> Vec<i32> {
        let pids = std::fs::read_dir("/proc").unwrap().filter_map(|e| {
            e.unwrap()
                .file_name()
                .to_str()
                .and_then(|n| n.parse::<i32>().ok())
        });
        let in_session = |pid: &i32| hanok_shim::sys::process::session_of(*pid) == Ok(session);
        pids.filter(in_session)
            .filter(|pid| is_running(*pid))
            .collect()
    };
    wait_for("the background processes", || {
        (members(pid).len() >= 4).then_some(())
    });
    pod.ok(&Request::Kill {
        id: "e1".into(),
        signal: 9,
        all: false,
    });
    assert_eq!(
        session.client.reply().unwrap(),
        Reply::ExecExited { code: 137 }
    );
    wait_for("the end of the session", || {
        members(pid).is_empty().then_some(())
    });
}

#[test]
fn root_an_exec_that_is_not_in_the_cgroups_of_its_container_ends_with_it() {
    let pod = Pod::started();
    // Nothing ends what is in the node's PID namespace, and there are no cgroups to find it by.
    let mut container = pod.spec("c1", &["sleep", "1000"]);
    container.namespaces.pid = Namespace::Host;
    let init = pod.run(&container);
    let (reply, mut session) = start(&pod, &spec("c1", "e1", &["sleep", "1000"]));
    assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
    hanok_shim::sys::process::kill(init, libc::SIGKILL).unwrap();
    let killed = Reply::ExecExited { code: 137 };
    assert_eq!(session.client.reply().unwrap(), killed);
}

#[test]
fn root_closing_the_connection_leaves_the_exec_running() {
    let pod = Pod::started();
    sleeper(&pod);
    let (reply, session) = start(&pod, &spec("c1", "e1", &["sleep", "1000"]));
    let Reply::Started { pid } = reply else {
        panic!("{reply:?}")
    };
    drop(session);
    assert_eq!(pod.sh("c2", "echo still serving").1, "still serving\n");
    assert!(is_running(pid));
    pod.ok(&Request::Kill {
        id: "e1".into(),
        signal: 9,
        all: false,
    });
    wait_for("its end", || (!is_running(pid)).then_some(()));
}

#[test]
fn root_a_terminal_is_copied_resized_and_ends_with_its_process() {
    let pod = Pod::started();
    sleeper(&pod);
    let mut tty = spec(
        "c1",
        "e1",
        &[
            "sh",
            "-c",
            "tty; read line; stty size; echo got $line; exit 4",
        ],
    );
    tty.tty = true;
    tty.stderr = false;
    let mut client = pod.client();
    let (mut near, far) = UnixStream::pair().unwrap();
    let request = Request::Exec(Box::new(tty));
    let reply = client
        .call_with_fds(&request, &[far.as_fd(), far.as_fd()])
        .unwrap();
    drop(far);
    assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
    pod.ok(&Request::Resize {
        id: "e1".into(),
        rows: 33,
        cols: 101,
    });
    let mut first = [0; "/dev/pts/0\r\n".len()];
    near.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"/dev/pts/0\r\n");
    near.write_all(b"hello\n").unwrap();
    assert_eq!(client.reply().unwrap(), Reply::ExecExited { code: 4 });
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    near.read_to_string(&mut text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["hello", "33 101", "got hello"]);
}

#[test]
fn root_exec_without_descriptors_reads_and_writes_nothing() {
    let pod = Pod::started();
    sleeper(&pod);
    let mut quiet = spec("c1", "e1", &["sh", "-c", "cat; echo lost"]);
    (quiet.stdin, quiet.stdout, quiet.stderr) = (false, false, false);
    let mut client = pod.client();
    let reply = client
        .call(&Request::Exec(Box::new(quiet.clone())))
        .unwrap();
    assert!(matches!(reply, Reply::Started { .. }));
    assert_eq!(client.reply().unwrap(), Reply::ExecExited { code: 0 });
    // Named and not sent is an error.
    quiet.stdin = true;
    let reply = pod.call(&Request::Exec(Box::new(quiet)));
    assert!(matches!(
        reply,
        Reply::Failed {
            kind: FailureKind::Invalid,
            ..
        }
    ));
}

#[test]
fn root_a_joining_process_cannot_be_looked_into() {
    let pod = Pod::started();
    // Whoever in the container tries to open the program or the descriptors of a process that joins.
    let script = "while :; do for p in /proc/[0-9]*; do \
        [ $p = /proc/1 ] || case $(readlink $p/exe 2>/dev/null) in *hanok*) echo caught $p;; esac; done; done";
    pod.run(&pod.spec("c1", &["sh", "-c", script]));
    for _ in 0..200 {
        let mut quiet = spec("c1", "e1", &["true"]);
        (quiet.stdin, quiet.stdout, quiet.stderr) = (false, false, false);
        let mut client = pod.client();
        assert!(matches!(
            client.call(&Request::Exec(Box::new(quiet))).unwrap(),
            Reply::Started { .. }
        ));
        client.reply().unwrap();
    }
    assert_eq!(pod.log_text("c1"), "");
}
