//! A new agent over what an old one left.

use std::fs;
use std::time::{Duration, Instant};

use hanok_runtime::api::{
    ContainerState, ExecRequest, NamespaceMode, PodSandboxConfig, PodUid, RuntimeService,
    SandboxState,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::fakes::{Fault, SLOW};
use crate::rig::{Rig, until};

#[tokio::test(flavor = "multi_thread")]
async fn root_what_runs_is_adopted_and_exits_in_between_are_known() {
    let mut rig = Rig::new("adopt").await;
    let sandbox = rig.sandbox().await;
    let stays = rig
        .start(&sandbox.id, rig.script("stays", "sleep 600"))
        .await;
    let ends = rig
        .start(
            &sandbox.id,
            rig.script(
                "ends",
                "until test -e /dev/shm/go; do sleep 0.02; done; exit 6",
            ),
        )
        .await;
    let created = rig
        .runtime()
        .create_container(&sandbox.id, rig.script("later", "exit 8"))
        .await
        .unwrap();
    let before = rig.status(&stays).await;
    let ends_pid = rig.status(&ends).await.pid;
    rig.close();
    // It ends while nobody looks.
    let go = format!("/proc/{ends_pid}/root/dev/shm/go");
    fs::write(go, "").unwrap();
    let exit = rig.path(&format!(
        "run/sandboxes/{}/containers/{ends}/exit.json",
        sandbox.id
    ));
    until("the exit record", || exit.exists()).await;

    rig.open().await;
    let sandboxes = rig.runtime().list_pod_sandboxes().await.unwrap();
    assert_eq!(sandboxes, std::slice::from_ref(&sandbox));
    assert_eq!(rig.status(&stays).await, before);
    let status = rig.status(&ends).await;
    assert_eq!(
        (status.state, status.exit_code),
        (ContainerState::Exited, 6)
    );
    assert_eq!(rig.status(&created).await.state, ContainerState::Created);
    // And all of it can be worked with.
    rig.runtime().start_container(&created).await.unwrap();
    assert_eq!(
        rig.wait(&created, ContainerState::Exited).await.exit_code,
        8
    );
    rig.runtime()
        .stop_container(&stays, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(rig.status(&stays).await.exit_code, 137);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_containers_of_a_dead_shim_are_unknown_and_can_be_removed() {
    let mut rig = Rig::new("deadshim").await;
    let sandbox = rig.sandbox().await;
    let ended = rig.start(&sandbox.id, rig.script("ended", "exit 2")).await;
    rig.wait(&ended, ContainerState::Exited).await;
    let lost = rig
        .start(&sandbox.id, rig.script("lost", "sleep 600"))
        .await;
    let lost_pid = rig.status(&lost).await.pid;
    let command = ["/bin/sh", "-c", "sleep 600"].map(str::to_owned).to_vec();
    let request = || ExecRequest {
        command: command.clone(),
        tty: false,
        stdin: false,
        ..ExecRequest::default()
    };
    let exec = rig.runtime().exec(&lost, request()).await.unwrap();
    let pid = fs::read_to_string(rig.path(&format!("run/sandboxes/{}/shim.pid", sandbox.id)));
    let pid = Pid::from_raw(pid.unwrap().trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    exec.process.wait().await.unwrap_err();
    let status = rig.wait(&lost, ContainerState::Unknown).await;
    assert!(rig.runtime().exec(&lost, request()).await.is_err());
    assert_eq!(status.reason, "ContainerStatusUnknown");
    for again in [false, true] {
        if again {
            rig.open().await;
        }
        assert_eq!(rig.status(&ended).await.exit_code, 2);
        assert_eq!(rig.status(&lost).await.state, ContainerState::Unknown);
        let sandboxes = rig.runtime().list_pod_sandboxes().await.unwrap();
        assert_eq!(sandboxes[0].state, SandboxState::NotReady);
    }
    // Stopping ends it for sure.
    // A zombie runs no more; when it is reaped is for PID 1 to choose.
    let lives = || {
        let status = fs::read_to_string(format!("/proc/{lost_pid}/status")).unwrap_or_default();
        !status.is_empty() && !status.contains("State:	Z")
    };
    assert!(lives());
    rig.runtime()
        .stop_container(&lost, Duration::from_secs(1))
        .await
        .unwrap();
    assert!(!lives());
    for again in [false, true] {
        if again {
            rig.open().await;
        }
        let status = rig.status(&lost).await;
        assert_eq!(
            (status.state, status.exit_code),
            (ContainerState::Exited, 137)
        );
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_files_go_after_the_cgroup_of_what_may_still_write_to_them() {
    let rig = Rig::new("files").await;
    let of_node = PodSandboxConfig {
        pid: NamespaceMode::Node,
        uid: PodUid("other".into()),
        cgroup_parent: "kubepods/podother".into(),
        ..rig.sandbox_config()
    };
    let of_node = rig.runtime().run_pod_sandbox(of_node).await.unwrap().id;
    let leaves = rig.script("leaves", "sleep 600 & exit 0");
    let shares = rig.start(&of_node, leaves.clone()).await;
    rig.wait(&shares, ContainerState::Exited).await;
    let sandbox = rig.sandbox().await.id;
    let owns = rig.start(&sandbox, leaves).await;
    rig.wait(&owns, ContainerState::Exited).await;
    let lost = rig.start(&sandbox, rig.script("lost", "sleep 600")).await;
    let pid = fs::read_to_string(rig.path(&format!("run/sandboxes/{sandbox}/shim.pid")));
    let pid = Pid::from_raw(pid.unwrap().trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    rig.wait(&lost, ContainerState::Unknown).await;
    *rig.images.removed_early.lock().unwrap() = Some(Vec::new());
    for id in [&shares, &owns, &lost] {
        rig.runtime().remove_container(id).await.unwrap();
    }
    // What ended with its own PID namespace need not wait.
    let early = rig.images.removed_early.lock().unwrap().take();
    assert_eq!(early, Some(vec![owns.0]));
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_half_made_sandboxes_are_undone_at_the_next_open() {
    let mut rig = Rig::new("halfmade").await;
    let sandbox = rig.sandbox().await;
    let container = rig.start(&sandbox.id, rig.script("c", "sleep 600")).await;
    rig.close();
    // The same sandbox, had the agent died before it could write that it was made.
    let file = rig.path(&format!("run/sandboxes/{}/sandbox.json", sandbox.id));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"Made\""));
    fs::write(&file, text.replace("\"Made\"", "\"Making\"")).unwrap();
    rig.open().await;
    assert!(rig.runtime().list_pod_sandboxes().await.unwrap().is_empty());
    let _ = container;
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_shim_without_its_socket_is_ended_with_its_sandbox() {
    let mut rig = Rig::new("nosocket").await;
    let sandbox = rig.sandbox().await;
    rig.start(&sandbox.id, rig.script("c", "sleep 600")).await;
    rig.close();
    fs::remove_file(rig.path(&format!("run/sandboxes/{}/shim.sock", sandbox.id))).unwrap();
    rig.open().await;
    // Its processes are looked for, too.
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_network_that_hangs_does_not_keep_the_next_agent_from_starting() {
    let mut rig = Rig::new("slowundo").await;
    let sandbox = rig.sandbox().await;
    rig.close();
    let file = rig.path(&format!("run/sandboxes/{}/sandbox.json", sandbox.id));
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"Made\"", "\"Making\"")).unwrap();
    *rig.fault.lock().unwrap() = Fault::SlowDelete;
    let began = Instant::now();
    rig.open().await;
    assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());
    let listed = rig.runtime().list_pod_sandboxes().await.unwrap();
    assert_eq!(listed[0].state, SandboxState::NotReady);
    // Whoever wants it gone waits for what is under way.
    let remove = rig.runtime().remove_pod_sandbox(&sandbox.id);
    remove.await.unwrap();
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_broken_records_are_set_aside() {
    let mut rig = Rig::new("broken").await;
    let sandbox = rig.sandbox().await;
    rig.close();
    let id = "a".repeat(64);
    let dir = rig.path(&format!("run/sandboxes/{id}"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("sandbox.json"), "{").unwrap();
    rig.open().await;
    assert_eq!(rig.runtime().list_pod_sandboxes().await.unwrap(), [sandbox]);
    assert!(rig.path(&format!("run/broken/{id}/sandbox.json")).exists());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_an_agent_without_descriptors_takes_nothing_for_lost() {
    let mut rig = Rig::new("nofile").await;
    let sandbox = rig.sandbox().await;
    let stays = rig
        .start(&sandbox.id, rig.script("stays", "sleep 600"))
        .await;
    let before = rig.status(&stays).await;
    rig.close();
    let (mut opened, mut refused) = (0, 0);
    for free in (0..48).step_by(2) {
        match rig.open_with_descriptors(free) {
            Ok(()) => opened += 1,
            Err(error) => {
                assert!(error.contains("Too many open files"), "{free}: {error}");
                refused += 1;
            }
        }
        assert!(!rig.path("run/broken").exists(), "{free}");
    }
    assert!(opened > 0 && refused > 0, "{opened} {refused}");
    rig.open().await;
    let sandboxes = rig.runtime().list_pod_sandboxes().await.unwrap();
    assert_eq!(sandboxes, std::slice::from_ref(&sandbox));
    assert_eq!(rig.status(&stays).await, before);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_what_runs_without_its_directory_ends_and_does_not_run_twice() {
    let mut rig = Rig::new("stray").await;
    for restarted in [false, true] {
        let sandbox = rig.sandbox().await;
        let script = "setsid sleep 600 & sleep 600";
        let container = rig.start(&sandbox.id, rig.script("c", script)).await;
        let other = rig.sandbox().await;
        let stays = rig.start(&other.id, rig.script("c", "sleep 600")).await;
        let of_shim =
            |id: &str| fs::read_to_string(rig.path(&format!("run/sandboxes/{id}/shim.pid")));
        let shim: i32 = of_shim(&sandbox.id.0).unwrap().trim().parse().unwrap();
        let pids = [shim, rig.status(&container).await.pid];
        let before = rig.status(&stays).await;
        if restarted {
            rig.close();
        }
        fs::remove_dir_all(rig.path(&format!("run/sandboxes/{}", sandbox.id))).unwrap();
        match restarted {
            true => rig.open().await,
            // Nothing is known of its end but that.
            false => drop(rig.runtime().remove_pod_sandbox(&sandbox.id).await),
        }
        let ended = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.is_empty() || status.contains("State:\tZ")
        };
        until("the end of shim and container", || pids.iter().all(ended)).await;
        assert_eq!(rig.status(&stays).await, before);
        rig.runtime().remove_pod_sandbox(&other.id).await.unwrap();
    }
    rig.finish().await;
}
