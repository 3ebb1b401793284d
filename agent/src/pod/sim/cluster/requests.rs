//! What the agent sends: statuses of pods, and their deletions in the end.

use std::sync::Arc;

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::Slot;
use crate::pod::observation::statuses;
use crate::pod::sim::laws::statuses::short;
use crate::pod::sim::world::{Due, World};
use crate::pod::spec;

impl World {
    /// The agent has a status, or the end of a pod, to send.
    pub(in crate::pod::sim) fn queue(&mut self, pod: &Arc<Pod>, status: Option<PodStatus>) {
        let uid = spec::uid(pod);
        if self.cluster.deleted.contains(&uid) {
            return;
        }
        let fresh = || Slot {
            pod: pod.clone(),
            next: None,
            sent: pod.status.clone(),
            terminated: false,
            busy: false,
        };
        let slot = self.cluster.slots.entry(uid.clone()).or_insert_with(fresh);
        slot.pod = pod.clone();
        match status {
            Some(status) => slot.next = Some(status),
            None => slot.terminated = true,
        }
        if !slot.busy && slot.has_work() {
            slot.busy = true;
            let wait = self.chance.between(0, 20);
            self.send_after(wait, &uid);
        }
    }

    fn send_after(&mut self, wait: u64, uid: &PodUid) {
        let agent = self.agent;
        self.later(wait, Due::Send(agent, uid.clone()));
    }

    /// One request of the agent: a status, or the deletion of a pod that is gone.
    pub(in crate::pod::sim) fn send(&mut self, uid: &PodUid) {
        let requests = self.weather.requests;
        let fails = self.weather.api_away || self.chance.percent(requests);
        let arrives = !self.weather.api_away && (!fails || self.chance.percent(50));
        let Some(slot) = self.cluster.slots.get_mut(uid) else {
            return;
        };
        if !slot.has_work() {
            slot.busy = false;
            return;
        }
        let exists = self.cluster.objects.contains_key(uid) || !arrives;
        let sent = slot.next.clone();
        if arrives && exists {
            match &sent {
                Some(status) => self.patch_status(uid, status),
                None => self.finish(uid),
            }
        }
        let (gone, wait) = (
            !exists || (sent.is_none() && !fails),
            self.chance.between(100, 2000),
        );
        if gone {
            self.cluster.slots.remove(uid);
            self.cluster.deleted.insert(uid.clone());
            return;
        }
        if let Some(slot) = self.cluster.slots.get_mut(uid).filter(|_| !fails) {
            slot.sent = slot
                .next
                .take_if(|next| Some(&*next) == sent.as_ref())
                .or(slot.sent.take());
        }
        self.send_after(if fails { wait } else { 1 }, uid);
    }

    /// The server takes a status: the node's own conditions, and everything but others' conditions.
    fn patch_status(&mut self, uid: &PodUid, status: &PodStatus) {
        self.say(format_args!("  patch {uid} {}", short(status)));
        let status = status.clone();
        let old = self
            .cluster
            .objects
            .get(uid)
            .and_then(|pod| pod.status.clone());
        let phase = old.as_ref().and_then(|old| old.phase.clone());
        if let Some(old) =
            phase.filter(|old| spec::is_terminal_phase(old) && status.phase.as_ref() != Some(old))
        {
            self.broken(format_args!("the phase of {uid} leaves {old}"));
        }
        let counts = old.as_ref().into_iter().flat_map(statuses);
        let lower = counts.filter(|old| {
            let mut now = statuses(&status);
            now.any(|now| now.name == old.name && now.restart_count < old.restart_count)
        });
        let lower: Vec<_> = lower.map(|old| old.name.clone()).collect();
        if !lower.is_empty() {
            self.broken(format_args!("restart counts of {uid} go down: {lower:?}"));
        }
        self.change(uid, |pod| {
            let others = pod
                .status
                .take()
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let mut status = status;
            let conditions = status.conditions.get_or_insert_default();
            conditions.retain(|condition| !condition.type_.contains('/'));
            conditions.extend(
                others
                    .into_iter()
                    .filter(|condition| condition.type_.contains('/')),
            );
            pod.status = Some(status);
        });
    }

    /// The agent deletes a pod of which nothing is left.
    fn finish(&mut self, uid: &PodUid) {
        self.say(format_args!("  delete {uid}"));
        self.delete(uid, 0);
    }
}
