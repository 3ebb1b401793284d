//! Tells followers that something in a directory of logs (or of certificates) has changed. Carries no more than that.
//!
//! One inotify instance for all followers, because a user has only 128 of them by default; one watch for each
//! directory. A count per directory, and not a bare ring, so that a change between a look and the wait for the
//! next one is not lost.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::super::streams::AbortOnDrop;

/// What counts as a change: more bytes, and names that come and go.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_MODIFY
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ONLYDIR);

/// Watches directories for any number of followers.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Option<Running>>);

/// The instance and the task that reads it.
#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    _reader: AbortOnDrop,
}

#[derive(Debug)]
struct Shared {
    inotify: Inotify,
    /// Directories by watch. The sender counts changes.
    directories: Mutex<HashMap<WatchDescriptor, Directory>>,
}

#[derive(Debug)]
struct Directory {
    followers: usize,
    changes: watch::Sender<u64>,
}

/// One follower's view of a directory.
#[derive(Debug)]
pub(crate) struct Watch {
    changes: watch::Receiver<u64>,
    descriptor: WatchDescriptor,
    shared: Weak<Shared>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Begins to watch a directory.
    pub(crate) fn watch(&self, directory: &Path) -> io::Result<Watch> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = match &*running {
            Some(running) => running.shared.clone(),
            None => {
                let started = Running::start()?;
                let shared = started.shared.clone();
                *running = Some(started);
                shared
            }
        };
        drop(running);
        Shared::watch(&shared, directory)
    }

    /// Directories that are watched now.
    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        let running = self.0.lock().unwrap();
        running.as_ref().map_or(0, |running| {
            running.shared.directories.lock().unwrap().len()
        })
    }
}

impl Running {
    fn start() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let shared = Arc::new(Shared {
            inotify,
            directories: Mutex::new(HashMap::new()),
        });
        // A second descriptor number for the reader, so that adding watches does not need the reader.
        #[expect(
            deprecated,
            reason = "its successor is unsafe, which this crate forbids; an OwnedFd is what it asks for"
        )]
        let ready = AsyncFd::with_interest(
            shared.inotify.as_fd().try_clone_to_owned()?,
            Interest::READABLE,
        )?;
        let reader = tokio::spawn(read_changes(ready, shared.clone()));
        Ok(Self {
            shared,
            _reader: AbortOnDrop(reader.abort_handle()),
        })
    }
}

impl Shared {
    fn watch(this: &Arc<Self>, directory: &Path) -> io::Result<Watch> {
        // Held across the system call: the last follower of a directory may be just leaving.
        let mut directories = this
            .directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let descriptor = this.inotify.add_watch(directory, CHANGES)?;
        let entry = directories.entry(descriptor).or_insert_with(|| Directory {
            followers: 0,
            changes: watch::Sender::new(0),
        });
        entry.followers += 1;
        let changes = entry.changes.subscribe();
        Ok(Watch {
            changes,
            descriptor,
            shared: Arc::downgrade(this),
        })
    }

    fn unwatch(&self, descriptor: WatchDescriptor) {
        let mut directories = self
            .directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(directory) = directories.get_mut(&descriptor) else {
            return;
        };
        directory.followers -= 1;
        if directory.followers == 0 {
            directories.remove(&descriptor);
            // Fails when the directory is gone; then the kernel has removed the watch.
            let _ = self.inotify.rm_watch(descriptor);
        }
    }

    /// Reads what has happened and rings. False when there is nothing more to read.
    fn ring(&self) -> bool {
        let events = match self.inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => return false,
            Err(_) => return true,
        };
        let directories = self
            .directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for event in events {
            // The overflow event has no descriptor of ours: then everybody looks.
            if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                for directory in directories.values() {
                    directory
                        .changes
                        .send_modify(|count| *count = count.wrapping_add(1));
                }
            } else if let Some(directory) = directories.get(&event.wd) {
                directory
                    .changes
                    .send_modify(|count| *count = count.wrapping_add(1));
            }
        }
        true
    }
}

async fn read_changes(ready: AsyncFd<OwnedFd>, shared: Arc<Shared>) {
    while let Ok(mut guard) = ready.readable().await {
        if !shared.ring() {
            guard.clear_ready();
        }
    }
}

impl Watch {
    /// Returns when something has changed since the last call. Never returns for a directory that is gone.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.unwatch(self.descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_directory_is_watched_as_long_as_somebody_follows() {
        let dir = tempfile::tempdir().unwrap();
        let hub = Hub::new();
        let mut first = hub.watch(dir.path()).unwrap();
        let mut second = hub.watch(dir.path()).unwrap();
        assert_eq!(hub.watched(), 1);
        std::fs::write(dir.path().join("x"), "x").unwrap();
        first.changed().await;
        drop(first);
        second.changed().await;
        assert_eq!(hub.watched(), 1);
        drop(second);
        assert_eq!(hub.watched(), 0);
    }

    #[tokio::test]
    async fn a_directory_can_go_away_under_its_followers() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("c");
        std::fs::create_dir(&logs).unwrap();
        let hub = Hub::new();
        let watch = hub.watch(&logs).unwrap();
        std::fs::remove_dir(&logs).unwrap();
        assert!(hub.watch(&logs).is_err());
        std::fs::create_dir(&logs).unwrap();
        let mut again = hub.watch(&logs).unwrap();
        drop(watch);
        std::fs::write(logs.join("x"), "x").unwrap();
        again.changed().await;
    }
}
