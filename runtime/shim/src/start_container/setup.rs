//! The container's process between clone and exec.
//!
//! Order: sources that need the node's mount namespace; namespaces, the user namespace last; root filesystem and mounts,
//! all below descriptors of it; /dev; masks; then the node's filesystems are let go, and what is left is the same as for
//! an exec ([`become_process`]). On the way it waits once until the shim has put it into its v1 cgroups:
//! before the cgroup namespace, which begins there.
//!
//! The process is a fork of the single-threaded shim, so that it may allocate; nothing runs in it but this.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hanok_shim::protocol::{ContainerSpec, Mount, MountSource, Namespace};
use hanok_shim::sys::clone::{ns, setns, unshare};
use hanok_shim::sys::mount::{Attributes, SLAVE, mount_setattr};
use rustix::fs::OFlags;
use rustix::process::setsid;
use rustix::system::sethostname;

use super::hide::Covers;
use super::{cgroup_view, dev, hide, mounts, no_sandbox, rootfs, users};
use crate::channel::Line;
use crate::failure::{Doing, Failure, Result};
use crate::process::{Stdio, become_process, make_cwd, open_terminal, set_limits_and_label};
use crate::resolve::open_host;
use crate::shim::Shim;
use crate::users::{Users, become_root};

/// What the process works from.
pub(super) struct Child<'a> {
    pub(super) shim: &'a Shim,
    pub(super) spec: &'a ContainerSpec,
    pub(super) line: &'a Line,
}

/// A process in its namespaces, with all that it needs from the node.
struct Ready {
    /// The root filesystem, attached and not entered.
    root: OwnedFd,
    /// Sources that are open already, by mount.
    sources: Vec<Option<OwnedFd>>,
    covers: Covers,
    /// The process is in its cgroups and their namespace.
    joined: bool,
}

impl Child<'_> {
    /// Goes all the way to the container's program. Returns only when a step failed.
    pub(super) fn run(&self, stdio: Option<Stdio>) -> Failure {
        match self.prepare(stdio) {
            Ok(stdio) => become_process(&self.shim.host, &self.spec.process, stdio, self.line),
            Err(failure) => failure,
        }
    }

    fn prepare(&self, stdio: Option<Stdio>) -> Result<Stdio> {
        setsid().doing(|| "begin a session")?;
        // Modes of what is made in the root filesystem are meant as they are written.
        rustix::process::umask(rustix::fs::Mode::empty());
        let Ready {
            root,
            sources,
            covers,
            mut joined,
        } = match &self.shim.users {
            Some(users) => self.cross_over(users)?,
            None => self.stay()?,
        };
        self.mount_all(root.as_fd(), sources, &mut joined)?;
        dev::fill(root.as_fd(), &self.spec.mounts, &self.spec.devices)?;
        let stdio = match stdio {
            Some(stdio) => stdio,
            None => self.open_console(root.as_fd())?,
        };
        make_cwd(root.as_fd(), &self.spec.process.cwd)?;
        hide::make_readonly(root.as_fd(), &self.spec.readonly_paths)?;
        covers.mask(root.as_fd(), &self.spec.masked_paths)?;
        self.join_cgroups(&mut joined)?;
        rootfs::enter(root.as_fd())?;
        if self.spec.readonly_rootfs {
            rootfs::make_readonly(root.as_fd())?;
        }
        self.set_names()?;
        if self.shim.users.is_none() {
            set_limits_and_label(&self.shim.host, &self.spec.process)?;
        }
        Ok(stdio)
    }

    /// On the node's users: everything is done by its root, in the container's own namespaces.
    fn stay(&self) -> Result<Ready> {
        let shm = self.shim.shm.as_ref().map(AsFd::as_fd);
        let sources = mounts::open_early(&self.spec.mounts, shm)?;
        self.join_namespaces()?;
        unshare(ns::MNT | self.new_namespaces()).doing(|| "make namespaces")?;
        receive_only()?;
        let root = rootfs::attach(&self.spec.rootfs, &self.shim.host.rootfs_mount)?;
        Ok(Ready {
            root,
            sources,
            covers: Covers::open(&self.shim.host)?,
            joined: false,
        })
    }

    /// Into the pod's user namespace. What only the node's root may do comes before: other namespaces joined, volumes
    /// opened, layers mounted, device nodes made, limits and labels set. All mounts of it are detached, and put in
    /// their places by the pod's root.
    fn cross_over(&self, users: &Users) -> Result<Ready> {
        let host = &self.shim.host;
        let shm = self.shim.shm.as_ref().map(AsFd::as_fd);
        let early = mounts::open_early(&self.spec.mounts, shm)?;
        self.join_namespaces()?;
        unshare(ns::MNT).doing(|| "make a mount namespace")?;
        receive_only()?;
        let sources = users::open_sources(users, self.spec, early)?;
        let root = users::rootfs(users, &self.spec.rootfs, &host.rootfs_mount)?;
        set_limits_and_label(host, &self.spec.process)?;
        self.line.wait_for_permit().doing(|| "join the cgroups")?;
        let pid_namespace = match self.spec.namespaces.pid {
            Namespace::New => true,
            Namespace::Pod | Namespace::Path(_) => false,
            Namespace::Host => {
                let message = "a pod with a user namespace cannot have the node's processes";
                return Err(Failure::invalid(message));
            }
        };
        users.enter(self.line, pid_namespace)?;
        unshare(ns::MNT | self.new_namespaces()).doing(|| "make namespaces")?;
        let mut joined = false;
        self.make_cgroup_namespace(&mut joined)?;
        // As long as the process still owns the node's directories.
        let covers = Covers::open(host)?;
        rootfs::attach_tree(&root, &host.rootfs_mount)?;
        become_root()?;
        Ok(Ready {
            root,
            sources,
            covers,
            joined,
        })
    }

    /// Every namespace that there is already, but PID, which came with clone, and cgroup, which comes when the cgroups
    /// are joined.
    fn join_namespaces(&self) -> Result<()> {
        let mut of_pod = 0;
        for (namespace, bit) in self.kinds() {
            match namespace {
                Namespace::Host | Namespace::New => {}
                Namespace::Pod => of_pod |= bit,
                Namespace::Path(path) => {
                    let file = open_host(path, OFlags::RDONLY)
                        .doing(|| format!("open namespace {path}"))?;
                    setns(&file, bit).doing(|| format!("join namespace {path}"))?;
                }
            }
        }
        if of_pod == 0 {
            return Ok(());
        }
        let sandbox = self.shim.sandbox.as_ref().ok_or_else(no_sandbox)?;
        setns(sandbox.pidfd(), of_pod).doing(|| "join the pod's namespaces")
    }

    /// Those of its own.
    fn new_namespaces(&self) -> u64 {
        let new = self
            .kinds()
            .into_iter()
            .filter(|(n, _)| **n == Namespace::New);
        new.fold(0, |bits, (_, bit)| bits | bit)
    }

    fn kinds(&self) -> [(&Namespace, u64); 3] {
        let namespaces = &self.spec.namespaces;
        [
            (&namespaces.net, ns::NET),
            (&namespaces.ipc, ns::IPC),
            (&namespaces.uts, ns::UTS),
        ]
    }

    fn mount_all(
        &self,
        root: BorrowedFd<'_>,
        early: Vec<Option<OwnedFd>>,
        joined: &mut bool,
    ) -> Result<()> {
        // Where labels and sysctls are written, whether or not something is mounted there.
        for name in ["proc", "sys"] {
            crate::resolve::real_dir(root, name)?;
        }
        for (mount, early) in self.spec.mounts.iter().zip(early) {
            if mount.source == MountSource::Cgroup {
                self.join_cgroups(joined)?;
                cgroup_view::mount(root, &self.shim.host, mount)?;
                continue;
            }
            mounts::place(root, mount, &source(mount, early)?)?;
        }
        Ok(())
    }

    /// Waits until the shim has done its part, once, and begins the cgroup namespace there.
    fn join_cgroups(&self, joined: &mut bool) -> Result<()> {
        if *joined {
            return Ok(());
        }
        self.line.wait_for_permit().doing(|| "join the cgroups")?;
        self.make_cgroup_namespace(joined)
    }

    fn make_cgroup_namespace(&self, joined: &mut bool) -> Result<()> {
        match &self.spec.namespaces.cgroup {
            Namespace::Host => {}
            Namespace::Path(path) => {
                let file =
                    open_host(path, OFlags::RDONLY).doing(|| format!("open namespace {path}"))?;
                setns(&file, ns::CGROUP).doing(|| format!("join namespace {path}"))?;
            }
            _ => unshare(ns::CGROUP).doing(|| "make a cgroup namespace")?,
        }
        *joined = true;
        Ok(())
    }

    fn open_console(&self, root: BorrowedFd<'_>) -> Result<Stdio> {
        let stdio = open_terminal(root, self.line)?;
        dev::bind_console(root, &stdio.stdin)?;
        Ok(stdio)
    }

    fn set_names(&self) -> Result<()> {
        if let Some(hostname) = &self.spec.hostname
            && self.spec.namespaces.uts == Namespace::New
        {
            sethostname(hostname.as_bytes()).doing(|| "set the host name")?;
        }
        for (name, value) in &self.spec.sysctls {
            self.shim.host.write_sysctl(name, value)?;
        }
        Ok(())
    }
}

/// Mounts of the node still come in, for volumes that ask for it; nothing goes out.
pub(crate) fn receive_only() -> Result<()> {
    let slash = open_host("/", OFlags::PATH).doing(|| "open /")?;
    let slave = Attributes {
        propagation: SLAVE,
        ..Attributes::default()
    };
    mount_setattr(&slash, true, slave).doing(|| "make mounts slaves of the node's")
}

fn source(mount: &Mount, early: Option<OwnedFd>) -> Result<OwnedFd> {
    if let Some(early) = early {
        return Ok(early);
    }
    match &mount.source {
        MountSource::Bind { .. } | MountSource::BindBelow { .. } => {
            mounts::open_bind(&mount.source)
        }
        MountSource::Filesystem { fstype, options } => mounts::new_filesystem(fstype, options),
        MountSource::Cgroup | MountSource::Shm { .. } => Err(Failure::system(format!(
            "no source for mount {}",
            mount.destination
        ))),
    }
}
