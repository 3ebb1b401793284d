//! The namespaces of a container's process: which it joins, and which are its own.

use hanok_shim::protocol::Namespace;
use hanok_shim::sys::clone::{ns, setns};
use rustix::fs::OFlags;

use super::no_sandbox;
use super::setup::Child;
use crate::failure::{Doing, Result};
use crate::resolve::open_host;

impl Child<'_> {
    /// Every namespace that there is already, but PID, which came with clone, and cgroup, which comes when the cgroups
    /// are joined.
    pub(super) fn join_namespaces(&self) -> Result<()> {
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
        let sandbox = self.sandbox.ok_or_else(no_sandbox)?;
        setns(sandbox.pidfd(), of_pod).doing(|| "join the pod's namespaces")
    }

    /// Those of its own.
    pub(super) fn new_namespaces(&self) -> u64 {
        let new = self
            .kinds()
            .into_iter()
            .filter(|(n, _)| **n == Namespace::New);
        new.fold(0, |bits, (_, bit)| bits | bit)
    }

    /// The last is that of the mounts: paths mean something else once it is joined.
    fn kinds(&self) -> [(&Namespace, u64); 4] {
        let namespaces = &self.spec.namespaces;
        [
            (&namespaces.net, ns::NET),
            (&namespaces.ipc, ns::IPC),
            (&namespaces.uts, ns::UTS),
            (self.mount_namespace(), ns::MNT),
        ]
    }

    /// Always its own, but for a bundle that wants it otherwise.
    fn mount_namespace(&self) -> &Namespace {
        self.bundle
            .map_or(&Namespace::New, |bundle| &bundle.mount_namespace)
    }

    /// Whether its mounts are in a mount namespace that others use too.
    pub(super) fn shares_mounts(&self) -> bool {
        *self.mount_namespace() != Namespace::New
    }
}
