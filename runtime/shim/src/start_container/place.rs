//! A mount namespace to come back to.

use std::os::fd::OwnedFd;

use hanok_shim::sys::clone::{ns, setns};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::process::{chroot, fchdir};

use crate::failure::{Doing, Result};
use crate::host::Host;
use crate::resolve::open_host;

/// The mount namespace of a process, and the root directory that it had there: that need not be the namespace's.
#[derive(Debug)]
pub(super) struct Place {
    namespace: OwnedFd,
    root: OwnedFd,
}

impl Place {
    /// Where the calling process is.
    pub(super) fn here(host: &Host) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        // By the procfs of the shim: there is none everywhere.
        let namespace = openat2(
            &host.procfs,
            "self/ns/mnt",
            flags,
            Mode::empty(),
            ResolveFlags::empty(),
        );
        Ok(Self {
            namespace: namespace.doing(|| "open own mount namespace")?,
            root: open_host("/", OFlags::PATH).doing(|| "open /")?,
        })
    }

    pub(super) fn enter(&self) -> Result<()> {
        setns(&self.namespace, ns::MNT).doing(|| "join a mount namespace")?;
        fchdir(&self.root)
            .and_then(|()| chroot("."))
            .doing(|| "enter /")
    }

    /// Does something there, and comes back.
    pub(super) fn visit<T>(&self, host: &Host, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let back = Self::here(host)?;
        self.enter()?;
        let done = act();
        back.enter()?;
        done
    }
}
