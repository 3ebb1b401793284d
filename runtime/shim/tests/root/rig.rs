//! A pod for a test: the built programs, directories, cgroups, specs, and the end of it all.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hanok_shim::client::Client;
use hanok_shim::protocol::*;

pub(crate) use crate::copied_program::copy_program;
pub(crate) use crate::static_programs::programs;

/// Longest wait for anything, also in a machine that is emulated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const READONLY: u64 = 1;
pub(crate) const NOSUID: u64 = 2;
pub(crate) const NODEV: u64 = 4;
pub(crate) const NOEXEC: u64 = 8;

/// The 14 capabilities that runtimes grant by default.
pub(crate) const DEFAULT_CAPABILITIES: u64 = 0xa804_25fb;

/// A name that no other test and no other process uses.
pub(crate) fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("hanok-shim-{what}-{}-{count}", std::process::id())
}

/// A pod: its directories, its shim.
pub(crate) struct Pod {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) shim_pid: i32,
    /// From the spawn to the daemon's word.
    pub(crate) launch_time: Duration,
    cgroups: Vec<PathBuf>,
    ended: bool,
}

impl Pod {
    /// A shim without a sandbox.
    pub(crate) fn new() -> Self {
        // In memory: hundreds of links per pod are what a disk does slowest.
        let base = Some(Path::new("/dev/shm")).filter(|d| d.is_dir());
        let base = base.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let dir = tempfile::Builder::new()
            .prefix("hanok-shim-")
            .tempdir_in(base)
            .unwrap();
        let base = dir.path();
        for name in ["shim", "logs", "layer"] {
            fs::create_dir(base.join(name)).unwrap();
        }
        populate(&base.join("layer"));
        let socket = base.join("shim.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let program = programs().join("hanok-shim");
        let begin = Instant::now();
        let status = Command::new(program)
            .args(["--state-dir".as_ref(), base.join("shim").as_os_str()])
            .args(["--socket".as_ref(), socket.as_os_str()])
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        let launch_time = begin.elapsed();
        let pid = fs::read_to_string(base.join("shim/shim.pid")).unwrap();
        Self {
            dir,
            shim_pid: pid.trim().parse().unwrap(),
            launch_time,
            cgroups: vec![],
            ended: false,
        }
    }

    /// A shim with a sandbox that has its own IPC and UTS namespace.
    pub(crate) fn started() -> Self {
        let pod = Self::new();
        pod.start_sandbox(&pod.sandbox());
        pod
    }

    pub(crate) fn sandbox(&self) -> SandboxSpec {
        SandboxSpec {
            id: "sandbox".into(),
            pause: programs().join("hanok-pause").to_str().unwrap().into(),
            net: Namespace::Host,
            ipc: Namespace::New,
            uts: Namespace::New,
            pid: Namespace::Host,
            hostname: "pod-host".into(),
            sysctls: BTreeMap::new(),
            cgroups: vec![],
            oom_score_adj: 0,
        }
    }

    pub(crate) fn start_sandbox(&self, spec: &SandboxSpec) -> i32 {
        match self.call(&Request::StartSandbox(spec.clone())) {
            Reply::Started { pid } => pid,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn client(&self) -> Client {
        let client = Client::connect(&self.path("shim.sock")).unwrap();
        client.set_timeout(Some(PATIENCE)).unwrap();
        client
    }

    pub(crate) fn call(&self, request: &Request) -> Reply {
        self.client().call(request).unwrap()
    }

    pub(crate) fn ok(&self, request: &Request) {
        assert_eq!(self.call(request), Reply::Ok, "{request:?}");
    }

    /// A container's specification with everything a pod's container has.
    pub(crate) fn spec(&self, id: &str, args: &[&str]) -> ContainerSpec {
        for name in ["upper", "work"] {
            fs::create_dir_all(self.path(&format!("{id}/{name}"))).unwrap();
        }
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        ContainerSpec {
            id: id.into(),
            state_dir: text(self.path(id)),
            rootfs: Rootfs::Overlay {
                lower: vec![text(self.path("layer"))],
                upper: text(self.path(&format!("{id}/upper"))),
                work: text(self.path(&format!("{id}/work"))),
            },
            readonly_rootfs: false,
            mounts: default_mounts(),
            masked_paths: [
                "/proc/kcore",
                "/proc/keys",
                "/proc/timer_list",
                "/sys/firmware",
            ]
            .map(String::from)
            .to_vec(),
            readonly_paths: [
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sys",
                "/proc/sysrq-trigger",
            ]
            .map(String::from)
            .to_vec(),
            devices: vec![],
            namespaces: Namespaces {
                net: Namespace::Pod,
                ipc: Namespace::Pod,
                uts: Namespace::Pod,
                pid: Namespace::New,
                cgroup: Namespace::New,
            },
            hostname: None,
            sysctls: BTreeMap::new(),
            process: process(args),
            cgroups: vec![],
            log: Some(Log {
                path: text(self.path(&format!("logs/{id}.log"))),
                max_size: 0,
                max_files: 0,
            }),
            stdin: false,
            stdin_once: false,
            tty: false,
        }
    }

    pub(crate) fn start(&self, spec: &ContainerSpec) -> Reply {
        self.call(&Request::StartContainer(Box::new(spec.clone())))
    }

    /// Starts and returns the process id.
    pub(crate) fn run(&self, spec: &ContainerSpec) -> i32 {
        match self.start(spec) {
            Reply::Started { pid } => pid,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn exit(&self, id: &str) -> Exit {
        wait_for(&format!("the end of {id}"), || {
            let Reply::State(state) = self.call(&Request::State) else {
                panic!()
            };
            state
                .containers
                .into_iter()
                .find(|c| c.id == id)
                .and_then(|c| c.exit)
        })
    }

    /// Runs a container to its end and returns how, and its output with streams joined.
    pub(crate) fn output(&self, spec: &ContainerSpec) -> (Exit, String) {
        self.run(spec);
        let exit = self.exit(&spec.id);
        (exit, self.log_text(&spec.id))
    }

    /// Runs a script of busybox sh in a default container.
    pub(crate) fn sh(&self, id: &str, script: &str) -> (Exit, String) {
        self.output(&self.spec(id, &["sh", "-c", script]))
    }

    pub(crate) fn log_bytes(&self, id: &str) -> Vec<u8> {
        fs::read(self.path(&format!("logs/{id}.log"))).unwrap()
    }

    /// What a reader of the log shows.
    pub(crate) fn log_text(&self, id: &str) -> String {
        let mut text = String::new();
        for line in String::from_utf8_lossy(&self.log_bytes(id)).lines() {
            let mut fields = line.splitn(4, ' ');
            let tag = fields.nth(2).unwrap();
            text.push_str(fields.next().unwrap());
            if tag == "F" {
                text.push('\n');
            }
        }
        text
    }

    /// Cgroup directories of their own, below the test's.
    pub(crate) fn make_cgroups(&mut self) -> Vec<String> {
        let name = unique("test");
        let mut made = Vec::new();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let v2 = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").is_ok();
        for line in own.lines() {
            let fields: Vec<&str> = line.splitn(3, ':').collect();
            let own = Path::new(fields[2].trim_start_matches('/'));
            let dir = match fields[1] {
                // On v2 the test's own cgroup has processes, so its children can have no controllers.
                "" if v2 => Path::new("/sys/fs/cgroup").join(own.parent().unwrap_or(own)),
                "memory" | "pids" | "cpu" | "freezer" => {
                    Path::new("/sys/fs/cgroup").join(fields[1]).join(own)
                }
                _ => continue,
            };
            let dir = dir.join(&name);
            fs::create_dir(&dir).unwrap();
            made.push(dir);
        }
        assert!(!made.is_empty());
        self.cgroups.extend(made.clone());
        made.into_iter()
            .map(|dir| dir.to_str().unwrap().to_owned())
            .collect()
    }

    /// Shuts the shim down and proves that it is gone.
    pub(crate) fn shut_down(&mut self) {
        self.ended = true;
        self.ok(&Request::Shutdown);
        wait_for("the end of the shim", || {
            (!is_running(self.shim_pid)).then_some(())
        });
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if !self.ended && is_running(self.shim_pid) {
            self.shut_down();
        }
        for dir in &self.cgroups {
            let removed = wait_for_quietly(|| fs::remove_dir(dir).is_ok().then_some(()));
            assert!(
                removed.is_some() || std::thread::panicking(),
                "cgroup {dir:?} is in use"
            );
        }
    }
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| {
        let state = rest.trim_start().chars().next();
        !matches!(state, None | Some('Z' | 'X'))
    })
}

/// Waits until a condition gives a value.
pub(crate) fn wait_for<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    wait_for_quietly(condition).unwrap_or_else(|| panic!("{what} did not come"))
}

fn wait_for_quietly<T>(mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return Some(value);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn process(args: &[&str]) -> Process {
    let capabilities = Capabilities {
        bounding: DEFAULT_CAPABILITIES,
        effective: DEFAULT_CAPABILITIES,
        permitted: DEFAULT_CAPABILITIES,
        inheritable: 0,
        ambient: 0,
    };
    Process {
        args: args.iter().map(|a| (*a).to_owned()).collect(),
        env: vec!["PATH=/bin:/usr/bin".into()],
        cwd: "/".into(),
        user: User {
            spec: String::new(),
            gid: None,
            additional_gids: vec![],
            strict_groups: false,
        },
        capabilities,
        no_new_privileges: false,
        seccomp: vec![],
        seccomp_flags: 0,
        rlimits: vec![],
        oom_score_adj: None,
        umask: None,
        apparmor: None,
        selinux: None,
    }
}

pub(crate) fn mount(destination: &str, source: MountSource, attr_set: u64) -> Mount {
    Mount {
        destination: destination.into(),
        source,
        attr_set,
        attr_clear: 0,
        attr_recursive: false,
        propagation: 0,
    }
}

pub(crate) fn filesystem(fstype: &str, options: &[(&str, &str)]) -> MountSource {
    let options = options
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    MountSource::Filesystem {
        fstype: fstype.into(),
        options,
    }
}

pub(crate) fn bind(path: &Path) -> MountSource {
    MountSource::Bind {
        path: path.to_str().unwrap().into(),
        recursive: false,
    }
}

fn default_mounts() -> Vec<Mount> {
    let all = NOSUID | NODEV | NOEXEC;
    vec![
        mount("/proc", filesystem("proc", &[]), all),
        mount(
            "/dev",
            filesystem("tmpfs", &[("mode", "755"), ("size", "65536k")]),
            NOSUID,
        ),
        mount(
            "/dev/pts",
            filesystem(
                "devpts",
                &[("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")],
            ),
            NOSUID | NOEXEC,
        ),
        mount("/dev/mqueue", filesystem("mqueue", &[]), all),
        mount("/dev/shm", MountSource::Shm { size: 1 << 20 }, all),
        mount("/sys", filesystem("sysfs", &[]), all | READONLY),
        mount("/sys/fs/cgroup", MountSource::Cgroup, all | READONLY),
    ]
}

/// busybox with its links, and the files that name users.
fn populate(layer: &Path) {
    for dir in ["bin", "etc", "tmp", "proc", "sys", "dev", "root"] {
        fs::create_dir(layer.join(dir)).unwrap();
    }
    let busybox = layer.join("bin/busybox");
    copy_program(Path::new("/bin/busybox"), &busybox);
    let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8(list.stdout)
        .unwrap()
        .lines()
        .filter(|a| *a != "busybox")
    {
        std::os::unix::fs::symlink("busybox", layer.join("bin").join(applet)).unwrap();
    }
    fs::write(
        layer.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n",
    )
    .unwrap();
    fs::write(layer.join("etc/group"), "root:x:0:\nstaff:x:50:app\n").unwrap();
}
