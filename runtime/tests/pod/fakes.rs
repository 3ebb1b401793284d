//! A network that only pins, and images that are one directory; both fail when they are told to.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hanok_runtime::api::SandboxId;
use hanok_runtime::container::rootfs::{RootfsError, RootfsImage, RootfsSource};
use hanok_runtime::sandbox::network::{NetworkError, NetworkRequest, PodNetwork};
use hanok_runtime::spec::ImageFacts;
use hanok_shim::protocol::Rootfs;

use crate::copied_program::copy_program;
use crate::rig::{IMAGE, cgroups_below};

/// How long a slow DEL takes: longer than an agent waits for it at its start.
pub(crate) const SLOW: Duration = Duration::from_secs(8);

/// Where something is to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Pin,
    Add,
    /// ADD gives no address.
    NoAddress,
    /// ADD fails, and DEL too.
    AddAndDelete,
    /// DEL takes longer than anybody wants to wait.
    SlowDelete,
    Prepare,
}

/// Pins network namespaces and gives out an address that nobody has.
#[derive(Debug)]
pub(crate) struct FakeNetwork {
    pub(crate) prefix: String,
    pub(crate) count: AtomicU32,
    pub(crate) fault: Arc<Mutex<Fault>>,
    /// ADDs without their DEL.
    pub(crate) attached: Mutex<Vec<SandboxId>>,
    /// Where they were.
    pub(crate) places: Mutex<Vec<(SandboxId, PathBuf)>>,
}

pub(crate) fn ip(arguments: &[&str]) -> Result<(), NetworkError> {
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

    async fn complete(&self, netns: &Path) -> Result<(), NetworkError> {
        ip(&["-n", name(netns), "link", "set", "lo", "up"])
    }

    async fn add(&self, request: NetworkRequest<'_>) -> Result<Vec<String>, NetworkError> {
        self.attached.lock().unwrap().push(request.sandbox.clone());
        let place = (request.sandbox.clone(), request.netns.to_owned());
        self.places.lock().unwrap().push(place);
        let fault = *self.fault.lock().unwrap();
        if fault == Fault::Add || fault == Fault::AddAndDelete {
            return Err(NetworkError("add fails".into()));
        }
        if fault == Fault::NoAddress {
            return Ok(vec![]);
        }
        Ok(vec!["192.0.2.7".into()])
    }

    async fn delete(&self, request: NetworkRequest<'_>) -> Result<(), NetworkError> {
        let fault = *self.fault.lock().unwrap();
        if fault == Fault::AddAndDelete {
            return Err(NetworkError("delete fails".into()));
        }
        if fault == Fault::SlowDelete {
            tokio::time::sleep(SLOW).await;
        }
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

    async fn collect(&self, alive: &[SandboxId]) -> Result<(), NetworkError> {
        let gone = self.attached.lock().unwrap().clone();
        for id in gone.iter().filter(|id| !alive.contains(id)) {
            self.attached.lock().unwrap().retain(|other| other != id);
            let places = self.places.lock().unwrap().clone();
            for (_, netns) in places.iter().filter(|(other, _)| other == id) {
                self.unpin(netns).await?;
            }
        }
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
    cgroup_root: String,
    /// Containers that still had a cgroup when their files were removed; none where nobody asks, for it takes a look at all.
    pub(crate) removed_early: Mutex<Option<Vec<String>>>,
    pub(crate) facts: Mutex<ImageFacts>,
    fault: Arc<Mutex<Fault>>,
}

impl FakeImages {
    /// With its layer made in `base`.
    pub(crate) fn new(base: &Path, cgroup_root: &str, fault: Arc<Mutex<Fault>>) -> Self {
        for part in ["layer", "snapshots"] {
            fs::create_dir(base.join(part)).unwrap();
        }
        populate(&base.join("layer"));
        FakeImages {
            base: base.to_owned(),
            cgroup_root: cgroup_root.to_owned(),
            removed_early: Mutex::default(),
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
        if let Some(early) = self.removed_early.lock().unwrap().as_mut() {
            let cgroups = cgroups_below(&self.cgroup_root);
            early.extend(
                cgroups
                    .iter()
                    .any(|dir| dir.ends_with(key))
                    .then(|| key.to_owned()),
            );
        }
        let snapshot = self.base.join("snapshots").join(key);
        // Off the runtime's threads, as the real one.
        let removing = tokio::task::spawn_blocking(move || fs::remove_dir_all(snapshot));
        let _ = removing.await.unwrap();
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

/// The layer: static busybox and what a container expects around it.
pub(crate) fn populate(root: &Path) {
    for dir in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    copy_program(Path::new("/bin/busybox"), &root.join("bin/busybox"));
    for applet in [
        "sh", "cat", "echo", "sleep", "true", "false", "id", "ls", "nc", "kill", "grep", "mknod",
        "mount", "hostname", "env", "pwd", "unshare", "head", "tail", "dd", "stat", "touch",
        "chmod", "mkdir", "ps", "wc", "tr", "seq", "test", "trap", "rm", "ln", "mv", "tee", "date",
        "readlink", "umount", "sync",
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
