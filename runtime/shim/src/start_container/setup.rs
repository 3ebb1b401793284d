//! The container's process between clone and exec.
//!
//! Order: sources that need the node's mount namespace; namespaces; root filesystem and mounts, all below
//! descriptors of it; /dev; masks; then the node's filesystems are let go, and what is left is the same as for
//! an exec ([`become_process`]). On the way it waits once until the shim has put it into its v1 cgroups:
//! before the cgroup namespace, which begins there.
//!
//! The process is a fork of the single-threaded shim, so that it may allocate; nothing runs in it but this.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hanok_shim::protocol::{ContainerSpec, Mount, MountSource, Namespace};
use hanok_shim::sys::clone::{ns, setns, unshare};
use hanok_shim::sys::mount::{Attributes, SLAVE, mount_setattr};
use rustix::fs::OFlags;
use rustix::process::setsid;
use rustix::system::sethostname;

use super::{cgroup_view, dev, hide, mounts, no_sandbox, rootfs};
use crate::channel::Line;
use crate::failure::{Doing, Failure, Result};
use crate::process::{Stdio, become_process, make_cwd, open_terminal};
use crate::resolve::open_host;
use crate::shim::Shim;

/// What the process works from.
pub(super) struct Child<'a> {
    pub(super) shim: &'a Shim,
    pub(super) spec: &'a ContainerSpec,
    pub(super) line: &'a Line,
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
        let shm = self.shim.shm.as_ref().map(AsFd::as_fd);
        let early = mounts::open_early(&self.spec.mounts, shm)?;
        self.enter_namespaces()?;
        let root = rootfs::attach(&self.spec.rootfs, &self.shim.host.rootfs_mount)?;
        let mut joined = false;
        self.mount_all(root.as_fd(), early, &mut joined)?;
        dev::fill(root.as_fd(), &self.spec.mounts, &self.spec.devices)?;
        let stdio = match stdio {
            Some(stdio) => stdio,
            None => self.open_console(root.as_fd())?,
        };
        make_cwd(root.as_fd(), &self.spec.process.cwd)?;
        hide::make_readonly(root.as_fd(), &self.spec.readonly_paths)?;
        hide::mask(root.as_fd(), &self.shim.host, &self.spec.masked_paths)?;
        self.join_cgroups(&mut joined)?;
        rootfs::enter(root.as_fd())?;
        if self.spec.readonly_rootfs {
            rootfs::make_readonly(root.as_fd())?;
        }
        self.set_names()?;
        Ok(stdio)
    }

    /// Every namespace but PID, which came with clone, and cgroup, which comes when the cgroups are joined.
    fn enter_namespaces(&self) -> Result<()> {
        let namespaces = &self.spec.namespaces;
        let mut new = ns::MNT;
        let mut of_pod = 0;
        let kinds = [
            (&namespaces.net, ns::NET),
            (&namespaces.ipc, ns::IPC),
            (&namespaces.uts, ns::UTS),
        ];
        for (namespace, bit) in kinds {
            match namespace {
                Namespace::Host => {}
                Namespace::New => new |= bit,
                Namespace::Pod => of_pod |= bit,
                Namespace::Path(path) => {
                    let file = open_host(path, OFlags::RDONLY)
                        .doing(|| format!("open namespace {path}"))?;
                    setns(&file, bit).doing(|| format!("join namespace {path}"))?;
                }
            }
        }
        if of_pod != 0 {
            let sandbox = self.shim.sandbox.as_ref().ok_or_else(no_sandbox)?;
            setns(sandbox.pidfd(), of_pod).doing(|| "join the pod's namespaces")?;
        }
        unshare(new).doing(|| "make namespaces")?;
        // Mounts of the node still come in, for volumes that ask for it; nothing goes out.
        let slash = open_host("/", OFlags::PATH).doing(|| "open /")?;
        let slave = Attributes {
            propagation: SLAVE,
            ..Attributes::default()
        };
        mount_setattr(&slash, true, slave).doing(|| "make mounts slaves of the node's")
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

fn source(mount: &Mount, early: Option<OwnedFd>) -> Result<OwnedFd> {
    if let Some(early) = early {
        return Ok(early);
    }
    match &mount.source {
        MountSource::Bind { path, recursive } => {
            if !Path::new(path).is_absolute() {
                return Err(Failure::invalid(format!(
                    "mount source {path:?} is not absolute"
                )));
            }
            mounts::open_bind(path, *recursive)
        }
        MountSource::Filesystem { fstype, options } => mounts::new_filesystem(fstype, options),
        MountSource::Cgroup | MountSource::Shm { .. } => Err(Failure::system(format!(
            "no source for mount {}",
            mount.destination
        ))),
    }
}
