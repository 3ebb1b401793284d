//! What the command lines start from: a root filesystem, bundles and a cgroup in every hierarchy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hanok_runtime::seccomp::Policy;
use serde_json::{Value, json};

use crate::RUNTIMES;
use crate::command::Runtime;
use crate::fakes;

/// The capability of containers on which RuntimeDefault depends: CAP_SYS_CHROOT.
const FILTER_CAPABILITIES: u64 = 1 << 18;

/// In a pod's namespaces, or in namespaces of its own.
pub(crate) const KINDS: [&str; 2] = ["pod", "own"];

/// Removed with all in it when it is dropped.
pub(crate) struct Arena {
    pub(crate) dir: tempfile::TempDir,
    /// A path that is the same in every hierarchy.
    cgroup: String,
    /// Directories made for it, in the order of their making.
    made: Vec<PathBuf>,
    hanok: PathBuf,
}

impl Arena {
    /// `spec` is what hanok makes of a container in a pod.
    pub(crate) fn new(spec: &Value, hanok: &Path) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hanok-bench-")
            .tempdir()
            .unwrap();
        fs::create_dir(dir.path().join("rootfs")).unwrap();
        fakes::populate(&dir.path().join("rootfs"));
        let (cgroup, made) = make_cgroups();
        let arena = Self {
            dir,
            cgroup,
            made,
            hanok: hanok.to_owned(),
        };
        let complete = arena.complete(spec.clone());
        for kind in KINDS {
            for runtime in RUNTIMES.iter().chain(&["floor"]) {
                arena.bundle(&complete, kind, runtime);
            }
        }
        arena
    }

    /// The runtimes there are, by name.
    pub(crate) fn runtime(&self, name: &str) -> Runtime {
        Runtime::new(name, &self.hanok, self.dir.path())
    }

    /// A cgroup in it, as a path from the root of each hierarchy.
    pub(crate) fn cgroup(&self, name: &str) -> String {
        format!("{}/{name}", self.cgroup)
    }

    pub(crate) fn hanok(&self) -> &Path {
        &self.hanok
    }

    /// What only the runtime in process takes from elsewhere: root, cgroup, limits, filter.
    fn complete(&self, mut spec: Value) -> Value {
        let mut filter =
            serde_json::to_value(Policy::runtime_default(FILTER_CAPABILITIES)).unwrap();
        // The native one is the first that a runtime of another make wants.
        let native = format!("SCMP_ARCH_{}", std::env::consts::ARCH.to_uppercase());
        let others = filter["architectures"].as_array_mut().unwrap();
        others.insert(0, native.into());
        spec["linux"]["seccomp"] = filter;
        spec["linux"]["resources"] = json!({
            "devices": [{ "allow": false, "access": "rwm" }],
            "cpu": { "shares": 512, "quota": 200_000, "period": 100_000 },
            "memory": { "limit": 128 << 20, "swap": 128 << 20 },
            "pids": { "limit": 100 },
        });
        spec["root"]["path"] = self.dir.path().join("rootfs").to_str().into();
        for mount in spec["mounts"].as_array_mut().unwrap() {
            // The pod's own is the shim's to hold; the others make one.
            if mount["destination"] == "/dev/shm" {
                mount["type"] = "tmpfs".into();
            }
        }
        spec
    }

    /// A bundle for one runtime, with a cgroup of its own.
    fn bundle(&self, spec: &Value, kind: &str, runtime: &str) {
        let mut spec = spec.clone();
        let name = format!("{kind}-{runtime}");
        spec["linux"]["cgroupsPath"] = self.cgroup(&name).into();
        if kind == "own" {
            for namespace in spec["linux"]["namespaces"].as_array_mut().unwrap() {
                namespace.as_object_mut().unwrap().remove("path");
            }
        }
        let dir = self.dir.path().join(&name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("config.json"), spec.to_string()).unwrap();
    }

    /// A changed copy of a bundle.
    pub(crate) fn variant(&self, of: &str, name: &str, edit: impl FnOnce(&mut Value)) -> PathBuf {
        variant(self.dir.path(), of, name, edit)
    }
}

/// As [`Arena::variant`], for who has only the directory. Its cgroup is named after it.
pub(crate) fn variant(
    arena: &Path,
    of: &str,
    name: &str,
    edit: impl FnOnce(&mut Value),
) -> PathBuf {
    let text = fs::read(arena.join(of).join("config.json")).unwrap();
    let mut spec: Value = serde_json::from_slice(&text).unwrap();
    let path = spec["linux"]["cgroupsPath"].as_str().unwrap();
    let parent = Path::new(path).parent().unwrap();
    spec["linux"]["cgroupsPath"] = parent.join(name).to_str().into();
    edit(&mut spec);
    let dir = arena.join(name);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("config.json"), spec.to_string()).unwrap();
    dir
}

impl Drop for Arena {
    fn drop(&mut self) {
        for made in self.made.iter().rev() {
            // One above ours may have become somebody else's too.
            let _ = fs::remove_dir(made);
        }
    }
}

/// The caller's own cgroups: mount point and path of each hierarchy.
fn hierarchies() -> Vec<(PathBuf, String)> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let place = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let name = fields.next()?.trim_start_matches("name=").to_owned();
        let path = fields.next()?.trim_start_matches('/').to_owned();
        // The runtime of the bench has moved us there on v2.
        let path = path.trim_end_matches("hanok-agent").trim_end_matches('/');
        let mount = Path::new("/sys/fs/cgroup").join(name);
        mount
            .join("cgroup.procs")
            .exists()
            .then(|| (mount, path.to_owned()))
    };
    own.lines().filter_map(place).collect()
}

/// Where the floor's processes go: the v1 hierarchies that hanok's containers join, or the one of v2.
pub(crate) fn floor_cgroups(path: &str) -> Vec<PathBuf> {
    let joined = ["cpu", "cpuacct", "memory", "pids", "cpuset", "devices", ""];
    let mounts = hierarchies();
    let used = mounts.iter().filter(|(mount, _)| {
        let name = mount.strip_prefix("/sys/fs/cgroup").unwrap();
        joined.iter().any(|one| Path::new(one) == name)
    });
    used.map(|(mount, _)| mount.join(path.trim_start_matches('/')))
        .collect()
}

/// One path in all hierarchies, below the deepest of our own cgroups.
fn make_cgroups() -> (String, Vec<PathBuf>) {
    let all = hierarchies();
    let deepest = all.iter().map(|(_, path)| path.as_str());
    let deepest = deepest.max_by_key(|path| path.len()).unwrap_or_default();
    let name = format!("hanok-bench-{}", std::process::id());
    let path = Path::new("/").join(deepest).join(name);
    let mut made = Vec::new();
    for (mount, _) in &all {
        let target = mount.join(path.strip_prefix("/").unwrap());
        let missing: Vec<&Path> = target.ancestors().take_while(|d| !d.exists()).collect();
        for directory in missing.into_iter().rev() {
            fs::create_dir(directory).unwrap();
            made.push(directory.to_owned());
            inherit_cpuset(directory).unwrap();
        }
    }
    (path.to_str().unwrap().to_owned(), made)
}

/// A v1 cpuset begins empty, and takes no process before it has something.
pub(crate) fn inherit_cpuset(directory: &Path) -> io::Result<()> {
    let (Some(parent), true) = (directory.parent(), directory.join("cpuset.mems").exists()) else {
        return Ok(());
    };
    if directory.join("cgroup.controllers").exists() {
        return Ok(());
    }
    for file in ["cpuset.cpus", "cpuset.mems"] {
        fs::write(directory.join(file), fs::read(parent.join(file))?)?;
    }
    Ok(())
}
