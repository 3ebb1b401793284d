//! The static pods of one source: what has changed since they were last told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::manifest::SEEN;
use crate::mirror::Mirrors;
use crate::pod::spec;
use crate::sinks::PodUpdate;

/// Nobody listens any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

/// Tells the pod core that every source has told all it knew at its start. Each source has one and gives it up then.
#[derive(Debug, Clone)]
pub struct Gate {
    open: Arc<AtomicUsize>,
    updates: mpsc::Sender<PodUpdate>,
}

impl Gate {
    /// One gate for each of so many sources.
    pub fn new(sources: usize, updates: mpsc::Sender<PodUpdate>) -> Self {
        Self {
            open: Arc::new(AtomicUsize::new(sources)),
            updates,
        }
    }

    /// A source has told everything. To be called once for each.
    pub async fn pass(self) -> Result<(), Closed> {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            let sent = self.updates.send(PodUpdate::Synced).await;
            return sent.map_err(|_| Closed);
        }
        Ok(())
    }
}

/// What a source of static pods has told.
#[derive(Debug)]
pub struct StaticPods {
    /// The source's name, as its annotation has it.
    source: &'static str,
    updates: mpsc::Sender<PodUpdate>,
    /// Takes note of which mirror pods have something to mirror; none without an API server.
    mirrors: Option<Mirrors>,
    told: BTreeMap<PodUid, Arc<Pod>>,
}

impl StaticPods {
    /// Nothing told yet.
    pub fn new(
        source: &'static str,
        updates: mpsc::Sender<PodUpdate>,
        mirrors: Option<Mirrors>,
    ) -> Self {
        Self {
            source,
            updates,
            mirrors,
            told: BTreeMap::new(),
        }
    }

    /// Tells that these are the source's pods now: first which are gone, then which are new or have changed.
    /// Of two of the same name the first counts.
    pub async fn set(&mut self, mut pods: Vec<Pod>) -> Result<(), Closed> {
        let name = |pod: &Pod| (spec::namespace(pod).to_owned(), spec::name(pod).to_owned());
        let mut names = BTreeSet::new();
        let all = pods.len();
        pods.retain(|pod| names.insert(name(pod)));
        let namesakes = all - pods.len();
        if let Some(mirrors) = &self.mirrors {
            mirrors.wanted(self.source, names);
        }
        let changes = self.changes(pods, jiff::Timestamp::now());
        if namesakes > 0 && !changes.is_empty() {
            tracing::warn!(
                source = self.source,
                namesakes,
                "ignoring static pods that have the name of another"
            );
        }
        for update in changes {
            self.updates.send(update).await.map_err(|_| Closed)?;
        }
        Ok(())
    }

    fn changes(&mut self, pods: Vec<Pod>, now: jiff::Timestamp) -> Vec<PodUpdate> {
        let listed: BTreeSet<PodUid> = pods.iter().map(spec::uid).collect();
        let gone = self.told.keys().filter(|uid| !listed.contains(*uid));
        let gone: Vec<PodUid> = gone.cloned().collect();
        self.told.retain(|uid, _| listed.contains(uid));
        let mut updates: Vec<_> = gone.into_iter().map(PodUpdate::Gone).collect();
        for mut pod in pods {
            let uid = spec::uid(&pod);
            let known = self.told.get(&uid);
            let seen = known.and_then(|known| known.metadata.annotations.as_ref()?.get(SEEN));
            let seen = seen.cloned().unwrap_or_else(|| now.to_string());
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(SEEN.to_owned(), seen);
            if known.is_some_and(|known| **known == pod) {
                continue;
            }
            let pod = Arc::new(pod);
            self.told.insert(uid, pod.clone());
            updates.push(PodUpdate::Apply(pod));
        }
        updates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str, image: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "c", "image": image}]},
        }))
        .expect("a pod")
    }

    fn told(pods: &mut StaticPods, now: Vec<Pod>) -> Vec<String> {
        let updates = pods.changes(now, jiff::Timestamp::UNIX_EPOCH);
        updates
            .iter()
            .map(|update| match update {
                PodUpdate::Apply(pod) => spec::uid(pod).0,
                PodUpdate::Gone(uid) => format!("gone {uid}"),
                PodUpdate::Synced => "synced".into(),
            })
            .collect()
    }

    #[test]
    fn only_changes_are_told_and_the_old_goes_before_the_new() {
        let (updates, _receiver) = mpsc::channel(1);
        let mut pods = StaticPods::new("file", updates, None);
        assert_eq!(
            told(&mut pods, vec![pod("a", "1", "i"), pod("b", "2", "i")]),
            ["1", "2"]
        );
        assert!(told(&mut pods, vec![pod("a", "1", "i"), pod("b", "2", "i")]).is_empty());
        assert_eq!(
            told(&mut pods, vec![pod("a", "3", "j"), pod("b", "2", "i")]),
            ["gone 1", "3"]
        );
        // A UID that the manifest names keeps over a change.
        assert_eq!(
            told(&mut pods, vec![pod("a", "3", "j"), pod("b", "2", "k")]),
            ["2"]
        );
        assert_eq!(told(&mut pods, vec![]), ["gone 2", "gone 3"]);
    }

    #[tokio::test]
    async fn of_two_of_a_name_the_first_is_told() {
        let (updates, mut receiver) = mpsc::channel(4);
        let mut pods = StaticPods::new("http", updates, None);
        let found = vec![pod("a", "1", "i"), pod("a", "2", "j"), pod("b", "3", "i")];
        pods.set(found).await.expect("somebody listens");
        drop(pods);
        let mut uids = Vec::new();
        while let Some(PodUpdate::Apply(pod)) = receiver.recv().await {
            uids.push(spec::uid(&pod).0);
        }
        assert_eq!(uids, ["1", "3"]);
    }

    #[tokio::test]
    async fn the_last_source_opens_the_gate() {
        let (updates, mut receiver) = mpsc::channel(4);
        let gate = Gate::new(2, updates);
        gate.clone().pass().await.expect("somebody listens");
        assert!(receiver.try_recv().is_err());
        gate.pass().await.expect("somebody listens");
        assert!(matches!(receiver.try_recv(), Ok(PodUpdate::Synced)));
    }
}
