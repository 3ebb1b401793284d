//! Waits between tries of requests to the API server: doubling, capped, a little apart from one another.

use std::time::Duration;

/// Doubling waits.
#[derive(Debug, Clone)]
pub struct BackOff {
    first: Duration,
    cap: Duration,
    failures: u32,
    seed: u64,
}

impl BackOff {
    /// From `first` to `cap`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        // Nodes that lose the same server should not all come back in the same moment.
        let seed =
            u64::from(std::process::id()) ^ jiff::Timestamp::now().as_microsecond().unsigned_abs();
        Self {
            first,
            cap,
            failures: 0,
            seed,
        }
    }

    /// How many times in a row it has failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// It worked: the next wait is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next wait: between 3/4 of the doubled one and all of it.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self
            .first
            .saturating_mul(1 << self.failures.min(20))
            .min(self.cap);
        self.failures = self.failures.saturating_add(1);
        // xorshift: spread, not secrecy.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let sixteenths = u32::try_from(self.seed % 5).unwrap_or(0);
        wait - wait / 16 * sixteenths
    }

    /// Sleeps for [`Self::next_wait`].
    pub async fn wait(&mut self) {
        let wait = self.next_wait();
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_start_over_after_success() {
        let mut back_off = BackOff::new(Duration::from_millis(100), Duration::from_secs(7));
        for wanted in [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000] {
            let wait = back_off.next_wait().as_millis();
            assert!(
                wait <= wanted && wait >= wanted * 3 / 4,
                "{wait} for {wanted}"
            );
        }
        back_off.reset();
        assert!(back_off.next_wait() <= Duration::from_millis(100));
        for _ in 0..100 {
            back_off.next_wait();
        }
    }
}
