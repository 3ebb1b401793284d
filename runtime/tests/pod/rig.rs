//! A runtime for a test: programs, directories, a root filesystem of busybox, a network that only pins.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hanok_runtime::api::{
    Container, ContainerConfig, ContainerId, ContainerState, NamespaceMode, PodSandbox,
    PodSandboxConfig, PodUid, Resources, RuntimeService, SandboxId,
};
use hanok_runtime::cgroup::DriverKind;
use hanok_runtime::sandbox::network::PodNetwork;
use hanok_runtime::service::{Runtime, RuntimeConfig};

use crate::fakes::{FakeImages, FakeNetwork, Fault, ip};
pub(crate) use crate::static_programs::programs;

/// Longest wait for anything, also in a machine that is emulated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The image of every container.
pub(crate) const IMAGE: &str = "sha256:busybox";

/// Everything that a test needs.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) name: String,
    pub(crate) network: Arc<FakeNetwork>,
    pub(crate) images: Arc<FakeImages>,
    pub(crate) fault: Arc<Mutex<Fault>>,
    /// The fake one, unless somebody brings another and opens again.
    pub(crate) pod_network: Arc<dyn PodNetwork>,
    runtime: Option<Runtime>,
    cgroup_root: String,
    ended: bool,
}

/// Waits for what nobody tells of.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("{what} did not come");
    }
}

impl Rig {
    pub(crate) async fn new(what: &str) -> Self {
        let name = format!("hanok-service-{what}-{}", std::process::id());
        let dir = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .tempdir()
            .unwrap();
        for part in ["logs", "seccomp"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        let fault = Arc::new(Mutex::new(Fault::None));
        let network = Arc::new(FakeNetwork {
            prefix: name.clone(),
            count: AtomicU32::new(0),
            fault: fault.clone(),
            attached: Mutex::default(),
            places: Mutex::default(),
        });
        let images = Arc::new(FakeImages::new(dir.path(), &name, fault.clone()));
        let cgroup_root = name.clone();
        let pod_network = network.clone();
        let mut rig = Rig {
            pod_network,
            dir,
            name,
            network,
            images,
            fault,
            runtime: None,
            cgroup_root,
            ended: false,
        };
        rig.open().await;
        rig
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(crate) fn config(&self) -> RuntimeConfig {
        RuntimeConfig {
            run_dir: self.path("run"),
            root: self.path("root"),
            shim: programs().join("hanok-shim"),
            pause: programs().join("hanok-pause"),
            cgroup_driver: DriverKind::Cgroupfs,
            cgroup_root: self.cgroup_root.clone(),
            seccomp_root: self.path("seccomp"),
            handlers: BTreeMap::new(),
        }
    }

    /// Opens the runtime, or another one over the same files.
    pub(crate) async fn open(&mut self) {
        drop(self.runtime.take());
        let config = self.config();
        self.runtime = Some(
            Runtime::open(config, self.images.clone(), self.pod_network.clone())
                .await
                .unwrap(),
        );
    }

    /// Opens the runtime for a moment, in a process with room for so many descriptors more. What it says if it cannot.
    pub(crate) fn open_with_descriptors(&self, free: usize) -> Result<(), String> {
        let open = || {
            // This thread and those that it starts have a table of their own, as full as it may be.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let null = fs::File::open("/dev/null").unwrap();
            let mut full: Vec<_> = std::iter::from_fn(|| null.try_clone().ok()).collect();
            full.truncate(full.len().saturating_sub(free));
            let opened = runtime.block_on(Runtime::open(
                self.config(),
                self.images.clone(),
                self.pod_network.clone(),
            ));
            drop(full);
            opened.map(drop).map_err(|error| error.to_string())
        };
        std::thread::scope(|scope| scope.spawn(open).join().unwrap())
    }

    /// As if the agent had died.
    pub(crate) fn close(&mut self) {
        drop(self.runtime.take());
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().unwrap()
    }

    pub(crate) fn sandbox_config(&self) -> PodSandboxConfig {
        PodSandboxConfig {
            name: "pod".into(),
            namespace: "default".into(),
            uid: PodUid("uid".into()),
            attempt: 0,
            hostname: "pod-host".into(),
            log_directory: self.path("logs"),
            runtime_handler: String::new(),
            network: NamespaceMode::Pod,
            pid: NamespaceMode::Container,
            ipc: NamespaceMode::Pod,
            user_namespace: None,
            sysctls: BTreeMap::new(),
            cgroup_parent: "kubepods/poduid".into(),
            port_mappings: vec![],
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }

    pub(crate) async fn sandbox(&self) -> PodSandbox {
        self.runtime()
            .run_pod_sandbox(self.sandbox_config())
            .await
            .unwrap()
    }

    /// A container that runs a shell script.
    pub(crate) fn script(&self, name: &str, script: &str) -> ContainerConfig {
        ContainerConfig {
            name: name.into(),
            image: IMAGE.into(),
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            log_path: format!("{name}/0.log").into(),
            ..ContainerConfig::default()
        }
    }

    pub(crate) async fn start(&self, sandbox: &SandboxId, config: ContainerConfig) -> ContainerId {
        let id = self
            .runtime()
            .create_container(sandbox, config)
            .await
            .unwrap();
        self.runtime().start_container(&id).await.unwrap();
        id
    }

    pub(crate) async fn status(&self, id: &ContainerId) -> Container {
        let all = self.runtime().list_containers().await.unwrap();
        all.into_iter()
            .find(|container| container.id == *id)
            .unwrap()
    }

    /// Waits for the doorbell until the container is as wanted.
    pub(crate) async fn wait(&self, id: &ContainerId, wanted: ContainerState) -> Container {
        let mut doorbell = self.runtime().doorbell();
        let waiting = async {
            loop {
                let status = self.status(id).await;
                if status.state == wanted {
                    return status;
                }
                let _ = doorbell.recv().await;
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(status) => status,
            Err(_) => panic!("not {wanted:?}: {:?}", self.status(id).await),
        }
    }

    /// Waits until the log of a container holds a word, and returns what it holds.
    pub(crate) async fn said(&self, id: &ContainerId, word: &str) -> String {
        let log = self.status(id).await.log_path;
        let read = || fs::read_to_string(&log).unwrap_or_default();
        until(word, || read().contains(word)).await;
        read()
    }

    /// Runs a script to its end and returns what it logged to stdout.
    pub(crate) async fn output(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
    ) -> (i32, String) {
        let id = self.start(sandbox, config).await;
        let status = self.wait(&id, ContainerState::Exited).await;
        let log = fs::read_to_string(&status.log_path).unwrap_or_default();
        self.runtime().remove_container(&id).await.unwrap();
        fs::remove_file(&status.log_path).unwrap();
        let lines = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        (status.exit_code, lines.collect::<Vec<_>>().join("\n"))
    }

    /// Ends the test: every sandbox is removed, and nothing of the rig is left on the machine.
    pub(crate) async fn finish(mut self) {
        for sandbox in self.runtime().list_pod_sandboxes().await.unwrap() {
            self.runtime()
                .remove_pod_sandbox(&sandbox.id)
                .await
                .unwrap();
        }
        self.assert_nothing_left().await;
        self.runtime().remove_cgroup("kubepods").await.unwrap();
        self.close();
        remove_cgroup_roots(&self.cgroup_root);
        self.ended = true;
    }

    /// What is left when no sandbox is: nothing.
    pub(crate) async fn assert_nothing_left(&self) {
        assert!(
            self.runtime()
                .list_pod_sandboxes()
                .await
                .unwrap()
                .is_empty()
        );
        assert!(self.runtime().list_containers().await.unwrap().is_empty());
        assert_eq!(entries(&self.path("run/sandboxes")), [""; 0]);
        assert_eq!(entries(&self.path("root/volumes")), [""; 0]);
        assert_eq!(entries(&self.path("snapshots")), [""; 0]);
        assert!(
            self.network.attached.lock().unwrap().is_empty(),
            "an ADD without its DEL"
        );
        let netns = entries(Path::new("/run/netns"));
        assert!(
            !netns.iter().any(|one| one.starts_with(&self.name)),
            "{netns:?}"
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(self.dir.path().to_str().unwrap()),
            "a mount is left"
        );
        assert_eq!(self.processes(), [""; 0]);
        for cgroup in cgroups_below(&self.cgroup_root) {
            let name = cgroup.file_name().unwrap().to_str().unwrap();
            assert!(name.len() != 64, "{} is left", cgroup.display());
        }
    }

    /// Processes with the rig's directory in their command line or root.
    fn processes(&self) -> Vec<String> {
        let dir = self.dir.path().to_str().unwrap();
        let numbers = entries(Path::new("/proc"));
        let numbers = numbers.iter().filter(|name| name.parse::<u32>().is_ok());
        let lines = numbers.filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some(format!(
                "{pid}: {}",
                String::from_utf8_lossy(&line).replace('\0', " ")
            ))
        });
        lines.filter(|line| line.contains(dir)).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.ended || !std::thread::panicking() {
            return;
        }
        // A failed test cleans up as well as it can: cgroups first, that ends the processes.
        for cgroup in cgroups_below(&self.cgroup_root) {
            for pid in fs::read_to_string(cgroup.join("cgroup.procs"))
                .unwrap_or_default()
                .lines()
            {
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
        }
        for process in self.processes() {
            let pid = process.split(':').next().unwrap_or_default().to_owned();
            if pid != std::process::id().to_string() {
                let _ = Command::new("kill").args(["-9", &pid]).status();
            }
        }
        for netns in entries(Path::new("/run/netns")) {
            if netns.starts_with(&self.name) {
                let _ = ip(&["netns", "del", &netns]);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        remove_cgroup_roots(&self.cgroup_root);
    }
}

pub(crate) fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The root's directories in all hierarchies, below our own cgroup.
fn cgroup_roots(root: &str) -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let lines = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
    });
    let dirs = lines.map(|(controllers, path)| {
        let mount = if controllers.is_empty() {
            ""
        } else {
            controllers.as_str()
        };
        Path::new("/sys/fs/cgroup")
            .join(mount)
            // On v2 the runtime has moved this process into a leaf beside the pods.
            .join(
                path.trim_end_matches("/hanok-agent")
                    .trim_start_matches('/'),
            )
            .join(root)
    });
    dirs.filter(|dir| dir.is_dir()).collect()
}

/// Every cgroup at and below the root, parents first.
pub(crate) fn cgroups_below(root: &str) -> Vec<PathBuf> {
    let mut found = cgroup_roots(root);
    let mut next = 0;
    while next < found.len() {
        for name in entries(&found[next]) {
            let path = found[next].join(name);
            if path.is_dir() {
                found.push(path);
            }
        }
        next += 1;
    }
    found
}

pub(crate) fn remove_cgroup_roots(root: &str) {
    for dir in cgroups_below(root).iter().rev() {
        let _ = fs::remove_dir(dir);
    }
}

/// A memory limit.
pub(crate) fn memory(bytes: i64) -> Resources {
    Resources {
        memory_limit: bytes,
        memory_swap_limit: bytes,
        ..Resources::default()
    }
}
