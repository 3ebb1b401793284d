//! From the program that the agent starts to a daemon of its own.
//!
//! Three programs run one after the other in this binary: [`launch`] is what the agent execs; it clones, and
//! the clone leads a new session and execs the binary again from a sealed, read-only mount ([`serve`]), so
//! that `/proc/PID/exe` of whatever it becomes cannot be written. Descriptor 0 is the listening socket all
//! the way, 1 the pipe on which `launch` waits for the word that the daemon is ready. Then `launch` ends, and
//! the daemon is a child of PID 1.

use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hanok_shim::command_line::{NAME, SERVE, STATE_DIR};
use hanok_shim::sys::clone::{Cloned, clone_process};
use hanok_shim::sys::exec::{close_on_exec_from, execve_fd, exit_now};
use hanok_shim::sys::signal::SignalFd;
use rustix::process::{DumpableBehavior, set_child_subreaper, set_dumpable_behavior, setsid};

use crate::args::Args;
use crate::failure::{Doing, Failure, Result, describe};
use crate::host::{Host, open_null, sealed_program};
use crate::shim::Shim;

/// What the daemon writes once it serves. Anything else is the text of its failure.
const READY: &[u8] = b"\0";

/// Longest text of a failure.
const MAX_TEXT: u64 = 4096;

/// oom_score_adj of the shim: killed after everything in its pod, and before the agent at -999.
const OOM_SCORE_ADJ: i32 = -998;

/// Log file of the daemon's own troubles, in its state directory.
const LOG: &str = "shim.log";

/// Started by the agent: makes the daemon and waits until it serves.
pub(crate) fn launch(args: &Args) -> Result<()> {
    let is_socket = rustix::net::sockopt::socket_acceptconn(std::io::stdin());
    if is_socket != Ok(true) {
        return Err(Failure::invalid("descriptor 0 must be a listening socket"));
    }
    let (reader, writer) = std::io::pipe().doing(|| "make a pipe")?;
    let log = open_log(&args.state_dir)?;
    let program = sealed_program(c"/proc/self/exe")?;
    let cloned = clone_process(0, None).doing(|| "clone the daemon")?;
    if matches!(cloned, Cloned::Child) {
        let failure = become_daemon(args, &program, writer.as_fd(), log.as_fd());
        // The pipe is where the parent looks, and nothing can be done when it does not.
        let _ = (&writer).write_all(failure.message.as_bytes());
        exit_now(1);
    }
    drop(writer);
    let mut word = Vec::new();
    let mut reader = reader.take(MAX_TEXT);
    reader
        .read_to_end(&mut word)
        .doing(|| "wait for the daemon")?;
    match word.as_slice() {
        READY => Ok(()),
        [] => Err(Failure::system("the daemon ended before it was ready")),
        text => Err(Failure::system(String::from_utf8_lossy(text))),
    }
}

/// Child: session, standard descriptors, exec. Returns only when that failed.
fn become_daemon(
    args: &Args,
    program: &OwnedFd,
    ready: std::os::fd::BorrowedFd<'_>,
    log: std::os::fd::BorrowedFd<'_>,
) -> Failure {
    let prepare = || -> Result<()> {
        setsid().doing(|| "begin a session")?;
        rustix::stdio::dup2_stdout(ready).doing(|| "set stdout")?;
        rustix::stdio::dup2_stderr(log).doing(|| "set stderr")?;
        close_on_exec_from(3).doing(|| "close descriptors")
    };
    if let Err(failure) = prepare() {
        return failure;
    }
    match args.for_daemon() {
        // The environment of the agent is none of the daemon's business.
        Ok(argv) => Failure::system(format!(
            "cannot exec the daemon: {}",
            describe(execve_fd(program, &argv, &[]))
        )),
        Err(failure) => failure,
    }
}

/// Started by [`launch`]: becomes the shim and serves until it is shut down.
pub(crate) fn serve(args: &Args) -> Result<()> {
    match set_up(args) {
        Ok(mut shim) => {
            announce(READY)?;
            shim.run().doing(|| "wait for events")?;
            let _ = fs::remove_file(pid_file(&args.state_dir));
            Ok(())
        }
        Err(failure) => {
            announce(failure.message.as_bytes())?;
            Err(failure)
        }
    }
}

fn set_up(args: &Args) -> Result<Shim> {
    // First: until then it has the name of a descriptor.
    let name = CString::new(NAME).map_err(|_| Failure::invalid("a name has a NUL byte"))?;
    rustix::thread::set_name(&name).doing(|| "take its name")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).doing(|| "forbid dumps")?;
    set_child_subreaper(Some(rustix::process::getpid())).doing(|| "become a subreaper")?;
    rustix::process::chdir("/").doing(|| "enter /")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
    let signals = SignalFd::new(&[libc::SIGCHLD]).doing(|| "open a signalfd")?;
    ignore_signals();
    let born = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let host = Host::open(&args.state_dir, born.trim().parse().unwrap_or(0))?;
    // Best effort: it takes CAP_SYS_RESOURCE.
    let _ = host.write_proc("self/oom_score_adj", &OOM_SCORE_ADJ.to_string());
    let listener = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)
        .doing(|| "take the listening socket")?;
    let null = open_null(rustix::fs::OFlags::RDWR)?;
    rustix::stdio::dup2_stdin(&null).doing(|| "set stdin")?;
    let shim = Shim::new(host, listener, signals).doing(|| "watch the socket")?;
    write_pid(&args.state_dir)?;
    Ok(shim)
}

/// The shim ends by Shutdown only; a stray TERM to the service's processes must not orphan a pod.
fn ignore_signals() {
    use hanok_shim::sys::signal::block;
    let _ = block(&[
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ]);
}

/// Tells [`launch`], then lets go of the pipe.
fn announce(word: &[u8]) -> Result<()> {
    rustix::io::write(std::io::stdout(), word).doing(|| "report to the agent")?;
    let null = open_null(rustix::fs::OFlags::RDWR)?;
    rustix::stdio::dup2_stdout(&null).doing(|| "set stdout")
}

fn pid_file(state_dir: &Path) -> PathBuf {
    state_dir.join("shim.pid")
}

fn write_pid(state_dir: &Path) -> Result<()> {
    let temporary = state_dir.join(".shim.pid.tmp");
    fs::write(&temporary, format!("{}\n", std::process::id()))
        .and_then(|()| fs::rename(&temporary, pid_file(state_dir)))
        .doing(|| "write shim.pid")
}

/// A bounded number of failures is written there, and the last words of a panic; it begins anew with every
/// shim.
fn open_log(state_dir: &Path) -> Result<fs::File> {
    let path = state_dir.join(LOG);
    let mut options = fs::OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW);
    options
        .open(&path)
        .doing(|| format!("open {}", path.display()))
}

impl Args {
    /// The command line of [`serve`].
    fn for_daemon(&self) -> Result<Vec<CString>> {
        let words: [&[u8]; 6] = [
            NAME.as_bytes(),
            SERVE.as_bytes(),
            STATE_DIR.as_bytes(),
            self.state_dir.as_os_str().as_bytes(),
            b"--socket",
            self.socket.as_os_str().as_bytes(),
        ];
        words
            .iter()
            .map(|w| CString::new(*w))
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| Failure::invalid("an argument has a NUL byte"))
    }
}
