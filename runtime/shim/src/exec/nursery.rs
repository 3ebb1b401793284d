//! The short way of an exec: by the shim's zygote, when execs come often and their ends are all that somebody wants.
//!
//! It serves what probes ask for, and nothing that is out of the ordinary: whatever the zygote cannot do, or fails at, goes
//! the long way of a fork, which also tells what is wrong. A process that the zygote makes borrows the zygote's memory
//! while it is already among the container's processes. It is not dumpable, so that reaching into it takes
//! CAP_SYS_PTRACE over the node; a pod that has it in any of its containers has no zygote.
//!
//! Where one container is asked again and again, as its only exec probe does, the zygote moves in ([`Stay`]). It is then a
//! process with the container's rights in its namespaces, which the container does not pay for (it is in none of its
//! cgroups), and which ends with it. Whoever sees it and has its user can stop it or limit what it may use. It is in no PID
//! namespace but the node's, so a container with one of its own does not see it; no other is a home ([`is_home`]).

use hanok_shim::protocol::{Capabilities, RunSpec};
use hanok_shim::sys::process;
use hanok_shim::sys::zygote::{Stay, Zygote, allows_home};

use super::place::Place;
use super::{Exec, Streams, Way, of_run};
use crate::container::Container;
use crate::failure::Result;
use crate::process::labels;
use crate::reap::Ending;
use crate::shim::Shim;

/// Failures of the short way, one after the other, after which it is left alone until the shim has rested.
const MAX_FAILURES: u32 = 3;

/// Bit of CAP_SYS_PTRACE.
const SYS_PTRACE: u64 = 1 << 19;

/// Bit of CAP_SYS_ADMIN.
const SYS_ADMIN: u64 = 1 << 21;

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
    /// The container of the last exec: where the next one is for the same, the zygote moves in.
    last: Option<u64>,
    /// The container that the zygote has moved into.
    home: Option<u64>,
    /// More than one container is asked, so that it had better stay on the node.
    roams: bool,
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

    /// A container has ended: its namespaces are not to outlive it.
    pub(crate) fn leave(&mut self, container: u64) {
        if self.home == Some(container) {
            self.end();
        }
    }

    /// Where the zygote is to make the process of an exec. None when it has moved into another container than this one.
    fn stay(&mut self, container: &Container, key: u64, users: bool) -> Option<Stay> {
        let last = self.last.replace(key);
        match self.home {
            Some(home) if home == key => return Some(Stay::Home),
            Some(_) => {
                self.roams = true;
                self.end();
                return None;
            }
            None => {}
        }
        let moves_in = last == Some(key) && !self.roams && !users && is_home(container);
        Some(if moves_in { Stay::MovesIn } else { Stay::Away })
    }

    fn is_of_use(&mut self) -> bool {
        let was_busy = std::mem::replace(&mut self.is_busy, true);
        was_busy && !self.is_ending && !self.is_forbidden && self.failures < MAX_FAILURES
    }
}

/// Whether a zygote that has moved in makes there what it would make from the node, for as long as the container lives.
///
/// A working directory is looked up once, and held: below the root another one may come in its place, or the node may
/// want to unmount it. With CAP_SYS_ADMIN a container can mount over its root, or leave its namespaces. One whose init
/// leaves them by a user namespace that it makes, which takes no right, is asked where it was started: to see that would
/// take a look at every namespace before every order.
fn is_home(container: &Container) -> bool {
    let process = &container.process;
    container.owns_pids
        && matches!(process.cwd.as_str(), "" | "/")
        && process.capabilities.bounding & SYS_ADMIN == 0
        && container.entry.at_clone().is_none()
        && labels(process).is_empty()
        && allows_home(&process.seccomp)
}

impl Shim {
    /// Before the shim rests: nobody keeps a zygote for nothing.
    pub(crate) fn rest_nursery(&mut self) {
        self.learn_of_births();
        let nursery = &mut self.nursery;
        if nursery.current.is_none() {
            (nursery.is_busy, nursery.failures) = (false, 0);
            (nursery.last, nursery.roams) = (None, false);
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
            self.nursery.last = Some(container);
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
        let key = container;
        let Some(container) = self.containers.get(&key) else {
            return Err(streams);
        };
        let users = self.users.as_ref();
        let Some(stay) = self.nursery.stay(container, key, users.is_some()) else {
            return Err(streams);
        };
        let Some(zygote) = &mut self.nursery.zygote else {
            return Err(streams);
        };
        let place = Place {
            host: &self.host,
            users,
            container,
            stay,
        };
        if place.give(zygote, args, &streams).is_none() {
            return Err(streams);
        }
        if stay == Stay::MovesIn {
            self.nursery.home = Some(key);
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
        (nursery.current, nursery.is_ending, nursery.home) = (None, false, None);
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
