//! Containers as hanok starts them: by the runtime's API, in a pod that is there.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hanok_runtime::api::{
    ContainerConfig, ContainerId, ContainerState, ExecRequest, PodSandbox, PodSandboxConfig,
    PodUid, Resources, RuntimeService, SandboxId,
};
use serde_json::Value;

use crate::rig::{IMAGE, Rig, memory};

/// A pod, ready.
pub(crate) struct Pod {
    pub(crate) rig: Rig,
    pub(crate) sandbox: PodSandbox,
}

/// How long the steps of a life took, each since the one before.
pub(crate) struct Life {
    pub(crate) create: Duration,
    pub(crate) start: Duration,
    pub(crate) wait: Duration,
    pub(crate) remove: Duration,
}

impl Life {
    pub(crate) fn whole(&self) -> Duration {
        self.create + self.start + self.wait + self.remove
    }
}

impl Pod {
    pub(crate) async fn new() -> Self {
        let rig = Rig::new("bench").await;
        let sandbox = sandbox(&rig, "uid").await;
        Self { rig, sandbox }
    }

    pub(crate) async fn finish(self) {
        remove(&self.rig, &self.sandbox.id).await;
        self.rig.finish().await;
    }

    /// The specification that hanok makes, of a container that is never started.
    pub(crate) fn spec(&self) -> Value {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let runtime = self.rig.runtime();
                let id = runtime
                    .create_container(&self.sandbox.id, program("spec", &["/bin/true"]))
                    .await
                    .unwrap();
                let file = self.dir().join("containers").join(id.as_str());
                let text = fs::read(file.join("config.json")).unwrap();
                runtime.remove_container(&id).await.unwrap();
                serde_json::from_slice(&text).unwrap()
            })
        })
    }

    fn dir(&self) -> PathBuf {
        sandbox_dir(&self.rig, &self.sandbox.id)
    }

    /// Its shim's process id.
    pub(crate) fn shim(&self) -> u32 {
        shim(&self.rig, &self.sandbox.id)
    }

    pub(crate) async fn start(&self, config: ContainerConfig) -> ContainerId {
        self.rig.start(&self.sandbox.id, config).await
    }

    /// A whole life of a container, and its exit code.
    pub(crate) async fn life(&self, config: ContainerConfig) -> (Life, i32) {
        let runtime = self.rig.runtime();
        let begin = Instant::now();
        let id = runtime
            .create_container(&self.sandbox.id, config)
            .await
            .unwrap();
        let created = Instant::now();
        let started = runtime.start_container(&id).await;
        let running = Instant::now();
        let status = self.rig.wait(&id, ContainerState::Exited).await;
        let ended = Instant::now();
        runtime.remove_container(&id).await.unwrap();
        let life = Life {
            create: created - begin,
            start: running - created,
            wait: ended - running,
            remove: ended.elapsed(),
        };
        (life, started.map_or(-1, |()| status.exit_code))
    }

    /// An exec of `true` and its end.
    pub(crate) async fn exec(&self, id: &ContainerId) -> Duration {
        let begin = Instant::now();
        let request = ExecRequest {
            command: vec!["/bin/true".into()],
            ..ExecRequest::default()
        };
        let session = self.rig.runtime().exec(id, request).await.unwrap();
        assert_eq!(session.process.wait().await.unwrap(), 0);
        begin.elapsed()
    }
}

/// A program with the limits that all get.
pub(crate) fn program(name: &str, command: &[&str]) -> ContainerConfig {
    ContainerConfig {
        name: name.into(),
        image: IMAGE.into(),
        command: command.iter().map(ToString::to_string).collect(),
        log_path: format!("{name}/0.log").into(),
        resources: Resources {
            cpu_shares: 512,
            cpu_quota: 200_000,
            cpu_period: 100_000,
            memory_limit: 128 << 20,
            memory_swap_limit: 128 << 20,
            pids_limit: 100,
            ..Resources::default()
        },
        ..ContainerConfig::default()
    }
}

/// Another pod of the rig.
pub(crate) async fn sandbox(rig: &Rig, uid: &str) -> PodSandbox {
    let cgroup = format!("kubepods/pod{uid}");
    let runtime = rig.runtime();
    runtime
        .update_cgroup(&cgroup, &memory(1 << 30))
        .await
        .unwrap();
    let config = PodSandboxConfig {
        uid: PodUid(uid.into()),
        name: uid.into(),
        cgroup_parent: cgroup,
        ..rig.sandbox_config()
    };
    runtime.run_pod_sandbox(config).await.unwrap()
}

pub(crate) async fn remove(rig: &Rig, sandbox: &SandboxId) {
    rig.runtime().remove_pod_sandbox(sandbox).await.unwrap();
}

fn sandbox_dir(rig: &Rig, sandbox: &SandboxId) -> PathBuf {
    rig.path("run/sandboxes").join(sandbox.as_str())
}

pub(crate) fn shim(rig: &Rig, sandbox: &SandboxId) -> u32 {
    let text = fs::read_to_string(sandbox_dir(rig, sandbox).join("shim.pid")).unwrap();
    text.trim().parse().unwrap()
}
