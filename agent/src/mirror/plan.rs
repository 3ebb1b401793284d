//! What is to be done about one mirror pod. Pure.

use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::MIRROR;
use crate::pod::spec;
use crate::source::manifest::HASH;

/// A static pod's name: what runs under it, and what the server shows.
#[derive(Debug, Default)]
pub(super) struct Mirrored {
    /// The pod that runs, or ends, and its newest status.
    pod: Option<(Arc<Pod>, PodStatus)>,
    /// The object.
    mirror: Option<Arc<Pod>>,
    /// The object that we have deleted last: the watch may still tell of it.
    deleted: Option<String>,
    /// What has been told about a failure.
    told: Option<String>,
}

/// What to ask of the server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Delete this object at once.
    Delete(Arc<Pod>),
    /// Make the mirror of this pod.
    Create(Arc<Pod>),
}

impl Mirrored {
    /// A pod's newest status; gives the object that it belongs to, when that is there.
    pub(super) fn publish(&mut self, pod: Arc<Pod>, status: PodStatus) -> Option<Arc<Pod>> {
        self.pod = Some((pod, status));
        self.mirror.clone().filter(|mirror| self.is_good(mirror))
    }

    /// Nothing is left of that pod.
    pub(super) fn over(&mut self, pod: &Pod) {
        let is_it = |running: &(Arc<Pod>, PodStatus)| spec::uid(&running.0) == spec::uid(pod);
        if self.pod.as_ref().is_some_and(is_it) {
            self.pod = None;
        }
    }

    /// The object as the server has it; gives the status that it is to have.
    pub(super) fn seen(&mut self, mirror: Arc<Pod>) -> Option<(Arc<Pod>, PodStatus)> {
        if self.deleted.is_some() && self.deleted == mirror.metadata.uid {
            return None;
        }
        self.told = None;
        self.mirror = Some(mirror.clone());
        let good = self.is_good(&mirror);
        let (_, status) = self.pod.as_ref().filter(|_| good)?;
        Some((mirror, status.clone()))
    }

    /// The server has an object no more.
    pub(super) fn lost(&mut self, uid: &PodUid) {
        if self.mirror.as_deref().map(spec::uid).as_ref() == Some(uid) {
            self.mirror = None;
        }
        if self.deleted.as_deref() == Some(uid.as_str()) {
            self.deleted = None;
        }
    }

    /// We have deleted the object.
    pub(super) fn deleted(&mut self, mirror: &Pod) {
        self.deleted.clone_from(&mirror.metadata.uid);
        self.mirror = None;
        self.told = None;
    }

    /// What is to be done next. `orphaned`: no source has a pod of this name.
    pub(super) fn next(&self, orphaned: bool) -> Option<Step> {
        match (&self.pod, &self.mirror) {
            (None, Some(mirror)) if orphaned => Some(Step::Delete(mirror.clone())),
            (Some(_), Some(mirror)) if !self.is_good(mirror) => Some(Step::Delete(mirror.clone())),
            (Some((pod, _)), None) => Some(Step::Create(pod.clone())),
            _ => None,
        }
    }

    /// Nothing runs and nothing is shown.
    pub(super) fn is_empty(&self) -> bool {
        self.pod.is_none() && self.mirror.is_none() && self.deleted.is_none()
    }

    /// Whether a failure is another one than the last.
    pub(super) fn is_news(&mut self, why: &str) -> bool {
        let news = self.told.as_deref() != Some(why);
        self.told = Some(why.to_owned());
        news
    }

    /// Whether the object is the running pod's, and stays.
    fn is_good(&self, mirror: &Pod) -> bool {
        let Some((pod, _)) = &self.pod else {
            return false;
        };
        mirror.metadata.deletion_timestamp.is_none()
            && annotation(mirror, MIRROR) == annotation(pod, HASH)
    }
}

/// The object of a static pod: a copy that says so and that belongs to the node. None while the node has no UID.
pub(super) fn mirror(pod: &Pod, node: &Node) -> Option<Pod> {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone().filter(|uid| !uid.is_empty())?,
        controller: Some(true),
        block_owner_deletion: None,
    };
    if node.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let mut mirror = Pod {
        status: None,
        ..pod.clone()
    };
    let hash = annotation(pod, HASH)?.to_owned();
    let metadata = &mut mirror.metadata;
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(MIRROR.to_owned(), hash);
    metadata.owner_references = Some(vec![owner]);
    // The server gives its own.
    metadata.uid = None;
    metadata.resource_version = None;
    Some(mirror)
}

fn annotation<'p>(pod: &'p Pod, name: &str) -> Option<&'p str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}
