//! Which pods may run: the owner of the set judges each new pod beside those that it has admitted, once, or again by the
//! node as asked for anew when labels or taints would refuse it.
//!
//! A pod that is to take others' place waits until they have ended; what it asks for counts from then on. Who has bound a
//! pod may know of labels and taints that are news here: before one is refused by these, the node is asked for anew.

use std::sync::Arc;

use hanok_runtime::api::{Error, PodSandbox, PodUid};
use k8s_openapi::api::core::v1::Pod;
use tokio::task::{Id, JoinError};
use tracing::{error, info};

use super::{Workers, house};
use crate::pod::admit::{self, Verdict};
use crate::pod::spec;
use crate::pod::worker::{Desired, Existence, NodeDecision};

impl Workers {
    /// Looks at what has run before.
    pub(super) async fn find_running(&mut self) -> Result<(), Error> {
        let sandboxes = self.deps.runtime.list_pod_sandboxes().await?;
        let by_pod = |sandbox: PodSandbox| (sandbox.config.uid.clone(), sandbox);
        self.found = sandboxes.into_iter().map(by_pod).collect();
        Ok(())
    }

    /// Ends what an earlier agent ran of another pod of this name, which nobody will ask for any more.
    pub(super) fn end_namesake(&mut self, pod: &Pod) {
        let uid = spec::uid(pod);
        let old: Vec<Pod> = self
            .found
            .values()
            .filter(|sandbox| {
                let config = &sandbox.config;
                config.name == spec::name(pod)
                    && config.namespace == spec::namespace(pod)
                    && config.uid != uid
                    && !self.is_known(&config.uid)
            })
            .map(house::orphan)
            .collect();
        for pod in old {
            info!(uid = %spec::uid(&pod), pod = spec::name(&pod), "ending an older pod of a name that is wanted again");
            self.spawn(Desired::orphan(pod));
        }
    }

    /// Starts a worker for a new pod, unless the pod has to wait for room.
    pub(super) fn admit(&mut self, pod: Arc<Pod>) {
        if !self.is_to_be_judged(&pod) {
            self.spawn(Desired::wanted(pod));
            return;
        }
        let verdict = self.judge(&pod);
        if let Verdict::Rejected(failure) = &verdict
            && admit::is_by_labels_or_taints(failure)
            && let Some(look) = self.deps.admission.look()
        {
            let task = self.looks.spawn(look);
            self.doubted.push((task.id(), pod));
            return;
        }
        self.follow(pod, verdict);
    }

    /// The node is known as it was after its pod had been bound, or as well as it can be: this verdict counts.
    pub(super) fn looked(&mut self, looked: Result<(Id, ()), JoinError>) {
        let id = match looked {
            Ok((id, ())) => id,
            Err(error) => {
                error!(%error, "cannot ask for the node");
                error.id()
            }
        };
        // None when the pod is gone, or was told of anew.
        let Some(index) = self.doubted.iter().position(|(task, _)| *task == id) else {
            return;
        };
        let (_, pod) = self.doubted.remove(index);
        // Another source may have brought one meanwhile.
        if self.name_is_taken(&pod) {
            self.held.push(pod);
            return;
        }
        let verdict = self.judge(&pod);
        self.follow(pod, verdict);
    }

    /// Judges a pod by what it has been promised, if it has: a wish for more is no reason to refuse it after a reboot.
    fn judge(&mut self, pod: &Pod) -> Verdict {
        let uid = spec::uid(pod);
        let promised = self.promises.get(&uid);
        let promised = promised.map(|promised| promised.apply(pod));
        let node = self.deps.admission.node();
        let pod = promised.as_ref().unwrap_or(pod);
        admit::admit(pod, &node, &self.admitted(&uid))
    }

    fn follow(&mut self, pod: Arc<Pod>, verdict: Verdict) {
        match verdict {
            Verdict::Admitted => self.spawn(Desired::wanted(pod)),
            Verdict::Rejected(failure) => {
                let (uid, reason, message) = (spec::uid(&pod), &failure.reason, &failure.message);
                info!(%uid, pod = spec::name(&pod), reason, message, "pod is rejected");
                let mut desired = Desired::wanted(pod);
                desired.decision = Some(NodeDecision::Rejected(failure));
                self.spawn(desired);
            }
            Verdict::AfterPreemption(victims) => {
                for victim in victims {
                    self.preempt(&victim, &pod);
                }
                self.need_room.push(pod);
            }
        }
    }

    /// Whether the pod is new to this node. One that has run here is never refused afterwards, and one that is over
    /// or to be deleted will not run.
    fn is_to_be_judged(&self, pod: &Pod) -> bool {
        let ran = self.found.contains_key(&spec::uid(pod));
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        !ran && phase.is_none_or(|phase| phase == "Pending") && spec::deletion_grace(pod).is_none()
    }

    /// The pods that count, but for this one: admitted ones whose containers have not all ended, and those that wait
    /// for room.
    pub(super) fn admitted(&self, but: &PodUid) -> Vec<Arc<Pod>> {
        let workers = self.workers.iter().filter_map(|(uid, handle)| {
            let desired = handle.desired.borrow();
            let rejected = matches!(desired.decision, Some(NodeDecision::Rejected(_)));
            let counts = !rejected
                && !handle.was_over
                && desired.exists != Existence::Orphan
                && !self.pods.is_over(uid);
            counts.then(|| desired.pod.clone())
        });
        let all = workers.chain(self.need_room.iter().cloned());
        all.filter(|pod| spec::uid(pod) != *but).collect()
    }

    pub(super) fn preempt(&self, victim: &PodUid, pod: &Pod) {
        let Some(handle) = self.workers.get(victim) else {
            return;
        };
        handle.desired.send_if_modified(|desired| {
            let news = desired.decision.is_none();
            if news {
                info!(uid = %victim, "preempted by {}", spec::display(pod));
                desired.decision = Some(NodeDecision::Preempted);
            }
            news
        });
    }
}
