//! What `ctr` can ask of containerd, by the shim of containerd and `hanok oci`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::containerd::{Containerd, IMAGE, text};
use super::until;

#[test]
fn root_containerd_runs_containers_in_the_foreground() {
    let containerd = Containerd::start("foreground");
    let script = "echo to out; echo to err >&2; exit 7";
    let words = ["sh", "-c", script];
    let output = containerd.run("a", &["--rm"], &words).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("to out\n"));
    assert!(text(&output.stderr).contains("to err\n"));

    let output = containerd.run("b", &["--rm"], &["/no/such"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let want = "exec: \"/no/such\": stat /no/such: no such file or directory";
    let said = text(&output.stderr);
    assert!(said.contains(want), "{said}");

    let mut child = containerd.run("c", &["--rm"], &["sh", "-c", "read line; echo got $line"]);
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Kept open meanwhile: ctr loses what comes shortly before the end.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"words\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "got words\n");
    drop(stdin);

    let words = ["sh", "-c", "echo $(busybox tty); exit 3"];
    is_told_by_terminal(&containerd.run("d", &["--rm", "--tty"], &words), 3);
    assert!(containerd.cgroups().is_empty());
}

#[test]
fn root_what_ctr_is_told_is_in_force() {
    let containerd = Containerd::start("options");
    let options = [
        ["--env", "A=b"],
        ["--cwd", "/tmp"],
        ["--memory-limit", "33554432"],
        ["--cap-add", "CAP_SYS_TIME"],
        ["--rootfs-propagation", "rslave"],
        ["--mount", "type=bind,src=/etc,dst=/mnt,options=rbind:ro"],
    ];
    let options = [
        &["--rm", "--read-only", "--seccomp"][..],
        options.as_flattened(),
    ]
    .concat();
    let script = "pwd; echo $A; busybox touch /x /mnt/x; \
        busybox grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status";
    let words = ["sh", "-c", script];
    let output = containerd.run("a", &options, &words).output().unwrap();
    let said = text(&output.stdout);
    let errors = text(&output.stderr);
    let want = "/tmp\nb\nCapBnd:\t00000000aa0425fb\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    assert_eq!(said, want, "{errors}");
    assert_eq!(errors.matches("Read-only file system").count(), 2);
}

/// Whether the name of a terminal arrives by one, and this exit code. ctr does not wait for the last that is written,
/// whatever the runtime, so it may take a second try.
fn is_told_by_terminal(command: &Command, code: i32) {
    until(|| {
        let (output, ended) = in_terminal(command);
        assert_eq!(ended, Some(code), "{output}");
        output.starts_with("/dev/pts/0\r")
    });
}

/// What a program writes to a terminal, and its exit code.
fn in_terminal(command: &Command) -> (String, Option<i32>) {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_str().unwrap()));
    let line = quoted.collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    let output = script.stdin(Stdio::null()).output().unwrap();
    let written = text(&output.stdout);
    // The end of our own standard input is written, too.
    let written = written.trim_start_matches(['^', '@', '\u{4}', '\u{8}', 'D']);
    (written.to_owned(), output.status.code())
}

#[test]
fn root_containerd_executes_in_pauses_and_kills_a_container() {
    let containerd = Containerd::start("detached");
    let script = "trap 'exit 9' TERM; while :; do sleep 0.1; done";
    let options = ["--detach", "--memory-limit", "67108864"];
    let started = containerd
        .run("a", &options, &["sh", "-c", script])
        .status();
    assert!(started.unwrap().success());
    let id = containerd.id("a");
    let state = || containerd.task("a").map(|(_, state)| state);
    assert_eq!(state().as_deref(), Some("RUNNING"));
    let exec = |name: &str, options: &[&str], words: &[&str]| {
        let first = ["task", "exec", "--exec-id", name];
        containerd.command(&[&first, options, &[&id], words].concat())
    };

    let script = "id -u; busybox grep -c memory:.*hanok-detached /proc/self/cgroup; exit 5";
    let words = ["sh", "-c", script];
    let output = exec("one", &["--user", "1000"], &words).output().unwrap();
    let said = (text(&output.stdout), output.status.code());
    assert_eq!(said, ("1000\n1\n".into(), Some(5)));
    let output = exec("two", &[], &["/no/such"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("exec: \"/no/such\": stat"), "{said}");
    let words = ["sh", "-c", "busybox tty; exit 6"];
    is_told_by_terminal(&exec("three", &["--tty"], &words), 6);
    let detached = exec("four", &["--detach"], &["sleep", "1000"]).status();
    assert!(detached.unwrap().success());
    let list = containerd.done(&["task", "ps", &id]);
    assert!(list.contains("four") && list.lines().count() >= 3, "{list}");
    let metrics = containerd.done(&["task", "metrics", &id]);
    assert!(metrics.contains("67108864"), "{metrics}");

    containerd.done(&["task", "pause", &id]);
    assert_eq!(state().as_deref(), Some("PAUSED"));
    containerd.done(&["task", "resume", &id]);
    assert_eq!(state().as_deref(), Some("RUNNING"));
    let refused = text(&containerd.call(&["task", "checkpoint", &id]).stderr);
    let want = "containers cannot be checkpointed or restored";
    assert!(refused.contains(want), "{refused}");
    let refused = text(&containerd.call(&["task", "delete", &id]).stderr);
    assert!(refused.contains("must be stopped"), "{refused}");

    containerd.done(&["task", "kill", &id]);
    until(|| state().as_deref() == Some("STOPPED"));
    let refused = text(&containerd.call(&["task", "kill", &id]).stderr);
    assert!(refused.contains("not found"), "{refused}");
    // The exit code of a deleted task is that of its process.
    let deleted = containerd.call(&["task", "delete", &id]);
    assert!(text(&deleted.stderr).contains("exit code 9"));
    containerd.done(&["container", "delete", &id]);
    assert!(containerd.cgroups().is_empty());
}

#[test]
fn root_containerd_leaves_nothing_of_many_containers_and_of_a_shim_that_is_killed() {
    let containerd = Containerd::start("many");
    let many: Vec<_> = (1..=10)
        .map(|number| {
            let words = format!("echo I am {number}; exit {number}");
            let mut command = containerd.run(&number.to_string(), &["--rm"], &["sh", "-c", &words]);
            (number, command.stdout(Stdio::piped()).spawn().unwrap())
        })
        .collect();
    for (number, child) in many {
        let output = child.wait_with_output().unwrap();
        assert_eq!(text(&output.stdout), format!("I am {number}\n"));
        assert_eq!(output.status.code(), Some(number));
    }

    let mut events = containerd.command(&["events"]);
    let log = std::fs::File::create(containerd.path("events")).unwrap();
    let mut events = events.stdout(log).spawn().unwrap();
    let told = |what: &str| {
        let text = std::fs::read_to_string(containerd.path("events"));
        text.unwrap().contains(what)
    };
    let script = "tail /dev/zero; echo survived";
    let options = ["--detach", "--memory-limit", "33554432"];
    // Until somebody listens.
    until(|| {
        containerd.done(&["image", "label", IMAGE, "a=b"]);
        told("/images/update")
    });
    let started = containerd
        .run("eats", &options, &["sh", "-c", script])
        .status();
    assert!(started.unwrap().success());
    until(|| told("/tasks/oom") && told("/tasks/exit"));
    events.kill().unwrap();
    events.wait().unwrap();
    let id = containerd.id("eats");
    containerd.done(&["task", "delete", "--force", &id]);

    let words = ["sh", "-c", "sleep 1000 & sleep 1000"];
    let started = containerd.run("alone", &["--detach"], &words).status();
    assert!(started.unwrap().success());
    let (pid, _) = containerd.task("alone").unwrap();
    assert!(!containerd.cgroups().is_empty());
    // In the namespace of what containerd calls so, the shim is its parent.
    let script = format!("kill -KILL $(cut -d ' ' -f 4 /proc/{pid}/stat)");
    let killed = containerd.inside(&["sh", "-c", &script]).status();
    assert!(killed.unwrap().success());
    until(|| containerd.task("alone").is_none());
    containerd.done(&["container", "delete", &containerd.id("alone")]);
    until(|| containerd.cgroups().is_empty());
}
