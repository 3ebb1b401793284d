//! `hanok oci create`: the container's process, up to its gate.

use std::os::fd::{BorrowedFd, OwnedFd};

use hanok_shim::hook::Hook;
use hanok_shim::launch::CreateOrder;
use hanok_shim::protocol::{ContainerSpec, Mount, MountSource, Namespace};
use hanok_shim::sys::clone::Cloned;
use hanok_shim::sys::exec::exit_now;
use hanok_shim::sys::mount::{Attributes, mount_setattr};
use hanok_shim::sys::net::loopback_up;
use hanok_shim::sys::process::{set_domainname, set_personality};
use rustix::system::sethostname;

use super::gate::run_hooks;
use super::{Caller, Gate, Last, clone_into, own_stdio};
use crate::cgroup::{Cgroups, Entry};
use crate::channel::{Line, Report};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::process::Stdio;
use crate::start_container::{Child, check};
use crate::users::{Users, make_mapped};

/// What a container of `hanok oci` has beside that of a pod.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) gate: Gate,
    pub(crate) mount_namespace: Namespace,
    root_propagation: u64,
    root_recursive: bool,
    domainname: Option<String>,
    personality: Option<u32>,
    announce_prepared: bool,
    create_hooks: Vec<Hook>,
}

impl Bundle {
    /// Called when namespaces and mounts are there and the node's filesystems still are.
    pub(crate) fn prepared(&self, line: &Line) -> Result<()> {
        if self.announce_prepared {
            line.report(&Report::Prepared, None)
                .doing(|| "report the mounts")?;
            line.wait_for_permit().doing(|| "wait for hooks")?;
        }
        run_hooks(&self.create_hooks)
    }

    /// What is left once the root is entered.
    pub(crate) fn apply(&self, root: BorrowedFd<'_>, spec: &ContainerSpec) -> Result<()> {
        if self.root_propagation != 0 {
            let attributes = Attributes {
                propagation: self.root_propagation,
                ..Attributes::default()
            };
            mount_setattr(root, self.root_recursive, attributes)
                .doing(|| "set the propagation of the root filesystem")?;
        }
        if spec.namespaces.net == Namespace::New {
            loopback_up().doing(|| "bring the loopback interface up")?;
        }
        // One that is joined gets the names too: the specification makes no difference.
        if let (Some(name), Namespace::Path(_)) = (&spec.hostname, &spec.namespaces.uts) {
            sethostname(name.as_bytes()).doing(|| "set the host name")?;
        }
        if let Some(name) = &self.domainname {
            set_domainname(name.as_bytes()).doing(|| "set the domain name")?;
        }
        if let Some(domain) = self.personality {
            set_personality(domain).doing(|| "set the personality")?;
        }
        Ok(())
    }
}

pub(super) fn create(
    caller: &Caller,
    host: &Host,
    order: CreateOrder,
    mut fds: Vec<OwnedFd>,
) -> Result<()> {
    check_order(&order)?;
    let (users, stdio) = users_and_streams(host, &order)?;
    let spec = order.container;
    let listener = fds.pop();
    let listener = listener.ok_or_else(|| Failure::invalid("the order has no socket"))?;
    let bundle = Bundle {
        gate: Gate::new(Some(listener), order.start_hooks, order.preserved_fds),
        mount_namespace: order.mount_namespace,
        root_propagation: order.root_propagation & !libc::MS_REC,
        root_recursive: order.root_propagation & libc::MS_REC != 0,
        domainname: order.domainname,
        personality: order.personality,
        announce_prepared: order.announce_prepared,
        create_hooks: order.create_hooks,
    };
    let cgroups = Cgroups::new(&spec.cgroups);
    let entry = match order.cgroups_later {
        true => Entry::default(),
        false => cgroups.entry()?,
    };
    let (line, child_line) = Line::pair().doing(|| "make a channel")?;
    let pids = pids_at_clone(&spec, users.as_ref());
    let cloned = clone_into(pids, entry.at_clone())?;
    let Cloned::Parent { pid, pidfd } = cloned else {
        // Or the end of the launcher would not be seen on the channel.
        drop(line);
        let child = Child {
            host,
            home: None,
            users: users.as_ref(),
            sandbox: None,
            spec: &spec,
            label: order.mount_label.as_deref(),
            line: &child_line,
            bundle: Some(&bundle),
        };
        let failure = child.run(stdio);
        if !bundle.gate.report(&failure) {
            child_line.report_failure(failure);
        }
        exit_now(1);
    };
    drop((child_line, stdio));
    let join = |pid| match order.cgroups_later {
        true => caller
            .wait_for_byte()
            .and_then(|()| cgroups.late_entry())
            .and_then(|entry| entry.join(pid)),
        false => entry.join(pid),
    };
    caller.follow(&line, join, (pid, pidfd), Last::Gate)
}

/// What can be wrong with an order before anything is done.
fn check_order(order: &CreateOrder) -> Result<()> {
    check(&order.container)?;
    let of_pod = |mount: &Mount| matches!(mount.source, MountSource::Shm { .. });
    if order.container.mounts.iter().any(of_pod) {
        return Err(Failure::invalid("there is no pod"));
    }
    if order.users.is_some() && order.mount_namespace != Namespace::New {
        let message = "a user namespace needs a mount namespace of its own";
        return Err(Failure::invalid(message));
    }
    Ok(())
}

/// With a user namespace, which must own it, a PID namespace comes later.
fn pids_at_clone<'a>(spec: &'a ContainerSpec, users: Option<&Users>) -> &'a Namespace {
    match &spec.namespaces.pid {
        Namespace::New if users.is_some() => &Namespace::Host,
        other => other,
    }
}

/// The user namespace if there is to be one, and our streams, which its root may open again.
fn users_and_streams(host: &Host, order: &CreateOrder) -> Result<(Option<Users>, Option<Stdio>)> {
    let stdio = match order.container.tty {
        true => None,
        false => Some(own_stdio()?),
    };
    let users = match &order.users {
        Some(maps) => Some(make_mapped(host, [&maps.uids, &maps.gids], maps.root)?),
        None => None,
    };
    if let (Some(users), Some(stdio)) = (&users, &stdio) {
        for fd in [&stdio.stdin, &stdio.stdout, &stdio.stderr] {
            users.hand_over(fd)?;
        }
    }
    Ok((users, stdio))
}
