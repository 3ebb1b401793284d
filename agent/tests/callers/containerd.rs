//! containerd with its shim and `ctr`, told to run containers by `hanok oci`: in namespaces of their own, where killing
//! the first process ends everything. Debian's programs, which `e2e/install.sh` unpacks to target/containerd.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::{HANOK, programs, until};

/// The image that [`Containerd::start`] imports.
pub(crate) const IMAGE: &str = "example.test/busybox:1";

/// Makes the archive of an image, as `docker save` does, in its working directory.
const ARCHIVE: &str = r#"set -e
mkdir -p layer/bin layer/tmp && cp /bin/busybox layer/bin/
for name in sh cat sleep tail id; do ln -s busybox layer/bin/$name; done
tar -C layer -cf layer.tar .
digest=$(sha256sum layer.tar | cut -d ' ' -f 1)
echo '{"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:'$digest'"]}}' >config.json
echo '[{"Config": "config.json", "RepoTags": ["'$IMAGE'"], "Layers": ["layer.tar"]}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar"#;

/// One containerd, with an image.
pub(crate) struct Containerd {
    dir: tempfile::TempDir,
    /// `unshare`, with whose end the kernel ends the namespaces.
    process: Child,
    /// containerd itself.
    pid: String,
    /// What the names of its containers and cgroups begin with.
    name: String,
}

impl Containerd {
    pub(crate) fn start(name: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hanok-containerd-")
            .tempdir()
            .unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = {:?}\n[plugins.\"io.containerd.internal.v1.opt\"]\npath = {:?}\n",
            path("root"),
            path("state"),
            path("socket"),
            path("opt"),
        );
        fs::write(path("config.toml"), config).unwrap();
        let runtime = format!(
            "#!/bin/sh\nexec {HANOK} oci --shim {} \"$@\"\n",
            programs().join("hanok-shim").display()
        );
        fs::write(path("runtime"), runtime).unwrap();
        fs::set_permissions(path("runtime"), fs::Permissions::from_mode(0o755)).unwrap();
        // It has sockets of its shims in /run/containerd, whatever it is told.
        let script = "mount -t tmpfs run /run && \"$0\" --log-level warn --config \"$1\" & wait";
        let words = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let process = Command::new("unshare")
            .args(words)
            .args(["--propagation=private", "sh", "-c", script])
            .args([&program("containerd"), Path::new(&path("config.toml"))])
            .env("PATH", search_path())
            .stdin(Stdio::null())
            .stderr(fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        let name = format!("hanok-{name}-{}", std::process::id());
        let mut containerd = Self {
            dir,
            process,
            pid: String::new(),
            name,
        };
        until(|| fs::exists(containerd.path("socket")).unwrap());
        let children = |pid: &str| {
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
        };
        let init = children(&containerd.process.id().to_string());
        containerd.pid = init.trim().to_owned();
        containerd.import();
        containerd
    }

    fn import(&self) {
        let made = Command::new("sh")
            .args(["-c", ARCHIVE])
            .env("IMAGE", IMAGE)
            .current_dir(self.dir.path())
            .status();
        assert!(made.unwrap().success());
        self.done(&["image", "import", &self.path("image.tar")]);
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The whole name of a container.
    pub(crate) fn id(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// `ctr` with these words, where containerd is.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let program = program("ctr").display().to_string();
        let socket = self.path("socket");
        self.inside(&[&[&program, "--address", &socket], words].concat())
    }

    /// These words, where containerd is.
    pub(crate) fn inside(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid, "--mount", "--pid", "--"])
            .args(words)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn call(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What it has written.
    pub(crate) fn done(&self, words: &[&str]) -> String {
        let output = self.call(words);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// `ctr run`, with these options and in this container these words.
    pub(crate) fn run(&self, name: &str, options: &[&str], words: &[&str]) -> Command {
        let id = self.id(name);
        let runtime = self.path("runtime");
        let ours = ["--runc-binary", &runtime, "--cgroup", &id];
        self.command(&[&["run"], &ours[..], options, &[IMAGE, &id], words].concat())
    }

    /// The process and the state that containerd has a container in.
    pub(crate) fn task(&self, name: &str) -> Option<(String, String)> {
        let list = self.done(&["task", "ls"]);
        let id = self.id(name);
        let mut rows = list.lines().map(|line| line.split_whitespace());
        rows.find_map(|mut row| (row.next()? == id).then_some(row))
            .and_then(|mut row| Some((row.next()?.to_owned(), row.next()?.to_owned())))
    }

    /// Cgroups of its containers.
    pub(crate) fn cgroups(&self) -> Vec<PathBuf> {
        let found = Command::new("find")
            .args(["/sys/fs/cgroup", "-type", "d", "-name"])
            .arg(format!("{}-*", self.name))
            .output();
        let found = text(&found.unwrap().stdout);
        found.lines().map(PathBuf::from).collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!(
                "{}",
                fs::read_to_string(self.path("log")).unwrap_or_default()
            );
            // Empty now, as everything has been killed.
            let emptied = |cgroup: &PathBuf| fs::remove_dir(cgroup).is_ok();
            until(|| self.cgroups().iter().all(emptied));
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../containerd/usr/bin")
}

fn program(name: &str) -> PathBuf {
    directory().join(name)
}

/// containerd looks for its shim there.
fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", directory().display())
}
