//! One piece of work for everybody who asks for it at once.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};

/// Work under way, by key. The callers drive it; when all of them are gone it is dropped with them.
pub(crate) struct Flights<K, T: Clone> {
    running: Mutex<HashMap<K, WeakShared<BoxFuture<'static, T>>>>,
}

/// Work that may be shared with others.
pub(crate) type Flight<T> = Shared<BoxFuture<'static, T>>;

impl<K, T: Clone> fmt::Debug for Flights<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flights")
    }
}

impl<K: Eq + Hash, T: Clone> Default for Flights<K, T> {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash, T: Clone> Flights<K, T> {
    /// Joins the work for `key`, or begins it; true when it was begun here.
    pub(crate) fn join(
        &self,
        key: K,
        begin: impl FnOnce() -> BoxFuture<'static, T>,
    ) -> (Flight<T>, bool) {
        // The map is whole at every step, so a panic elsewhere does not spoil it.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = running.get(&key).and_then(WeakShared::upgrade)
            && flight.peek().is_none()
        {
            return (flight, false);
        }
        running.retain(|_, flight| flight.upgrade().is_some());
        let flight = begin().shared();
        if let Some(weak) = flight.downgrade() {
            running.insert(key, weak);
        }
        (flight, true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn those_who_ask_at_once_share_one_flight_and_later_ones_begin_anew() {
        let flights = Flights::<u8, u32>::default();
        let begun = Arc::new(AtomicU32::new(0));
        let begin = || {
            let begun = Arc::clone(&begun);
            async move {
                tokio::task::yield_now().await;
                begun.fetch_add(1, Ordering::SeqCst) + 1
            }
            .boxed()
        };
        let many: Vec<_> = (0..20).map(|_| flights.join(1, begin).0).collect();
        assert_eq!(futures::future::join_all(many).await, vec![1; 20]);
        assert_eq!(flights.join(1, begin).0.await, 2);
    }

    #[tokio::test]
    async fn work_ends_when_every_caller_is_gone() {
        let flights = Flights::<u8, ()>::default();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let begin = move || {
            async move {
                let _held = held;
                std::future::pending::<()>().await;
            }
            .boxed()
        };
        let (first, _) = flights.join(1, begin);
        let (second, begun) = flights.join(1, || std::future::ready(()).boxed());
        assert!(!begun);
        drop(first);
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
