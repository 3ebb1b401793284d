//! The wait of v1: paid once at the start of a pod, beside other work, instead of at each of its containers.
//!
//! Before it lets anybody write to a `cgroup.procs`, the kernel waits for an RCU grace period, some 15 ms, and holds
//! the lock that making a cgroup needs. It does not wait when the last such write is less than a grace period ago.
//! So the first step of a start writes to it, and goes on until the steps that follow have had their turn. On v2
//! containers are born in their cgroup and nothing is moved.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Cgroups, detect, write_file};

/// How long after a step of a start the next one is expected: an init container runs in between.
const LASTS: Duration = Duration::from_millis(100);

/// Less than a grace period.
const INTERVAL: Duration = Duration::from_millis(5);

/// Keeps the kernel ready for moves between v1 cgroups while pods start.
#[derive(Debug)]
pub(crate) struct Warmth {
    /// The `cgroup.procs` of our own cgroup; none on v2.
    own: Option<PathBuf>,
    /// When it may go cold. None: nobody keeps it warm.
    until: Mutex<Option<Instant>>,
}

impl Warmth {
    pub(crate) fn new(cgroups: &Cgroups) -> Self {
        let pids = |hierarchy: &&super::Hierarchy| hierarchy.has("pids");
        let own = cgroups.hierarchies.iter().find(pids);
        Self {
            own: own
                .filter(|_| !cgroups.is_v2())
                .map(|hierarchy| hierarchy.own.join("cgroup.procs")),
            until: Mutex::new(None),
        }
    }

    /// A process will be moved in a moment. Returns at once.
    pub(crate) fn want(self: &Arc<Self>) {
        if self.own.is_none() || self.lock().replace(Instant::now() + LASTS).is_some() {
            return;
        }
        let warmth = self.clone();
        tokio::task::spawn_blocking(move || {
            while warmth.is_wanted() {
                warmth.touch();
                std::thread::sleep(INTERVAL);
            }
        });
    }

    /// Whether there is time left; if not, the next one who wants it starts anew.
    fn is_wanted(&self) -> bool {
        let mut until = self.lock();
        if until.is_some_and(|until| until <= Instant::now()) {
            *until = None;
        }
        until.is_some()
    }

    /// Moves ourselves to where we are, which has no other effect.
    fn touch(&self) {
        let Some(own) = &self.own else { return };
        // Our place is read anew: somebody may have moved us.
        let Ok(text) = fs::read_to_string("/proc/self/cgroup") else {
            return;
        };
        let place = detect::own_paths(&text)
            .find(|(controllers, _)| controllers.split(',').any(|name| name == "pids"));
        let here = own
            .parent()
            .zip(place)
            .is_some_and(|(own, (_, path))| own.ends_with(path.trim_start_matches('/')));
        if here {
            // The start itself reports what is wrong with cgroups.
            let _ = write_file(own, "0");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
