//! A token bucket.

use std::time::Duration;

use tokio::time::Instant;

/// Holds up to `size` tokens, and gains `rate` a second.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    size: f64,
    rate: f64,
    tokens: f64,
    at: Option<Instant>,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(size: f64, rate: f64) -> Self {
        Self {
            size,
            rate,
            tokens: size,
            at: None,
        }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = self
            .at
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.tokens = (self.tokens + elapsed * self.rate).min(self.size);
        self.at = Some(now);
    }

    /// Takes a token if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    /// Takes a token, going into debt if need be, and says how long to wait for it.
    pub(crate) fn take_or_wait(&mut self, now: Instant) -> Duration {
        self.refill(now);
        self.tokens -= 1.0;
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.rate)
    }

    /// Nothing has been taken lately.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        let elapsed = self
            .at
            .map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.tokens + elapsed * self.rate >= self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2.0, 10.0);
        assert!(bucket.take(start) && bucket.take(start) && !bucket.take(start));
        assert!(bucket.take(start + Duration::from_millis(150)));
        assert_eq!(
            bucket.take_or_wait(start + Duration::from_millis(150)),
            Duration::from_millis(50)
        );
        assert!(!bucket.is_full(start + Duration::from_millis(200)));
        assert!(bucket.is_full(start + Duration::from_secs(1)));
    }
}
