//! Attach: several clients see the same output, and the container does not wait for them.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use hanok_shim::protocol::*;

use crate::rig::{Pod, wait_for};

fn attach(pod: &Pod, id: &str, stdin: bool) -> (UnixStream, UnixStream) {
    let mut client = pod.client();
    let (near, far) = UnixStream::pair().unwrap();
    let (near_err, far_err) = UnixStream::pair().unwrap();
    let mut fds = vec![far.as_fd(), far_err.as_fd()];
    if stdin {
        fds.insert(0, far.as_fd());
    }
    let request = Request::Attach {
        container: id.into(),
        stdin,
    };
    assert_eq!(client.call_with_fds(&request, &fds).unwrap(), Reply::Ok);
    (near, near_err)
}

fn read_all(mut stream: UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn root_all_attached_clients_get_the_output_and_the_end() {
    let pod = Pod::started();
    let mut spec = pod.spec("c1", &["sh", "-c", "read x; echo out $x; echo err >&2"]);
    spec.stdin = true;
    pod.run(&spec);
    let (first, first_err) = attach(&pod, "c1", false);
    let (mut second, second_err) = attach(&pod, "c1", true);
    second.write_all(b"typed\n").unwrap();
    assert_eq!(read_all(first), "out typed\n");
    assert_eq!(read_all(second), "out typed\n");
    assert_eq!(read_all(first_err), "err\n");
    assert_eq!(read_all(second_err), "err\n");
    assert_eq!(pod.exit("c1").code, 0);
    assert_eq!(pod.log_text("c1").len(), "out typed\nerr\n".len());
}

#[test]
fn root_stdin_once_ends_with_its_client_and_otherwise_stays_open() {
    let pod = Pod::started();
    let mut once = pod.spec("once", &["sh", "-c", "cat; echo eof"]);
    (once.stdin, once.stdin_once) = (true, true);
    pod.run(&once);
    let (mut client, _err) = attach(&pod, "once", true);
    client.write_all(b"a\n").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(client), "a\neof\n");
    let mut open = pod.spec("open", &["sh", "-c", "read a; echo $a; read b; echo $b"]);
    open.stdin = true;
    pod.run(&open);
    for text in ["one", "two"] {
        let (mut client, _err) = attach(&pod, "open", true);
        client.write_all(format!("{text}\n").as_bytes()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        wait_for("the line", || {
            pod.log_text("open").contains(text).then_some(())
        });
    }
    assert_eq!(pod.exit("open").code, 0);
}

#[test]
fn root_a_client_that_does_not_read_is_let_go_and_delays_nobody() {
    let pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "read x; head -c 3000000 /dev/zero | tr '\\0' z; echo; echo end",
        ],
    );
    spec.stdin = true;
    pod.run(&spec);
    let (slow, _slow_err) = attach(&pod, "c1", false);
    let (mut typist, _err) = attach(&pod, "c1", true);
    typist.write_all(b"go\n").unwrap();
    let reader = std::thread::spawn(move || read_all(typist).len());
    assert_eq!(pod.exit("c1").code, 0);
    assert_eq!(pod.log_text("c1").len(), 3_000_005);
    drop(reader);
    assert!(read_all(slow).len() < 3_000_000);
}

#[test]
fn root_a_containers_terminal_is_logged_and_fed() {
    let pod = Pod::started();
    let mut spec = pod.spec(
        "c1",
        &[
            "sh",
            "-c",
            "tty; stat -c %t:%T /dev/console; read x; stty size; echo got $x",
        ],
    );
    (spec.tty, spec.stdin) = (true, true);
    pod.run(&spec);
    pod.ok(&Request::Resize {
        id: "c1".into(),
        rows: 20,
        cols: 70,
    });
    let (mut client, _err) = attach(&pod, "c1", true);
    wait_for("the first lines", || {
        pod.log_text("c1").contains("88:0").then_some(())
    });
    client.write_all(b"line\n").unwrap();
    assert_eq!(pod.exit("c1").code, 0);
    let text = pod.log_text("c1").replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["/dev/pts/0", "88:0", "line", "20 70", "got line"]);
    assert!(read_all(client).contains("got line"));
}
