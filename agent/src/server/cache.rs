//! A small cache of answers with an age, for reviews that would otherwise cost a round trip per request.
//!
//! Bounded: when it is full, what has expired goes, and if that is not enough, everything goes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Entries kept at most; one is a few hundred bytes.
const CAPACITY: usize = 4096;

/// Answers by question, each with its own end of life.
#[derive(Debug)]
pub(super) struct Cache<K, V> {
    entries: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    /// An empty cache.
    pub(super) fn new() -> Self {
        Self {
            entries: Mutex::new(HashMap::new()),
        }
    }

    /// The answer, unless it has expired.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, value) = entries.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Keeps an answer for `ttl`; nothing is kept for a zero `ttl`.
    pub(super) fn put(&self, key: K, value: V, ttl: Duration) {
        if ttl.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CAPACITY {
            entries.retain(|_, (until, _)| now < *until);
        }
        if entries.len() >= CAPACITY {
            entries.clear();
        }
        entries.insert(key, (now + ttl, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_are_forgotten_after_their_time() {
        let cache = Cache::new();
        cache.put("a", 1, Duration::from_secs(30));
        assert_eq!(cache.get(&"a"), Some(1));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(cache.get(&"a"), None);
    }

    #[test]
    fn it_never_grows_beyond_its_capacity() {
        let cache = Cache::new();
        for key in 0..3 * CAPACITY {
            cache.put(key, (), Duration::from_secs(60));
        }
        assert!(cache.entries.lock().unwrap().len() <= CAPACITY);
    }
}
