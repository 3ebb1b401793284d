//! Pauses that differ from pod to pod.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

thread_local! {
    /// What [`jittered`] goes on from.
    static JITTER: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1);
}

/// The duration, and up to half as much again.
pub(in crate::pod) fn jittered(duration: Duration) -> Duration {
    let random = JITTER.with(|state| {
        // xorshift: spread, not secrecy.
        let mut seed = state.get();
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        state.set(seed);
        seed % 1024
    });
    duration + duration / 2048 * u32::try_from(random).unwrap_or(0)
}

/// Lets the pauses of this thread's workers follow from a seed.
#[cfg(test)]
pub(in crate::pod) fn seed_jitter(seed: u64) {
    JITTER.with(|state| state.set(seed | 1));
}
