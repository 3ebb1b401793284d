//! What runs on this machine, looked at from outside of the agent.
//!
//! Reads the records and asks the shims; changes nothing, adopts nothing, cleans nothing up. An agent may be at
//! work at the same time: what it is just making or removing may show half or not at all.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hanok_shim::protocol::ShimState;

use crate::api::PodView;
use crate::container::adopt::recorded_phase;
use crate::container::{self, Container, ContainerRecord, Phase};
use crate::sandbox::pause::{self, PauseController};
use crate::sandbox::{self, Sandbox, SandboxRecord, Stage};
use crate::service::{file_name, is_id, record};
use crate::shim_client::Shim;

/// Longest wait for a shim; one that hangs must not hide the others.
const SHIM_ANSWER: Duration = Duration::from_secs(2);

/// Every sandbox and container below a run directory, newest first. What cannot be read is left out and logged.
pub async fn inspect(run_dir: &Path) -> io::Result<PodView> {
    let dirs = record::subdirectories(&run_dir.join("sandboxes"))?;
    let looks = dirs
        .into_iter()
        .filter(|dir| file_name(dir).is_some_and(is_id))
        .map(inspect_sandbox);
    let mut view = PodView::default();
    for found in futures::future::join_all(looks).await.into_iter().flatten() {
        view.sandboxes.extend(found.sandboxes);
        view.containers.extend(found.containers);
    }
    view.sandboxes
        .sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    view.containers
        .sort_by_key(|container| std::cmp::Reverse(container.created_at));
    Ok(view)
}

async fn inspect_sandbox(dir: PathBuf) -> Option<PodView> {
    let record: SandboxRecord = read(&sandbox::record_file(&dir))?;
    let shim = Arc::new(Shim::new(pause::socket(&dir)));
    let state = match record.stage {
        Stage::Made => tokio::time::timeout(SHIM_ANSWER, shim.state())
            .await
            .ok()
            .and_then(Result::ok),
        Stage::Making | Stage::Stopped => None,
    };
    // The programs are needed to start a sandbox only, and nothing is started here.
    let controller = Arc::new(PauseController::new(PathBuf::new(), PathBuf::new()));
    let sandbox = Arc::new(Sandbox::new(record, dir, controller));
    if let Some(state) = &state {
        sandbox.with_record(|record| record.pid = state.pause_pid);
        sandbox.set_shim(Some(shim));
    }
    let containers = record::subdirectories(&sandbox.dir.join("containers")).unwrap_or_default();
    let containers = containers
        .into_iter()
        .filter_map(|dir| inspect_container(&sandbox, dir, state.as_ref()))
        .collect();
    Some(PodView {
        sandboxes: vec![sandbox.view()],
        containers,
    })
}

fn inspect_container(
    sandbox: &Arc<Sandbox>,
    dir: PathBuf,
    state: Option<&ShimState>,
) -> Option<crate::api::Container> {
    // Without a specification its creation has not come to its end.
    if !file_name(&dir).is_some_and(is_id) || !container::spec_file(&dir).exists() {
        return None;
    }
    let record: ContainerRecord = read(&container::record_file(&dir))?;
    let exit = record::read(&container::exit_file(&dir)).ok();
    let phase = observed(recorded_phase(&record, exit), record.id.as_str(), state);
    Some(Container::new(record, sandbox.clone(), dir, phase).view())
}

/// What disk and shim say together.
fn observed(recorded: Phase, id: &str, state: Option<&ShimState>) -> Phase {
    if recorded != Phase::Starting {
        return recorded;
    }
    let Some(state) = state else {
        return Phase::Unknown;
    };
    match state.containers.iter().find(|held| held.id == id) {
        Some(held) => match &held.exit {
            Some(exit) => Phase::Exited(exit.clone()),
            None => Phase::Running { pid: held.pid },
        },
        None => Phase::Created,
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    match record::read(path) {
        Ok(record) => Some(record),
        // Removed since the directory was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "record cannot be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use hanok_shim::protocol::{ContainerState as Held, Rootfs};

    use super::*;
    use crate::api::{
        ContainerConfig, ContainerId, ContainerState, NamespaceMode, PodSandboxConfig, PodUid,
        SandboxId, SandboxState,
    };

    fn id(digit: &str) -> String {
        digit.repeat(64)
    }

    fn write_sandbox(run_dir: &Path) -> PathBuf {
        let record = SandboxRecord {
            id: SandboxId(id("a")),
            config: PodSandboxConfig {
                name: "web".into(),
                namespace: "default".into(),
                uid: PodUid("uid".into()),
                attempt: 0,
                hostname: String::new(),
                log_directory: "/var/log/pods/x".into(),
                runtime_handler: String::new(),
                network: NamespaceMode::Pod,
                pid: NamespaceMode::Container,
                ipc: NamespaceMode::Pod,
                user_namespace: None,
                sysctls: Default::default(),
                cgroup_parent: String::new(),
                port_mappings: Vec::new(),
                labels: Default::default(),
                annotations: Default::default(),
            },
            created_at: SystemTime::UNIX_EPOCH,
            netns: None,
            stage: Stage::Made,
            ips: vec!["10.0.0.2".into()],
            pid: 7,
            selinux_level: None,
        };
        let dir = run_dir.join("sandboxes").join(id("a"));
        std::fs::create_dir_all(dir.join("containers")).unwrap();
        record::write(&sandbox::record_file(&dir), &record).unwrap();
        dir
    }

    fn write_container(sandbox: &Path, digit: &str, started: bool) {
        let record = ContainerRecord {
            id: ContainerId(id(digit)),
            sandbox: SandboxId(id("a")),
            config: ContainerConfig::default(),
            image_ref: String::new(),
            stop_signal: String::new(),
            identity: None,
            rootfs: Rootfs::Dir(String::new()),
            created_at: SystemTime::UNIX_EPOCH,
            started_at: started.then_some(SystemTime::UNIX_EPOCH),
            failure: None,
        };
        let dir = sandbox.join("containers").join(id(digit));
        std::fs::create_dir_all(&dir).unwrap();
        record::write(&container::record_file(&dir), &record).unwrap();
        std::fs::write(container::spec_file(&dir), "{}").unwrap();
    }

    #[tokio::test]
    async fn without_a_shim_nothing_runs_and_nothing_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(inspect(dir.path()).await.unwrap(), PodView::default());
        let sandbox = write_sandbox(dir.path());
        write_container(&sandbox, "b", true);
        write_container(&sandbox, "c", false);
        std::fs::create_dir_all(dir.path().join("sandboxes/rubbish")).unwrap();
        std::fs::create_dir_all(dir.path().join("sandboxes").join(id("d"))).unwrap();
        let view = inspect(dir.path()).await.unwrap();
        assert_eq!(view.sandboxes.len(), 1);
        assert_eq!(view.sandboxes[0].state, SandboxState::NotReady);
        let mut states: Vec<_> = view
            .containers
            .iter()
            .map(|one| (one.id.0.clone(), one.state))
            .collect();
        states.sort_by(|one, other| one.0.cmp(&other.0));
        let expected = [
            (id("b"), ContainerState::Unknown),
            (id("c"), ContainerState::Created),
        ];
        assert_eq!(states, expected);
        assert!(sandbox.join("containers").join(id("b")).is_dir());
    }

    #[test]
    fn the_shim_says_what_runs() {
        let state = ShimState {
            pause_pid: 1,
            containers: vec![Held {
                id: "b".into(),
                pid: 42,
                exit: None,
            }],
        };
        assert_eq!(
            observed(Phase::Starting, "b", Some(&state)),
            Phase::Running { pid: 42 }
        );
        assert_eq!(observed(Phase::Starting, "c", Some(&state)), Phase::Created);
        assert_eq!(observed(Phase::Starting, "b", None), Phase::Unknown);
        assert_eq!(observed(Phase::Created, "b", Some(&state)), Phase::Created);
    }
}
