//! Exec, attach, connect.

use std::time::Duration;

use hanok_runtime::api::{ContainerState, ExecRequest, RuntimeService};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::rig::Rig;

fn request(script: &str, stdin: bool) -> ExecRequest {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    ExecRequest {
        command,
        tty: false,
        stdin,
        ..ExecRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_exec_has_streams_and_an_exit_code() {
    let rig = Rig::new("exec").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    let script = "cat; echo err >&2; echo $HOSTNAME; exit 5";
    let mut session = rig
        .runtime()
        .exec(&id, request(script, true))
        .await
        .unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"in\n").await.unwrap();
    drop(stdin);
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.read_to_string(&mut out).await.unwrap();
    session
        .stderr
        .unwrap()
        .read_to_string(&mut err)
        .await
        .unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("in\npod-host\n", "err\n"));
    assert_eq!(session.process.wait().await.unwrap(), 5);
    assert_eq!(
        session.process.wait().await.unwrap(),
        5,
        "it may be asked again"
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_exec_sees_the_end_of_its_input_and_at_once_when_it_has_none() {
    let rig = Rig::new("execinput").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    for input in [Some("one line\n"), Some(""), None] {
        let request = request("cat; echo end", input.is_some());
        let mut session = rig.runtime().exec(&id, request).await.unwrap();
        if let Some(input) = input {
            let mut stdin = session.stdin.take().unwrap();
            stdin.write_all(input.as_bytes()).await.unwrap();
        }
        let mut out = String::new();
        let read = session.stdout.read_to_string(&mut out);
        let read = tokio::time::timeout(crate::rig::PATIENCE, read).await;
        read.unwrap().unwrap();
        assert_eq!(out, format!("{}end\n", input.unwrap_or_default()));
        assert_eq!(session.process.wait().await.unwrap(), 0);
    }
    rig.finish().await;
}

/// Reads to the end with a rest after every 64 KiB, and a long one at the start: how much it was, and its end.
async fn slowly(mut from: impl AsyncRead + Unpin, rest: Duration) -> (u64, String) {
    let (mut total, mut end, mut buffer) = (0, Vec::new(), vec![0; 64 << 10]);
    tokio::time::sleep(rest * 200).await;
    loop {
        let count = from.read(&mut buffer).await.unwrap();
        if count == 0 {
            return (total, String::from_utf8(end).unwrap());
        }
        let before = total >> 16;
        total += count as u64;
        end.extend_from_slice(&buffer[..count]);
        end.drain(..end.len().saturating_sub(16));
        if total >> 16 != before {
            tokio::time::sleep(rest).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_large_output_of_an_exec_is_whole_with_a_terminal_and_for_a_slow_reader() {
    const LINES: u64 = 200_000;
    // Digits of all numbers, and an end for each line.
    const LENGTH: u64 = 1_088_895 + LINES;
    let rig = Rig::new("execlarge").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    for (tty, rest) in [(false, 0), (true, 0), (false, 2), (true, 2)] {
        let request = ExecRequest {
            tty,
            ..request(&format!("seq {LINES}; exit 3"), false)
        };
        let session = rig.runtime().exec(&id, request).await.unwrap();
        let (length, end) = slowly(session.stdout, Duration::from_millis(rest)).await;
        let (more, line) = match tty {
            true => (LINES, "\r\n"),
            false => (0, "\n"),
        };
        assert_eq!(length, LENGTH + more, "terminal: {tty}, rest: {rest} ms");
        assert!(end.ends_with(&format!("{LINES}{line}")), "{end:?}");
        assert_eq!(session.process.wait().await.unwrap(), 3);
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_exec_of_nothing_fails_and_harms_nobody() {
    let rig = Rig::new("execerr").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    let command = vec!["/bin/nothing".to_owned()];
    let nothing = ExecRequest {
        command,
        tty: false,
        stdin: false,
        ..ExecRequest::default()
    };
    assert!(rig.runtime().exec(&id, nothing).await.is_err());
    assert_eq!(rig.status(&id).await.state, ContainerState::Running);
    rig.runtime()
        .stop_container(&id, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        rig.runtime()
            .exec(&id, request("true", false))
            .await
            .is_err()
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_many_execs_at_once_have_their_own_output_and_end() {
    const AT_ONCE: i32 = 12;
    let rig = Rig::new("execmany").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    // In the second round, connections of the first one are used again.
    for _ in 0..2 {
        let runs = (0..AT_ONCE).map(async |n| {
            // More than a pipe holds, from every other one.
            let more = if n % 2 == 0 { 200_000 } else { 0 };
            let script = format!("head -c {more} /dev/zero; echo {n}; exit {n}");
            let mut session = rig
                .runtime()
                .exec(&id, request(&script, false))
                .await
                .unwrap();
            let mut output = Vec::new();
            let read = session.stdout.read_to_end(&mut output);
            let (code, read) = tokio::join!(session.process.wait(), read);
            read.unwrap();
            assert_eq!(code.unwrap(), n);
            assert_eq!(&output[more..], format!("{n}\n").as_bytes());
        });
        futures::future::join_all(runs).await;
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_output_is_there_after_the_end() {
    let rig = Rig::new("execlate").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    let script = request("echo out; echo err >&2; sleep 600 >/dev/null 2>&1 &", false);
    let mut session = rig.runtime().exec(&id, script).await.unwrap();
    assert_eq!(session.process.wait().await.unwrap(), 0);
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.read_to_string(&mut out).await.unwrap();
    let mut stderr = session.stderr.unwrap();
    stderr.read_to_string(&mut err).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_exec_can_be_killed() {
    let rig = Rig::new("execkill").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    let session = rig
        .runtime()
        .exec(&id, request("sleep 600", false))
        .await
        .unwrap();
    session.process.kill().await.unwrap();
    let code = tokio::time::timeout(crate::rig::PATIENCE, session.process.wait())
        .await
        .unwrap();
    assert_eq!(code.unwrap(), 137);
    assert_eq!(rig.status(&id).await.state, ContainerState::Running);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_attach_joins_the_containers_own_streams() {
    let rig = Rig::new("attach").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "read line; echo got $line; exit 3");
    config.stdin = true;
    let id = rig.start(&sandbox, config).await;
    let mut session = rig.runtime().attach(&id, true).await.unwrap();
    session
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"word\n")
        .await
        .unwrap();
    let mut out = String::new();
    session.stdout.read_to_string(&mut out).await.unwrap();
    assert_eq!(out, "got word\n");
    assert_eq!(session.process.wait().await.unwrap(), 3);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_connections_are_made_inside_the_pod() {
    let rig = Rig::new("connect").await;
    let sandbox = rig.sandbox().await.id;
    rig.start(
        &sandbox,
        rig.script("c", "echo up; echo hello | nc -l -p 8000"),
    )
    .await;
    let connecting = async {
        loop {
            match rig.runtime().connect(&sandbox, 8000).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let mut stream = tokio::time::timeout(crate::rig::PATIENCE, connecting)
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello\n");
    assert!(rig.runtime().connect(&sandbox, 1).await.is_err());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_exec_of_which_only_the_end_is_told_is_like_any_other() {
    let rig = Rig::new("execend").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig.start(&sandbox, rig.script("c", "sleep 600")).await;
    let run = async |command: &[&str]| {
        let request = ExecRequest {
            command: command.iter().map(|&word| word.to_owned()).collect(),
            only_end: true,
            ..ExecRequest::default()
        };
        rig.runtime().exec(&id, request).await.unwrap()
    };
    for script in ["echo out; echo err >&2; exit 7", "kill -9 $$"] {
        let mut session = run(&["/bin/sh", "-c", script]).await;
        let code = session.process.wait().await.unwrap();
        assert_eq!(session.process.wait().await.unwrap(), code, "asked again");
        let (mut out, mut err) = (String::new(), String::new());
        session.stdout.read_to_string(&mut out).await.unwrap();
        let errors = session.stderr.as_mut().unwrap();
        errors.read_to_string(&mut err).await.unwrap();
        let expected = match code {
            7 => ("out\n", "err\n"),
            137 => ("", ""),
            code => panic!("{script}: {code}"),
        };
        assert_eq!((out.as_str(), err.as_str()), expected);
    }

    // In the cgroups, groups and namespaces of an ordinary exec.
    let script = "cat /proc/self/cgroup; id; hostname; readlink /proc/self/ns/*; grep -E 'Cap|Seccomp|NoNew' /proc/self/status";
    let mut session = run(&["/bin/sh", "-c", script]).await;
    assert_eq!(session.process.wait().await.unwrap(), 0);
    let mut ours = String::new();
    session.stdout.read_to_string(&mut ours).await.unwrap();
    let session = rig.runtime().exec(&id, request(script, false)).await;
    let mut theirs = String::new();
    let mut session = session.unwrap();
    session.stdout.read_to_string(&mut theirs).await.unwrap();
    assert_eq!(ours, theirs);

    // What cannot be started is told at its end, in the same words.
    let session = run(&["/nowhere"]).await;
    let late = session.process.wait().await.unwrap_err().to_string();
    let command = vec!["/nowhere".to_owned()];
    let request = ExecRequest {
        command,
        ..ExecRequest::default()
    };
    let early = rig.runtime().exec(&id, request).await.unwrap_err();
    assert_eq!(late, early.to_string());

    // It can be killed.
    let mut session = run(&["/bin/sh", "-c", "echo up; sleep 600"]).await;
    session.stdout.read_exact(&mut [0; 3]).await.unwrap();
    session.process.kill().await.unwrap();
    assert_eq!(session.process.wait().await.unwrap(), 137);
    rig.finish().await;
}
