//! The life of a pod: start, exit, stop, removal.

use std::fs;
use std::time::{Duration, Instant};

use hanok_runtime::api::{ContainerState, Error, NamespaceMode, RuntimeService, SandboxState};

use crate::rig::{Rig, cgroups_below, memory, until};

#[tokio::test(flavor = "multi_thread")]
async fn root_containers_of_a_pod_reach_each_other_on_localhost() {
    let rig = Rig::new("local").await;
    let sandbox = rig.sandbox().await;
    assert_eq!(sandbox.state, SandboxState::Ready);
    assert_eq!(sandbox.ips, ["192.0.2.7"]);
    let server = rig.script("server", "echo hello | nc -l -p 8000");
    let server = rig.start(&sandbox.id, server).await;
    let client = rig.script(
        "client",
        "until nc 127.0.0.1 8000 2>/dev/null; do sleep 0.02; done",
    );
    let (code, text) = rig.output(&sandbox.id, client).await;
    assert_eq!((code, text.as_str()), (0, "hello"));
    let status = rig.wait(&server, ContainerState::Exited).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"));
    assert!(status.started_at.unwrap() <= status.finished_at.unwrap());
    assert_eq!(status.image_ref, "busybox@sha256:0");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_exit_codes_and_reasons_are_those_of_the_process() {
    let rig = Rig::new("codes").await;
    let sandbox = rig.sandbox().await.id;
    for (script, code, reason) in [
        ("exit 0", 0, "Completed"),
        ("exit 3", 3, "Error"),
        ("kill -9 $$", 137, "Error"),
    ] {
        let id = rig.start(&sandbox, rig.script("c", script)).await;
        let status = rig.wait(&id, ContainerState::Exited).await;
        // PID 1 of its namespace does not die of its own KILL.
        let code = if script.starts_with("kill") {
            status.exit_code
        } else {
            code
        };
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, if code == 0 { "Completed" } else { reason })
        );
        rig.runtime().remove_container(&id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_program_that_cannot_be_started_is_a_start_error() {
    let rig = Rig::new("starterr").await;
    let sandbox = rig.sandbox().await.id;
    for (program, code) in [("/bin/nothing", 128), ("nothing", 128), ("/etc/text", 128)] {
        let mut config = rig.script("c", "");
        config.command = vec![program.into()];
        let id = rig
            .runtime()
            .create_container(&sandbox, config)
            .await
            .unwrap();
        let error = rig.runtime().start_container(&id).await.unwrap_err();
        assert!(
            matches!(&error, Error::Start { code: c, .. } if *c == code),
            "{error}"
        );
        let status = rig.status(&id).await;
        assert_eq!(status.state, ContainerState::Exited);
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, "StartError")
        );
        assert!(!status.message.is_empty());
        rig.runtime().remove_container(&id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_container_over_its_memory_limit_is_oom_killed() {
    let rig = Rig::new("oom").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "exec tail /dev/zero");
    config.resources = memory(16 << 20);
    let id = rig.start(&sandbox, config).await;
    let status = rig.wait(&id, ContainerState::Exited).await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (137, "OOMKilled")
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_stop_signals_waits_and_kills() {
    let rig = Rig::new("stop").await;
    let sandbox = rig.sandbox().await.id;
    let polite = "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done";
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    for (script, grace, code, least, most) in [
        (polite, 10_000, 7, 0, 5_000),
        (stubborn, 300, 137, 300, 5_000),
        (polite, 0, 137, 0, 5_000),
    ] {
        let config = rig.script("c", script);
        let id = rig.start(&sandbox, config).await;
        rig.said(&id, "up").await;
        let begin = Instant::now();
        rig.runtime()
            .stop_container(&id, Duration::from_millis(grace))
            .await
            .unwrap();
        let took = begin.elapsed().as_millis();
        assert!((least..most).contains(&took), "{script}: {took} ms");
        let status = rig.status(&id).await;
        assert_eq!(
            (status.state, status.exit_code),
            (ContainerState::Exited, code)
        );
        rig.runtime()
            .stop_container(&id, Duration::ZERO)
            .await
            .unwrap();
        rig.runtime().remove_container(&id).await.unwrap();
        fs::remove_file(status.log_path).unwrap();
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_shorter_grace_cuts_a_longer_one() {
    let rig = Rig::new("cut").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig
        .start(
            &sandbox,
            rig.script("c", "trap '' TERM; while :; do sleep 0.1; done"),
        )
        .await;
    let begin = Instant::now();
    let (long, short) = tokio::join!(
        rig.runtime().stop_container(&id, Duration::from_secs(60)),
        rig.runtime()
            .stop_container(&id, Duration::from_millis(200)),
    );
    long.unwrap();
    short.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_stop_signal_of_the_image_is_sent() {
    let rig = Rig::new("stopsig").await;
    rig.images.facts.lock().unwrap().stop_signal = "SIGUSR1".into();
    let sandbox = rig.sandbox().await.id;
    let script = "trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done";
    let id = rig.start(&sandbox, rig.script("c", script)).await;
    rig.said(&id, "up").await;
    rig.runtime()
        .stop_container(&id, Duration::from_secs(10))
        .await
        .unwrap();
    assert_eq!(rig.status(&id).await.exit_code, 9);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_stopped_sandbox_keeps_its_containers_last_states() {
    let rig = Rig::new("stopped").await;
    let sandbox = rig.sandbox().await.id;
    let ended = rig.start(&sandbox, rig.script("a", "exit 4")).await;
    rig.wait(&ended, ContainerState::Exited).await;
    let running = rig.start(&sandbox, rig.script("b", "sleep 600")).await;
    let created = rig
        .runtime()
        .create_container(&sandbox, rig.script("c", "true"))
        .await
        .unwrap();
    rig.runtime().stop_pod_sandbox(&sandbox).await.unwrap();
    rig.runtime().stop_pod_sandbox(&sandbox).await.unwrap();
    assert_eq!(rig.status(&ended).await.exit_code, 4);
    let killed = rig.status(&running).await;
    assert_eq!(
        (killed.state, killed.exit_code),
        (ContainerState::Exited, 137)
    );
    assert_eq!(rig.status(&created).await.state, ContainerState::Created);
    let sandboxes = rig.runtime().list_pod_sandboxes().await.unwrap();
    assert_eq!(sandboxes[0].state, SandboxState::NotReady);
    assert!(
        rig.runtime()
            .create_container(&sandbox, rig.script("d", "true"))
            .await
            .is_err()
    );
    assert!(rig.runtime().start_container(&created).await.is_err());
    rig.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
    rig.runtime().remove_pod_sandbox(&sandbox).await.unwrap();
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_removal_takes_a_running_container_with_everything() {
    let rig = Rig::new("remove").await;
    rig.images.facts.lock().unwrap().volumes = vec!["/data".into()];
    let sandbox = rig.sandbox().await.id;
    let id = rig
        .start(&sandbox, rig.script("a", "sleep 600 & sleep 600"))
        .await;
    rig.runtime().remove_container(&id).await.unwrap();
    rig.runtime().remove_container(&id).await.unwrap();
    assert!(rig.runtime().list_containers().await.unwrap().is_empty());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pod_on_the_nodes_network_makes_no_network() {
    let rig = Rig::new("hostnet").await;
    let mut config = rig.sandbox_config();
    config.network = NamespaceMode::Node;
    let sandbox = rig.runtime().run_pod_sandbox(config).await.unwrap();
    assert!(sandbox.ips.is_empty());
    assert!(rig.network.attached.lock().unwrap().is_empty());
    let ours = fs::read_link("/proc/self/ns/net").unwrap();
    let theirs = fs::read_link(format!("/proc/{}/ns/net", sandbox.pid)).unwrap();
    assert_eq!(ours, theirs);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_unknown_handler_names_those_there_are() {
    let rig = Rig::new("handler").await;
    let mut config = rig.sandbox_config();
    config.runtime_handler = "kata".into();
    let error = rig.runtime().run_pod_sandbox(config).await.unwrap_err();
    let Error::UnknownHandler { handler, known } = error else {
        panic!("{error}")
    };
    assert_eq!(handler, "kata");
    assert_eq!(known, ["", "runc"]);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_pause_dies_and_the_sandbox_is_not_ready() {
    let rig = Rig::new("pause").await;
    let sandbox = rig.sandbox().await;
    let mut doorbell = rig.runtime().doorbell();
    let pid = rustix::process::Pid::from_raw(sandbox.pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    tokio::time::timeout(crate::rig::PATIENCE, doorbell.recv())
        .await
        .unwrap()
        .unwrap();
    let view = rig.runtime().pod_view(&sandbox.config.uid).await.unwrap();
    assert_eq!(view.sandboxes[0].state, SandboxState::NotReady);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_a_container_that_is_never_started_leaves_no_cgroup() {
    let rig = Rig::new("ahead").await;
    let sandbox = rig.sandbox().await.id;
    let there = |id: &str| cgroups_below(&rig.name).iter().any(|dir| dir.ends_with(id));
    for patient in [true, false] {
        let config = rig.script("c", "true");
        let created = rig.runtime().create_container(&sandbox, config).await;
        let id = created.unwrap();
        if patient {
            until("its cgroup", || there(id.as_str())).await;
        }
        rig.runtime().remove_container(&id).await.unwrap();
        assert!(!there(id.as_str()));
    }
    rig.finish().await;
}
