//! A simulation of a node: the real pod workers on a machine and a cluster of the imagination, in virtual time. All
//! chance comes from one seed, so that what went wrong once goes wrong again.
//!
//! ```text
//! scenario ─► cluster (API server, watch) ─► pod workers ─► runtime ─► machine (records, processes)
//!                    ▲                            │            │
//!                    └───────── statuses ◄────────┘            └─► laws: at every call, status and step
//! ```
//! One episode: steps in bad and good weather, then calm, in which everything has to come to rest, then the deletion
//! of everything, of which nothing may be left. `HANOK_SIM_SEED=N` replays one episode and prints its end (on older
//! ground with `HANOK_SIM_GROUND=1`), `HANOK_SIM_SECONDS=N` searches among new ones for as long.

mod agent;
mod chance;
mod cluster;
#[cfg(test)]
mod found;
mod ground;
mod laws;
mod machine;
mod runtime;
mod scenario;
#[cfg(test)]
mod search;
mod sinks;
mod world;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::agent::Agent;
use self::ground::Ground;
use self::world::Sim;
use super::settings::{ClassIsHandler, Deps, Settings};
use super::{Pods, worker};
use crate::timeline::Timeline;

/// Steps of an episode before the calm.
const STEPS: u64 = 600;
/// Longest time, in steps of two seconds, until everything has come to rest.
const REST: u64 = 1800;

/// Fewest steps a minute of a machine that does nothing else, as the time on its processors tells.
const FLOOR: u64 = 85_000;

/// Lines of the trace that are kept for whoever reads of a broken law; a replay keeps them all.
const KEPT: usize = 200;

/// An episode.
struct Episode {
    sim: Arc<Sim>,
    node: Option<(Pods, JoinHandle<()>)>,
    steps: u64,
}

/// How an episode went.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    steps: u64,
    hash: u64,
    broken: Vec<String>,
    trace: String,
}

impl Episode {
    /// Starts an agent.
    fn start_agent(&mut self) {
        let (sender, updates) = mpsc::channel(64);
        let number = {
            let mut world = self.sim.world();
            world.agent += 1;
            world.new_agent();
            world.say(format_args!("an agent starts"));
            world.agent
        };
        let agent = Arc::new(Agent {
            sim: self.sim.clone(),
            number,
        });
        let started = super::start(deps(&self.sim, &agent), updates);
        self.sim.world().connect(sender);
        self.node = Some(started);
    }

    /// The agent dies, with everything that it has under way.
    async fn kill_agent(&mut self) {
        let Some((_, task)) = self.node.take() else {
            return;
        };
        {
            let mut world = self.sim.world();
            world.say(format_args!("the agent dies"));
            world.agent += 1;
        }
        task.abort();
        let _ = task.await;
    }

    /// Lets time pass and checks.
    async fn step(&mut self, millis: u64) -> bool {
        sleep(Duration::from_millis(millis)).await;
        self.steps += 1;
        let mut world = self.sim.world();
        world.after_step();
        world.laws.broken.is_empty()
    }

    /// Something happens.
    async fn act(&mut self) -> u64 {
        let (what, pass) = {
            let mut world = self.sim.world();
            let pass = match world.chance.between(0, 99) {
                0..=59 => 1,
                60..=79 => world.chance.between(1, 200),
                80..=89 => world.chance.between(200, 4000),
                90..=96 => world.chance.between(4000, 40_000),
                97 | 98 => world.chance.between(40_000, 130_000),
                _ => world.chance.between(130_000, 700_000),
            };
            (world.chance.between(0, 199), pass)
        };
        match what {
            0..=29 => self.sim.world().somebody_creates(),
            30..=49 => self.sim.world().somebody_edits(),
            50..=64 => self.sim.world().somebody_deletes(),
            65..=89 => self.sim.world().something_dies(),
            90..=99 => self.sim.world().weather_turns(),
            100..=104 => self.sim.world().break_watch(),
            105..=112 => self.sim.world().list(),
            113..=120 => self.ring(),
            121..=124 => {
                self.kill_agent().await;
                self.start_agent();
            }
            125 | 126 => {
                self.kill_agent().await;
                sleep(Duration::from_millis(pass)).await;
                self.start_agent();
            }
            127 => {
                self.kill_agent().await;
                self.sim.world().everything_stops();
                self.start_agent();
            }
            _ => {}
        }
        pass
    }

    /// Objects change, and bells ring for nothing.
    fn ring(&self) {
        let Some((pods, _)) = &self.node else { return };
        let uids: Vec<_> = self.sim.world().laws.books.keys().cloned().collect();
        for uid in uids {
            if self.sim.world().chance.percent(50) {
                pods.objects_changed(&uid);
            } else {
                pods.ring(&uid);
            }
        }
    }

    /// Waits until everything has come to rest.
    async fn rest(&mut self) -> bool {
        let mut left = Vec::new();
        for _ in 0..REST {
            if !self.step(2000).await {
                return false;
            }
            left = self.sim.world().unsettled();
            if left.is_empty() {
                return true;
            }
        }
        self.sim.world().broken(format_args!("no rest: {left:?}"));
        false
    }

    async fn run(&mut self) -> bool {
        self.start_agent();
        for _ in 0..STEPS {
            let pass = self.act().await;
            if !self.step(pass).await {
                return false;
            }
        }
        self.sim.world().calm();
        if !self.rest().await {
            return false;
        }
        self.sim.world().delete_everything();
        if !self.rest().await {
            return false;
        }
        let shown = self
            .node
            .as_ref()
            .map(|(pods, _)| crate::sinks::PodDirectory::pods(pods).len());
        let mut world = self.sim.world();
        if shown != Some(0) {
            world.broken(format_args!("{shown:?} pods are shown that are gone"));
        }
        world.laws.broken.is_empty()
    }
}

/// An agent's surroundings.
fn deps(sim: &Arc<Sim>, agent: &Arc<Agent>) -> Deps {
    let dir = sim.dir.path();
    let mut settings = Settings::new(dir.join("pods"), dir.join("logs"), dir.join("log-links"));
    settings.host_ips = vec!["192.0.2.1".into()];
    Deps {
        runtime: agent.clone(),
        images: agent.clone(),
        status: agent.clone(),
        events: agent.clone(),
        objects: agent.clone(),
        volumes: agent.clone(),
        classes: Arc::new(ClassIsHandler),
        admission: Arc::new(sim.world().ground.node()),
        timeline: Timeline::default(),
        settings: Arc::new(settings),
        clock: sim.clock,
    }
}

/// One episode on a runtime of its own.
fn episode(seed: u64, ground: Ground, kept: usize) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        worker::seed_jitter(seed);
        let mut episode = Episode {
            sim: Sim::new(seed, ground, kept),
            node: None,
            steps: 0,
        };
        episode.run().await;
        episode.kill_agent().await;
        let mut world = episode.sim.world();
        Outcome {
            steps: episode.steps,
            hash: world.trace.hash(),
            broken: std::mem::take(&mut world.laws.broken),
            trace: world.trace.text(),
        }
    })
}

/// Fails with everything that is needed to see what happened.
fn check(seed: u64, outcome: &Outcome) {
    assert!(
        outcome.broken.is_empty(),
        "{}\nHANOK_SIM_SEED={seed} replays this: {:#?}",
        outcome.trace,
        outcome.broken
    );
}

#[cfg(test)]
mod tests {
    use super::found::{ON_FIRST, ON_SECOND};
    use super::ground::Ground::{First, Second};
    use super::*;
    use std::io::Write;
    use std::time::Instant;

    fn number(name: &str) -> Option<u64> {
        std::env::var(name).ok()?.parse().ok()
    }

    fn ground() -> Ground {
        match number("HANOK_SIM_GROUND") {
            Some(1) => First,
            _ => Second,
        }
    }

    #[test]
    fn the_same_seed_takes_the_same_course() {
        for seed in [1, 2, 3] {
            let one = || episode(seed, Second, KEPT);
            assert_eq!(one(), one(), "seed {seed}");
        }
    }

    #[test]
    fn faults_that_were_found_once_stay_away() {
        for (ground, found) in [(First, ON_FIRST), (Second, ON_SECOND)] {
            for (law, seed) in found {
                let outcome = episode(*seed, ground, KEPT);
                assert!(outcome.broken.is_empty(), "{law}: {seed} of {ground:?}");
            }
        }
    }

    #[test]
    fn survey() {
        let Ok(seeds) = std::env::var("HANOK_SIM_SURVEY") else {
            return;
        };
        let (first, last) = seeds.split_once('-').unwrap_or(("1", &seeds));
        let bound = |text: &str| text.parse::<u64>().expect("N, or FROM-TO");
        let (first, last) = (bound(first), bound(last));
        let mut found: std::collections::BTreeMap<String, Vec<u64>> = Default::default();
        let began = Instant::now();
        let mut steps = 0;
        for seed in first..=last {
            let outcome = episode(seed, ground(), KEPT);
            steps += outcome.steps;
            for law in &outcome.broken {
                let law: String = law.chars().filter(|c| !c.is_ascii_digit()).collect();
                found
                    .entry(law.chars().take(90).collect())
                    .or_default()
                    .push(seed);
            }
        }
        for (law, seeds) in &found {
            eprintln!("{:5} {law} {:?}", seeds.len(), &seeds[..seeds.len().min(4)]);
        }
        eprintln!("{steps} steps, {:?}", began.elapsed());
        assert!(found.is_empty(), "laws are broken");
    }

    #[test]
    fn no_schedule_breaks_a_law() {
        if let Some(seed) = number("HANOK_SIM_SEED") {
            return check(seed, &episode(seed, ground(), usize::MAX));
        }
        let longer = number("HANOK_SIM_SECONDS");
        // New schedules for who searches; the same ones, as many as there is time for, for who changes the code.
        let first = longer.map_or(1, |_| u64::from(std::process::id()) << 32);
        let found = search::search(first, Duration::from_secs(longer.unwrap_or(60)));
        if let Some((seed, outcome)) = &found.broken {
            check(*seed, outcome);
        }
        let (steps, episodes, rate, alone) = (
            found.steps,
            found.episodes,
            found.rate(),
            found.rate_alone(),
        );
        // Past the capture of the harness: the figure is to be seen when all is well.
        let line = format!(
            "simulation: {steps} steps in {episodes} episodes, {rate} steps a minute; {alone} by the time on processors\n"
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
        assert!(alone >= FLOOR, "{line}");
    }
}
