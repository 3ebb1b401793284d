//! The runtime of the imagination.

use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::{
    CgroupStats, Container, ContainerConfig, ContainerId, ContainerState, ContainerStats,
    DiskUsage, Error, ExecProcess, ExecRequest, ExecSession, NamespaceMode, PodSandbox,
    PodSandboxConfig, PodUid, Resources, Result, RuntimeService, SandboxId, SandboxState,
    SandboxStats, StatsDetail,
};
use tokio::sync::broadcast;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Fake;
use crate::pod::sample;

#[async_trait]
impl RuntimeService for Fake {
    async fn run_pod_sandbox(&self, config: PodSandboxConfig) -> Result<PodSandbox> {
        self.call(format!("run sandbox {}", config.attempt));
        let now = self.now();
        let mut state = self.state();
        // Of the sample pod, the attempt is enough of a name.
        let id = match config.uid.as_str() {
            sample::UID => format!("s{}", config.attempt),
            other => format!("s{}-{other}", config.attempt),
        };
        let id = SandboxId(id);
        if let Some(message) = state.broken_network.clone() {
            return Err(Error::Network { id, message });
        }
        let sandbox = PodSandbox {
            id,
            state: SandboxState::Ready,
            created_at: now,
            ips: vec!["10.1.0.5".into()],
            pid: 1,
            config,
        };
        state.sandboxes.push(sandbox.clone());
        Ok(sandbox)
    }

    async fn run_pod_sandbox_until(
        &self,
        config: PodSandboxConfig,
        given_up: CancellationToken,
    ) -> Result<PodSandbox> {
        if !self.state().slow_network {
            return self.run_pod_sandbox(config).await;
        }
        self.call("network".to_owned());
        given_up.cancelled().await;
        Err(Error::Internal("not waited for".to_owned()))
    }

    async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(format!("stop sandbox {id}"));
        let ids: Vec<_> = {
            let mut state = self.state();
            for sandbox in state
                .sandboxes
                .iter_mut()
                .filter(|sandbox| sandbox.id == *id)
            {
                sandbox.state = SandboxState::NotReady;
            }
            let inside = state
                .containers
                .iter()
                .filter(|record| record.sandbox == *id);
            inside.map(|record| record.id.clone()).collect()
        };
        for id in ids {
            self.exit(&id, 137);
        }
        Ok(())
    }

    async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<()> {
        self.call(format!("remove sandbox {id}"));
        let mut state = self.state();
        state.sandboxes.retain(|sandbox| sandbox.id != *id);
        state.containers.retain(|record| record.sandbox != *id);
        Ok(())
    }

    async fn stats(&self, pod: Option<&PodUid>, _: StatsDetail) -> Result<Vec<SandboxStats>> {
        let state = self.state();
        let bytes = state.written;
        let running = state.containers.iter().filter(|record| {
            record.state == ContainerState::Running && pod.is_none_or(|pod| record.pod == *pod)
        });
        let containers = running.map(|record| ContainerStats {
            id: record.id.clone(),
            name: record.config.name.clone(),
            started_at: record.started_at,
            at: record.created_at,
            cgroup: CgroupStats::default(),
            rootfs: Some(DiskUsage { bytes, inodes: 1 }),
            logs: None,
        });
        let containers: Vec<_> = containers.collect();
        let sandboxes = state.sandboxes.last().into_iter();
        let of = |sandbox: &PodSandbox| SandboxStats {
            id: sandbox.id.clone(),
            pod: sandbox.config.uid.clone(),
            name: sandbox.config.name.clone(),
            namespace: sandbox.config.namespace.clone(),
            created_at: sandbox.created_at,
            at: sandbox.created_at,
            cgroup: CgroupStats::default(),
            interfaces: Vec::new(),
            containers: containers.clone(),
        };
        Ok(sandboxes.map(of).collect())
    }

    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>> {
        if self.state().hanging_lists {
            std::future::pending::<()>().await;
        }
        let mut state = self.state();
        if let Some(left) = state.failing_lists.checked_sub(1) {
            state.failing_lists = left;
            return Err(Error::Internal("nobody answers".to_owned()));
        }
        Ok(state.sandboxes.clone())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
    ) -> Result<ContainerId> {
        self.call(format!("create {}.{}", config.name, config.attempt));
        let now = self.now();
        let mut state = self.state();
        if state.refused.contains(&config.name) {
            return Err(Error::Create("no command specified".to_owned()));
        }
        if let Some(NamespaceMode::Target(id)) = &config.security.pid {
            let mut records = state.containers.iter();
            let target = records.find(|record| record.id == *id);
            if target.is_none_or(|record| record.state != ContainerState::Running) {
                return Err(Error::Create(format!("container {id} is not running")));
            }
        }
        state.next += 1;
        let id = ContainerId(format!("{}.{}#{}", config.name, config.attempt, state.next));
        let pod = state.sandboxes.iter().find(|known| known.id == *sandbox);
        let pod = pod
            .map(|sandbox| sandbox.config.uid.clone())
            .ok_or(Error::NotFound {
                kind: "sandbox",
                id: sandbox.0.clone(),
            })?;
        state.containers.push(Container {
            id: id.clone(),
            sandbox: sandbox.clone(),
            pod,
            config,
            state: ContainerState::Created,
            created_at: now,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image_ref: "docker.io/library/i@sha256:aa".into(),
            log_path: "/nowhere/0.log".into(),
            pid: 0,
            identity: None,
        });
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<()> {
        let now = self.now();
        let mut state = self.state();
        let missing = state.missing.clone();
        let Some(record) = state.containers.iter_mut().find(|record| record.id == *id) else {
            return Err(Error::NotFound {
                kind: "container",
                id: id.0.clone(),
            });
        };
        let name = record.config.name.clone();
        if missing.contains(&name) {
            record.state = ContainerState::Exited;
            record.exit_code = 128;
            record.reason = "StartError".to_owned();
            record.finished_at = Some(now);
            let (id, message) = (id.clone(), "no such file or directory".to_owned());
            let code = record.exit_code;
            return Err(Error::Start { id, code, message });
        }
        record.state = ContainerState::Running;
        record.started_at = Some(now);
        let call = format!("start {name}.{}", record.config.attempt);
        state.calls.push(call);
        if let Some((after, code)) = state.runs.get(&name).copied() {
            let (me, id) = (self.me.clone(), id.clone());
            tokio::spawn(async move {
                sleep(after).await;
                if let Some(me) = me.upgrade() {
                    me.exit(&id, code);
                }
            });
        }
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let (deaf, polite) = {
            let mut state = self.state();
            let record = state.containers.iter().find(|record| record.id == *id);
            let name = record
                .map(|record| record.config.name.clone())
                .unwrap_or_default();
            state
                .calls
                .push(format!("stop {name} {}s", grace.as_secs()));
            if let Some(left) = state.failing_stops.checked_sub(1) {
                state.failing_stops = left;
                return Err(Error::Internal("the shim does not answer".to_owned()));
            }
            (state.deaf.contains(&name), state.polite.contains(&name))
        };
        if deaf {
            sleep(grace).await;
        }
        self.exit(
            id,
            match (deaf, polite) {
                (true, _) => 137,
                (false, true) => 0,
                (false, false) => 143,
            },
        );
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<()> {
        self.state().containers.retain(|record| record.id != *id);
        Ok(())
    }

    async fn list_containers(&self) -> Result<Vec<Container>> {
        Ok(self.state().containers.clone())
    }

    async fn exec(&self, _id: &ContainerId, _request: ExecRequest) -> Result<ExecSession> {
        self.call("exec".to_owned());
        let answer = self.state().answer;
        let open = self.state().open_output;
        let (ours, theirs) = tokio::io::duplex(64);
        Ok(ExecSession {
            stdin: None,
            stdout: match open {
                true => Box::new(theirs),
                false => Box::new(&b"the answer"[..]),
            },
            stderr: None,
            process: Box::new(Process(answer, ours)),
        })
    }

    async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: &Resources,
    ) -> Result<()> {
        let mut state = self.state();
        if let Some(usage) = state.memory_in_use {
            let limit = u64::try_from(resources.memory_limit).unwrap_or(0);
            if limit != 0 && limit < usage {
                return Err(Error::MemoryInUse { usage, limit });
            }
        }
        let (quota, memory) = (resources.cpu_quota, resources.memory_limit);
        let record = state.containers.iter_mut().find(|record| record.id == *id);
        let record = record.ok_or(Error::NotFound {
            kind: "container",
            id: id.0.clone(),
        })?;
        let has = &mut record.config.resources;
        has.cpu_shares = resources.cpu_shares;
        has.cpu_quota = quota;
        has.memory_limit = memory;
        let name = record.config.name.clone();
        state.calls.push(format!("resize {name} {quota} {memory}"));
        drop(state);
        self.ring(&PodUid(sample::UID.to_owned()));
        Ok(())
    }

    async fn update_cgroup(&self, path: &str, resources: &Resources) -> Result<()> {
        if path.contains("/pod") {
            let (quota, memory) = (resources.cpu_quota, resources.memory_limit);
            self.call(format!("cgroup {quota} {memory}"));
        }
        self.state().cgroups.insert(path.to_owned());
        Ok(())
    }

    async fn remove_cgroup(&self, path: &str) -> Result<()> {
        self.state().cgroups.remove(path);
        Ok(())
    }

    fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.bell.subscribe()
    }

    fn handlers(&self) -> Vec<String> {
        vec![String::new()]
    }

    async fn network_ready(&self) -> std::result::Result<(), String> {
        self.state().no_network.clone().map_or(Ok(()), Err)
    }
}

/// A command that has ended; or hangs, when it has no answer.
struct Process(
    Option<i32>,
    #[expect(dead_code, reason = "holds the output open")] tokio::io::DuplexStream,
);

#[async_trait]
impl ExecProcess for Process {
    async fn wait(&self) -> Result<i32> {
        match self.0 {
            Some(code) => Ok(code),
            None => std::future::pending().await,
        }
    }

    async fn resize(&self, _rows: u16, _cols: u16) -> Result<()> {
        Ok(())
    }

    async fn kill(&self) -> Result<()> {
        Ok(())
    }
}
