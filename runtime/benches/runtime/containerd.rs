//! containerd's shims, each with a container, by a containerd of our own and its `ctr`.
//!
//! From `target/bin`, where `make bench PEER=kubelet` puts them; without them there is nothing to compare with.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::arena::Arena;

/// How long the daemon may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// A daemon and the containers that were started.
pub(crate) struct Containerd<'a> {
    arena: &'a Arena,
    bin: PathBuf,
    dir: PathBuf,
    daemon: Child,
    containers: Vec<String>,
}

impl<'a> Containerd<'a> {
    /// None where it is not there or does not start.
    pub(crate) fn start(arena: &'a Arena) -> Option<Self> {
        let bin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bin");
        let bin = bin.canonicalize().ok()?;
        let programs = ["containerd", "containerd-shim-runc-v2", "ctr"];
        if !programs.iter().all(|name| bin.join(name).exists()) {
            return None;
        }
        let dir = arena.dir.path().join("containerd");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("config.toml"), config(&dir)).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let daemon = Command::new(bin.join("containerd"))
            .arg("--config")
            .arg(dir.join("config.toml"))
            // The daemon finds its shim there.
            .env("PATH", format!("{}:{path}", bin.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("log")).unwrap())
            .spawn()
            .unwrap();
        let containerd = Self {
            arena,
            bin,
            dir,
            daemon,
            containers: Vec::new(),
        };
        let deadline = Instant::now() + PATIENCE;
        while !containerd.ctr(&["version"]) {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(containerd)
    }

    /// One more; false when it does not start.
    pub(crate) fn add(&mut self) -> bool {
        let id = format!("c{}", self.containers.len());
        let cgroup = self.arena.cgroup(&format!("containerd-{id}"));
        let rootfs = self.arena.dir.path().join("rootfs");
        self.containers.push(id.clone());
        self.ctr(&[
            "run",
            "--detach",
            "--rootfs",
            "--cgroup",
            &cgroup,
            rootfs.to_str().unwrap(),
            &id,
            "/bin/sleep",
            "1000",
        ])
    }

    /// Process ids of the shims.
    pub(crate) fn shims(&self) -> Vec<u32> {
        let socket = self.dir.join("containerd.sock");
        let socket = socket.to_str().unwrap();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words[0].ends_with(b"containerd-shim-runc-v2") && words.contains(&socket.as_bytes())
        })
        .collect()
    }

    fn ctr(&self, words: &[&str]) -> bool {
        let status = Command::new(self.bin.join("ctr"))
            .arg("--address")
            .arg(self.dir.join("containerd.sock"))
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        for id in &self.containers {
            self.ctr(&["tasks", "rm", "--force", id]);
            self.ctr(&["containers", "rm", id]);
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "version = 3\n\
         root = \"{dir}/root\"\n\
         state = \"{dir}/state\"\n\
         disabled_plugins = [\"io.containerd.cri.v1.images\", \"io.containerd.cri.v1.runtime\", \"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\n\
         address = \"{dir}/containerd.sock\"\n\
         [ttrpc]\n\
         address = \"{dir}/containerd.ttrpc.sock\"\n"
    )
}
