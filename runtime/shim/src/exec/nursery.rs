//! The short way of an exec: by the shim's zygote, when execs come often and their ends are all that somebody wants.
//!
//! It serves what probes ask for, and nothing that is out of the ordinary: whatever the zygote cannot do, or fails at, goes
//! the long way of a fork, which also tells what is wrong. A process that the zygote makes borrows the zygote's memory
//! while it is already among the container's processes. It is not dumpable, so that reaching into it takes
//! CAP_SYS_PTRACE over the node; a pod that has it in any of its containers has no zygote.

use std::os::fd::{AsFd, OwnedFd};

use hanok_shim::protocol::{Capabilities, Process, RunSpec};
use hanok_shim::sys::clone::ns;
use hanok_shim::sys::process;
use hanok_shim::sys::zygote::{Ids, Order, Zygote};
use rustix::fs::{FileType, fchown, fstat};
use rustix::process::Uid;

use super::child::NAMESPACES;
use super::{Exec, Streams, Way, of_run};
use crate::channel::ResolvedUser;
use crate::container::Container;
use crate::failure::{Doing, Result};
use crate::process::{candidates, labels};
use crate::reap::Ending;
use crate::shim::Shim;

/// Failures of the short way, one after the other, after which it is left alone until the shim has rested.
const MAX_FAILURES: u32 = 3;

/// Bit of CAP_SYS_PTRACE.
const SYS_PTRACE: u64 = 1 << 19;

/// The zygote, and what it is at.
#[derive(Debug, Default)]
pub(crate) struct Nursery {
    zygote: Option<Zygote>,
    /// It was killed, and is not reaped yet.
    is_ending: bool,
    /// The exec that it was given last, until its process is known.
    current: Option<u64>,
    /// Whether there was an exec since the shim has rested: one alone is not worth a zygote.
    is_busy: bool,
    failures: u32,
    /// A process of the pod can look into its siblings.
    is_forbidden: bool,
}

/// An exec that was left to the zygote, with what the long way would need.
#[derive(Debug)]
pub(crate) struct Ordered {
    args: Vec<String>,
    streams: Streams,
    failed: bool,
    killed: bool,
    /// The zygote, when it died before it was known whether the process came to its program: the board tells still.
    survived: Option<Zygote>,
}

impl Ordered {
    /// By the long way, which tells why it failed.
    pub(super) fn is_to_be_repeated(&self) -> bool {
        self.has_failed() && !self.killed
    }

    /// There was no program.
    pub(super) fn has_failed(&self) -> bool {
        let board = self.survived.as_ref().map(Zygote::progress);
        self.failed || board.is_some_and(|progress| progress.failed)
    }
}

impl Exec {
    /// It is not to be made anew, whatever becomes of it.
    pub(crate) fn set_killed(&mut self) {
        if let Some(order) = self.order_mut() {
            order.killed = true;
        }
    }

    pub(super) fn order_mut(&mut self) -> Option<&mut Ordered> {
        match &mut self.way {
            Way::Short(order) => Some(order),
            Way::Long { .. } => None,
        }
    }
}

impl Nursery {
    /// Ends the zygote, which is reaped later.
    pub(crate) fn end(&mut self) {
        if let Some(zygote) = self.zygote.as_ref().filter(|_| !self.is_ending) {
            let _ = process::kill(zygote.pid(), libc::SIGKILL);
            self.is_ending = true;
        }
    }

    /// Its process, as long as there is one.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.zygote.as_ref().map(Zygote::pid)
    }

    /// An exec came to its program.
    pub(super) fn has_served(&mut self) {
        self.failures = 0;
    }

    /// A process with such rights is to come. Has no zygote from now on, if it can look into others that are the node's,
    /// and another one, if this one's children could not have its rights.
    pub(crate) fn admit(&mut self, capabilities: &Capabilities, users: bool) {
        let Capabilities {
            bounding,
            effective,
            permitted,
            inheritable,
            ambient,
        } = capabilities;
        let any = bounding | effective | permitted | inheritable | ambient;
        if !users && any & SYS_PTRACE != 0 {
            self.is_forbidden = true;
            self.end();
        }
        let fits = |zygote: &Zygote| users || zygote.can_bear(*bounding);
        if !self.zygote.as_ref().is_none_or(fits) {
            self.end();
        }
    }

    fn is_of_use(&mut self) -> bool {
        let was_busy = std::mem::replace(&mut self.is_busy, true);
        was_busy && !self.is_ending && !self.is_forbidden && self.failures < MAX_FAILURES
    }
}

impl Shim {
    /// Before the shim rests: nobody keeps a zygote for nothing.
    pub(crate) fn rest_nursery(&mut self) {
        self.learn_of_births();
        let nursery = &mut self.nursery;
        if nursery.current.is_none() {
            (nursery.is_busy, nursery.failures) = (false, 0);
            nursery.end();
        }
    }

    /// Leaves an exec to the zygote. Gives the streams back if that cannot be.
    pub(super) fn order_exec(
        &mut self,
        container: u64,
        args: &[String],
        streams: Streams,
    ) -> std::result::Result<Ordered, Streams> {
        if !self.nursery.is_of_use() {
            return Err(streams);
        }
        self.learn_of_births();
        // The next order takes the place of this one on the board, where its process is yet to be learned.
        if self.nursery.current.is_some() {
            return Err(streams);
        }
        if self.nursery.zygote.is_none() && self.start_zygote().is_none() {
            self.nursery.failures = MAX_FAILURES;
            return Err(streams);
        }
        let Some(container) = self.containers.get(&container) else {
            return Err(streams);
        };
        let Some(zygote) = &mut self.nursery.zygote else {
            return Err(streams);
        };
        let place = Place {
            host: &self.host,
            users: self.users.as_ref(),
            container,
        };
        if place.give(zygote, args, &streams).is_none() {
            return Err(streams);
        }
        Ok(Ordered {
            args: args.to_vec(),
            streams,
            failed: false,
            killed: false,
            survived: None,
        })
    }

    pub(super) fn await_birth(&mut self, exec: Exec) {
        let key = self.new_key();
        self.execs.insert(key, exec);
        self.nursery.current = Some(key);
    }

    /// None where set-id processes can be dumped: what they are a part of could be looked into by the users that they
    /// become.
    fn start_zygote(&mut self) -> Option<()> {
        let dumpable = self.host.read_proc("sys/fs/suid_dumpable").ok()?;
        if dumpable.trim() == "1" {
            return None;
        }
        // A user namespace gives its own set to whoever enters.
        let bounding = match self.users {
            Some(_) => u64::MAX,
            None => self.containers.values().fold(0, |all, container| {
                all | container.process.capabilities.bounding
            }),
        };
        self.nursery.zygote = Some(Zygote::start(bounding).ok()?);
        Some(())
    }

    /// Takes from the board what has become of the last order.
    pub(crate) fn learn_of_births(&mut self) {
        let (Some(key), Some(zygote)) = (self.nursery.current, &self.nursery.zygote) else {
            return;
        };
        let progress = zygote.progress();
        if progress.idle {
            self.nursery.current = None;
        }
        if let Some(exec) = self.execs.get_mut(&key) {
            exec.pid = progress.child.unwrap_or(0);
            if let Some(order) = exec.order_mut() {
                order.failed = progress.failed;
            }
        }
    }

    /// Whether that was the zygote.
    pub(crate) fn is_zygote(&self, pid: i32) -> bool {
        self.nursery.pid() == Some(pid)
    }

    /// The zygote has ended: by us, by the OOM killer, or since it could not make a process.
    pub(crate) fn zygote_ended(&mut self) {
        let current = self.nursery.current;
        self.learn_of_births();
        let nursery = &mut self.nursery;
        nursery.failures += u32::from(!nursery.is_ending);
        let zygote = nursery.zygote.take();
        (nursery.current, nursery.is_ending) = (None, false);
        let Some((key, exec)) = current.and_then(|key| Some((key, self.execs.get_mut(&key)?)))
        else {
            return;
        };
        let pid = exec.pid;
        let Some(order) = exec.order_mut() else {
            return;
        };
        order.survived = zygote;
        match pid {
            // There is no process, and will be none.
            0 => {
                order.failed = true;
                let ending = Ending {
                    code: 128 + libc::SIGKILL,
                    signal: libc::SIGKILL,
                };
                self.exec_ended(key, ending);
            }
            _ if order.killed => {
                self.kill_session(key, libc::SIGKILL);
            }
            _ => {}
        }
    }

    /// Goes the long way with an exec that has failed on the short one.
    pub(super) fn repeat(&mut self, exec: Exec) -> Result<()> {
        // Or it was the zygote that failed.
        self.nursery.failures += u32::from(exec.pid != 0);
        let Way::Short(order) = exec.way else {
            return Ok(());
        };
        let container = self.containers.get(&exec.container);
        let spec = of_run(RunSpec {
            container: container.map(|c| c.id.clone()).unwrap_or_default(),
            exec: exec.id,
            args: order.args,
        });
        let key = self.exec_place(&spec)?;
        self.fork_exec((key, exec.connection), spec, order.streams, exec.told)
    }
}

/// Where an exec goes.
struct Place<'a> {
    host: &'a crate::host::Host,
    users: Option<&'a crate::users::Users>,
    container: &'a Container,
}

impl Place<'_> {
    /// None when the order is out of the ordinary, or the zygote cannot take it.
    fn give(&self, zygote: &mut Zygote, args: &[String], streams: &Streams) -> Option<()> {
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
        let order = Order {
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
            seccomp: &process.seccomp,
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
