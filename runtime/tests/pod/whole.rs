//! Pods with real images and the real network, in a network namespace of the test's own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hanok_cni::{BuiltIn, Config, Options, Source};
use hanok_runtime::api::{
    ContainerConfig, ContainerState, NamespaceMode, PodSandbox, PodSandboxConfig, PodUid,
    RuntimeService, SandboxState, StatsDetail,
};
use hanok_runtime::cgroup::DriverKind;
use hanok_runtime::container::rootfs::RootfsSource;
use hanok_runtime::image::{Images, ImagesConfig};
use hanok_runtime::sandbox::network::CniNetwork;
use hanok_runtime::service::{Runtime, RuntimeConfig};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::fakes::populate;
use crate::rig::{PATIENCE, entries, programs};

const BRIDGE: &str = "hkservice0";

/// Runs a test on threads whose network is a fresh one.
fn in_own_network<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        assert!(
            Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status()
                .unwrap()
                .success()
        );
        tokio::runtime::Runtime::new().unwrap().block_on(test());
    });
    thread.join().unwrap();
}

fn pod(base: &Path, name: &str) -> PodSandboxConfig {
    PodSandboxConfig {
        name: name.into(),
        namespace: "default".into(),
        uid: PodUid(name.into()),
        attempt: 0,
        hostname: name.into(),
        log_directory: base.join("logs").join(name),
        runtime_handler: "runc".into(),
        network: NamespaceMode::Pod,
        pid: NamespaceMode::Container,
        ipc: NamespaceMode::Pod,
        user_namespace: None,
        sysctls: [(
            "net.ipv4.ip_unprivileged_port_start".to_owned(),
            "0".to_owned(),
        )]
        .into(),
        cgroup_parent: format!("kubepods/pod{name}"),
        port_mappings: vec![],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}

fn script(image: &str, script: &str) -> ContainerConfig {
    ContainerConfig {
        name: "c".into(),
        image: image.into(),
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        log_path: "c/0.log".into(),
        ..ContainerConfig::default()
    }
}

async fn start(runtime: &Runtime, sandbox: &PodSandbox, image: &str, text: &str) {
    let id = runtime
        .create_container(&sandbox.id, script(image, text))
        .await
        .unwrap();
    runtime.start_container(&id).await.unwrap();
}

/// The built-in network, with its records below `base`.
fn network(base: &Path) -> Options {
    let built_in = BuiltIn {
        name: "pods".into(),
        bridge: BRIDGE.into(),
        pod_cidrs: vec!["10.213.7.0/24".parse().unwrap()],
        mtu: None,
        masquerade: false,
        non_masquerade_cidrs: vec![],
        hairpin: false,
    };
    Options {
        source: Source::Fixed(Config::built_in(&built_in).unwrap()),
        bin_dirs: vec![],
        cache_dir: base.join("cni"),
        ipam_dir: base.join("ipam"),
        ..Options::default()
    }
}

#[test]
fn root_pods_reach_each_other_by_address_and_leave_no_lease() {
    in_own_network(|| async {
        let name = format!("hanok-service-whole-{}", std::process::id());
        let dir = tempfile::Builder::new().prefix(&name).tempdir().unwrap();
        let base = dir.path();
        let options = network(base);
        let images = Images::open(ImagesConfig::new(base.join("root"))).unwrap();
        layout(&base.join("layout"));
        let image = images
            .import(&base.join("layout"), Some("example.test/busybox:1"))
            .await;
        let image = &image.unwrap()[0].id;
        let images = Arc::new(images);
        let config = RuntimeConfig {
            run_dir: base.join("run"),
            root: base.join("root"),
            shim: programs().join("hanok-shim"),
            pause: programs().join("hanok-pause"),
            cgroup_driver: DriverKind::Cgroupfs,
            cgroup_root: name.clone(),
            seccomp_root: base.join("seccomp"),
            handlers: BTreeMap::new(),
        };
        let network = || Arc::new(CniNetwork::new(base.join("netns"), options.clone()));
        let open = async || {
            let opened = Runtime::open(config.clone(), images.clone(), network()).await;
            opened.unwrap()
        };
        let runtime = open().await;
        runtime.network_ready().await.unwrap();
        let server = runtime.run_pod_sandbox(pod(base, "server")).await.unwrap();
        let client = runtime.run_pod_sandbox(pod(base, "client")).await.unwrap();
        assert!(server.ips[0].starts_with("10.213.7."), "{server:?}");
        assert_ne!(server.ips, client.ips);
        start(&runtime, &server, image, "echo hello | nc -l -p 80").await;
        let ip = &server.ips[0];
        let ask = format!("touch /data/x && until nc {ip} 80; do sleep 0.02; done");
        start(&runtime, &client, image, &ask).await;
        let view = || runtime.pod_view(&client.config.uid);
        let waiting = async {
            while view().await.unwrap().containers[0].state != ContainerState::Exited {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
        let log = fs::read_to_string(base.join("logs/client/c/0.log")).unwrap();
        assert!(log.trim_end().ends_with("F hello"), "{log}");
        assert_traffic_is_counted(&runtime).await;
        crate::guard::assert_closed_to_users(base);
        // Another agent; what it does not know of must not lose its lease.
        drop(runtime);
        let runtime = open().await;
        assert_eq!(runtime.list_pod_sandboxes().await.unwrap().len(), 2);
        assert_eq!(leases(base), 2);

        let runtime = over_a_torn_record(runtime, base, image, open).await;
        assert_unpinned_is_not_ready(&runtime, base, image).await;
        for sandbox in [&server, &client] {
            runtime.remove_pod_sandbox(&sandbox.id).await.unwrap();
            runtime
                .remove_cgroup(&sandbox.config.cgroup_parent)
                .await
                .unwrap();
        }
        assert_eq!(leases(base), 0);
        for left in ["netns", "run/sandboxes", "root/volumes"] {
            assert_eq!(entries(&base.join(left)), [""; 0], "{left}");
        }
        assert_eq!(images.keys().await.unwrap(), [""; 0]);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(base.to_str().unwrap()), "a mount is left");
        let links = Command::new("ip").args(["-o", "link"]).output().unwrap();
        let links = String::from_utf8(links.stdout).unwrap();
        assert!(!links.contains("veth"), "{links}");
        runtime.remove_cgroup("kubepods").await.unwrap();
        drop(runtime);
        crate::rig::remove_cgroup_roots(&name);
    });
}

/// A sandbox whose network namespace somebody has unmounted, or whose file is gone too, is not ready, gets no container, and
/// goes as others do.
async fn assert_unpinned_is_not_ready(runtime: &Runtime, base: &Path, image: &str) {
    let before = entries(&base.join("netns"));
    let lost = runtime.run_pod_sandbox(pod(base, "lost")).await.unwrap();
    let pinned = entries(&base.join("netns"));
    let pinned = pinned.iter().find(|name| !before.contains(name)).unwrap();
    let netns = base.join("netns").join(pinned);
    let state = async || {
        let view = runtime.pod_view(&lost.config.uid).await.unwrap();
        view.sandboxes[0].state
    };
    assert_eq!(state().await, SandboxState::Ready);
    rustix::mount::unmount(&netns, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(state().await, SandboxState::NotReady);
    let made = runtime.create_container(&lost.id, script(image, "true"));
    let refused = made.await.unwrap_err().to_string();
    assert!(refused.ends_with("is not ready"), "{refused}");
    fs::remove_file(&netns).unwrap();
    let list = runtime.list_pod_sandboxes().await.unwrap();
    let ready = list.iter().filter(|one| one.state == SandboxState::Ready);
    assert_eq!((list.len(), ready.count()), (3, 2));
    runtime.stop_pod_sandbox(&lost.id).await.unwrap();
    runtime.remove_pod_sandbox(&lost.id).await.unwrap();
    let cgroup = &lost.config.cgroup_parent;
    runtime.remove_cgroup(cgroup).await.unwrap();
    assert_eq!((leases(base), entries(&base.join("netns")).len()), (2, 2));
}

/// What goes through pods' interfaces is counted.
async fn assert_traffic_is_counted(runtime: &Runtime) {
    for pod in runtime.stats(None, StatsDetail::All).await.unwrap() {
        let interface = &pod.interfaces[0];
        assert_eq!(interface.name, "eth0");
        assert!(interface.rx.bytes > 0 && interface.tx.packets > 0);
    }
}

/// An OCI layout with one image of one layer: busybox. `/data` is a volume of it, and belongs to user 1000.
fn layout(dir: &Path) {
    let root = dir.join("root");
    fs::create_dir_all(root.join("data")).unwrap();
    populate(&root);
    std::os::unix::fs::chown(root.join("data"), Some(1000), Some(1000)).unwrap();
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let blob = |bytes: &[u8], media_type: &str| {
        let hash: String = Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        fs::write(blobs.join(&hash), bytes).unwrap();
        json!({"mediaType": media_type, "digest": format!("sha256:{hash}"), "size": bytes.len()})
    };
    let mut layer = tar::Builder::new(Vec::new());
    layer.follow_symlinks(false);
    layer.append_dir_all(".", &root).unwrap();
    let layer = blob(
        &layer.into_inner().unwrap(),
        "application/vnd.oci.image.layer.v1.tar",
    );
    let config = json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        "config": {"Cmd": ["sh"], "Volumes": {"/data": {}}, "User": "app"},
    });
    let config = blob(
        config.to_string().as_bytes(),
        "application/vnd.oci.image.config.v1+json",
    );
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer],
    });
    let manifest = blob(manifest.to_string().as_bytes(), media_type);
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(dir.join("index.json"), index.to_string()).unwrap();
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

/// A third agent cannot read what became of a pod: nothing of it stays but the files, out of the way.
async fn over_a_torn_record(
    runtime: Runtime,
    base: &Path,
    image: &str,
    open: impl AsyncFn() -> Runtime,
) -> Runtime {
    let torn = runtime.run_pod_sandbox(pod(base, "torn")).await.unwrap();
    start(&runtime, &torn, image, "sleep 600").await;
    drop(runtime);
    let record = format!("run/sandboxes/{}/sandbox.json", torn.id);
    fs::write(base.join(record), "{\"id\":").unwrap();
    let runtime = open().await;
    assert_eq!(runtime.list_pod_sandboxes().await.unwrap().len(), 2);
    assert_eq!(leases(base), 2);
    assert_eq!(entries(&base.join("netns")).len(), 2);
    assert!(rustix::process::test_kill_process(pid(torn.pid)).is_err());
    let cgroup = &torn.config.cgroup_parent;
    runtime.remove_cgroup(cgroup).await.unwrap();
    runtime
}

fn pid(number: i32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(number).unwrap()
}

/// Files of leases: those named by an address.
fn leases(base: &Path) -> usize {
    let names = entries(&base.join("ipam/pods"));
    names
        .iter()
        .filter(|name| name.parse::<std::net::IpAddr>().is_ok())
        .count()
}
