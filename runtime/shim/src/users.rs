//! MakeUserNamespace: the user namespace of a pod, with the namespaces that it owns.
//!
//! A namespace belongs to the user namespace that its maker was in, so network, IPC and host name are made by a process
//! that is root of the new user namespace; it lives only until the shim has opened them. The network namespace is
//! pinned for CNI, before pause exists.
//!
//! Whatever runs in the pod begins as root of the node and [enters](Users::enter) when it has done what takes the
//! node's rights: it joins namespaces, opens volumes, mounts layers, sets limits and labels. Nothing of that looks at
//! bytes of an image. From then on it has rights over what the user namespace owns, and is nobody to the node.

use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hanok_shim::protocol::{FailureKind, Reply, UserNamespace};
use hanok_shim::sys::clone::{Cloned, clone_process, clone_sibling, ns, setns, unshare};
use hanok_shim::sys::exec::exit_now;
use hanok_shim::sys::mount::map_ids;
use rustix::fs::{FileType, fchown, fstat};
use rustix::io::Errno;
use rustix::mount::mount_bind;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySets, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::channel::{Line, Received, Report};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::shim::{Outcome, Shim};

/// A pod's user namespace, and the namespaces that were made with it.
#[derive(Debug)]
pub(crate) struct Users {
    user: OwnedFd,
    net: OwnedFd,
    ipc: OwnedFd,
    uts: OwnedFd,
    /// Its root outside.
    uid: u32,
    /// Its group 0 outside.
    gid: u32,
}

impl Shim {
    #[inline(never)]
    pub(crate) fn make_user_namespace(&mut self, spec: &UserNamespace) -> Result<Outcome> {
        if self.users.is_some() || self.sandbox.is_some() {
            let message = "the pod's user namespace cannot be made any more";
            return Err(Failure::new(FailureKind::Exists, message));
        }
        let users = make(&self.host, spec)?;
        if !spec.netns.is_empty() {
            pin(&users.net, Path::new(&spec.netns))?;
        }
        self.users = Some(users);
        Ok(Outcome::Done(Reply::Ok))
    }
}

/// Makes the namespaces.
pub(crate) fn make(host: &Host, spec: &UserNamespace) -> Result<Users> {
    check(spec)?;
    let map = format!("0 {} {}", spec.host_id, spec.length);
    make_mapped(host, [&map, &map], (spec.host_id, spec.host_id))
}

/// Makes the namespaces with these contents of `uid_map` and `gid_map`; `root` is what they make of user and group 0.
pub(crate) fn make_mapped(
    host: &Host,
    [uids, gids]: [&str; 2],
    (uid, gid): (u32, u32),
) -> Result<Users> {
    let (line, child_line) = Line::pair().doing(|| "make a channel")?;
    line.set_blocking().doing(|| "make a channel")?;
    let cloned = clone_process(ns::USER, None).map_err(refused)?;
    let Cloned::Parent { pid, .. } = cloned else {
        drop(line);
        match make_the_others(&child_line) {
            Ok(()) => {
                let _ = child_line.report(&Report::Executing, None);
                // Until the shim has what it wants, or is gone.
                let _ = child_line.wait_for_permit();
            }
            Err(failure) => child_line.report_failure(failure),
        }
        exit_now(0);
    };
    drop(child_line);
    host.write_proc(&format!("{pid}/uid_map"), uids)?;
    host.write_proc(&format!("{pid}/gid_map"), gids)?;
    line.permit().doing(|| "wake the maker of namespaces")?;
    match line
        .receive()
        .doing(|| "hear from the maker of namespaces")?
    {
        Received::Report(Report::Executing, _) => {}
        Received::Report(Report::Failed { kind, message }, _) => {
            return Err(Failure { kind, message });
        }
        _ => return Err(Failure::system("the maker of namespaces ended too early")),
    }
    let open = |name: &str| host.open_namespace(pid, name);
    let users = Users {
        user: open("user")?,
        net: open("net")?,
        ipc: open("ipc")?,
        uts: open("uts")?,
        uid,
        gid,
    };
    // It ends, and is reaped with the others; an error here means that it has ended.
    let _ = line.permit();
    Ok(users)
}

/// In the process that holds them until they are opened, once its ids are mapped.
fn make_the_others(line: &Line) -> Result<()> {
    line.wait_for_permit().doing(|| "wait for the shim")?;
    become_root()?;
    unshare(ns::NET | ns::IPC | ns::UTS).doing(|| "make the pod's namespaces")
}

/// Never the node's root, and all of it inside of what the kernel has.
fn check(spec: &UserNamespace) -> Result<()> {
    let end = u64::from(spec.host_id) + u64::from(spec.length);
    if spec.host_id == 0 || spec.length == 0 || end > u64::from(u32::MAX) {
        let message = format!(
            "user namespace of {} ids from {}",
            spec.length, spec.host_id
        );
        return Err(Failure::invalid(message));
    }
    Ok(())
}

fn refused(errno: Errno) -> Failure {
    let why = match errno {
        Errno::NOSPC | Errno::USERS => "user.max_user_namespaces of the node is reached",
        Errno::INVAL => "this kernel has none",
        Errno::PERM => "the node forbids them",
        _ => "clone failed",
    };
    let text = crate::failure::describe(errno);
    Failure::system(format!("cannot make a user namespace: {why} ({text})"))
}

/// Binds a network namespace to a new file.
fn pin(net: &OwnedFd, path: &Path) -> Result<()> {
    let doing = || format!("pin the network namespace at {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).doing(doing)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o444);
    options.open(path).doing(doing)?;
    let source = format!("/proc/self/fd/{}", net.as_raw_fd());
    mount_bind(source, path).doing(doing).inspect_err(|_| {
        // The first failure is the one to tell.
        let _ = fs::remove_file(path);
    })
}

impl Users {
    /// Root of the pod, as the node sees it.
    pub(crate) fn root(&self) -> (Uid, Gid) {
        self.owner(0, 0)
    }

    /// A user and a group of the pod, as the node sees them.
    pub(crate) fn owner(&self, uid: u32, gid: u32) -> (Uid, Gid) {
        let (uid, gid) = (self.uid.saturating_add(uid), self.gid.saturating_add(gid));
        (Uid::from_raw(uid), Gid::from_raw(gid))
    }

    /// Does something as a process that has the pod's root as its effective user, and all rights of the node's root. Some
    /// filesystems ask who somebody is before they ask for rights.
    pub(crate) fn as_root<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (uid, gid) = self.root();
        let own = capabilities(None).doing(|| "read the capabilities")?;
        let raise = || {
            let sets = CapabilitySets {
                effective: own.permitted,
                ..own
            };
            set_capabilities(None, sets).doing(|| "keep the capabilities")
        };
        set_thread_res_gid(Gid::ROOT, gid, Gid::ROOT).doing(|| "become the pod's group")?;
        set_thread_res_uid(Uid::ROOT, uid, Uid::ROOT).doing(|| "become the pod's root")?;
        let done = raise().and_then(|()| work());
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).doing(|| "be root again")?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT).doing(|| "be root again")?;
        raise()?;
        done
    }

    /// Joins those of `namespaces` that were made with the user namespace. While the process is the node's root.
    pub(crate) fn join(&self, namespaces: u64) -> Result<()> {
        for (fd, bit) in [
            (&self.net, ns::NET),
            (&self.ipc, ns::IPC),
            (&self.uts, ns::UTS),
        ] {
            if namespaces & bit != 0 {
                setns(fd, bit).doing(|| "join a namespace of the pod")?;
            }
        }
        Ok(())
    }

    /// Enters the user namespace, with all rights over what it owns and none over anything else. The process is
    /// still user 0 of the node, by number, so that it owns the node's files: [`become_root`] ends that.
    ///
    /// With `pid_namespace` another process goes on, which is the first one of a PID namespace that the user namespace
    /// owns; the caller's process ends here. The shim hears of it before it does anything.
    pub(crate) fn enter(&self, line: &Line, pid_namespace: bool) -> Result<()> {
        setns(&self.user, ns::USER).doing(|| "enter the pod's user namespace")?;
        if !pid_namespace {
            return Ok(());
        }
        match clone_sibling(ns::PID, None).doing(|| "clone the container's first process")? {
            Cloned::Child => line.wait_for_permit().doing(|| "wait for the shim"),
            Cloned::Parent { pid, pidfd } => {
                let told = line.report(&Report::Succeeded { pid }, Some(pidfd.as_fd()));
                // Without the report there is no permit, and with the end of the line the other one ends too.
                exit_now(i32::from(told.is_err()))
            }
        }
    }

    /// Shows a detached mount's files with the pod's ids. What is mounted below it on a filesystem that cannot do that
    /// stays as it is: nobody's. `what` is for the failure.
    pub(crate) fn map(&self, mount: &OwnedFd, recursive: bool, what: &str) -> Result<()> {
        let mapped = map_ids(mount, recursive, &self.user);
        let mapped = match mapped {
            Err(Errno::INVAL) if recursive => map_ids(mount, false, &self.user),
            done => done,
        };
        match mapped {
            Err(Errno::INVAL) => Err(Failure::system(format!(
                "the filesystem of {what} has no id-mapped mounts, without which a pod with a user namespace \
                 (hostUsers: false) cannot use it"
            ))),
            done => done.doing(|| format!("map the ids of {what}")),
        }
    }

    /// Gives a pipe to the pod's root, who can give it to the container's user.
    pub(crate) fn hand_over(&self, fd: impl AsFd) -> Result<()> {
        hand_over(fd, (self.uid, self.gid))
    }
}

/// As [`Users::hand_over`], by the numbers that the root has outside.
pub(crate) fn hand_over(fd: impl AsFd, (uid, gid): (u32, u32)) -> Result<()> {
    let stat = fstat(&fd).doing(|| "stat a standard stream")?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    fchown(fd, Some(uid), Some(gid)).doing(|| "hand over a standard stream")
}

/// Becomes the root of the user namespace that was entered.
pub(crate) fn become_root() -> Result<()> {
    set_thread_groups(&[]).doing(|| "leave the node's groups")?;
    let (uid, gid) = (Uid::ROOT, Gid::ROOT);
    set_thread_res_gid(gid, gid, gid).doing(|| "become the pod's group 0")?;
    set_thread_res_uid(uid, uid, uid).doing(|| "become the pod's root")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_root_is_never_mapped_and_ids_do_not_overflow() {
        let spec = |host_id, length| UserNamespace {
            host_id,
            length,
            netns: String::new(),
        };
        assert!(check(&spec(65_536, 65_536)).is_ok());
        assert!(check(&spec(u32::MAX - 65_536, 65_536)).is_ok());
        for (host_id, length) in [(0, 65_536), (65_536, 0), (u32::MAX - 65_535, 65_536)] {
            assert!(check(&spec(host_id, length)).is_err(), "{host_id} {length}");
        }
    }
}
