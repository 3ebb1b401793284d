//! What each step undoes when a later one fails.

use std::fs;

use hanok_runtime::api::{Error, RuntimeService, SandboxState};

use crate::fakes::Fault;
use crate::rig::Rig;

fn set(rig: &Rig, fault: Fault) {
    *rig.fault.lock().unwrap() = fault;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failing_network_namespace_leaves_nothing() {
    let rig = Rig::new("failpin").await;
    set(&rig, Fault::Pin);
    let error = rig
        .runtime()
        .run_pod_sandbox(rig.sandbox_config())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Network { .. }), "{error}");
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failing_network_leaves_nothing() {
    let rig = Rig::new("failadd").await;
    for (fault, cause) in [(Fault::Add, "add fails"), (Fault::NoAddress, "no address")] {
        set(&rig, fault);
        let error = rig
            .runtime()
            .run_pod_sandbox(rig.sandbox_config())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("failed to setup network for sandbox") && error.contains(cause),
            "{error}"
        );
        rig.assert_nothing_left().await;
    }
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_sandbox_that_cannot_be_undone_is_listed_until_it_can() {
    let mut rig = Rig::new("failundo").await;
    set(&rig, Fault::AddAndDelete);
    let error = rig
        .runtime()
        .run_pod_sandbox(rig.sandbox_config())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("add fails"), "{error}");
    // Also by the next agent.
    for _ in 0..2 {
        let listed = rig.runtime().list_pod_sandboxes().await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].state, SandboxState::NotReady);
        let stop = rig.runtime().stop_pod_sandbox(&listed[0].id).await;
        assert!(stop.unwrap_err().to_string().contains("delete fails"));
        rig.open().await;
    }
    set(&rig, Fault::None);
    let listed = rig.runtime().list_pod_sandboxes().await.unwrap();
    rig.runtime()
        .remove_pod_sandbox(&listed[0].id)
        .await
        .unwrap();
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failing_sandbox_leaves_nothing() {
    let rig = Rig::new("failstart").await;
    // The shim comes up and refuses the order.
    let mut config = rig.sandbox_config();
    config.sysctls = [("net.no_such_sysctl".to_owned(), "1".to_owned())].into();
    let error = rig.runtime().run_pod_sandbox(config).await.unwrap_err();
    assert!(error.to_string().contains("sysctl"), "{error}");
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_shim_that_does_not_come_up_leaves_nothing() {
    let mut rig = Rig::new("failshim").await;
    rig.close();
    for (program, expected) in [
        ("/no/such/shim", "/no/such/shim"),
        ("/bin/false", "exit status: 1"),
    ] {
        let mut config = rig.config();
        config.shim = program.into();
        let runtime =
            hanok_runtime::service::Runtime::open(config, rig.images.clone(), rig.network.clone());
        let runtime = runtime.await.unwrap();
        let error = runtime
            .run_pod_sandbox(rig.sandbox_config())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        drop(runtime);
    }
    rig.open().await;
    rig.assert_nothing_left().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failing_root_filesystem_leaves_nothing() {
    let rig = Rig::new("failprepare").await;
    let sandbox = rig.sandbox().await.id;
    set(&rig, Fault::Prepare);
    let error = rig
        .runtime()
        .create_container(&sandbox, rig.script("c", "true"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Create(_)), "{error}");
    assert!(crate::rig::entries(&rig.path("snapshots")).is_empty());
    let containers = rig.path(&format!("run/sandboxes/{sandbox}/containers"));
    assert!(crate::rig::entries(&containers).is_empty());
    set(&rig, Fault::None);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_bad_configurations_are_create_errors_and_leave_nothing() {
    let rig = Rig::new("failconfig").await;
    let sandbox = rig.sandbox().await.id;
    let good = || rig.script("c", "true");
    let mut no_image = good();
    no_image.image = "sha256:other".into();
    let mut capability = good();
    capability.security.add_capabilities = vec!["FLY".into()];
    let mut log = good();
    log.log_path = "../../x".into();
    let mut command = good();
    command.command = vec![];
    for config in [no_image, capability, log, command] {
        rig.runtime()
            .create_container(&sandbox, config)
            .await
            .unwrap_err();
    }
    assert!(rig.runtime().list_containers().await.unwrap().is_empty());
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failing_start_leaves_directories_only() {
    let rig = Rig::new("failrun").await;
    let sandbox = rig.sandbox().await.id;
    let mut config = rig.script("c", "true");
    config.working_dir = "/proc/self/fd/3".into();
    let id = rig
        .runtime()
        .create_container(&sandbox, config)
        .await
        .unwrap();
    let error = rig.runtime().start_container(&id).await.unwrap_err();
    assert!(matches!(error, Error::Start { code: 128, .. }), "{error}");
    let left = crate::rig::cgroups_below(&rig.name);
    assert!(
        left.iter().all(|dir| !dir.ends_with(id.as_str())),
        "{left:?}"
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(rig.dir.path().to_str().unwrap()));
    assert!(
        rig.runtime().start_container(&id).await.is_err(),
        "it is over"
    );
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn root_created_and_never_started_leaves_nothing() {
    let rig = Rig::new("created").await;
    let sandbox = rig.sandbox().await.id;
    let id = rig
        .runtime()
        .create_container(&sandbox, rig.script("c", "true"))
        .await
        .unwrap();
    rig.runtime().remove_container(&id).await.unwrap();
    rig.runtime()
        .create_container(&sandbox, rig.script("d", "true"))
        .await
        .unwrap();
    rig.finish().await;
}
