//! Whether pods can have user namespaces on this machine, by making one: with an overlay of id-mapped layers in a
//! directory of the filesystem that has the containers' layers. Nothing of it stays.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use hanok_shim::protocol::{Rootfs, UserNamespace};
use hanok_shim::sys::clone::{Cloned, clone_process, ns, unshare};
use hanok_shim::sys::exec::exit_now;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::channel::{Line, Received, Report};
use crate::failure::{Doing, Failure, Result};
use crate::host::Host;
use crate::start_container::users::rootfs;
use crate::users;

/// Ids that no pod gets while this runs would be hard to find, and are not needed: nothing runs with them.
const TRIED: UserNamespace = UserNamespace {
    host_id: 65_536,
    length: 65_536,
    netns: String::new(),
};

/// The failure says what is missing.
pub(crate) fn check(directory: &Path) -> Result<()> {
    let scratch = directory.join(format!(".user-namespaces-{}", std::process::id()));
    let doing = || format!("make {}", scratch.display());
    let mut builder = DirBuilder::new();
    builder.mode(0o700).create(&scratch).doing(doing)?;
    let tried = attempt(&scratch);
    let removed = fs::remove_dir_all(&scratch).doing(|| format!("remove {}", scratch.display()));
    tried.and(removed)
}

/// In a process of its own: its mounts go with it.
fn attempt(scratch: &Path) -> Result<()> {
    let (line, child_line) = Line::pair().doing(|| "make a channel")?;
    line.set_blocking().doing(|| "make a channel")?;
    let cloned = clone_process(0, None).doing(|| "clone a process")?;
    let Cloned::Parent { pid, .. } = cloned else {
        drop(line);
        match mount(scratch) {
            Ok(()) => {
                let _ = child_line.report(&Report::Executing, None);
            }
            Err(failure) => child_line.report_failure(failure),
        }
        exit_now(0);
    };
    drop(child_line);
    let heard = line.receive().doing(|| "hear from the process");
    // Already reaped is as good.
    let _ = waitpid(Pid::from_raw(pid), WaitOptions::empty());
    match heard? {
        Received::Report(Report::Executing, _) => Ok(()),
        Received::Report(Report::Failed { kind, message }, _) => Err(Failure { kind, message }),
        _ => Err(Failure::system("the attempt ended without a word")),
    }
}

fn mount(scratch: &Path) -> Result<()> {
    let host = Host::open(scratch, 0)?;
    let part = |name: &str| -> Result<String> {
        let path = scratch.join(name);
        fs::create_dir(&path).doing(|| format!("make {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    };
    let overlay = Rootfs::Overlay {
        lower: vec![part("lower")?],
        upper: part("upper")?,
        work: part("work")?,
    };
    let users = users::make(&host, &TRIED)?;
    unshare(ns::MNT).doing(|| "make a mount namespace")?;
    crate::start_container::receive_only()?;
    rootfs(&users, &overlay, None, &host.rootfs_mount).map(drop)
}
