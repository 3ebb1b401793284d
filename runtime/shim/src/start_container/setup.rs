//! The container's process between clone and exec.
//!
//! Order: sources that need the node's mount namespace; namespaces, the user namespace last; root filesystem and mounts,
//! all below descriptors of it; /dev; masks; then the filesystems it began with, the pod's or a copy of the node's, are
//! let go, and what is left is the same as for an exec ([`become_process`]). On the way it waits once until the shim has
//! put it into its v1 cgroups: before the cgroup namespace, which begins there, and so before the view of the cgroups,
//! which comes last where nothing else depends on it.
//!
//! The process is a fork of the single-threaded shim, so that it may allocate; nothing runs in it but this.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hanok_shim::protocol::{ContainerSpec, Mount, MountSource, Namespace, Rootfs};
use hanok_shim::sys::clone::{ns, setns, unshare};
use hanok_shim::sys::mount::{Attributes, SLAVE, mount_setattr};
use rustix::fs::OFlags;
use rustix::process::setsid;
use rustix::system::sethostname;

use super::cgroup_view::Company;
use super::hide::Covers;
use super::home::{self, Home};
use super::place::Place;
use super::source::Source;
use super::{cgroup_view, dev, hide, mounts, rootfs, users};
use crate::channel::Line;
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::oci::Bundle;
use crate::process::{Stdio, become_process, make_cwd, open_terminal, set_limits_and_label};
use crate::resolve::open_host;
use crate::start_sandbox::Sandbox;
use crate::users::{Users, become_root};

/// What the process works from.
pub(crate) struct Child<'a> {
    pub(crate) host: &'a Host,
    /// The pod's mount namespace; none where there is no pod.
    pub(crate) home: Option<&'a Home>,
    /// The user namespace.
    pub(crate) users: Option<&'a Users>,
    /// The holder of the pod's namespaces.
    pub(crate) sandbox: Option<&'a Sandbox>,
    pub(crate) spec: &'a ContainerSpec,
    /// SELinux label of what is mounted.
    pub(crate) label: Option<&'a str>,
    pub(crate) line: &'a Line,
    /// What only `hanok oci` asks for.
    pub(crate) bundle: Option<&'a Bundle>,
}

/// A process in its namespaces, with all that it needs from the node.
struct Ready {
    /// The root filesystem, attached and not entered.
    root: OwnedFd,
    /// Sources that are open already, by mount.
    sources: Vec<Option<OwnedFd>>,
    /// Where those are that are opened in their turn; none when they are where the process is.
    node: Option<Place>,
    covers: Covers,
    /// The process is in its cgroups and their namespace.
    joined: bool,
}

impl Child<'_> {
    /// Goes all the way to the container's program. Returns only when a step failed.
    pub(crate) fn run(&self, stdio: Option<Stdio>) -> Failure {
        match self.prepare(stdio) {
            Ok(stdio) => {
                let gate = self.bundle.map(|bundle| &bundle.gate);
                become_process(self.host, &self.spec.process, stdio, self.line, gate)
            }
            Err(failure) => failure,
        }
    }

    fn prepare(&self, stdio: Option<Stdio>) -> Result<Stdio> {
        setsid().doing(|| "begin a session")?;
        // Modes of what is made in the root filesystem are meant as they are written.
        rustix::process::umask(rustix::fs::Mode::empty());
        let mut ready = match self.users {
            Some(users) => self.cross_over(users)?,
            None => self.stay()?,
        };
        let views = self.mount_all(&mut ready)?;
        let (root, joined) = (ready.root.as_fd(), &mut ready.joined);
        dev::fill(root, &self.spec.mounts, &self.spec.devices)?;
        let stdio = match stdio {
            Some(stdio) => stdio,
            None => self.open_console(root)?,
        };
        make_cwd(root, &self.spec.process.cwd)?;
        if let Some(bundle) = self.bundle {
            self.join_cgroups(joined)?;
            bundle.prepared(self.line)?;
        }
        hide::make_readonly(root, &self.spec.readonly_paths)?;
        ready.covers.mask(root, &self.spec.masked_paths)?;
        match self.shares_mounts() {
            true => rootfs::change_root(root)?,
            false => rootfs::enter(root)?,
        }
        self.join_cgroups(joined)?;
        for view in views {
            self.mount_view(root, view)?;
        }
        if self.spec.readonly_rootfs {
            rootfs::make_readonly(root)?;
        }
        self.set_names()?;
        if let Some(bundle) = self.bundle {
            bundle.apply(root, self.spec)?;
        }
        if self.users.is_none() {
            set_limits_and_label(self.host, &self.spec.process)?;
        }
        Ok(stdio)
    }

    /// On the node's users: everything is done by its root, in the container's own namespaces.
    fn stay(&self) -> Result<Ready> {
        match self.home {
            Some(home) => self.begin_at(home),
            None => self.begin_in_a_copy(),
        }
    }

    /// In a copy of the pod's mount namespace, with all that is of the node opened before, or a way back to it.
    fn begin_at(&self, home: &Home) -> Result<Ready> {
        let sources = mounts::open_binds(&self.spec.mounts)?;
        let node = self.way_back()?;
        let root = rootfs::open(&self.spec.rootfs, self.label, &self.host.rootfs_mount)?;
        self.join_namespaces()?;
        home.enter()?;
        unshare(self.new_namespaces()).doing(|| "make namespaces")?;
        rootfs::attach_tree(&root, Path::new(home::ROOTFS))?;
        Ok(Ready {
            root,
            sources,
            node,
            covers: Covers::open_at_home()?,
            joined: false,
        })
    }

    /// In a copy of the node's mount namespace, where hooks find what is mounted, or in one that others use too.
    fn begin_in_a_copy(&self) -> Result<Ready> {
        let sources = self.spec.mounts.iter().map(|_| None).collect();
        let node = self.way_back()?;
        self.join_namespaces()?;
        unshare(self.new_namespaces()).doing(|| "make namespaces")?;
        if !self.shares_mounts() {
            receive_only()?;
        }
        let root = rootfs::open(&self.spec.rootfs, self.label, &self.host.rootfs_mount)?;
        rootfs::attach_tree(&root, self.root_mount())?;
        Ok(Ready {
            root,
            sources,
            node,
            covers: Covers::open(self.host)?,
            joined: false,
        })
    }

    /// To the node's mount namespace, if a mount needs it.
    fn way_back(&self) -> Result<Option<Place>> {
        let needed = self.spec.mounts.iter().any(|mount| self.goes_back(mount));
        needed.then(|| Place::here(self.host)).transpose()
    }

    /// Whether the source of a mount is opened in its turn, and where the process came from.
    fn goes_back(&self, mount: &Mount) -> bool {
        match self.home {
            Some(_) => mounts::propagates(mount),
            None => mounts::sends(mount),
        }
    }

    /// Into the pod's user namespace. What only the node's root may do comes before: other namespaces joined, volumes
    /// opened, layers mounted, device nodes made, limits and labels set. All mounts of it are detached, and put in
    /// their places by the pod's root.
    fn cross_over(&self, users: &Users) -> Result<Ready> {
        let host = self.host;
        let early = mounts::open_shm(host, &self.spec.mounts, self.home)?;
        self.join_namespaces()?;
        unshare(ns::MNT).doing(|| "make a mount namespace")?;
        receive_only()?;
        let permit = || self.line.wait_for_permit().doing(|| "join the cgroups");
        let patient = self.spec.mounts.iter().any(mounts::propagates);
        if patient {
            // What is opened, detached, misses what the node mounts meanwhile: not while others make the cgroups.
            permit()?;
        }
        let sources = users::open_sources(users, self.spec, self.label, early)?;
        let root = users::rootfs(users, &self.spec.rootfs, self.label, &host.rootfs_mount)?;
        set_limits_and_label(host, &self.spec.process)?;
        if !patient {
            permit()?;
        }
        let pid_namespace = match self.spec.namespaces.pid {
            Namespace::New => true,
            Namespace::Pod | Namespace::Path(_) => false,
            Namespace::Host => {
                let message = "a pod with a user namespace cannot have the node's processes";
                return Err(Failure::invalid(message));
            }
        };
        users.enter(self.line, pid_namespace)?;
        unshare(self.new_namespaces()).doing(|| "make namespaces")?;
        let mut joined = false;
        self.make_cgroup_namespace(&mut joined)?;
        // As long as the process still owns the node's directories.
        let covers = Covers::open(host)?;
        rootfs::attach_tree(&root, &host.rootfs_mount)?;
        become_root()?;
        Ok(Ready {
            root,
            sources,
            node: None,
            covers,
            joined,
        })
    }

    /// Where the root filesystem is mounted: in a namespace that others use, on itself, so that it can be
    /// found and unmounted again.
    fn root_mount(&self) -> &Path {
        match &self.spec.rootfs {
            Rootfs::Dir(dir) if self.shares_mounts() => Path::new(dir),
            _ => &self.host.rootfs_mount,
        }
    }

    /// Everything but the views of cgroups that can be mounted when the shim has done its part, which takes as long.
    fn mount_all(&self, ready: &mut Ready) -> Result<Vec<&Mount>> {
        let mut views = Vec::new();
        let (root, joined) = (ready.root.as_fd(), &mut ready.joined);
        let early = std::mem::take(&mut ready.sources);
        // Where labels and sysctls are written, whether or not something is mounted there; a mount looks for itself.
        for name in ["proc", "sys"] {
            if !self
                .spec
                .mounts
                .iter()
                .any(|mount| mounts::is_real(mount, name))
            {
                crate::resolve::real_dir(root, name)?;
            }
        }
        for (mount, early) in self.spec.mounts.iter().zip(early) {
            if mount.source == MountSource::Cgroup {
                if !*joined && self.comes_last(mount) {
                    views.push(mount);
                    continue;
                }
                self.join_cgroups(joined)?;
                self.mount_view(root, mount)?;
                continue;
            }
            let is_early = early.is_some();
            let source = self.source(mount, early, ready.node.as_ref())?;
            mounts::place(root, self.host, mount, &source)?;
            if is_early && self.bundle.is_some() {
                mounts::renew(root, mount)?;
            }
        }
        Ok(views)
    }

    /// Whether a view of the cgroups can be mounted after everything else: nothing is to be done below it, and no hook
    /// looks at the mounts on the way.
    fn comes_last(&self, view: &Mount) -> bool {
        let spec = self.spec;
        let mounts = spec
            .mounts
            .iter()
            .filter(|mount| !std::ptr::eq(*mount, view));
        let hidden = spec.masked_paths.iter().chain(&spec.readonly_paths);
        let mut others = mounts
            .map(|mount| &mount.destination)
            .chain(hidden)
            .chain([&spec.process.cwd]);
        self.bundle.is_none() && !others.any(|path| Path::new(path).starts_with(&view.destination))
    }

    fn mount_view(&self, root: BorrowedFd<'_>, view: &Mount) -> Result<()> {
        let company = match self.shares_mounts() {
            true => Company::Others,
            false => Company::Alone,
        };
        cgroup_view::mount(root, self.host, view, self.label, company)
    }

    fn source(
        &self,
        mount: &Mount,
        early: Option<OwnedFd>,
        node: Option<&Place>,
    ) -> Result<Source> {
        if let Some(early) = early {
            return Ok(early.into());
        }
        let label = self.label;
        let tree = match &mount.source {
            source @ (MountSource::Bind { .. } | MountSource::BindBelow { .. }) => match node {
                Some(node) if self.goes_back(mount) => {
                    node.visit(self.host, || mounts::open_bind(source))
                }
                _ => mounts::open_bind(source),
            },
            MountSource::Filesystem { fstype, options } => {
                return Source::new(mount, (fstype, options), label);
            }
            // Read-only it is once it is filled.
            MountSource::CopyUp { options } => {
                mounts::new_filesystem(mounts::TMPFS, options, 0, label)
            }
            MountSource::Shm { .. } => home::clone_shm(),
            MountSource::Cgroup => Err(Failure::system(format!(
                "no source for mount {}",
                mount.destination
            ))),
        };
        tree.map(Source::from)
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
            self.host.write_sysctl(name, value)?;
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
