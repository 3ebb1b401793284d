//! `hanok oci exec`: another process in a container.

use std::os::fd::AsFd;

use hanok_shim::launch::{ExecOrder, parse_stat};
use hanok_shim::sys::clone::{Cloned, clone_sibling, ns, setns};
use hanok_shim::sys::exec::exit_now;
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Caller, Gate, Last, own_stdio};
use crate::cgroup::Cgroups;
use crate::channel::Line;
use crate::exec::{Child, Streams};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::resolve::open_host;
use crate::users::hand_over;

pub(super) fn exec(caller: &Caller, host: &Host, order: ExecOrder) -> Result<()> {
    let gone = || Failure::not_found("process of the container", &order.init.to_string());
    let init = pidfd_open(
        Pid::from_raw(order.init).ok_or_else(gone)?,
        PidfdFlags::empty(),
    )
    .doing(|| "open the container's process")?;
    // The number may have been given to somebody else; the descriptor is on who has it now.
    if start_time(host, order.init)? != order.init_started {
        return Err(gone());
    }
    let root = match order.chrooted {
        true => {
            let path = format!("/proc/{}/root", order.init);
            Some(open_host(&path, OFlags::PATH).doing(|| "open the container's root")?)
        }
        false => None,
    };
    let stdio = own_stdio()?;
    if let Some(root) = order.users {
        for fd in [&stdio.stdin, &stdio.stdout, &stdio.stderr] {
            hand_over(fd, root)?;
        }
    }
    let streams = match order.tty {
        true => Streams::default(),
        false => Streams {
            stdin: Some(stdio.stdin),
            stdout: Some(stdio.stdout),
            stderr: Some(stdio.stderr),
        },
    };
    let entry = Cgroups::new(&order.cgroups).entry()?;
    let (line, child_line) = Line::pair().doing(|| "make a channel")?;
    setns(&init, ns::PID).doing(|| "join the container's PID namespace")?;
    let cloned = clone_sibling(0, entry.at_clone()).doing(|| "clone a process")?;
    let Cloned::Parent { pid, pidfd } = cloned else {
        // Or the end of the launcher would not be seen on the channel.
        drop(line);
        let gate = Gate::new(None, Vec::new(), order.preserved_fds);
        let child = Child {
            host,
            init: init.as_fd(),
            users: order.users.is_some(),
            root: root.as_ref().map(AsFd::as_fd),
            process: &order.process,
            line: &child_line,
            cgroups: None,
            gate: Some(&gate),
        };
        child_line.report_failure(child.run(streams, order.tty));
        exit_now(1);
    };
    drop((child_line, streams));
    caller.follow(&line, |pid| entry.join(pid), (pid, pidfd), Last::Exec)
}

/// When a process was started, in clock ticks since the boot.
fn start_time(host: &Host, pid: i32) -> Result<u64> {
    parse_stat(&host.read_proc(&format!("{pid}/stat"))?)
        .map(|(_, started)| started)
        .ok_or_else(|| Failure::system(format!("cannot read the start time of process {pid}")))
}
