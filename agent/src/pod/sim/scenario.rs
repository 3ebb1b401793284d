//! What happens to the node: pods come, change and go, programs and shims die, the machine reboots, the weather turns.

use hanok_runtime::api::{ContainerId, ContainerState, PodUid, SandboxState};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

use super::world::{Weather, World};
use crate::pod::spec::{self, ContainerKind};

/// Most pods at once.
const PODS: usize = 4;
/// How many of a hundred pods come from manifests.
const MANIFESTS: u64 = 20;

impl World {
    /// A container with whatever a container may have.
    fn any_container(&mut self, name: &str, sidecar: bool, probed: bool) -> Value {
        let mut container = json!({"name": name, "image": "i:1"});
        if sidecar {
            container["restartPolicy"] = json!("Always");
        }
        if self.chance.percent(20) {
            container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
        }
        self.broaden(&mut container, sidecar);
        if !probed {
            return container;
        }
        for (field, word) in [
            ("startupProbe", "startup"),
            ("livenessProbe", "liveness"),
            ("readinessProbe", "readiness"),
        ] {
            if self.chance.percent(15) {
                container[field] = json!({
                    "exec": {"command": [word]},
                    "periodSeconds": self.chance.between(8, 60),
                    "timeoutSeconds": self.chance.between(1, 3),
                    "initialDelaySeconds": self.chance.between(0, 10),
                    "failureThreshold": self.chance.between(1, 3),
                });
                if word == "liveness" && self.chance.percent(40) {
                    container[field]["terminationGracePeriodSeconds"] =
                        json!(self.chance.between(1, 10));
                }
            }
        }
        for hook in ["postStart", "preStop"] {
            if self.chance.percent(20) {
                container["lifecycle"][hook] = json!({"exec": {"command": [hook]}});
            }
        }
        container
    }

    /// A pod with whatever a pod may have.
    fn any_pod(&mut self) -> Pod {
        self.machine.made += 1;
        let number = self.machine.made;
        let mut init = Vec::new();
        for index in 0..self.chance.between(0, 3) {
            let sidecar = self.chance.percent(50);
            let name = format!("{}{index}", if sidecar { "s" } else { "i" });
            init.push(self.any_container(&name, sidecar, sidecar));
        }
        let apps = self.chance.between(1, 2);
        let apps: Vec<_> = (0..apps)
            .map(|index| self.any_container(&format!("a{index}"), false, true))
            .collect();
        let policies = ["Always", "Always", "OnFailure", "Never"];
        let mut pod = json!({
            "metadata": {"name": format!("p{}", number % 5), "namespace": "n", "uid": format!("u{number}"), "generation": 1},
            "spec": {
                "restartPolicy": self.chance.pick(&policies),
                "initContainers": init,
                "containers": apps,
                "terminationGracePeriodSeconds": self.chance.pick(&[1, 5, 30]),
            },
        });
        if self.chance.percent(10) {
            pod["spec"]["hostNetwork"] = json!(true);
        }
        if self.chance.percent(5) {
            pod["spec"]["activeDeadlineSeconds"] = json!(self.chance.between(30, 900));
        }
        if self.chance.percent(10) {
            pod["spec"]["readinessGates"] = json!([{"conditionType": "sim/gate"}]);
        }
        self.broaden_pod(&mut pod);
        serde_json::from_value(pod).expect("a pod")
    }

    /// A client makes a pod, or somebody writes a manifest.
    pub(super) fn somebody_creates(&mut self) {
        if self.cluster.objects.len() + self.cluster.manifests.len() >= PODS {
            return;
        }
        let mut pod = self.any_pod();
        let name = pod.metadata.name.clone();
        if self
            .cluster
            .objects
            .values()
            .any(|other| other.metadata.name == name)
        {
            return;
        }
        let taken = self.cluster.manifests.iter();
        let taken = taken.filter(|(_, other)| other.metadata.name == name);
        let taken: Vec<_> = taken.map(|(uid, _)| uid.clone()).collect();
        if !taken.is_empty() || self.chance.percent(MANIFESTS) {
            let source = [("kubernetes.io/config.source".to_owned(), "file".to_owned())];
            pod.metadata.annotations = Some(source.into());
            pod.metadata.uid = Some(format!("m{}", self.machine.made));
            self.put_manifest(pod);
            // A manifest that changes is another pod of the same name.
            taken.iter().for_each(|uid| self.remove_manifest(uid));
            return;
        }
        if self.chance.percent(15) {
            pod.metadata.finalizers = Some(vec!["sim/finalizer".to_owned()]);
        }
        self.create(pod);
    }

    fn any_object(&mut self) -> Option<PodUid> {
        let uids: Vec<_> = self.cluster.objects.keys().cloned().collect();
        self.chance.pick(&uids).cloned()
    }

    /// A client changes a pod.
    pub(super) fn somebody_edits(&mut self) {
        let Some(uid) = self.any_object() else { return };
        let what = self.chance.between(0, self.ground.edits());
        let number = self.chance.between(0, 5);
        let image = format!("i:{number}");
        let time = self.timestamp();
        if what > 5 {
            return self.somebody_resizes(&uid);
        }
        self.change(&uid, |pod| match what {
            0 | 1 => edit_image(pod, number, image),
            2 => {
                let labels = pod.metadata.labels.get_or_insert_default();
                labels.insert("number".to_owned(), number.to_string());
            }
            3 => set_gate(pod, number.is_multiple_of(2), time),
            4 => pod.metadata.finalizers = None,
            _ => add_ephemeral(pod),
        });
        let object = self.cluster.objects.get(&uid);
        let waits = object.is_some_and(|pod| {
            pod.metadata.deletion_timestamp.is_some()
                && pod.metadata.finalizers.is_none()
                && pod.metadata.deletion_grace_period_seconds == Some(0)
        });
        if waits {
            self.vanish(&uid);
        }
    }

    /// A client deletes a pod, once or again; or a manifest goes away, and perhaps comes back.
    pub(super) fn somebody_deletes(&mut self) {
        if self.chance.percent(25) {
            let uids: Vec<_> = self.cluster.manifests.keys().cloned().collect();
            let Some(uid) = self.chance.pick(&uids).cloned() else {
                return;
            };
            let Some(pod) = self.cluster.manifests.get(&uid).cloned() else {
                return;
            };
            self.remove_manifest(&uid);
            if self.chance.percent(50) {
                self.put_manifest(pod);
            }
            return;
        }
        let Some(uid) = self.any_object() else { return };
        let grace = *self.chance.pick(&[0, 1, 3, 10, 30, 120]).unwrap_or(&30);
        self.delete(&uid, grace);
    }

    /// A process is killed from outside, or its shim, or the holder of a sandbox; or a record is lost.
    pub(super) fn something_dies(&mut self) {
        let living: Vec<ContainerId> = self.machine.processes.keys().cloned().collect();
        let sandboxes: Vec<_> = self
            .machine
            .sandboxes
            .iter()
            .map(|sandbox| sandbox.id.clone())
            .collect();
        match self.chance.between(0, 5) {
            0 | 1 => {
                let Some(id) = self.chance.pick(&living).cloned() else {
                    return;
                };
                self.say(format_args!("kill {id}"));
                self.end_process(&id, 137, "Error");
            }
            2 => {
                let Some(id) = self.chance.pick(&living).cloned() else {
                    return;
                };
                self.kill_shim(&id);
            }
            3 => {
                let Some(id) = self.chance.pick(&sandboxes).cloned() else {
                    return;
                };
                self.say(format_args!("the holder of {id} dies"));
                if self.chance.percent(50) {
                    self.kill_all_in(&id);
                }
                let Some(sandbox) = self.machine.sandbox(&id) else {
                    return;
                };
                sandbox.state = SandboxState::NotReady;
                let uid = sandbox.config.uid.clone();
                self.ring(&uid);
            }
            4 => {
                let Some(id) = self.chance.pick(&sandboxes).cloned() else {
                    return;
                };
                self.say(format_args!("the network of {id} is lost"));
                let Some(sandbox) = self.machine.sandbox(&id) else {
                    return;
                };
                sandbox.ips.clear();
                let uid = sandbox.config.uid.clone();
                self.ring(&uid);
            }
            _ => self.lose_a_record(),
        }
    }

    /// A process and its shim die: nobody knows how it ended.
    pub(super) fn kill_shim(&mut self, id: &ContainerId) {
        self.say(format_args!("the shim of {id} dies"));
        if let Some(record) = self.machine.record(id) {
            record.state = ContainerState::Unknown;
        }
        self.end_process(id, 255, "Unknown");
        for book in self.laws.books.values_mut() {
            for run in book.runs.values_mut().filter(|run| run.id == *id) {
                run.ended = Some(run.began.saturating_sub(30_000));
            }
        }
    }

    fn lose_a_record(&mut self) {
        let ended = self
            .machine
            .records
            .iter()
            .filter(|record| record.state == ContainerState::Exited);
        let ended: Vec<_> = ended.map(|record| record.id.clone()).collect();
        let Some(id) = self.chance.pick(&ended).cloned() else {
            return;
        };
        let Some(record) = self.machine.record(&id).cloned() else {
            return;
        };
        self.say(format_args!("the record of {id} is lost"));
        self.machine.records.retain(|record| record.id != id);
        self.record_lost(&record);
        self.ring(&record.pod);
    }

    /// Everything that runs is gone, and with it what was kept in /run.
    pub(super) fn reboot(&mut self) {
        self.say(format_args!("reboot"));
        self.machine.processes.clear();
        self.machine.sandboxes.clear();
        self.machine.records.clear();
        self.cgroups.clear();
        for book in self.laws.books.values_mut() {
            book.runs.clear();
            book.inside.clear();
        }
    }

    /// The weather turns.
    pub(super) fn weather_turns(&mut self) {
        let mut some = |percent: u64, most: u64| match self.chance.percent(percent) {
            true => self.chance.between(1, most),
            false => 0,
        };
        self.weather = Weather {
            errors: some(30, 30),
            slow: some(50, 60),
            deaf: some(30, 50),
            pulls: some(20, 70),
            volumes: some(20, 60),
            programs: some(60, 70),
            requests: some(30, 50),
            api_away: some(15, 1) == 1,
        };
        let weather = self.weather;
        self.say(format_args!("{weather:?}"));
        self.road_to_server_changes();
    }

    /// Everything is to go, with the grace that it has.
    pub(super) fn delete_everything(&mut self) {
        self.say(format_args!("delete everything"));
        for uid in self.cluster.manifests.keys().cloned().collect::<Vec<_>>() {
            self.remove_manifest(&uid);
        }
        for (uid, pod) in self.cluster.objects.clone() {
            self.change(&uid, |pod| pod.metadata.finalizers = None);
            let waits = pod.metadata.deletion_grace_period_seconds == Some(0);
            match waits {
                true => self.vanish(&uid),
                false => self.delete(&uid, 30),
            }
        }
    }

    /// The sun comes out.
    pub(super) fn calm(&mut self) {
        self.weather = Weather::default();
        self.say(format_args!("calm"));
        self.list();
    }
}

fn edit_image(pod: &mut Pod, number: u64, image: String) {
    let Some(spec) = pod.spec.as_mut() else {
        return;
    };
    let sidecars = spec.init_containers.iter_mut().flatten();
    let sidecars =
        sidecars.filter(|container| spec::init_kind(container) == ContainerKind::Sidecar);
    let mut all: Vec<_> = spec.containers.iter_mut().chain(sidecars).collect();
    let count = u64::try_from(all.len()).unwrap_or(1);
    let Some(container) = usize::try_from(number % count)
        .ok()
        .and_then(|index| all.get_mut(index))
    else {
        return;
    };
    if container.image.as_ref() != Some(&image) {
        container.image = Some(image);
        pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
    }
}

fn set_gate(pod: &mut Pod, open: bool, time: jiff::Timestamp) {
    let Some(status) = pod.status.as_mut() else {
        return;
    };
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "sim/gate");
    conditions.push(PodCondition {
        type_: "sim/gate".to_owned(),
        status: if open { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time)),
        ..PodCondition::default()
    });
}

fn add_ephemeral(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else {
        return;
    };
    let list = spec.ephemeral_containers.get_or_insert_default();
    if list.is_empty() {
        let container = json!({"name": "e0", "image": "i:1"});
        list.push(serde_json::from_value(container).expect("a container"));
        pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
    }
}
