//! A bundle for a test: a root filesystem with busybox, a configuration to change, and a runtime of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hanok_runtime::oci::{CreateOptions, ExecOptions, OciError, Runtime, Status};
use serde_json::{Value, json};

use crate::copied_program::copy_program;
use crate::static_programs::programs;

/// Longest wait for anything, also in a machine that is emulated.
const PATIENCE: Duration = Duration::from_secs(60);

fn shim() -> PathBuf {
    programs().join("hanok-shim")
}

/// A bundle and the one container that is made of it.
pub(crate) struct Bundle {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) id: String,
    pub(crate) config: Value,
    pub(crate) runtime: Runtime,
}

impl Bundle {
    /// A container that runs a script with all namespaces of its own but that of users.
    pub(crate) fn new(script: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = tempfile::Builder::new()
            .prefix("hanok-oci-")
            .tempdir()
            .unwrap();
        populate(&dir.path().join("rootfs"));
        let runtime = Runtime::new(dir.path().join("containers"), shim());
        Self {
            id: format!("hanok-oci-test-{}-{count}", std::process::id()),
            config: config(script),
            runtime,
            dir,
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("rootfs")
    }

    /// What the script has written to /out.
    pub(crate) fn out(&self) -> String {
        fs::read_to_string(self.root().join("out")).unwrap()
    }

    pub(crate) fn shim_bytes() -> Vec<u8> {
        fs::read(shim()).unwrap()
    }

    pub(crate) fn create(&self) -> Result<(), OciError> {
        self.create_with(None)
    }

    /// With a socket for its terminal.
    pub(crate) fn create_with(&self, console_socket: Option<PathBuf>) -> Result<(), OciError> {
        fs::write(self.dir.path().join("config.json"), self.config.to_string()).unwrap();
        let options = CreateOptions {
            bundle: self.dir.path().to_owned(),
            console_socket,
            ..CreateOptions::default()
        };
        self.runtime.create(&self.id, &options)
    }

    /// Runs it to its end, and deletes it.
    pub(crate) fn run(&self) {
        self.create().unwrap();
        self.runtime.start(&self.id).unwrap();
        self.wait();
        self.runtime.delete(&self.id, false).unwrap();
    }

    pub(crate) fn status(&self) -> Status {
        self.runtime.state(&self.id).unwrap().status()
    }

    pub(crate) fn wait(&self) {
        let begin = Instant::now();
        while self.status() != Status::Stopped {
            assert!(begin.elapsed() < PATIENCE, "{} does not end", self.id);
            std::thread::yield_now();
        }
    }

    pub(crate) fn exec(&self, script: &str) -> Result<i32, OciError> {
        let options = ExecOptions {
            args: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            ..ExecOptions::default()
        };
        self.runtime.exec(&self.id, &options)
    }

    /// Nothing is left of it but the bundle.
    pub(crate) fn assert_gone(&self, cgroups: &[PathBuf]) {
        assert!(matches!(
            self.runtime.state(&self.id),
            Err(OciError::NotFound(_))
        ));
        assert!(!self.dir.path().join("containers").join(&self.id).exists());
        for cgroup in cgroups {
            assert!(!cgroup.exists(), "{}", cgroup.display());
        }
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        // After a failed assertion.
        let _ = self.runtime.delete(&self.id, true);
    }
}

fn config(script: &str) -> Value {
    let quiet = ["nosuid", "noexec", "nodev"];
    let own = ["pid", "network", "ipc", "uts", "mount", "cgroup"];
    json!({
        "ociVersion": "1.0.2",
        "hostname": "room",
        "root": { "path": "rootfs" },
        "process": {
            "cwd": "/",
            "args": ["/bin/sh", "-c", script],
            "env": ["PATH=/bin"],
            "user": { "uid": 0, "gid": 0 },
            "noNewPrivileges": true,
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc", "options": quiet },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] },
        ],
        "linux": {
            "namespaces": own.map(|kind| json!({ "type": kind })),
        },
    })
}

fn populate(root: &Path) {
    for dir in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    copy_program(Path::new("/bin/busybox"), &root.join("bin/busybox"));
    for applet in [
        "sh", "cat", "echo", "sleep", "true", "id", "ls", "grep", "mknod", "mount", "umount",
        "hostname", "touch", "dd",
    ] {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
}
