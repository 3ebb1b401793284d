//! The world of a simulation: one lock around the machine, the cluster, the weather and the book of laws, and the
//! clockwork that lets things happen later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use hanok_runtime::api::{ContainerId, PodUid};
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::sync::{Notify, broadcast};
use tokio::time::{Instant, sleep_until};

use super::chance::{Chance, Trace};
use super::cluster::Cluster;
use super::ground::Ground;
use super::laws::Laws;
use super::machine::Machine;
use crate::pod::sample;
use crate::pod::settings::Clock;

/// How badly things go at the moment, in percent of the occasions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Weather {
    /// A call of the runtime fails.
    pub(super) errors: u64,
    /// A call takes its time.
    pub(super) slow: u64,
    /// A ring is lost.
    pub(super) deaf: u64,
    /// A pull fails.
    pub(super) pulls: u64,
    /// A volume cannot be made or removed.
    pub(super) volumes: u64,
    /// A program does what it should not.
    pub(super) programs: u64,
    /// A request to the API server fails, or seems to.
    pub(super) requests: u64,
    /// The API server is away.
    pub(super) api_away: bool,
}

/// What happens at a time.
#[derive(Debug)]
pub(super) enum Due {
    /// A process ends, with that code and reason.
    Exit(ContainerId, i32, &'static str),
    /// The doorbell rings.
    Ring(PodUid),
    /// A status or a deletion is sent by the agent of that number.
    Send(u32, PodUid),
    /// The watch of the agent of that number hands over what has come in.
    Deliver(u32),
}

/// Everything there is.
#[derive(Debug)]
pub(super) struct World {
    /// Milliseconds since the beginning.
    pub(super) now: u64,
    pub(super) chance: Chance,
    pub(super) ground: Ground,
    pub(super) trace: Trace,
    pub(super) weather: Weather,
    pub(super) machine: Machine,
    pub(super) cluster: Cluster,
    pub(super) laws: Laws,
    /// Where the node keeps its files.
    pub(super) dir: PathBuf,
    pub(super) cgroups: BTreeSet<String>,
    pub(super) volumes: BTreeSet<PodUid>,
    /// Pods whose objects are followed for them.
    pub(super) registered: BTreeSet<PodUid>,
    /// Which agent lives; each has a number of its own.
    pub(super) agent: u32,
    due: BTreeMap<(u64, u64), Due>,
    next: u64,
    clockwork: Arc<Notify>,
    bell: broadcast::Sender<PodUid>,
}

impl World {
    /// Lets it happen after so many milliseconds.
    pub(super) fn later(&mut self, after: u64, due: Due) {
        self.next += 1;
        self.due.insert((self.now + after, self.next), due);
        self.clockwork.notify_one();
    }

    /// The doorbell rings, if it does.
    pub(super) fn ring(&mut self, uid: &PodUid) {
        if self.chance.percent(self.weather.deaf) {
            return;
        }
        let after = match self.chance.percent(self.weather.slow) {
            true => self.chance.between(1, 2000),
            false => 0,
        };
        self.later(after, Due::Ring(uid.clone()));
        if self.chance.percent(5) {
            self.later(after + 3, Due::Ring(uid.clone()));
        }
    }

    /// A line of the trace.
    pub(super) fn say(&mut self, line: std::fmt::Arguments<'_>) {
        let (now, agent) = (self.now, self.agent);
        self.trace.line(format!("{now:>9} {agent} {line}"));
    }

    /// The time as the runtime says it.
    pub(super) fn time(&self) -> SystemTime {
        SystemTime::from(sample::now()) + Duration::from_millis(self.now)
    }

    /// The time as the API says it.
    pub(super) fn timestamp(&self) -> Timestamp {
        crate::pod::observation::timestamp(self.time())
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Exit(id, code, reason) => self.end_process(&id, code, reason),
            // Nobody may be listening.
            Due::Ring(uid) => drop(self.bell.send(uid)),
            Due::Send(agent, uid) if agent == self.agent => self.send(&uid),
            Due::Deliver(agent) if agent == self.agent => self.deliver(),
            Due::Send(..) | Due::Deliver(_) => {}
        }
    }
}

/// The world behind its lock.
#[derive(Debug)]
pub(super) struct Sim {
    world: Mutex<World>,
    clockwork: Arc<Notify>,
    bell: broadcast::Sender<PodUid>,
    origin: Instant,
    pub(super) clock: Clock,
    pub(super) dir: TempDir,
}

impl Sim {
    pub(super) fn new(seed: u64, ground: Ground, kept: usize) -> Arc<Self> {
        let clockwork = Arc::new(Notify::new());
        let bell = broadcast::channel(16).0;
        let memory = std::path::Path::new("/dev/shm");
        let dir = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let dir = dir.expect("a directory");
        let world = World {
            now: 0,
            chance: Chance::new(seed),
            ground,
            trace: Trace::new(kept),
            weather: Weather::default(),
            machine: Machine::default(),
            cluster: Cluster::default(),
            laws: Laws::default(),
            dir: dir.path().to_owned(),
            cgroups: BTreeSet::new(),
            volumes: BTreeSet::new(),
            registered: BTreeSet::new(),
            agent: 0,
            due: BTreeMap::new(),
            next: 0,
            clockwork: clockwork.clone(),
            bell: bell.clone(),
        };
        let sim = Arc::new(Self {
            world: Mutex::new(world),
            clockwork,
            bell,
            origin: Instant::now(),
            clock: Clock::from_now(sample::now()),
            dir,
        });
        tokio::spawn(run(Arc::downgrade(&sim)));
        sim
    }

    /// The world, at this moment.
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        let mut world = self.world.lock().expect("nobody panics with the lock");
        let now = self.origin.elapsed().as_millis();
        world.now = u64::try_from(now).expect("a simulation is short");
        world
    }

    pub(super) fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.bell.subscribe()
    }

    /// Does what is due; gives when there is more to do.
    fn tick(&self) -> Option<Instant> {
        let mut world = self.world();
        loop {
            let at = world.due.first_key_value().map(|((at, _), _)| *at)?;
            if at > world.now {
                return Some(self.origin + Duration::from_millis(at));
            }
            let (_, due) = world.due.pop_first()?;
            world.happen(due);
        }
    }
}

/// The clockwork: lets things happen at their time, for as long as there is a world.
async fn run(sim: std::sync::Weak<Sim>) {
    loop {
        let Some(sim) = sim.upgrade() else { return };
        let next = sim.tick();
        let clockwork = sim.clockwork.clone();
        drop(sim);
        match next {
            None => clockwork.notified().await,
            Some(at) => tokio::select! {
                biased;
                () = clockwork.notified() => {}
                () = sleep_until(at) => {}
            },
        }
    }
}
