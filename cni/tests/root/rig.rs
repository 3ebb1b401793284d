//! A scratch network namespace with a runner in it, and the proof that nothing is left in the end.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hanok_cni::{AddResult, Attachment, BuiltIn, Config, Options, Runner, Source, netns};
use nix::sched::{CloneFlags, unshare};

/// The bridge of every scratch namespace. Nobody else sees it.
pub(crate) const BRIDGE: &str = "br-cni-test";

/// How long a connection may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(5);

/// Directories and options of one test.
pub(crate) struct Rig {
    dir: tempfile::TempDir,
    pub(crate) options: Options,
}

/// A pod of a test.
pub(crate) struct Pod {
    pub(crate) attachment: Attachment,
    pub(crate) result: AddResult,
}

/// Runs a test in a network namespace of its own: its thread, and all that come from it, live there.
pub(crate) fn in_scratch_namespace<F>(test: impl FnOnce(Arc<Rig>) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may make namespaces");
        sh("ip link set lo up");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let rig = Arc::new(Rig::new());
        runtime.block_on(async {
            let _unpin = Unpin(rig.pins());
            test(Arc::clone(&rig)).await;
            rig.assert_nothing_is_left();
        });
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Removes what a failed test has pinned: a temporary directory with mounts cannot be deleted.
struct Unpin(PathBuf);

impl Drop for Unpin {
    fn drop(&mut self) {
        for path in netns::list(&self.0).unwrap_or_default() {
            let _ = Command::new("umount").arg("-l").arg(&path).status();
        }
    }
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hanok-cni-")
            .tempdir()
            .expect("a directory");
        let options = Options {
            source: Source::Fixed(built_in(&["10.123.0.0/24"])),
            bin_dirs: vec![dir.path().join("bin"), "/usr/lib/cni".into()],
            cache_dir: dir.path().join("results"),
            ipam_dir: dir.path().join("ipam"),
            timeout: Duration::from_secs(20),
            ..Options::default()
        };
        Self { dir, options }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn pins(&self) -> PathBuf {
        self.path("netns")
    }

    pub(crate) fn runner(&self) -> Runner {
        Runner::new(self.options.clone())
    }

    /// A runner of a conflist's text.
    pub(crate) fn runner_of(&self, conflist: &str) -> Runner {
        self.runner_with(conflist, true)
    }

    pub(crate) fn runner_with(&self, conflist: &str, prefer_built_in: bool) -> Runner {
        let dir = self.path("net.d");
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("10-test.conflist"), conflist).expect("a file");
        Runner::new(Options {
            source: Source::Dir(dir),
            prefer_built_in,
            ..self.options.clone()
        })
    }

    /// An executable script among the plugins.
    pub(crate) fn plugin(&self, name: &str, script: &str) {
        let dir = self.path("bin");
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }

    /// A container with a fresh namespace, not attached yet.
    pub(crate) async fn container(&self, id: &str) -> Attachment {
        let path = netns::new_path(&self.pins()).expect("a path");
        netns::create(&path).await.expect("a namespace");
        Attachment::new(id, path).with_pod("ns", id, "uid")
    }

    pub(crate) async fn pod(&self, runner: &Runner, id: &str) -> Pod {
        let attachment = self.container(id).await;
        let result = runner
            .add(&attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        Pod { attachment, result }
    }

    pub(crate) async fn remove(&self, runner: &Runner, pod: &Pod) {
        runner
            .del(&pod.attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        netns::remove(&pod.attachment.netns)
            .await
            .expect("namespace goes");
    }

    /// No link but loopback and the bridge, no pin, no lease, no cached result, no table of ours.
    pub(crate) fn assert_nothing_is_left(&self) {
        let known = BTreeSet::from(["lo", BRIDGE, "sit0", "tunl0", "ip6tnl0"].map(str::to_owned));
        let links: Vec<_> = links().into_iter().filter(|l| !known.contains(l)).collect();
        assert_eq!(links, Vec::<String>::new(), "links are left");
        assert_eq!(
            netns::list(&self.pins()).expect("pins"),
            Vec::<PathBuf>::new()
        );
        assert_eq!(files(&self.options.cache_dir), Vec::<String>::new());
        for dir in files(&self.options.ipam_dir) {
            let found = hanok_cni::ipam::list(&self.options.ipam_dir.join(dir)).expect("leases");
            assert_eq!(found.leases, Vec::new());
        }
    }
}

impl Pod {
    pub(crate) fn ip(&self) -> IpAddr {
        self.result.pod_ips()[0]
    }

    /// Connects from inside this pod and says what the other side saw as our address.
    pub(crate) async fn reaches(&self, target: SocketAddr) -> Option<IpAddr> {
        netns::run_in(&self.attachment.netns, move || connect(target))
            .await
            .expect("a thread")
    }

    /// A server inside the pod that tells every client its address.
    pub(crate) async fn serve(&self, address: SocketAddr) {
        netns::run_in(&self.attachment.netns, move || serve(address))
            .await
            .expect("a thread");
    }

    /// Runs a command inside the pod.
    pub(crate) async fn sh(&self, line: &str) -> String {
        let line = line.to_owned();
        netns::run_in(&self.attachment.netns, move || sh(&line))
            .await
            .expect("a thread")
    }
}

/// The built-in network with these pod CIDRs.
pub(crate) fn built_in(cidrs: &[&str]) -> Config {
    let cidrs = cidrs.iter().map(|c| c.parse().expect("a CIDR")).collect();
    Config::built_in(&BuiltIn {
        name: "test".into(),
        ..BuiltIn::new(BRIDGE, cidrs)
    })
    .expect("a network")
}

/// Listens in the calling thread's namespace and serves a few clients from a thread of its own.
pub(crate) fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).expect("the address is ours");
    std::thread::spawn(move || {
        for client in listener.incoming().take(8).flatten() {
            let mut client = client;
            let peer = client
                .peer_addr()
                .map(|p| p.ip().to_string())
                .unwrap_or_default();
            let _ = client.write_all(peer.as_bytes());
        }
    });
}

/// Connects in the calling thread's namespace.
pub(crate) fn connect(target: SocketAddr) -> Option<IpAddr> {
    let mut stream = TcpStream::connect_timeout(&target, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Runs a shell line in the calling thread's namespace; it has to succeed.
pub(crate) fn sh(line: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", line])
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Names of the links in the calling thread's namespace.
pub(crate) fn links() -> Vec<String> {
    let text = sh("ip -o link");
    let name = |line: &str| {
        let name = line.split(": ").nth(1)?;
        Some(name.split('@').next().unwrap_or(name).to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Names in a directory, sorted; none when it is missing.
pub(crate) fn files(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
