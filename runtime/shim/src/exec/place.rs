//! What the zygote is told of an exec.

use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::protocol::Process;
use hanok_shim::sys::clone::ns;
use hanok_shim::sys::zygote::{Ids, Order, Stay, Zygote};
use rustix::fs::{FileType, fchown, fstat};
use rustix::process::Uid;

use super::Streams;
use super::child::NAMESPACES;
use crate::channel::ResolvedUser;
use crate::container::Container;
use crate::failure::{Doing, Result};
use crate::host::Host;
use crate::process::{candidates, labels};
use crate::users::Users;

/// Where an exec goes.
pub(super) struct Place<'a> {
    pub(super) host: &'a Host,
    pub(super) users: Option<&'a Users>,
    pub(super) container: &'a Container,
    pub(super) stay: Stay,
}

impl Place<'_> {
    /// None when the order is out of the ordinary, or the zygote cannot take it.
    pub(super) fn give(
        &self,
        zygote: &mut Zygote,
        args: &[String],
        streams: &Streams,
    ) -> Option<()> {
        let process = &self.container.process;
        let user = self.container.user.as_ref()?;
        let home = home(process, user)?;
        let mut env: Vec<&str> = process.env.iter().map(String::as_str).collect();
        env.extend(home.as_deref());
        let null = self.host.null.as_fd();
        let (stdout, stderr) = (streams.stdout.as_ref()?, streams.stderr.as_ref()?);
        for stream in [stdout, stderr] {
            self.hand_over(stream, user.uid).ok()?;
        }
        let entry = &self.container.entry;
        let capabilities = &process.capabilities;
        let users = self.users.map_or(0, |_| ns::USER);
        // It has the filter of its home.
        let seccomp: &[u8] = match self.stay {
            Stay::Home => &[],
            Stay::Away | Stay::MovesIn => &process.seccomp,
        };
        let order = Order {
            stay: self.stay,
            init: self.container.pidfd.as_fd(),
            namespaces: NAMESPACES | users,
            cgroup: entry.at_clone(),
            lists: entry.lists(),
            procfs: self.host.procfs.as_fd(),
            score: process.oom_score_adj.unwrap_or(self.host.oom_score_adj),
            labels: labels(process),
            rlimits: &process.rlimits,
            umask: process.umask.unwrap_or(0o022),
            cwd: if process.cwd == "/" { "" } else { &process.cwd },
            stdio: [null, stdout.as_fd(), stderr.as_fd()],
            ids: Ids {
                uid: user.uid,
                gid: user.gid,
                groups: &user.groups,
                bounding: capabilities.bounding,
                effective: capabilities.effective,
                permitted: capabilities.permitted,
                inheritable: capabilities.inheritable,
                ambient: capabilities.ambient,
                no_new_privileges: process.no_new_privileges,
            },
            seccomp,
            seccomp_flags: process.seccomp_flags,
            candidates: candidates(args, &process.env)?,
            args,
            env,
        };
        zygote.order(&order).ok()
    }

    /// A pipe belongs to the user, as on the long way.
    fn hand_over(&self, stream: &OwnedFd, uid: u32) -> Result<()> {
        let owner = match self.users {
            Some(users) => users.owner(uid, 0).0,
            None => Uid::from_raw(uid),
        };
        let stat = fstat(stream).doing(|| "stat a standard stream")?;
        let is_fifo = FileType::from_raw_mode(stat.st_mode) == FileType::Fifo;
        if is_fifo && stat.st_uid != owner.as_raw() {
            fchown(stream, Some(owner), None).doing(|| "hand over a standard stream")?;
        }
        Ok(())
    }
}

/// HOME, if the environment has none. None where only the container's files tell.
#[expect(
    clippy::option_option,
    reason = "unknown is not the same as there already"
)]
fn home(process: &Process, user: &ResolvedUser) -> Option<Option<String>> {
    match process.env.iter().find_map(|e| e.strip_prefix("HOME=")) {
        Some("") => None,
        Some(_) => Some(None),
        None if user.home.is_empty() => None,
        None => Some(Some(format!("HOME={}", user.home))),
    }
}
