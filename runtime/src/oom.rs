//! Out of memory: who lost a process to the kernel's OOM killer. The kernel tells, nobody asks again and again.
//!
//! ```text
//!   v2   memory.events of each running container, one inotify instance for all
//!   v1   memory.oom_control of each, an eventfd by cgroup.event_control
//! ```
//! Why a container *ended* is the shim's to say, from the same counter; this is for those that live on. Both
//! notifications only ring: the counter decides, so that what rings for other reasons is nothing.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::broadcast;

use crate::api::OomEvent;
use crate::container::{Container, Phase};
use crate::service::Core;

/// Events that a slow listener may lag behind.
const BACKLOG: usize = 64;

/// v1 rings before the kill, so the counter is looked at again after these; then nobody was killed.
const AFTER_RING: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(50),
    Duration::from_millis(500),
];

/// Watches running containers.
#[derive(Debug)]
pub(crate) struct OomWatcher {
    events: broadcast::Sender<OomEvent>,
    /// v2's instance, made for the first container; none when it could not be made.
    inotify: OnceLock<Option<Arc<OwnedFd>>>,
    /// Who is behind a watch.
    watched: Mutex<HashMap<i32, Weak<Watched>>>,
}

/// One container with what is known of it.
#[derive(Debug)]
struct Watched {
    container: Arc<Container>,
    kills: AtomicU64,
}

impl Default for OomWatcher {
    fn default() -> Self {
        Self {
            events: broadcast::channel(BACKLOG).0,
            inotify: OnceLock::new(),
            watched: Mutex::default(),
        }
    }
}

impl OomWatcher {
    /// Every event from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<OomEvent> {
        self.events.subscribe()
    }
}

/// Watches a container that runs, until it does not. Without a memory cgroup there is nothing to watch.
pub(crate) fn watch(core: &Arc<Core>, container: &Arc<Container>) {
    let path = container.cgroup();
    let Some(directory) = core.cgroups.memory_directory(&path) else {
        return;
    };
    let watched = Arc::new(Watched {
        container: container.clone(),
        kills: AtomicU64::new(core.cgroups.oom_kills(&path)),
    });
    let begun = match core.cgroups.is_v2() {
        true => watch_v2(core, &watched, &directory),
        false => watch_v1(core, &watched, &directory),
    };
    if let Err(error) = begun {
        // Its end tells all the same.
        tracing::debug!(container = %container.id, %error, "cannot watch for want of memory");
    }
}

/// Returns when the container has ended.
async fn ended(container: &Container) {
    let _ = container.watch().wait_for(Phase::is_over).await;
}

fn watch_v1(core: &Arc<Core>, watched: &Arc<Watched>, directory: &Path) -> io::Result<()> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let control = std::fs::File::open(directory.join("memory.oom_control"))?;
    let order = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
    std::fs::write(directory.join("cgroup.event_control"), order)?;
    let event = async_fd(event)?;
    let (core, watched) = (Arc::downgrade(core), watched.clone());
    tokio::spawn(async move {
        let rings = async {
            while let Ok(mut ready) = event.readable().await {
                let mut count = [0; 8];
                let read = rustix::io::read(event.get_ref(), &mut count);
                if read.is_err() {
                    ready.clear_ready();
                    continue;
                }
                look_often(&core, &watched).await;
            }
        };
        tokio::select! {
            () = rings => {}
            () = ended(&watched.container) => {}
        }
    });
    Ok(())
}

/// Looks until the counter has moved, a few times at most.
async fn look_often(core: &Weak<Core>, watched: &Watched) {
    for pause in AFTER_RING {
        tokio::time::sleep(pause).await;
        if Weak::upgrade(core).is_none_or(|core| look(&core, watched)) {
            return;
        }
    }
}

fn watch_v2(core: &Arc<Core>, watched: &Arc<Watched>, directory: &Path) -> io::Result<()> {
    let inotify = core.oom.inotify.get_or_init(|| begin(core).ok());
    let Some(inotify) = inotify.clone() else {
        return Err(io::Error::other("no inotify instance is to be had"));
    };
    let events = directory.join("memory.events");
    let watch = inotify::add_watch(&inotify, &events, WatchFlags::MODIFY)?;
    lock(&core.oom).insert(watch, Arc::downgrade(watched));
    let (core, watched) = (Arc::downgrade(core), watched.clone());
    tokio::spawn(async move {
        ended(&watched.container).await;
        if let Some(core) = Weak::upgrade(&core) {
            lock(&core.oom).remove(&watch);
        }
        // The kernel has removed it when the cgroup is gone.
        let _ = inotify::remove_watch(&inotify, watch);
    });
    Ok(())
}

/// Makes the instance and the task that reads it.
fn begin(core: &Arc<Core>) -> io::Result<Arc<OwnedFd>> {
    let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
    let ready = async_fd(inotify.as_fd().try_clone_to_owned()?)?;
    let (stopped, core) = (core.stopped.clone(), Arc::downgrade(core));
    tokio::spawn(async move {
        let reading = read_rings(ready, core);
        stopped.run_until_cancelled_owned(reading).await;
    });
    Ok(inotify)
}

async fn read_rings(ready: AsyncFd<OwnedFd>, core: Weak<Core>) {
    while let Ok(mut guard) = ready.readable().await {
        let Some(core) = Weak::upgrade(&core) else {
            return;
        };
        for watch in rung(ready.get_ref()) {
            let watched = lock(&core.oom).get(&watch).and_then(Weak::upgrade);
            if let Some(watched) = watched {
                look(&core, &watched);
            }
        }
        guard.clear_ready();
    }
}

/// Everything that is to be read.
fn rung(inotify: &OwnedFd) -> Vec<i32> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    let mut watches = Vec::new();
    while let Ok(event) = reader.next() {
        if event.events().contains(ReadFlags::IGNORED) || watches.contains(&event.wd()) {
            continue;
        }
        watches.push(event.wd());
    }
    watches
}

/// Tells if somebody was killed since the last look; whether that is so.
fn look(core: &Core, watched: &Watched) -> bool {
    let container = &watched.container;
    let kills = core.cgroups.oom_kills(&container.cgroup());
    let before = watched.kills.fetch_max(kills, Ordering::Relaxed);
    if kills <= before {
        return false;
    }
    let event = OomEvent {
        pod: container.pod.clone(),
        container: container.id.clone(),
        name: container.record().config.name,
        kills: kills - before,
    };
    tracing::info!(container = %event.container, name = event.name, kills = event.kills, "killed for want of memory");
    // Nobody may be listening.
    let _ = core.oom.events.send(event);
    true
}

fn lock(oom: &OomWatcher) -> std::sync::MutexGuard<'_, HashMap<i32, Weak<Watched>>> {
    oom.watched.lock().unwrap_or_else(PoisonError::into_inner)
}

fn async_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "the other one is unsafe; an OwnedFd is what it wants to be promised"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}
