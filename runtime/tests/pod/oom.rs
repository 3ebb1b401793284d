//! Containers that run out of memory.

use hanok_runtime::api::{ContainerState, RuntimeService, SandboxId};

use crate::rig::{PATIENCE, Rig, memory};

/// A container of which only a child takes too much.
const CHILD: &str =
    "sh -c 'exec tail /dev/zero'; echo child: $?; until test -e /dev/shm/end; do sleep 0.02; done";

async fn start(rig: &Rig, sandbox: &SandboxId, script: &str) -> hanok_runtime::api::ContainerId {
    let mut config = rig.script("c", script);
    config.resources = memory(16 << 20);
    rig.start(sandbox, config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn root_loss_of_a_child_is_told_while_the_container_runs_and_at_its_end() {
    let mut rig = Rig::new("oomchild").await;
    let sandbox = rig.sandbox().await.id;
    let mut events = rig.runtime().oom_events();
    let id = start(&rig, &sandbox, CHILD).await;
    let event = tokio::time::timeout(PATIENCE, events.recv()).await;
    let event = event.unwrap().unwrap();
    assert_eq!((&event.container, event.name.as_str()), (&id, "c"));
    assert!(event.kills >= 1);
    assert_eq!(rig.status(&id).await.state, ContainerState::Running);

    // Another agent hears of what comes, and not again of what was.
    rig.open().await;
    let mut events = rig.runtime().oom_events();
    let other = start(&rig, &sandbox, CHILD).await;
    let event = tokio::time::timeout(PATIENCE, events.recv()).await;
    assert_eq!(event.unwrap().unwrap().container, other);
    let go = rig.script("go", "touch /dev/shm/end");
    assert_eq!(rig.output(&sandbox, go).await.0, 0);
    // Whatever it exits with, as containerd has it.
    for id in [&id, &other] {
        let ended = rig.wait(id, ContainerState::Exited).await;
        assert_eq!((ended.exit_code, ended.reason.as_str()), (0, "OOMKilled"));
    }
    rig.finish().await;
}
