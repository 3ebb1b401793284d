//! Where a created container waits for `hanok oci start`.
//!
//! The process holds a listening socket; the connection that it accepts is also where it tells that its last
//! steps failed. It is close-on-exec, so that its end says that the program runs.

use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use hanok_shim::hook::Hook;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::write_failure;
use crate::failure::{Doing, Failure, Result};

/// What stands between a process that is all set up and its program.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// None for an exec, which does not wait.
    listener: Option<OwnedFd>,
    hooks: Vec<Hook>,
    preserved_fds: u32,
    opened: OnceCell<UnixStream>,
}

impl Gate {
    /// A gate without a `listener` is open.
    pub(super) fn new(listener: Option<OwnedFd>, hooks: Vec<Hook>, preserved_fds: u32) -> Self {
        Self {
            listener,
            hooks,
            preserved_fds,
            opened: OnceCell::new(),
        }
    }

    /// The first descriptor that the program does not get.
    pub(crate) fn first_closed(&self) -> u32 {
        3 + self.preserved_fds
    }

    /// Waits to be opened, and runs the hooks of the start.
    pub(crate) fn pass(&self) -> Result<()> {
        let Some(listener) = &self.listener else {
            return Ok(());
        };
        let connection = loop {
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                done => break done.doing(|| "wait for the start")?,
            }
        };
        let _ = self.opened.set(UnixStream::from(connection));
        run_hooks(&self.hooks)
    }

    /// Tells a failure to whoever opened the gate; false when nobody has.
    pub(super) fn report(&self, failure: &Failure) -> bool {
        let Some(stream) = self.opened.get() else {
            return false;
        };
        write_failure(stream, failure);
        true
    }
}

/// Runs hooks in the container's namespaces, where its process has this number.
pub(super) fn run_hooks(hooks: &[Hook]) -> Result<()> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    for hook in hooks {
        hook.run(pid).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            Failure::system(format!("{error}{}", cause.unwrap_or_default()))
        })?;
    }
    Ok(())
}
