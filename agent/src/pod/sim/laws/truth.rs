//! What is left of pods, and what is not yet as it should be when nothing disturbs any more.

use hanok_runtime::api::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::statuses::short;
use crate::pod::observation::statuses;
use crate::pod::sim::world::World;
use crate::pod::spec::{self, ContainerKind, Exit};

impl World {
    /// What there is of a pod on the machine.
    pub(in crate::pod::sim) fn left_of(&self, uid: &PodUid) -> Vec<String> {
        let mut left = Vec::new();
        let sandboxes = self
            .machine
            .sandboxes
            .iter()
            .filter(|sandbox| sandbox.config.uid == *uid);
        left.extend(sandboxes.map(|sandbox| format!("sandbox {}", sandbox.id)));
        left.extend(
            self.machine
                .living(uid)
                .map(|(id, _)| format!("process {id}")),
        );
        let records = self
            .machine
            .records
            .iter()
            .filter(|record| record.pod == *uid);
        left.extend(records.map(|record| format!("record {}", record.id)));
        left.extend(self.volumes.get(uid).map(|_| "volumes".to_owned()));
        let cgroup = format!("/pod{uid}");
        left.extend(
            self.cgroups
                .iter()
                .filter(|path| path.ends_with(&cgroup))
                .cloned(),
        );
        let pods = self.dir.join("pods").join(uid.as_str());
        left.extend(pods.exists().then(|| "a directory".to_owned()));
        let logs = std::fs::read_dir(self.dir.join("logs"))
            .into_iter()
            .flatten()
            .flatten();
        let ours = logs.filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .ends_with(&format!("_{uid}"))
        });
        left.extend(ours.map(|_| "logs".to_owned()));
        left
    }

    /// Volumes go after processes.
    pub(in crate::pod::sim) fn before_unmount(&mut self, uid: &PodUid) {
        let book = self.laws.books.get(uid);
        let spent = book.is_none_or(|book| {
            book.rough || book.ending.is_some_and(|ending| ending.until <= self.now)
        });
        let lives = self.machine.living(uid).next().map(|(id, _)| id.clone());
        if let Some(id) = lives.filter(|_| !spent) {
            self.broken(format_args!("volumes are removed while {id} lives"));
        }
    }

    /// What is not as it should be; nothing, once everything has come to rest.
    pub(in crate::pod::sim) fn unsettled(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (uid, pod) in &self.cluster.objects {
            found.extend(self.unsettled_pod(uid, pod, pod.status.as_ref()));
        }
        for (uid, pod) in &self.cluster.manifests {
            let last = self.laws.books.get(uid).and_then(|book| book.last.as_ref());
            found.extend(self.unsettled_pod(uid, pod, last));
        }
        let known = |uid: &PodUid| {
            self.cluster.objects.contains_key(uid) || self.cluster.manifests.contains_key(uid)
        };
        let sandboxes = self
            .machine
            .sandboxes
            .iter()
            .map(|sandbox| &sandbox.config.uid);
        for uid in sandboxes
            .chain(&self.volumes)
            .chain(&self.registered)
            .filter(|uid| !known(uid))
        {
            found.push(format!("something of {uid}, which nobody wants"));
        }
        found.extend(self.overcommitted());
        found
    }

    fn unsettled_pod(&self, uid: &PodUid, pod: &Pod, status: Option<&PodStatus>) -> Option<String> {
        let finalized = pod
            .metadata
            .finalizers
            .as_ref()
            .is_some_and(|list| !list.is_empty());
        if pod.metadata.deletion_timestamp.is_some() {
            let left = self.left_of(uid);
            let is_gone = left.is_empty() && finalized;
            return (!is_gone).then(|| format!("{uid} is to be deleted: {left:?}"));
        }
        let Some(status) = status else {
            return Some(format!("{uid} has no status"));
        };
        if status.phase.as_deref().is_some_and(spec::is_terminal_phase) {
            let lives = self.machine.living(uid).next().is_some();
            let holds = self.volumes.contains(uid) || self.machine.ready_sandbox(uid).is_some();
            return (lives || holds).then(|| format!("{uid} is over and not cleaned"));
        }
        let mut restarts_or_lives = false;
        for (kind, container) in spec::all_containers(pod) {
            let name = &container.name;
            let record = self
                .machine
                .records
                .iter()
                .rfind(|record| record.pod == *uid && record.config.name == *name);
            let lives =
                record.is_some_and(|record| self.machine.processes.contains_key(&record.id));
            let shown = statuses(status).find(|status| status.name == *name);
            let shown = shown.and_then(|shown| shown.state.as_ref());
            let shown_running = shown.is_some_and(|state| state.running.is_some());
            if lives != shown_running {
                return Some(format!("{name} of {uid}: the status is {}", short(status)));
            }
            let ready = statuses(status).any(|status| status.name == *name && status.ready);
            if lives && !ready && matches!(kind, ContainerKind::App | ContainerKind::Sidecar) {
                return Some(format!("{name} of {uid} is not ready: {}", short(status)));
            }
            let image = record.map(|record| record.config.image_reference.as_str());
            if lives && image != container.image.as_deref() {
                return Some(format!("{name} of {uid} runs an old image"));
            }
            let ended_for_good = || {
                let told = shown.and_then(|state| state.terminated.as_ref());
                let told = told.map(|ended| Exit {
                    code: ended.exit_code,
                    reason: ended.reason.clone().unwrap_or_default(),
                });
                // What has lost its record has ended as it was told.
                let exit = record.map_or(told, crate::pod::observation::exit);
                exit.is_some_and(|exit| !spec::should_restart(pod, kind, &container, &exit))
            };
            match kind {
                ContainerKind::App => {
                    restarts_or_lives |= lives;
                    if !lives && !ended_for_good() {
                        return Some(format!("{name} of {uid} does not run: {}", short(status)));
                    }
                }
                ContainerKind::Sidecar if !lives => {
                    return Some(format!(
                        "sidecar {name} of {uid} does not run: {}",
                        short(status)
                    ));
                }
                _ => {}
            }
        }
        if let Some(why) = self.unsettled_resize(uid, pod, status) {
            return Some(why);
        }
        (!restarts_or_lives).then(|| format!("{uid} has ended and is not over: {}", short(status)))
    }
}
