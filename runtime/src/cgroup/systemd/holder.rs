//! Keeps a scope until somebody else is in it.
//!
//! systemd makes no scope without a process, and a container's process is to be born in its cgroup, so that all of it
//! is counted and limited from its first instruction on. So a small process goes first: it waits for the end of its
//! input, which also comes when we die, and it is gone once the container is there.

use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The process. It ends with this value, and is waited for, which takes a fraction of a millisecond.
#[derive(Debug)]
pub(crate) struct Holder(Child);

impl Holder {
    /// Starts it: the shim's program, whose pages are in memory wherever a pod is.
    pub(super) fn start(shim: &Path) -> io::Result<Self> {
        let child = Command::new(shim)
            .arg("hold")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
