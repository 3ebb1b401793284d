//! When a probe is made: at once when it is due, soon again while what it asks may not be up yet, then by its period.
//!
//! A node of a hundred pods with a few probes each would be woken for every one of them. After the first probe, which a
//! pod's readiness waits for, they come at the full [`GRID`], all that fall into the same part of it together. The spread
//! over the parts stays: it is that of the pods' starts.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::super::settings::Clock;

/// A quarter of the shortest period that a probe can have. What is done together finds the processor's caches warm from
/// what was done just before; a coarser grid saves nothing more, and makes the heap of what is due at once higher.
const GRID: Duration = Duration::from_millis(250);

/// How soon a program that may still be starting is asked a second time; then twice as long each time.
const SOON: Duration = Duration::from_millis(50);

/// The times of one probe.
#[derive(Debug)]
pub(super) struct Ticks {
    clock: Clock,
    next: Instant,
    period: Duration,
    soon: Duration,
}

impl Ticks {
    pub(super) fn new(clock: Clock, first: Instant, period: Duration) -> Self {
        Self {
            clock,
            next: first,
            period,
            soon: SOON,
        }
    }

    /// The next one comes before its period is over: what was asked may only not have been up yet.
    pub(super) fn hurry(&mut self) {
        self.next = Instant::now() + self.soon.min(self.period);
        self.soon *= 2;
    }

    /// Waits for the next one. Those that a long probe has missed do not come.
    pub(super) async fn tick(&mut self) {
        sleep_until(self.next).await;
        let now = Instant::now();
        let late = now.saturating_duration_since(self.next);
        let missed = late.as_nanos() / self.period.as_nanos().max(1);
        let missed = u32::try_from(missed).unwrap_or(u32::MAX);
        let due = self.next + self.period * missed.saturating_add(1);
        let wall = self.clock.now().as_nanosecond();
        self.next = on_grid(due, now, wall);
    }
}

/// The time on the grid that is closest to when it is `due`, by what the clock on the wall says `now`: all probes read the
/// same one. To the closest, so that a probe that is on the grid stays there.
fn on_grid(due: Instant, now: Instant, wall: i128) -> Instant {
    let ahead = due.saturating_duration_since(now);
    let grid = i128::try_from(GRID.as_nanos()).unwrap_or(i128::MAX);
    let ahead = i128::try_from(ahead.as_nanos()).unwrap_or(i128::MAX / 2);
    let offset = (wall + ahead).rem_euclid(grid);
    let ahead = if offset * 2 < grid {
        ahead - offset
    } else {
        ahead - offset + grid
    };
    now + Duration::from_nanos(u64::try_from(ahead.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: i128 = 1_000_000;

    #[test]
    fn a_time_moves_to_the_closest_place_and_stays_there() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        for (wall, want) in [
            (0, 1000),
            (1, 999),
            (124, 876),
            (125, 1125),
            (249, 1001),
            (250, 1000),
            (-1, 1001),
        ] {
            let next = on_grid(now + second, now, wall * MILLI);
            assert_eq!((next - now).as_millis(), want, "{wall}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_comes_when_it_is_due_and_the_others_on_the_grid_by_the_period() {
        let clock = Clock::from_now(jiff::Timestamp::UNIX_EPOCH);
        let began = Instant::now();
        let mut ticks = Ticks::new(
            clock,
            began + Duration::from_millis(7),
            Duration::from_secs(1),
        );
        let mut times = Vec::new();
        for _ in 0..4 {
            ticks.tick().await;
            times.push(began.elapsed().as_millis());
        }
        assert_eq!(times[0], 7);
        let first_period = times[1] - times[0];
        assert!((870..=1130).contains(&first_period), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hurried_one_comes_ever_later_and_the_period_follows_it() {
        let clock = Clock::from_now(jiff::Timestamp::UNIX_EPOCH);
        let began = Instant::now();
        let mut ticks = Ticks::new(clock, began, Duration::from_secs(10));
        let mut times = Vec::new();
        for _ in 0..4 {
            ticks.tick().await;
            times.push(began.elapsed().as_millis());
            ticks.hurry();
        }
        ticks.tick().await;
        ticks.tick().await;
        assert_eq!(times, [0, 50, 150, 350]);
        let seconds = began.elapsed().as_secs_f64();
        assert!((10.5..=11.0).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_long_probe_has_missed_does_not_come() {
        let clock = Clock::from_now(jiff::Timestamp::UNIX_EPOCH);
        let began = Instant::now();
        let mut ticks = Ticks::new(clock, began, Duration::from_secs(1));
        ticks.tick().await;
        tokio::time::advance(Duration::from_millis(3500)).await;
        ticks.tick().await;
        ticks.tick().await;
        let seconds = began.elapsed().as_secs_f64();
        assert!((3.9..=5.1).contains(&seconds), "{seconds}");
    }
}
