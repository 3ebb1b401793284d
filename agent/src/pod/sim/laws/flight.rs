//! A call that is under way.

use hanok_runtime::api::PodUid;

use crate::pod::sim::agent::Agent;

/// A call that must not meet another one of its kind.
#[derive(Debug)]
pub(in crate::pod::sim) struct Flight {
    agent: Agent,
    uid: PodUid,
    what: String,
}

impl Flight {
    pub(in crate::pod::sim) fn new(agent: Agent, uid: PodUid, what: String) -> Self {
        Self { agent, uid, what }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(mut world) = self.agent.living()
            && let Some(book) = world.laws.books.get_mut(&self.uid)
        {
            book.flights.remove(&self.what);
        }
    }
}
