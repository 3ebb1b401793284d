//! The rest of what an agent talks to: images, statuses, events, objects, volumes; and the commands that it runs in
//! containers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::{
    ContainerId, ContainerState, Credentials, Error, ExecProcess, Image, ImageService, PodUid,
    Result,
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodStatus, Secret, Service};
use tokio::time::{Instant, sleep, sleep_until};

use super::agent::Agent;
use super::laws::Book;
use super::world::World;
use crate::pod::fake::image;
use crate::pod::spec::{self, ContainerKind};
use crate::sinks::{
    EventKind, EventSink, MountedVolumes, ObjectError, Objects, StatusSink, Token, TokenRequest,
    VolumeError, Volumes,
};

/// A command in a container.
#[derive(Debug)]
pub(super) struct Command {
    agent: Agent,
    id: ContainerId,
    what: String,
    code: i32,
    ends: Instant,
}

impl Agent {
    /// Begins a command; its first word says what it is for.
    pub(super) fn begin(
        &self,
        world: &mut World,
        id: &ContainerId,
        command: &[String],
    ) -> Result<Command> {
        let what = command.first().cloned().unwrap_or_default();
        let running = world
            .machine
            .record(id)
            .is_some_and(|record| record.state == ContainerState::Running);
        if !running {
            return Err(Error::Internal(format!("{id} does not run")));
        }
        let bad = world.chance.percent(world.weather.programs);
        let (code, after) = match (bad, world.chance.between(0, 9)) {
            (false, _) => (0, world.chance.between(0, 200)),
            (true, 0..=5) => (1, world.chance.between(0, 500)),
            (true, 6 | 7) => (0, world.chance.between(0, 9000)),
            (true, _) => (0, world.chance.between(20_000, 600_000)),
        };
        world.say(format_args!("  {what} in {id}: {code} after {after}"));
        if what == "postStart"
            && let Some(uid) = world.machine.record(id).map(|record| record.pod.clone())
            && let Some(book) = world.laws.books.get_mut(&uid)
        {
            book.hooks.insert(id.clone());
        }
        // Whether its answer comes in time is for the agent to say; a bad one is cause enough.
        if let Some(process) = world.machine.processes.get_mut(id).filter(|_| bad) {
            process.failed_hook |= what == "postStart";
            process.failed_probe |= what == "liveness" || what == "startup";
        }
        let ends = Instant::now() + Duration::from_millis(after);
        Ok(Command {
            agent: self.clone(),
            id: id.clone(),
            what,
            code,
            ends,
        })
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let Some(mut world) = self.agent.living() else {
            return;
        };
        let Some(record) = world.machine.record(&self.id).cloned() else {
            return;
        };
        if let Some(book) = world.laws.books.get_mut(&record.pod)
            && book.hooks.remove(&self.id)
        {
            let inside = book.inside.entry(record.sandbox).or_default();
            inside.hooked.insert(record.config.name);
        }
    }
}

#[async_trait]
impl ExecProcess for Command {
    async fn wait(&self) -> Result<i32> {
        loop {
            let ended = {
                let world = self.agent.world().await;
                let Some(process) = world.machine.processes.get(&self.id) else {
                    return Ok(137);
                };
                process.ended.clone()
            };
            let ended = ended.notified();
            tokio::select! {
                biased;
                () = ended => {}
                () = sleep_until(self.ends) => {
                    if self.what == "startup" && self.code == 0 {
                        self.agent.world().await.has_begun(&self.id);
                    }
                    return Ok(self.code);
                }
            }
        }
    }

    async fn resize(&self, _rows: u16, _cols: u16) -> Result<()> {
        Ok(())
    }

    async fn kill(&self) -> Result<()> {
        Ok(())
    }
}

impl World {
    /// A startup probe has passed.
    fn has_begun(&mut self, id: &ContainerId) {
        let Some(record) = self.machine.record(id).cloned() else {
            return;
        };
        let Some(book) = self.laws.books.get_mut(&record.pod) else {
            return;
        };
        let sidecar = spec::find_container(&book.pod, &record.config.name)
            .is_some_and(|(kind, _)| kind == ContainerKind::Sidecar);
        if sidecar {
            book.inside
                .entry(record.sandbox.clone())
                .or_default()
                .begun
                .insert(record.config.name.clone());
        }
    }

    /// The agent says that nothing of the pod is left.
    fn said_terminated(&mut self, pod: &Pod) {
        let uid = spec::uid(pod);
        self.say(format_args!("terminated {uid}"));
        let left = self.left_of(&uid);
        if !left.is_empty() {
            self.broken(format_args!(
                "{uid} is said to be gone, and there is {}",
                left.join(", ")
            ));
        }
        match self.laws.books.get_mut(&uid) {
            // The end of a life that was over before this one was told.
            Some(book) if spec::is_static(pod) && !book.gone => *book = Book::new(book.pod.clone()),
            Some(book) => book.terminated = true,
            None => {}
        }
        self.is_born_again(&uid, true);
    }
}

#[async_trait]
impl ImageService for Agent {
    async fn pull_image(&self, reference: &str, _credentials: &[Credentials]) -> Result<Image> {
        self.pause(None).await;
        let hangs = {
            let mut world = self.world().await;
            let bad = world.weather.pulls;
            match (world.chance.percent(bad), world.chance.percent(70)) {
                (false, _) => 0,
                (true, true) => {
                    let message = "no such host".to_owned();
                    return Err(Error::Pull {
                        reference: reference.to_owned(),
                        message,
                    });
                }
                (true, false) => world.chance.between(5, 400),
            }
        };
        sleep(Duration::from_secs(hangs)).await;
        Ok(image())
    }

    async fn image_status(&self, _reference: &str) -> Result<Option<Image>> {
        let here = self.world().await.chance.percent(50);
        Ok(here.then(image))
    }

    async fn list_images(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn remove_image(&self, _reference: &str) -> Result<()> {
        Ok(())
    }
}

impl StatusSink for Agent {
    fn publish(&self, pod: &Arc<Pod>, status: PodStatus) {
        let Some(mut world) = self.living() else {
            return;
        };
        world.published(pod, &status);
        world.queue(pod, Some(status));
    }

    fn terminated(&self, pod: &Arc<Pod>) {
        let Some(mut world) = self.living() else {
            return;
        };
        world.said_terminated(pod);
        world.queue(pod, None);
    }
}

impl EventSink for Agent {
    fn pod_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        _kind: EventKind,
        reason: &str,
        message: &str,
    ) {
        if let Some(mut world) = self.living() {
            let uid = spec::uid(pod);
            world.say(format_args!("event {uid} {container:?} {reason} {message}"));
            let book = world.laws.books.get_mut(&uid);
            if let Some(book) = book.filter(|_| reason == "Preempting") {
                book.preempted = true;
            }
        }
    }
}

#[async_trait]
impl Objects for Agent {
    async fn config_map(
        &self,
        _namespace: &str,
        name: &str,
    ) -> Result<Arc<ConfigMap>, ObjectError> {
        Err(ObjectError::NotFound {
            kind: "configmap",
            name: name.to_owned(),
        })
    }

    async fn secret(&self, _namespace: &str, name: &str) -> Result<Arc<Secret>, ObjectError> {
        Err(ObjectError::NotFound {
            kind: "secret",
            name: name.to_owned(),
        })
    }

    async fn token(&self, _request: &TokenRequest) -> Result<Token, ObjectError> {
        Err(ObjectError::Other("no tokens here".to_owned()))
    }

    async fn services(&self, _namespace: &str) -> Result<Vec<Arc<Service>>, ObjectError> {
        Ok(Vec::new())
    }

    fn register(&self, pod: &Arc<Pod>) {
        if let Some(mut world) = self.living() {
            world.registered.insert(spec::uid(pod));
        }
    }

    fn unregister(&self, uid: &PodUid) {
        if let Some(mut world) = self.living() {
            world.registered.remove(uid);
        }
    }
}

#[async_trait]
impl Volumes for Agent {
    async fn mount(&self, pod: &Arc<Pod>) -> Result<MountedVolumes, Vec<VolumeError>> {
        let uid = spec::uid(pod);
        self.pause(Some(&uid)).await;
        let mut world = self.world().await;
        world.volumes.insert(uid);
        let bad = world.weather.volumes;
        match world.chance.percent(bad) {
            false => Ok(MountedVolumes::new()),
            true => Err(vec![VolumeError {
                volume: "v".to_owned(),
                message: "not now".to_owned(),
            }]),
        }
    }

    async fn unmount(&self, uid: &PodUid) -> Result<(), Vec<VolumeError>> {
        self.pause(Some(uid)).await;
        let directory = self.sim.dir.path().join("pods").join(uid.as_str());
        let mut world = self.world().await;
        let bad = world.weather.volumes;
        if world.chance.percent(bad) {
            world.laws.fault(uid);
            return Err(vec![VolumeError {
                volume: "v".to_owned(),
                message: "busy".to_owned(),
            }]);
        }
        world.before_unmount(uid);
        world.volumes.remove(uid);
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
            _ => Ok(()),
        }
    }

    async fn on_disk(&self) -> Vec<PodUid> {
        self.world().await.volumes.iter().cloned().collect()
    }
}
