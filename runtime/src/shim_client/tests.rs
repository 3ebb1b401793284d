//! Against a shim of a few lines.

use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::frame::{self, Decoder};
use hanok_shim::sys::socket;

use super::connection::connect;
use super::*;

/// Answers requests until the script ends, then closes the listener and the connections. What has started with a
/// number other than 0 ends with it.
fn script(
    replies: Vec<Vec<Reply>>,
) -> (
    tempfile::TempDir,
    Shim,
    std::thread::JoinHandle<Vec<Request>>,
) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shim.sock");
    let listener = bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for replies in replies {
            let (mut stream, _) = listener.accept().unwrap();
            let mut decoder = Decoder::new();
            for reply in replies {
                let request = loop {
                    if let Some(request) = decoder.next_message::<Request>().unwrap() {
                        break request;
                    }
                    let (mut chunk, mut fds) = ([0; 512], Vec::<OwnedFd>::new());
                    let count = socket::receive(&stream, &mut chunk, &mut fds).unwrap();
                    decoder.feed(&chunk[..count]);
                    for fd in fds {
                        io::Write::write_all(&mut std::fs::File::from(fd), b"hello").unwrap();
                    }
                };
                seen.push(request);
                frame::write(&mut stream, &reply).unwrap();
                if let Reply::Started { pid: code @ 1.. } = reply {
                    frame::write(&mut stream, &Reply::ExecExited { code }).unwrap();
                }
            }
        }
        seen
    });
    (dir, Shim::new(path), thread)
}

fn failure(message: &str) -> Reply {
    Reply::Failed {
        kind: FailureKind::System,
        message: message.into(),
    }
}

#[tokio::test]
async fn connection_is_used_again_also_after_a_failure() {
    let replies = vec![
        Reply::Ok,
        failure("no"),
        Reply::Ok,
        Reply::State(ShimState::default()),
    ];
    let (_dir, shim, thread) = script(vec![replies]);
    let request = Request::ReopenLog {
        container: "c".into(),
    };
    let error = shim.order(&request).await.unwrap_err();
    assert!(
        matches!(&error, ShimError::Failed { message, .. } if message == "no"),
        "{error}"
    );
    shim.order(&request).await.unwrap();
    assert_eq!(shim.state().await.unwrap(), ShimState::default());
    assert_eq!(thread.join().unwrap().len(), 4);
}

#[tokio::test]
async fn broken_idle_connection_is_replaced() {
    let (_dir, shim, thread) = script(vec![vec![Reply::Ok, Reply::Ok], vec![Reply::Ok, Reply::Ok]]);
    let request = Request::ReopenLog {
        container: "c".into(),
    };
    shim.order(&request).await.unwrap();
    shim.order(&request).await.unwrap();
    thread.join().unwrap();
}

fn exec(id: &str) -> Request {
    Request::Exec(Box::new(hanok_shim::protocol::ExecSpec {
        container: "c".into(),
        exec: id.into(),
        process: hanok_shim::protocol::Process::default(),
        inherit: true,
        stdin: false,
        stdout: false,
        stderr: false,
        tty: false,
    }))
}

#[tokio::test]
async fn execs_follow_each_other_on_one_connection() {
    let replies = vec![
        Reply::Ok,
        Reply::Started { pid: 3 },
        failure("no"),
        Reply::Started { pid: 4 },
        Reply::State(ShimState::default()),
    ];
    let (_dir, shim, thread) = script(vec![replies]);
    let mut first = shim.exec(&exec("1"), &[]).await.unwrap();
    assert_eq!(first.exit().await.unwrap(), 3);
    shim.exec(&exec("2"), &[]).await.unwrap_err();
    let mut third = shim.exec(&exec("3"), &[]).await.unwrap();
    assert_eq!(third.exit().await.unwrap(), 4);
    shim.state().await.unwrap();
    assert_eq!(thread.join().unwrap().len(), 5);
}

#[tokio::test]
async fn the_end_of_a_run_is_found_by_who_looks_later_and_by_who_waits() {
    let dir = tempfile::tempdir().unwrap();
    let listener = bind(&dir.path().join("shim.sock")).unwrap();
    let shim = Shim::new(dir.path().join("shim.sock"));
    let (ends, may_end) = std::sync::mpsc::channel::<i32>();
    let (said, is_said) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        frame::read::<Request>(&mut stream).unwrap();
        frame::write(&mut stream, &Reply::Ok).unwrap();
        for code in may_end {
            frame::read::<Request>(&mut stream).unwrap();
            frame::write(&mut stream, &Reply::ExecExited { code }).unwrap();
            said.send(()).unwrap();
        }
    });
    let run = Request::Run(Box::default());
    for code in [1, 2] {
        let mut later = shim.run(&run, &[]).await.unwrap().unwrap();
        ends.send(code).unwrap();
        is_said.recv().unwrap();
        assert_eq!(later.exit().await.unwrap(), code);
        let mut waits = shim.run(&run, &[]).await.unwrap().unwrap();
        let (exit, ()) = tokio::join!(waits.exit(), async {
            tokio::task::yield_now().await;
            ends.send(10 + code).unwrap();
        });
        assert_eq!(exit.unwrap(), 10 + code);
        is_said.recv().unwrap();
    }
    drop(ends);
    thread.join().unwrap();
}

#[tokio::test]
async fn a_request_that_a_socket_does_not_hold_goes_in_parts() {
    let (_dir, shim, thread) = script(vec![vec![Reply::Ok, Reply::Ok]]);
    let request = Request::ReopenLog {
        container: "c".repeat(2 << 20),
    };
    shim.order(&request).await.unwrap();
    assert_eq!(thread.join().unwrap()[1], request);
}

#[tokio::test]
async fn an_exec_whose_connection_breaks_is_lost_and_the_next_one_works() {
    let broken = vec![Reply::Ok, Reply::Started { pid: 0 }];
    let whole = vec![Reply::Ok, Reply::Started { pid: 5 }];
    let (_dir, shim, thread) = script(vec![broken, whole]);
    let mut first = shim.exec(&exec("1"), &[]).await.unwrap();
    let error = first.exit().await.unwrap_err();
    assert!(matches!(error, ShimError::Gone { .. }), "{error}");
    let mut second = shim.exec(&exec("2"), &[]).await.unwrap();
    assert_eq!(second.exit().await.unwrap(), 5);
    thread.join().unwrap();
}

#[tokio::test]
async fn a_connection_on_which_an_exec_runs_is_nobody_elses() {
    let running = vec![Reply::Ok, Reply::Started { pid: 0 }];
    let other = vec![Reply::Ok, Reply::State(ShimState::default())];
    let dir = tempfile::tempdir().unwrap();
    let listener = bind(&dir.path().join("shim.sock")).unwrap();
    let shim = Shim::new(dir.path().join("shim.sock"));
    let thread = std::thread::spawn(move || {
        // All stay open to the end.
        let mut streams = Vec::new();
        for replies in [running, other] {
            let (mut stream, _) = listener.accept().unwrap();
            for reply in replies {
                let mut header = [0; frame::HEADER];
                io::Read::read_exact(&mut stream, &mut header).unwrap();
                let mut body = vec![0; u32::from_le_bytes(header) as usize];
                io::Read::read_exact(&mut stream, &mut body).unwrap();
                frame::write(&mut stream, &reply).unwrap();
            }
            streams.push(stream);
        }
        let end = Reply::ExecExited { code: 6 };
        frame::write(&mut streams[0], &end).unwrap();
    });
    let mut running = shim.exec(&exec("1"), &[]).await.unwrap();
    shim.state().await.unwrap();
    assert_eq!(running.exit().await.unwrap(), 6);
    thread.join().unwrap();
}

#[tokio::test]
async fn absent_shim_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let shim = Shim::new(dir.path().join("shim.sock"));
    assert!(matches!(shim.state().await, Err(ShimError::Gone { .. })));
    let (_dir, shim, thread) = script(vec![vec![Reply::Ok]]);
    let waiting = tokio::spawn(async move {
        shim.state()
            .await
            .map_err(|e| matches!(e, ShimError::Gone { .. }))
    });
    assert_eq!(waiting.await.unwrap(), Err(true));
    thread.join().unwrap();
}

#[tokio::test]
async fn descriptors_travel_beside_the_request() {
    let (_dir, shim, thread) = script(vec![vec![Reply::Ok, Reply::Ok]]);
    let (mut reader, writer) = io::pipe().unwrap();
    let request = Request::Attach {
        container: "c".into(),
        stdin: false,
    };
    shim.order_with(&request, &[writer.as_fd()]).await.unwrap();
    drop(writer);
    let mut text = String::new();
    io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "hello");
    thread.join().unwrap();
}

#[tokio::test]
async fn sockets_may_have_long_paths() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let path = deep.join("shim.sock");
    let listener = bind(&path).unwrap();
    let stream = connect(&path).unwrap();
    listener.accept().unwrap();
    drop(stream);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn shim_of_an_earlier_release_is_spoken_to_in_its_version() {
    let refusal = Reply::Failed {
        kind: FailureKind::Invalid,
        message: "protocol version 2 is not 1".into(),
    };
    let state = Reply::State(ShimState::default());
    let (_dir, shim, thread) = script(vec![vec![refusal], vec![Reply::Ok, state]]);
    let run = Request::Run(Box::default());
    assert!(shim.run(&run, &[]).await.unwrap().is_none());
    assert!(shim.run(&run, &[]).await.unwrap().is_none(), "it knows");
    assert!(!shim.is_current().await.unwrap());
    shim.state().await.unwrap();
    let hello = |version| Request::Hello { version };
    let expected = [hello(VERSION), hello(FIRST_VERSION), Request::State];
    assert_eq!(thread.join().unwrap(), expected);
}

#[tokio::test]
async fn shim_of_this_release_is_asked_for_its_version_once() {
    let state = Reply::State(ShimState::default());
    let (_dir, shim, thread) = script(vec![vec![Reply::Ok, state]]);
    assert!(shim.is_current().await.unwrap());
    assert!(shim.is_current().await.unwrap());
    shim.state().await.unwrap();
    let hello = Request::Hello { version: VERSION };
    assert_eq!(thread.join().unwrap(), [hello, Request::State]);
}
