//! Processes that look like shims, and families that grow while they are killed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;

/// Killed when it is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Running(piped.spawn().unwrap())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A shell with a shim's command line, by a script of that name, and with this name.
fn like_a_shim(work: &Path, dir: &Path, name: &str) -> Running {
    let script = format!("printf {name} > /proc/$$/comm\necho ready\nread -r line\n");
    fs::write(work.join(SERVE), script).unwrap();
    let mut command = Command::new("sh");
    command.current_dir(work).args([SERVE, STATE_DIR]).arg(dir);
    let mut running = Running::start(&mut command);
    assert_eq!(running.line(), "ready");
    running
}

#[test]
fn root_a_shim_is_known_by_name_and_command_line() {
    let work = tempfile::tempdir().unwrap();
    let dir = work.path().join("gone");
    let mut shim = like_a_shim(work.path(), &dir, NAME);
    let mut other = like_a_shim(work.path(), &dir, "hanok-shimmer");
    assert_eq!(state_dir(shim.pid()).unwrap(), Some(dir.clone()));
    assert_eq!(state_dir(other.pid()).unwrap(), None);
    assert!(end(|_| false).unwrap().is_empty());
    assert_eq!(end(|one| one == dir).unwrap(), [dir.as_path()]);
    assert!(!shim.0.wait().unwrap().success());
    assert!(other.0.try_wait().unwrap().is_none());
}

#[test]
fn root_a_family_that_grows_meanwhile_is_killed_to_the_last() {
    // Each begins the next and ends, for some seconds at the most.
    let hop = "N=$((N+1)); [ $N -gt 5000 ] || sh -c \"$HOP\" &";
    let mut command = Command::new("unshare");
    // The first process of a PID namespace is given the orphans, as a shim is.
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c"]);
    command.arg("sh -c \"$HOP\"; sh -c \"$HOP\"; echo ready; read -r line; sleep 60");
    let mut outer = Running::start(command.env("HOP", hop).env("N", "0"));
    assert_eq!(outer.line(), "ready");
    let below = |pid: Pid| {
        let all = births().unwrap();
        let children = all.iter().filter(|(_, birth)| birth.parent == Some(pid));
        children.map(|(pid, _)| *pid).collect::<Vec<_>>()
    };
    let [init] = below(outer.pid())[..] else {
        panic!("unshare has no one child");
    };
    kill_descendants(init).unwrap();
    let lives = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        line.is_ok_and(|line| !line.is_empty())
    };
    // Those with the signal end in a moment, and nobody follows them.
    let begun = Instant::now();
    while below(init).iter().any(lives) {
        assert!(begun.elapsed() < Duration::from_secs(2));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(lives(&init));
}

#[tokio::test]
async fn who_cannot_be_looked_at_holds_nobody_up() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let stuck = aside(Duration::from_millis(10), move || {
        let _ = wait.recv();
        Ok(())
    });
    assert_eq!(stuck.await.unwrap_err().kind(), ErrorKind::TimedOut);
    drop(go);
    let done = aside(PATIENCE, || Ok(7));
    assert_eq!(done.await.unwrap(), 7);
}

#[test]
fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
    let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 4711 8192 1 0\n";
    let birth = parse(stat).unwrap();
    assert_eq!((birth.parent, birth.time), (Pid::from_raw(3), 4711));
    assert!(parse("7 (a) S 0").is_none());
}
