//! A runtime for a test: programs, directories, a root filesystem of busybox, a network that only pins.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::{
    Container, ContainerConfig, ContainerId, ContainerState, NamespaceMode, PodSandbox,
    PodSandboxConfig, PodUid, Resources, RuntimeService, SandboxId,
};
use hanok_runtime::container::rootfs::{RootfsError, RootfsImage, RootfsSource};
use hanok_runtime::sandbox::network::{NetworkError, NetworkRequest, PodNetwork};
use hanok_runtime::service::{Runtime, RuntimeConfig};
use hanok_runtime::spec::ImageFacts;
use hanok_shim::protocol::Rootfs;

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The image of every container.
pub(crate) const IMAGE: &str = "sha256:busybox";

/// Directory of the static programs: of `HANOK_PROGRAMS`, or built at first use.
pub(crate) fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        if let Some(built) = std::env::var_os("HANOK_PROGRAMS") {
            return built.into();
        }
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("static");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build-static.sh");
        // Flags of the test's own build must not reach the static one.
        let status = Command::new(script)
            .arg(&out)
            .env_remove("RUSTFLAGS")
            .status()
            .unwrap();
        assert!(status.success());
        out
    })
}

/// Where something is to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Pin,
    Add,
    Prepare,
}

/// Pins network namespaces and gives out an address that nobody has.
#[derive(Debug)]
pub(crate) struct FakeNetwork {
    prefix: String,
    count: AtomicU32,
    fault: Arc<Mutex<Fault>>,
    /// ADDs without their DEL.
    pub(crate) attached: Mutex<Vec<SandboxId>>,
}

fn ip(arguments: &[&str]) -> Result<(), NetworkError> {
    let output = Command::new("ip").args(arguments).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(())
    } else {
        Err(NetworkError(words))
    }
}

fn name(netns: &Path) -> &str {
    netns.file_name().unwrap().to_str().unwrap()
}

#[async_trait]
impl PodNetwork for FakeNetwork {
    fn new_netns(&self) -> Result<PathBuf, NetworkError> {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        Ok(Path::new("/run/netns").join(format!("{}-{count}", self.prefix)))
    }

    async fn pin(&self, netns: &Path) -> Result<(), NetworkError> {
        ip(&["netns", "add", name(netns)])?;
        ip(&["-n", name(netns), "link", "set", "lo", "up"])?;
        if *self.fault.lock().unwrap() == Fault::Pin {
            return Err(NetworkError("pin fails".into()));
        }
        Ok(())
    }

    async fn add(&self, request: NetworkRequest<'_>) -> Result<Vec<String>, NetworkError> {
        self.attached.lock().unwrap().push(request.sandbox.clone());
        if *self.fault.lock().unwrap() == Fault::Add {
            return Err(NetworkError("add fails".into()));
        }
        Ok(vec!["192.0.2.7".into()])
    }

    async fn delete(&self, request: NetworkRequest<'_>) -> Result<(), NetworkError> {
        self.attached
            .lock()
            .unwrap()
            .retain(|id| id != request.sandbox);
        Ok(())
    }

    async fn unpin(&self, netns: &Path) -> Result<(), NetworkError> {
        if netns.exists() {
            ip(&["netns", "del", name(netns)])
        } else {
            Ok(())
        }
    }

    async fn collect(&self, _alive: &[SandboxId]) -> Result<(), NetworkError> {
        Ok(())
    }

    async fn ready(&self) -> Result<(), NetworkError> {
        Ok(())
    }
}

/// One layer with busybox, and a directory for each container.
#[derive(Debug)]
pub(crate) struct FakeImages {
    base: PathBuf,
    pub(crate) facts: Mutex<ImageFacts>,
    fault: Arc<Mutex<Fault>>,
}

impl FakeImages {
    /// With its layer made in `base`.
    pub(crate) fn new(base: &Path, fault: Arc<Mutex<Fault>>) -> Self {
        for part in ["layer", "snapshots"] {
            fs::create_dir(base.join(part)).unwrap();
        }
        populate(&base.join("layer"));
        FakeImages {
            base: base.to_owned(),
            facts: Mutex::default(),
            fault,
        }
    }
}

#[async_trait]
impl RootfsSource for FakeImages {
    async fn image(&self, id: &str) -> Result<Option<RootfsImage>, RootfsError> {
        let facts = self.facts.lock().unwrap().clone();
        Ok((id == IMAGE).then(|| RootfsImage {
            reference: "busybox@sha256:0".into(),
            facts,
        }))
    }

    async fn prepare(&self, key: &str, _image: &str) -> Result<Rootfs, RootfsError> {
        let snapshot = self.base.join("snapshots").join(key);
        let part = |name: &str| {
            let path = snapshot.join(name);
            fs::create_dir_all(&path).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (upper, work) = (part("upper"), part("work"));
        if *self.fault.lock().unwrap() == Fault::Prepare {
            return Err(RootfsError("prepare fails".into()));
        }
        let lower = vec![self.base.join("layer").to_str().unwrap().to_owned()];
        Ok(Rootfs::Overlay { lower, upper, work })
    }

    async fn remove(&self, key: &str) -> Result<(), RootfsError> {
        let _ = fs::remove_dir_all(self.base.join("snapshots").join(key));
        Ok(())
    }

    async fn keys(&self) -> Result<Vec<String>, RootfsError> {
        let entries = fs::read_dir(self.base.join("snapshots"))
            .into_iter()
            .flatten()
            .flatten();
        Ok(entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect())
    }
}

/// Everything that a test needs.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) name: String,
    pub(crate) network: Arc<FakeNetwork>,
    pub(crate) images: Arc<FakeImages>,
    pub(crate) fault: Arc<Mutex<Fault>>,
    /// The fake one, unless [`Rig::use_network`] brings another.
    pod_network: Arc<dyn PodNetwork>,
    runtime: Option<Runtime>,
    cgroup_root: String,
    ended: bool,
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
        });
        let images = Arc::new(FakeImages::new(dir.path(), fault.clone()));
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

    /// Opens the runtime with another network.
    pub(crate) async fn use_network(&mut self, network: Arc<dyn PodNetwork>) {
        self.pod_network = network;
        self.open().await;
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
            .join(path.trim_start_matches('/'))
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

/// The layer: static busybox and what a container expects around it.
pub(crate) fn populate(root: &Path) {
    for dir in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for applet in [
        "sh", "cat", "echo", "sleep", "true", "false", "id", "ls", "nc", "kill", "grep", "mknod",
        "mount", "hostname", "env", "pwd", "unshare", "head", "tail", "dd", "stat", "touch",
        "chmod", "mkdir", "ps", "wc", "tr", "seq", "test", "trap", "rm",
    ] {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n",
    )
    .unwrap();
    fs::write(
        root.join("etc/group"),
        "root:x:0:\napp:x:1000:\nextra:x:2000:app\n",
    )
    .unwrap();
    fs::write(root.join("etc/text"), "not a program\n").unwrap();
}

/// A memory limit.
pub(crate) fn memory(bytes: i64) -> Resources {
    Resources {
        memory_limit: bytes,
        memory_swap_limit: bytes,
        ..Resources::default()
    }
}
