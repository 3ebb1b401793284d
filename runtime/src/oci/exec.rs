//! `exec`: another process in a container.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use hanok_shim::frame;
use hanok_shim::launch::{ExecOrder, Message, Order};
use hanok_shim::protocol;
use hanok_shim::sys::process::kill;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::bundle::{check_process, take_capabilities};
use super::create::write_pid;
use super::launcher::Launcher;
use super::record::{PROCESS, Record, Status};
use super::{OciError, Result, Runtime, console, document, process, supervise};
use crate::seccomp::Filter;
use crate::spec::capabilities;

/// How to run a process in a container.
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// A file with the whole `process` of the specification; then only the terminal and what comes after it counts
    /// of the others.
    pub process: Option<PathBuf>,
    /// Program and arguments.
    pub args: Vec<String>,
    /// Environment beside the container's, `NAME=value`.
    pub env: Vec<String>,
    /// Working directory; the container's when none.
    pub cwd: Option<String>,
    /// `uid[:gid]`; the container's when none.
    pub user: Option<String>,
    /// Supplementary groups beside the container's.
    pub additional_gids: Vec<u32>,
    /// Capabilities beside the container's.
    pub capabilities: Vec<String>,
    /// Set no_new_privs.
    pub no_new_privs: bool,
    /// AppArmor profile; the container's when none.
    pub apparmor: Option<String>,
    /// SELinux label; the container's when none.
    pub selinux: Option<String>,
    /// Give it a terminal.
    pub tty: bool,
    /// Return once it runs.
    pub detach: bool,
    /// Where the master side of the terminal is sent; absolute.
    pub console_socket: Option<PathBuf>,
    /// Where the process id is written; absolute.
    pub pid_file: Option<PathBuf>,
    /// How many descriptors from 3 on it gets.
    pub preserve_fds: u32,
    /// Also in a container that is paused; it begins when that goes on.
    pub ignore_paused: bool,
}

impl Runtime {
    /// Runs a process in a container. Returns its exit code, 0 when it is detached.
    pub fn exec(&self, id: &str, options: &ExecOptions) -> Result<i32> {
        let record = self.state(id)?;
        let allowed = if options.ignore_paused { 3 } else { 2 };
        record.require("exec in", &Status::ALIVE[..allowed])?;
        let (process, size, tty) = wanted(&record, options)?;
        if tty && options.detach && options.console_socket.is_none() {
            let message = "a detached process with a terminal needs --console-socket";
            return Err(OciError::Option(message.into()));
        }
        let signals = match options.detach {
            true => None,
            false => Some(supervise::take_signals()?),
        };
        let mut launcher = Launcher::start(&self.shim, &self.shared_dir()?)?;
        let order = ExecOrder {
            init: record.pid,
            init_started: record.started,
            chrooted: record.chrooted,
            users: record.users,
            process,
            cgroups: record
                .cgroups
                .iter()
                .map(|dir| dir.to_string_lossy().into_owned())
                .collect(),
            tty,
            preserved_fds: options.preserve_fds,
        };
        let order = Order::Exec(Box::new(order));
        launcher.order(&order, &[])?;
        let mut pid = 0;
        let master = match follow(&mut launcher, options, size, &mut pid) {
            Ok(master) => master,
            Err(error) => {
                abandon(pid);
                return Err(error);
            }
        };
        launcher.finish();
        let written = options.pid_file.as_deref().map(|path| write_pid(path, pid));
        if let Some(Err(error)) = written {
            // Nobody would know of it.
            abandon(pid);
            return Err(error);
        }
        match signals {
            Some(signals) => supervise::supervise(&signals, pid, master),
            None => Ok(0),
        }
    }
}

/// Hears of the process until it runs. Returns the master side of its terminal, if that stays with us.
fn follow(
    launcher: &mut Launcher,
    options: &ExecOptions,
    size: Option<rustix::termios::Winsize>,
    pid: &mut i32,
) -> Result<Option<OwnedFd>> {
    let mut master = None;
    loop {
        match launcher.next()? {
            (Message::Cloned { pid: cloned }, _) => *pid = cloned,
            (Message::Terminal, fd) => {
                if let (Some(master), Some(size)) = (&fd, size) {
                    console::resize(master, size);
                }
                master = match (fd, &options.console_socket) {
                    (Some(fd), Some(socket)) => console::send(&fd, socket).map(|()| None)?,
                    (fd, _) => fd,
                };
            }
            (Message::Ready, _) => return Ok(master),
            _ => {}
        }
    }
}

/// A process that came to nothing is a child of ours. As long as nobody waits for it, its container cannot end.
fn abandon(pid: i32) {
    if pid > 1 {
        let _ = kill(pid, libc::SIGKILL);
        let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    }
}

/// The process that is asked for, the size of its terminal, and whether it has one.
fn wanted(
    record: &Record,
    options: &ExecOptions,
) -> Result<(protocol::Process, Option<rustix::termios::Winsize>, bool)> {
    let own = container_process(record)?;
    let Some(path) = &options.process else {
        return Ok((changed(own, options)?, None, options.tty));
    };
    let mut document = document::parse(path, &document::read(path)?)?;
    let sets = take_capabilities(Some(&mut document))?;
    let given: oci_spec::runtime::Process = document::typed(path, &document)?;
    check_process(&given)?;
    let filter = Filter {
        program: own.seccomp,
        flags: own.seccomp_flags,
    };
    let process = process::process(&given, &sets, Some(&filter))?;
    let tty = options.tty || given.terminal() == Some(true);
    Ok((process, console::size(&given), tty))
}

/// What the container itself runs.
fn container_process(record: &Record) -> Result<protocol::Process> {
    let path = record.dir.join(PROCESS);
    let file = fs::File::open(&path).map_err(OciError::io("read", &path))?;
    let read = frame::read(&mut std::io::BufReader::new(file));
    let read = read.map_err(|error| OciError::Config(format!("{}: {error}", path.display())))?;
    read.ok_or_else(|| OciError::Config(format!("{} is empty", path.display())))
}

/// The container's own process with what the options say.
fn changed(mut process: protocol::Process, options: &ExecOptions) -> Result<protocol::Process> {
    if options.args.is_empty() {
        return Err(OciError::Option("no command is given".into()));
    }
    process.args.clone_from(&options.args);
    process.env.extend(options.env.iter().cloned());
    if let Some(cwd) = &options.cwd {
        process.cwd.clone_from(cwd);
    }
    if let Some(user) = &options.user {
        let bad = || OciError::Option(format!("user {user:?} is not uid[:gid]"));
        let (uid, gid) = match user.split_once(':') {
            Some((uid, gid)) => (uid, Some(gid.parse().map_err(|_| bad())?)),
            None => (user.as_str(), process.user.gid),
        };
        let uid: u32 = uid.parse().map_err(|_| bad())?;
        let groups = std::mem::take(&mut process.user.additional_gids);
        process.user = process::user(uid, gid.unwrap_or(0), groups);
    }
    process
        .user
        .additional_gids
        .extend(&options.additional_gids);
    for name in &options.capabilities {
        let bit = capabilities::bit(name)
            .ok_or_else(|| OciError::Option(format!("unknown capability {name:?}")))?;
        let sets = &mut process.capabilities;
        for set in [&mut sets.bounding, &mut sets.effective, &mut sets.permitted] {
            *set |= bit;
        }
    }
    process.no_new_privileges |= options.no_new_privs;
    process.apparmor = options.apparmor.clone().or(process.apparmor);
    process::check_label(options.selinux.is_some(), "--process-label")?;
    process.selinux = options.selinux.clone().or(process.selinux);
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> protocol::Process {
        let text = r#"{"cwd":"/w","args":["a"],"env":["A=1"],"user":{"uid":5,"gid":6,"additionalGids":[7]}}"#;
        let given = serde_json::from_str(text).unwrap();
        process::process(&given, &super::super::bundle::Sets::default(), None).unwrap()
    }

    #[test]
    fn an_exec_is_the_containers_process_with_other_words() {
        let options = ExecOptions {
            args: vec!["b".into()],
            env: vec!["B=2".into()],
            user: Some("8".into()),
            additional_gids: vec![9],
            capabilities: vec!["CAP_KILL".into()],
            ..ExecOptions::default()
        };
        let made = changed(own(), &options).unwrap();
        assert_eq!((made.args, made.cwd.as_str()), (vec!["b".to_owned()], "/w"));
        assert_eq!(made.env, ["A=1", "B=2"]);
        assert_eq!(made.user, process::user(8, 6, vec![7, 9]));
        assert_eq!(made.capabilities.permitted, 1 << 5);
    }

    #[test]
    fn odd_options_are_refused() {
        let ok = ExecOptions {
            args: vec!["b".into()],
            ..ExecOptions::default()
        };
        assert!(changed(own(), &ExecOptions::default()).is_err());
        for user in ["", "x", "1:", "-1", "1:x"] {
            let options = ExecOptions {
                user: Some(user.into()),
                ..ok.clone()
            };
            assert!(changed(own(), &options).is_err(), "{user:?}");
        }
    }
}
