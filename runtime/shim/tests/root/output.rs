//! Output: the log file has all of it, in the CRI format, whoever holds the pipe.

use std::fs;
use std::time::Instant;

use hanok_shim::protocol::*;

use crate::rig::{Pod, bind, mount, wait_for};

#[test]
fn root_long_lines_are_cut_and_the_text_is_complete() {
    let pod = Pod::started();
    let (_, text) = pod.sh(
        "c1",
        "head -c 40000 /dev/zero | tr '\\0' x; echo; printf tail",
    );
    assert_eq!(text, format!("{}\ntail", "x".repeat(40_000)));
    let log = String::from_utf8(pod.log_bytes("c1")).unwrap();
    let tags: String = log.lines().map(|l| l.split(' ').nth(2).unwrap()).collect();
    assert_eq!(tags, "PPFP");
}

#[test]
fn root_binary_output_is_kept_as_it_is() {
    let pod = Pod::started();
    pod.sh("c1", "printf 'a\\000\\377\\nb'");
    let log = pod.log_bytes("c1");
    assert!(log.windows(5).any(|w| w == b"a\0\xff\n2"), "{log:?}");
}

#[test]
fn root_streams_are_named() {
    let pod = Pod::started();
    pod.sh("c1", "echo out; sleep 0.05; echo err >&2");
    let log = String::from_utf8(pod.log_bytes("c1")).unwrap();
    let streams: Vec<_> = log.lines().map(|l| l.split(' ').nth(1).unwrap()).collect();
    assert_eq!(streams, ["stdout", "stderr"]);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        fs::metadata(pod.path("logs/c1.log")).unwrap().mode() & 0o777,
        0o640
    );
}

#[test]
fn root_all_that_was_written_is_logged_before_the_exit_is_told() {
    let pod = Pod::started();
    for n in 0..10 {
        let id = format!("c{n}");
        let mut events = pod.client();
        assert_eq!(events.call(&Request::Subscribe).unwrap(), Reply::Ok);
        pod.run(&pod.spec(
            &id,
            &[
                "sh",
                "-c",
                "head -c 60000 /dev/zero | tr '\\0' y; echo end >&2",
            ],
        ));
        let Event::ContainerExited { exit } = events.event().unwrap() else {
            panic!()
        };
        assert_eq!(exit.container, id);
        assert!(pod.path(&format!("{id}/exit.json")).exists());
        let text = pod.log_text(&id);
        assert_eq!(text.matches('y').count(), 60_000);
        assert!(text.contains("end\n"));
    }
}

#[test]
fn root_a_process_that_outlives_init_and_holds_the_pipe_delays_nothing() {
    let pod = Pod::new();
    pod.start_sandbox(&SandboxSpec {
        pid: Namespace::New,
        ..pod.sandbox()
    });
    let mut spec = pod.spec(
        "c1",
        &["sh", "-c", "echo before; setsid sleep 1000 & exit 0"],
    );
    spec.namespaces.pid = Namespace::Pod;
    let start = Instant::now();
    let (exit, text) = pod.output(&spec);
    assert_eq!((exit.code, text.as_str()), (0, "before\n"));
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn root_logs_rotate_while_they_are_written() {
    let pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done",
        ],
    );
    spec.log = spec.log.map(|log| Log {
        max_size: 20_000,
        max_files: 3,
        ..log
    });
    pod.output(&spec);
    let mut files: Vec<_> = fs::read_dir(pod.path("logs"))
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 3);
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() <= 20_000);
    }
    assert!(pod.log_text("c1").ends_with("line 1999\n"));
}

#[test]
fn root_a_renamed_log_is_reopened_on_request() {
    let pod = Pod::started();
    let script = "echo one; while [ ! -e /vol/go ]; do sleep 0.01; done; echo two";
    let mut spec = pod.spec("c1", &["sh", "-c", script]);
    fs::create_dir(pod.path("volume")).unwrap();
    spec.mounts
        .push(mount("/vol", bind(&pod.path("volume")), 0));
    pod.run(&spec);
    wait_for("the first line", || {
        (pod.log_text("c1") == "one\n").then_some(())
    });
    fs::rename(pod.path("logs/c1.log"), pod.path("logs/moved")).unwrap();
    pod.ok(&Request::ReopenLog {
        container: "c1".into(),
    });
    fs::write(pod.path("volume/go"), "").unwrap();
    pod.exit("c1");
    assert_eq!(pod.log_text("c1"), "two\n");
}

#[test]
fn root_a_flood_of_output_does_not_starve_other_requests() {
    let pod = Pod::started();
    let mut spec = pod.spec("c1", &["yes"]);
    spec.log = spec.log.map(|log| Log {
        max_size: 1 << 20,
        max_files: 2,
        ..log
    });
    pod.run(&spec);
    for n in 0..5 {
        assert_eq!(pod.sh(&format!("d{n}"), "echo fine").1, "fine\n");
    }
    pod.ok(&Request::Kill {
        id: "c1".into(),
        signal: 9,
        all: true,
    });
    assert_eq!(pod.exit("c1").code, 137);
}
