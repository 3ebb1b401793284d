//! The long way of an exec: what the fork of the shim does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hanok_shim::protocol::{Process, User};
use hanok_shim::sys::clone::{ns, setns};
use rustix::process::{chroot, fchdir, setsid};

use super::Streams;
use crate::cgroup::Entry;
use crate::channel::{Line, ResolvedUser};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::oci::Gate;
use crate::process::{Stdio, become_process, duplicate, open_terminal, set_limits_and_label};
use crate::resolve::open_host;
use crate::users::become_root;

/// Everything but PID, which clone has to bring.
pub(super) const NAMESPACES: u64 = ns::MNT | ns::NET | ns::IPC | ns::UTS | ns::CGROUP;

/// What to run: the container's `own` process with other arguments, or what was asked with the container's
/// environment in place of none.
pub(super) fn effective_process(
    (own, user): (Process, Option<ResolvedUser>),
    asked: Process,
    inherit: bool,
) -> Process {
    if !inherit {
        let env = if asked.env.is_empty() {
            own.env
        } else {
            asked.env
        };
        return Process { env, ..asked };
    }
    let mut process = Process {
        args: asked.args,
        ..own
    };
    if let Some(user) = user {
        // By number: its passwd file may say something else by now.
        process.user = User {
            spec: user.uid.to_string(),
            gid: Some(user.gid),
            additional_gids: user.groups,
            strict_groups: true,
        };
        if !process.env.iter().any(|e| e.starts_with("HOME=")) {
            process.env.push(format!("HOME={}", user.home));
        }
    }
    process
}

/// What the child works from.
pub(crate) struct Child<'a> {
    pub(crate) host: &'a Host,
    /// Pidfd of the container's init.
    pub(crate) init: BorrowedFd<'a>,
    /// Whether the container has a user namespace.
    pub(crate) users: bool,
    /// The container's root, when that is not the root of its mount namespace.
    pub(crate) root: Option<BorrowedFd<'a>>,
    pub(crate) process: &'a Process,
    pub(crate) line: &'a Line,
    /// What it puts itself into, as far as it was not born there; none when somebody else does, and permits it to go on.
    pub(crate) cgroups: Option<&'a Entry>,
    /// What only `hanok oci` asks for.
    pub(crate) gate: Option<&'a Gate>,
}

impl Child<'_> {
    pub(crate) fn run(&self, streams: Streams, tty: bool) -> Failure {
        match self.prepare(streams, tty) {
            Ok(stdio) => become_process(self.host, self.process, stdio, self.line, self.gate),
            Err(failure) => failure,
        }
    }

    fn prepare(&self, streams: Streams, tty: bool) -> Result<Stdio> {
        setsid().doing(|| "begin a session")?;
        match self.cgroups {
            Some(cgroups) => cgroups.enter()?,
            None => self
                .line
                .wait_for_permit()
                .doing(|| "join the container's cgroups")?,
        }
        set_limits_and_label(self.host, self.process)?;
        let users = if self.users { ns::USER } else { 0 };
        let namespaces = NAMESPACES | users;
        setns(self.init, namespaces).doing(|| "join the container's namespaces")?;
        if let Some(root) = self.root {
            fchdir(root).doing(|| "enter the container's root")?;
            chroot(".").doing(|| "enter the container's root")?;
        }
        if users != 0 {
            become_root()?;
        }
        if tty {
            let root = open_host("/", rustix::fs::OFlags::PATH).doing(|| "open /")?;
            return open_terminal(root.as_fd(), self.line);
        }
        let or_null =
            |stream: Option<OwnedFd>| stream.map_or_else(|| duplicate(self.host.null.as_fd()), Ok);
        Ok(Stdio {
            stdin: or_null(streams.stdin)?,
            stdout: or_null(streams.stdout)?,
            stderr: or_null(streams.stderr)?,
            terminal: false,
        })
    }
}
