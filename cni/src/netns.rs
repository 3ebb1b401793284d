//! Network namespaces pinned by a bind mount, as `ip netns` and every CNI runtime expect them.
//!
//! A namespace is made by a thread that lives only for it: it unshares, brings the loopback interface
//! up, mounts `/proc/thread-self/ns/net` onto the file and ends. From then on only the mount (and the
//! processes that enter) keep the namespace alive. Removal never waits for the kernel to dismantle it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use tracing::Instrument as _;

use crate::netlink::{Socket, link};
use crate::task::on_thread;

/// The thread's own network namespace; `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

/// Where namespaces are pinned when nobody says otherwise.
pub const DEFAULT_DIR: &str = "/run/netns";

/// `NSFS_MAGIC` of linux/magic.h.
const NSFS_MAGIC: nix::sys::statfs::FsType = nix::sys::statfs::FsType(0x6e73_6673);

/// Most mounts that removal peels off one path.
const MAX_STACKED: usize = 16;

/// A step on a network namespace failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}", .path.display())]
pub struct NetnsError {
    /// What was tried.
    pub step: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

/// A fresh path `DIR/cni-UUID`. Nothing is made.
pub fn new_path(dir: &Path) -> Result<PathBuf, NetnsError> {
    let source = Path::new("/proc/sys/kernel/random/uuid");
    let uuid = fs::read_to_string(source).map_err(|e| failed("read", source)(e))?;
    Ok(dir.join(format!("cni-{}", uuid.trim())))
}

/// Makes a network namespace with its loopback interface up and pins it at `path`.
///
/// The path must not exist; its directory is made when missing. Nothing is left after a failure.
pub async fn create(path: &Path) -> Result<(), NetnsError> {
    let span = tracing::info_span!("cni.netns", path = %path.display());
    let owned = path.to_owned();
    on_thread("netns", move || create_here(&owned))
        .instrument(span)
        .await
        .map_err(failed("start a thread for", path))?
}

/// Brings the loopback interface up in a namespace that somebody else has made.
pub async fn bring_loopback_up(path: &Path) -> Result<(), NetnsError> {
    run_in(path, loopback_up)
        .await?
        .map_err(failed("bring up loopback in", path))
}

/// Unpins the namespace and removes its file. Safe to repeat; a missing file is success.
pub async fn remove(path: &Path) -> Result<(), NetnsError> {
    let owned = path.to_owned();
    tokio::task::spawn_blocking(move || remove_now(&owned))
        .await
        .map_err(|e| failed("remove", path)(io::Error::other(e)))?
}

/// Whether a namespace is pinned at `path`. One that cannot be looked at counts as pinned.
pub fn is_pinned(path: &Path) -> bool {
    match nix::sys::statfs::statfs(path) {
        Ok(stat) => stat.filesystem_type() == NSFS_MAGIC,
        Err(error) => !matches!(error, Errno::ENOENT | Errno::ENOTDIR),
    }
}

/// Every `cni-…` file of a directory, pinned or not. A missing directory is empty.
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, NetnsError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("read", dir)(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("read", dir))?.path();
        if path
            .file_name()
            .and_then(|n| n.to_str())
            .is_some_and(|n| n.starts_with("cni-"))
        {
            found.push(path);
        }
    }
    Ok(found)
}

/// Runs `work` inside the namespace, on a thread of its own.
pub async fn run_in<T, F>(path: &Path, work: F) -> Result<T, NetnsError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let owned = path.to_owned();
    on_thread("netns-run", move || {
        let file = open(&owned)?;
        enter(&file).map_err(failed("enter", &owned))?;
        Ok(work())
    })
    .await
    .map_err(failed("start a thread for", path))?
}

/// Opens a pinned namespace, and makes sure that it is one and not the file that a reboot left.
pub(crate) fn open(path: &Path) -> Result<File, NetnsError> {
    let file = File::open(path).map_err(failed("open", path))?;
    let stat = nix::sys::statfs::fstatfs(&file).map_err(|e| failed("stat", path)(e.into()))?;
    if stat.filesystem_type() != NSFS_MAGIC {
        let source = io::Error::new(io::ErrorKind::NotFound, "it is not a namespace any more");
        return Err(failed("open", path)(source));
    }
    Ok(file)
}

/// Moves the calling thread; only for threads that this crate started for it.
pub(crate) fn enter(namespace: &File) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
}

fn create_here(path: &Path) -> Result<(), NetnsError> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed("make the directory of", path))?;
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(path)
        .map_err(failed("create", path))?;
    let made = unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|e| failed("make a network namespace for", path)(e.into()))
        .and_then(|()| loopback_up().map_err(failed("bring up loopback in", path)))
        .and_then(|()| {
            mount(
                Some(OWN),
                path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .map_err(|e| failed("pin", path)(e.into()))
        });
    if made.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(path);
    }
    made
}

fn loopback_up() -> io::Result<()> {
    Socket::route()
        .and_then(|mut socket| socket.execute(vec![link::up("lo")]))
        .map_err(|e| io::Error::other(e.to_string()))
}

fn remove_now(path: &Path) -> Result<(), NetnsError> {
    for _ in 0..MAX_STACKED {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(e) => return Err(failed("unmount", path)(e.into())),
        }
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("unlink", path)(e)),
        _ => Ok(()),
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NetnsError {
    let path = path.to_owned();
    move |source| NetnsError { step, path, source }
}
