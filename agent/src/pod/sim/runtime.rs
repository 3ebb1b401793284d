//! The runtime of a simulation: every call may take its time, fail before or after its effect, and is watched by the
//! laws. An agent that is dead gets no answers any more.

use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::{
    Container, ContainerConfig, ContainerId, ContainerState, Error, ExecRequest, ExecSession,
    NamespaceMode, PodSandbox, PodSandboxConfig, PodUid, PodView, Resources, Result,
    RuntimeService, SandboxId, SandboxState,
};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};

use super::agent::Agent;

fn not_found(kind: &'static str, id: &str) -> Error {
    Error::NotFound {
        kind,
        id: id.to_owned(),
    }
}

#[async_trait]
impl RuntimeService for Agent {
    async fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Result<PodSandbox> {
        let uid = config.uid.clone();
        let _flight = self.take_off(&uid, "sandbox".to_owned()).await;
        let id = {
            let mut world = self.world().await;
            world.say(format_args!("run sandbox {uid} {}", config.attempt));
            world.before_sandbox(&config);
            world.machine.made += 1;
            let id = SandboxId(format!("{uid}/{}#{}", config.attempt, world.machine.made));
            let sandbox = PodSandbox {
                id: id.clone(),
                state: SandboxState::NotReady,
                created_at: world.time(),
                ips: Vec::new(),
                pid: 0,
                config,
            };
            world.machine.sandboxes.push(sandbox);
            id
        };
        self.pause(Some(&uid)).await;
        let failed = self.fault("run sandbox", &uid).await;
        let made = {
            let mut world = self.world().await;
            if let Err(error) = failed {
                world.machine.sandboxes.retain(|sandbox| sandbox.id != id);
                return Err(Error::Network {
                    id,
                    message: error.to_string(),
                });
            }
            let Some(sandbox) = world.machine.sandbox(&id) else {
                return Err(not_found("sandbox", &id.0));
            };
            sandbox.state = SandboxState::Ready;
            sandbox.pid = 1;
            if sandbox.config.network != NamespaceMode::Node {
                sandbox.ips = vec!["10.1.0.5".to_owned()];
            }
            let made = sandbox.clone();
            world.ring(&uid);
            made
        };
        self.pause(Some(&uid)).await;
        Ok(made)
    }

    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        let Some(uid) = self.pod_of_sandbox(id).await else {
            return Ok(());
        };
        self.pause(Some(&uid)).await;
        self.fault("stop sandbox", &uid).await?;
        let mut world = self.world().await;
        world.say(format_args!("stop sandbox {id}"));
        world.kill_all_in(id);
        if let Some(sandbox) = world.machine.sandbox(id) {
            sandbox.state = SandboxState::NotReady;
        }
        world.ring(&uid);
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        let Some(uid) = self.pod_of_sandbox(id).await else {
            return Ok(());
        };
        self.pause(Some(&uid)).await;
        self.fault("remove sandbox", &uid).await?;
        let mut world = self.world().await;
        world.say(format_args!("remove sandbox {id}"));
        world.before_remove_sandbox(&uid);
        world.kill_all_in(id);
        world.machine.sandboxes.retain(|sandbox| sandbox.id != *id);
        let (gone, kept) = std::mem::take(&mut world.machine.records)
            .into_iter()
            .partition(|record| record.sandbox == *id);
        world.machine.records = kept;
        if let Some(book) = world.laws.books.get_mut(&uid) {
            let gone: Vec<Container> = gone;
            book.forget(|id| gone.iter().any(|record| record.id == *id));
        }
        world.ring(&uid);
        Ok(())
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>> {
        let mut world = self.world().await;
        let errors = world.weather.errors;
        if world.chance.percent(errors) {
            let books = world.laws.books.values_mut();
            books.for_each(|book| book.rough = true);
            return Err(Error::Internal("nobody answers".to_owned()));
        }
        let now = world.now;
        world.laws.agent_sees(now);
        Ok(world.machine.sandboxes.iter().rev().cloned().collect())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
    ) -> Result<ContainerId> {
        let uid = self
            .pod_of_sandbox(sandbox)
            .await
            .ok_or_else(|| not_found("sandbox", &sandbox.0))?;
        let name = config.name.clone();
        let _flight = self.take_off(&uid, format!("container {name}")).await;
        self.world().await.may_begin(&uid, &name);
        self.pause(Some(&uid)).await;
        self.fault("create", &uid).await?;
        let (id, log) = {
            let mut world = self.world().await;
            let Some(of) = world.machine.sandbox(sandbox) else {
                return Err(not_found("sandbox", &sandbox.0));
            };
            let log = of.config.log_directory.join(&config.log_path);
            world.say(format_args!("create {uid} {name}.{}", config.attempt));
            world.before_create(&uid, &config);
            world.machine.made += 1;
            let id = ContainerId(format!(
                "{uid}/{name}.{}#{}",
                config.attempt, world.machine.made
            ));
            let record = Container {
                id: id.clone(),
                sandbox: sandbox.clone(),
                pod: uid.clone(),
                image_ref: format!("{}@sha256:aa", config.image_reference),
                config,
                state: ContainerState::Created,
                created_at: world.time(),
                started_at: None,
                finished_at: None,
                exit_code: 0,
                reason: String::new(),
                message: String::new(),
                log_path: log.clone(),
                pid: 0,
                identity: None,
            };
            world.machine.records.push(record);
            (id, log)
        };
        if let Some(directory) = log.parent() {
            std::fs::create_dir_all(directory).expect("a directory");
        }
        std::fs::write(log, "").expect("a file");
        self.pause(Some(&uid)).await;
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let uid = self
            .pod_of(id)
            .await
            .ok_or_else(|| not_found("container", &id.0))?;
        self.world().await.may_begin(&uid, &id.0);
        self.pause(Some(&uid)).await;
        {
            let mut world = self.world().await;
            let Some(record) = world.machine.record(id).cloned() else {
                return Err(not_found("container", &id.0));
            };
            let ready = world
                .machine
                .sandbox(&record.sandbox)
                .is_some_and(|of| of.state == SandboxState::Ready);
            if !ready {
                return Err(Error::Internal("the sandbox is not ready".to_owned()));
            }
            world.say(format_args!("start {id}"));
            world.before_start(&record);
            let bad = world.weather.errors;
            if world.chance.percent(bad) {
                return Err(world.cannot_start(id));
            }
            world.start_process(id);
        }
        self.pause(Some(&uid)).await;
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let Some(uid) = self.pod_of(id).await else {
            return Ok(());
        };
        self.world().await.before_stop(id, grace);
        self.pause(Some(&uid)).await;
        let began = Instant::now();
        self.fault("stop", &uid).await?;
        loop {
            let ended = {
                let mut world = self.world().await;
                world.tell_to_end(id);
                let Some(process) = world.machine.processes.get(id) else {
                    break;
                };
                process.ended.clone()
            };
            let notified = ended.notified();
            tokio::select! {
                biased;
                () = notified => {}
                () = sleep_until(began + grace) => {
                    self.world().await.end_process(id, 137, "Error");
                }
            }
        }
        self.pause(Some(&uid)).await;
        self.fault("stop", &uid).await
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        let Some(uid) = self.pod_of(id).await else {
            return Ok(());
        };
        self.pause(Some(&uid)).await;
        self.fault("remove", &uid).await?;
        let mut world = self.world().await;
        world.say(format_args!("remove {id}"));
        world.before_remove(id);
        world.end_process(id, 137, "Error");
        world.machine.records.retain(|record| record.id != *id);
        Ok(())
    }

    async fn list_containers(&self) -> Result<Vec<Container>> {
        Ok(self
            .world()
            .await
            .machine
            .records
            .iter()
            .rev()
            .cloned()
            .collect())
    }

    async fn pod_view(&self, uid: &PodUid) -> Result<PodView> {
        self.fault("look", uid).await?;
        let world = self.world().await;
        let machine = &world.machine;
        let sandboxes = machine
            .sandboxes
            .iter()
            .rev()
            .filter(|sandbox| sandbox.config.uid == *uid);
        let containers = machine
            .records
            .iter()
            .rev()
            .filter(|record| record.pod == *uid);
        Ok(PodView {
            sandboxes: sandboxes.cloned().collect(),
            containers: containers.cloned().collect(),
        })
    }

    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecSession> {
        let uid = self
            .pod_of(id)
            .await
            .ok_or_else(|| not_found("container", &id.0))?;
        if let Err(error) = self.fault("exec", &uid).await {
            let mut world = self.world().await;
            if let Some(process) = world.machine.processes.get_mut(id) {
                process.failed_hook |= request
                    .command
                    .first()
                    .is_some_and(|word| word == "postStart");
            }
            return Err(error);
        }
        let mut world = self.world().await;
        let process = self.begin(&mut world, id, &request.command)?;
        Ok(ExecSession {
            stdin: None,
            stdout: Box::new(&b"the answer"[..]),
            stderr: None,
            process: Box::new(process),
        })
    }

    async fn update_container_resources(&self, id: &ContainerId, to: &Resources) -> Result<()> {
        let uid = self
            .pod_of(id)
            .await
            .ok_or_else(|| not_found("container", &id.0))?;
        self.pause(Some(&uid)).await;
        self.fault("resize", &uid).await?;
        self.world().await.resize(id, to)
    }

    async fn update_cgroup(&self, path: &str, _resources: &Resources) -> Result<()> {
        self.world().await.cgroups.insert(path.to_owned());
        Ok(())
    }

    async fn remove_cgroup(&self, path: &str) -> Result<()> {
        self.pause(None).await;
        let mut world = self.world().await;
        world.before_remove_cgroup(path)?;
        world.cgroups.remove(path);
        Ok(())
    }

    fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.sim.doorbell()
    }

    fn handlers(&self) -> Vec<String> {
        vec![String::new()]
    }

    async fn network_ready(&self) -> Result<(), String> {
        Ok(())
    }
}
