//! Against a shim of a few lines.

use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::frame::{self, Decoder};
use hanok_shim::sys::socket;

use super::*;

/// Answers requests until the script ends, then closes the listener and the connections.
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
    let stream = connect(&path).await.unwrap();
    listener.accept().unwrap();
    drop(stream);
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}
