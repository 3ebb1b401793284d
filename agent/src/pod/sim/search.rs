//! The search among many episodes: one thread for each core, each with seeds of its own; and how fast it was.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ground::Ground;
use super::{KEPT, Outcome, episode};

/// What was searched.
#[derive(Debug, Default)]
pub(super) struct Searched {
    pub(super) steps: u64,
    pub(super) episodes: u64,
    /// The first episode that broke a law.
    pub(super) broken: Option<(u64, Outcome)>,
    threads: u64,
    elapsed: Duration,
    /// Of all threads.
    cpu: Duration,
}

impl Searched {
    /// Steps a minute as they were.
    pub(super) fn rate(&self) -> u64 {
        per_minute(self.steps, self.elapsed)
    }

    /// Steps a minute on this machine when nobody else uses it.
    pub(super) fn rate_alone(&self) -> u64 {
        per_minute(self.steps * self.threads, self.cpu)
    }

    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.episodes += other.episodes;
        self.cpu += other.cpu;
        self.broken = self.broken.take().or(other.broken);
    }
}

fn per_minute(steps: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    steps * 60_000 / millis.max(1)
}

/// Time on a processor of this thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Searches from that seed on for so long, or until a law is broken.
pub(super) fn search(first: u64, time: Duration) -> Searched {
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get().min(8));
    let (seeds, over) = (AtomicU64::new(first), AtomicBool::new(false));
    let mut all = Searched::default();
    std::thread::scope(|scope| {
        let one = || {
            let (mut mine, cpu) = (Searched::default(), cpu_time());
            while began.elapsed() < time && !over.load(Ordering::Relaxed) {
                let seed = seeds.fetch_add(1, Ordering::Relaxed);
                let outcome = episode(seed, Ground::Second, KEPT);
                mine.steps += outcome.steps;
                mine.episodes += 1;
                if !outcome.broken.is_empty() {
                    over.store(true, Ordering::Relaxed);
                    mine.broken = Some((seed, outcome));
                }
            }
            mine.cpu = cpu_time().saturating_sub(cpu);
            mine
        };
        let searches: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        for search in searches {
            all.add(search.join().expect("an episode does not panic"));
        }
    });
    all.threads = u64::try_from(threads).unwrap_or(1);
    all.elapsed = began.elapsed();
    all
}
