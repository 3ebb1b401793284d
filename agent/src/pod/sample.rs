//! Pods, sandboxes and containers for the tests of the pod core.

use std::time::{Duration, SystemTime};

use hanok_runtime::api::{
    Container, ContainerConfig, ContainerId, ContainerState, PodSandbox, PodSandboxConfig, PodUid,
    PodView, SandboxId, SandboxState,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{labels, resources, spec};

/// The UID of every sample pod.
pub(crate) const UID: &str = "11111111-2222-3333-4444-555555555555";

/// The moment that samples call now.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).expect("the sample time is a time")
}

/// `now` minus so many seconds, as the runtime says it.
pub(crate) fn ago(seconds: u64) -> SystemTime {
    SystemTime::from(now()) - Duration::from_secs(seconds)
}

/// A pod `web` in `default` with that specification.
pub(crate) fn from(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": UID, "generation": 3},
        "spec": spec,
    }))
    .expect("the sample is a pod")
}

/// A pod with init containers (`name` or `name:sidecar`) and app containers.
pub(crate) fn pod(policy: &str, init: &[&str], app: &[&str]) -> Pod {
    let container = |name: &&str| match name.split_once(':') {
        Some((name, _)) => json!({"name": name, "image": "i:1", "restartPolicy": "Always"}),
        None => json!({"name": name, "image": "i:1"}),
    };
    from(json!({
        "restartPolicy": policy,
        "initContainers": init.iter().map(container).collect::<Vec<_>>(),
        "containers": app.iter().map(container).collect::<Vec<_>>(),
    }))
}

/// A sandbox of the sample pod.
pub(crate) fn sandbox(attempt: u32, state: SandboxState) -> PodSandbox {
    PodSandbox {
        id: SandboxId(format!("s{attempt}")),
        config: PodSandboxConfig {
            name: "web".into(),
            namespace: "default".into(),
            uid: PodUid(UID.into()),
            attempt,
            hostname: "web".into(),
            log_directory: "/var/log/pods/x".into(),
            runtime_handler: String::new(),
            network: Default::default(),
            pid: Default::default(),
            ipc: Default::default(),
            user_namespace: None,
            sysctls: Default::default(),
            cgroup_parent: String::new(),
            port_mappings: Vec::new(),
            labels: Default::default(),
            annotations: Default::default(),
        },
        state,
        created_at: ago(1000 - u64::from(attempt)),
        ips: vec!["10.1.0.5".into()],
        pid: 7,
    }
}

/// A record of a container; `id` is `NAME.ATTEMPT`.
pub(crate) fn record(pod: &Pod, name: &str, attempt: u32, state: ContainerState) -> Container {
    let container = spec::find_container(pod, name).map(|(_, container)| container);
    let hash = container.as_ref().map(labels::container_hash);
    let limits = container.map(|container| resources::container_resources(pod, &container, 0));
    Container {
        id: ContainerId(format!("{name}.{attempt}")),
        sandbox: SandboxId("s0".into()),
        pod: PodUid(UID.into()),
        config: ContainerConfig {
            name: name.into(),
            attempt,
            image: "sha256:aa".into(),
            image_reference: "i:1".into(),
            annotations: [(labels::HASH.to_owned(), hash.unwrap_or_default())].into(),
            resources: limits.unwrap_or_default(),
            ..ContainerConfig::default()
        },
        state,
        created_at: ago(100 - u64::from(attempt.min(50))),
        started_at: Some(ago(100)),
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image_ref: "docker.io/library/i@sha256:aa".into(),
        log_path: "/var/log/pods/x/c/0.log".into(),
        pid: 0,
        identity: None,
    }
}

/// A running container.
pub(crate) fn running(pod: &Pod, name: &str) -> Container {
    record(pod, name, 0, ContainerState::Running)
}

/// A container that ended with `code` so many seconds ago.
pub(crate) fn exited(pod: &Pod, name: &str, attempt: u32, code: i32, seconds: u64) -> Container {
    Container {
        exit_code: code,
        reason: if code == 0 { "Completed" } else { "Error" }.into(),
        finished_at: Some(ago(seconds)),
        ..record(pod, name, attempt, ContainerState::Exited)
    }
}

/// One ready sandbox and these containers.
pub(crate) fn view(containers: Vec<Container>) -> PodView {
    PodView {
        sandboxes: vec![sandbox(0, SandboxState::Ready)],
        containers,
    }
}
