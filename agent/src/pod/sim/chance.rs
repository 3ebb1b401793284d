//! Chance from a seed, and the trace that proves that it was followed.

use std::collections::VecDeque;

/// A generator of numbers; the same seed gives the same ones on every machine.
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// splitmix64: short, and good enough for dice.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True so many times in a hundred.
    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    /// One of them.
    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(from.len()).ok()?.checked_sub(1)?;
        from.get(usize::try_from(self.between(0, last)).ok()?)
    }
}

/// Everything that happened, as a hash; and the last of it as text.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    last: VecDeque<String>,
    kept: usize,
}

impl Trace {
    pub(super) fn new(kept: usize) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            last: VecDeque::new(),
            kept,
        }
    }

    pub(super) fn line(&mut self, line: String) {
        for byte in line.bytes() {
            // FNV-1a.
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.last.len() >= self.kept {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn text(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}
