//! `hanok oci` as its callers call it: conmon, containerd, and the documents that podman and containerd write, as root.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "callers/containerd.rs"]
mod containerd;
#[path = "callers/ctr.rs"]
mod ctr;
#[path = "../../runtime/static_programs.rs"]
mod static_programs;

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use static_programs::programs;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program; what it is called with begins with `oci`.
const HANOK: &str = env!("CARGO_BIN_EXE_hanok");

/// A bundle with busybox.
struct Bundle {
    dir: tempfile::TempDir,
    id: String,
}

impl Bundle {
    fn new(name: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("hanok-callers-")
            .tempdir()
            .unwrap();
        let root = dir.path().join("rootfs");
        for sub in ["bin", "etc", "proc", "sys", "dev", "tmp", "run"] {
            fs::create_dir_all(root.join(sub)).unwrap();
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        for applet in ["sh", "cat", "echo", "ls", "mount", "touch"] {
            symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        let id = format!("hanok-callers-{name}-{}", std::process::id());
        Self { dir, id }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn write(&self, document: &Value) {
        fs::write(self.path("config.json"), document.to_string()).unwrap();
    }

    /// What every call begins with.
    fn flags(&self) -> [String; 5] {
        let shim = programs().join("hanok-shim").display().to_string();
        let state = self.path("state");
        ["oci".into(), "--root".into(), state, "--shim".into(), shim]
    }

    fn call(&self, words: &[&str]) -> Output {
        let mut command = Command::new(HANOK);
        command.args(self.flags()).args(words).arg(&self.id);
        command.output().unwrap()
    }

    fn done(&self, words: &[&str]) -> String {
        let output = self.call(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.done(&["state"])).unwrap()
    }

    /// From its creation to its end, and what it has written to /out.
    fn run(&self) -> String {
        // A container keeps what its creator has for standard output.
        let status = Command::new(HANOK)
            .args(self.flags())
            .args(["create", "--bundle", &self.path(""), &self.id])
            .status();
        assert!(status.unwrap().success());
        self.done(&["start"]);
        until(|| self.state()["status"] == "stopped");
        fs::read_to_string(self.path("rootfs/out")).unwrap_or_default()
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        // After a failed assertion.
        let _ = self.call(&["delete", "--force"]);
    }
}

/// Waits for it.
fn until(is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "it does not come to its end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What both callers write alike.
fn document(script: &str) -> Value {
    let quiet = ["nosuid", "noexec", "nodev"];
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
    json!({
        "ociVersion": "1.0.2-dev",
        "root": { "path": "rootfs" },
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/sh", "-c", script],
            "env": ["PATH=/bin", "TERM=xterm"],
            "cwd": "/",
            "rlimits": [{ "type": "RLIMIT_NOFILE", "hard": 2048, "soft": 1024 }],
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc", "options": quiet },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts",
              "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"] },
            { "destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": quiet },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] },
            { "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
              "options": ["nosuid", "noexec", "nodev", "relatime", "ro"] },
        ],
        "linux": {
            "namespaces": namespaces,
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/irq", "/proc/sys"],
        },
    })
}

#[test]
fn root_conmon_runs_a_container_and_tells_how_it_ended() {
    let bundle = Bundle::new("conmon");
    let mut document = document("echo to out; echo to err >&2; cat; exit 7");
    document["root"]["path"] = bundle.path("rootfs").into();
    bundle.write(&document);
    for dir in ["exits", "sockets"] {
        fs::create_dir(bundle.path(dir)).unwrap();
    }
    let log = format!("k8s-file:{}", bundle.path("log"));
    let words = [
        ["--cid", &bundle.id],
        ["--cuuid", &bundle.id],
        ["--name", &bundle.id],
        ["--runtime", HANOK],
        ["--bundle", &bundle.path("")],
        ["--container-pidfile", &bundle.path("pid")],
        ["--conmon-pidfile", &bundle.path("conmon")],
        ["--exit-dir", &bundle.path("exits")],
        ["--socket-dir-path", &bundle.path("sockets")],
        ["--log-path", &log],
        ["--api-version", "1"],
    ]
    .map(|pair| pair.map(str::to_owned));
    let flags = bundle.flags();
    let flags = flags.iter().flat_map(|flag| ["--runtime-arg", flag]);
    let started = Command::new("conmon")
        .args(words.as_flattened())
        .args(flags)
        .status();
    assert!(
        started
            .expect("conmon, of the package of that name")
            .success()
    );
    until(|| fs::exists(bundle.path("pid")).unwrap());
    until(|| bundle.state()["status"] == "created");
    let pid = fs::read_to_string(bundle.path("pid")).unwrap();
    assert_eq!(bundle.state()["pid"].to_string(), pid.trim());
    bundle.done(&["start"]);
    let exit = bundle.path("exits") + "/" + &bundle.id;
    until(|| fs::read_to_string(&exit).is_ok_and(|text| !text.is_empty()));
    assert_eq!(fs::read_to_string(&exit).unwrap(), "7");
    let log = fs::read_to_string(bundle.path("log")).unwrap();
    for line in [" stdout F to out\n", " stderr F to err\n"] {
        assert!(log.contains(line), "{log}");
    }
    bundle.done(&["delete"]);
}

/// A container with --read-only, limits, hooks, and devices as with --privileged.
fn podmans(bundle: &Bundle) -> Value {
    let script = "echo x >/out || cd /mnt; echo >/run/more && cat /run/.containerenv /etc/hostname /run/lock/* >out; \
        cat /proc/self/cgroup >>out";
    let mut document = document(script);
    let state = |name: &str| {
        let line = format!("cat >{}", bundle.path(name));
        json!([{ "path": "/bin/sh", "args": ["sh", "-c", line], "env": ["PATH=/bin:/usr/bin"], "timeout": 10 }])
    };
    document["hostname"] = "4f0a".into();
    document["process"]["user"]["umask"] = 18.into();
    let sets = ["CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW"];
    document["process"]["capabilities"] =
        json!({ "bounding": sets, "effective": sets, "permitted": sets });
    document["hooks"] =
        json!({ "createRuntime": state("created"), "prestart": [], "poststop": state("stopped") });
    document["annotations"] =
        json!({ "io.container.manager": "libpod", "org.opencontainers.image.stopSignal": "15" });
    document["linux"]["cgroupsPath"] = format!("libpod-{}", bundle.id).into();
    document["linux"]["resources"] = json!({
        "devices": [{ "allow": false, "access": "rwm" }],
        "memory": { "limit": 67_108_864, "swap": 134_217_728 },
        "cpu": { "quota": 50000, "period": 100_000 }, "pids": { "limit": 50 },
    });
    // With --privileged it lists the node's, this one too.
    document["linux"]["devices"] = json!([{ "path": "/dev/ptmx", "type": "c", "major": 5, "minor": 2, "fileMode": 438, "uid": 0, "gid": 5 }]);
    fs::create_dir(bundle.path("mnt")).unwrap();
    for (file, destination) in [
        ("env", "/run/.containerenv"),
        ("name", "/etc/hostname"),
        ("mnt", "/mnt"),
    ] {
        if file != "mnt" {
            fs::write(bundle.path(file), file).unwrap();
        }
        let mount = json!({ "destination": destination, "type": "bind", "source": bundle.path(file),
            "options": ["bind", "rprivate"], "uidMappingsOfLater": [] });
        document["mounts"].as_array_mut().unwrap().push(mount);
    }
    // As with --read-only.
    document["root"]["readonly"] = true.into();
    fs::create_dir(bundle.path("rootfs/run/lock")).unwrap();
    fs::write(bundle.path("rootfs/run/lock/of-the-image"), "kept").unwrap();
    let run = json!({ "destination": "/run", "type": "tmpfs", "source": "tmpfs",
        "options": ["rw", "rprivate", "nosuid", "nodev", "tmpcopyup"] });
    document["mounts"].as_array_mut().unwrap().insert(4, run);
    // Fields of a later specification.
    document["later"] = json!({ "a": [1] });
    document["process"]["execCPUAffinity"] = json!({ "initial": "0" });
    document["linux"]["netDevices"] = json!({});
    document
}

#[test]
fn root_a_document_as_podman_writes_it_runs_with_its_hooks_and_limits() {
    let bundle = Bundle::new("podman");
    let document = podmans(&bundle);
    bundle.write(&document);
    bundle.run();
    let out = fs::read_to_string(bundle.path("mnt/out")).unwrap();
    assert!(out.starts_with("envnamekept"), "{out}");
    assert!(out.contains("/libpod-"), "{out}");
    let of_image = fs::read_dir(bundle.path("rootfs/run")).unwrap();
    assert_eq!(of_image.count(), 1, "the image is as it was");
    assert_eq!(bundle.state()["annotations"], document["annotations"]);
    let told = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(bundle.path(name)).unwrap()).unwrap()
    };
    assert_eq!(told("created")["id"], bundle.id);
    assert_eq!(told("created")["annotations"], document["annotations"]);
    bundle.done(&["delete"]);
    assert_eq!(told("stopped")["status"], "stopped");
}

#[test]
fn root_a_document_as_containerd_writes_it_runs() {
    let bundle = Bundle::new("containerd");
    let mut document = document(
        "ls /sys/fs/cgroup >/dev/null && cat /proc/self/status /proc/self/oom_score_adj >/out",
    );
    document["ociVersion"] = "1.2.1".into();
    let process = &mut document["process"];
    let sets = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_NET_BIND_SERVICE"];
    process["capabilities"] = json!({ "bounding": sets, "effective": sets, "permitted": sets });
    process["user"]["additionalGids"] = json!([0, 10]);
    process["noNewPrivileges"] = true.into();
    process["oomScoreAdj"] = 935.into();
    process["apparmorProfile"] = "".into();
    document["annotations"] = json!({
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "5e0d", "io.kubernetes.cri.container-name": "c",
    });
    document["linux"]["cgroupsPath"] = format!("k8s-{}", bundle.id).into();
    document["linux"]["resources"] = json!({
        "devices": [
            { "allow": false, "access": "rwm" },
            { "allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm" },
        ],
        "memory": { "limit": 33_554_432, "swap": 33_554_432 },
        "cpu": { "shares": 102, "quota": 20000, "period": 100_000, "cpus": "", "mems": "" },
        "hugepageLimits": [], "blockIO": {},
    });
    document["linux"]["seccomp"] = json!({
        "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{ "names": ["mknodat", "a_call_of_later"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
    });
    bundle.write(&document);
    let out = bundle.run();
    for line in [
        "NoNewPrivs:\t1",
        "Groups:\t0 10",
        "Seccomp:\t2",
        "CapEff:\t0000000000000403",
        "\n935\n",
    ] {
        assert!(out.contains(line), "no {line:?} in {out}");
    }
    bundle.done(&["delete"]);
}
