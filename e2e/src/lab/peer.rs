//! The node that hanok is measured against: containerd and a kubelet, with Debian's runc and CNI plugins, in a
//! namespace of the same lab.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::{Lab, cgroup, registry, topology};
use crate::network;
use crate::paths;
use crate::process::{Process, Spawn, wait_for};

const NAME: &str = "peer";
const CONTAINERD: &str = "containerd-peer";
const KUBELET: &str = "kubelet-peer";

/// Directories that containerd, kubelet and plugins use whatever they are told: hidden by a tmpfs in the mount
/// namespace that the peer's processes share.
const HIDDEN: [&str; 3] = ["/run/containerd", "/var/lib/cni", "/var/lib/kubelet"];

/// Settings of the whole machine that a kubelet changes at its start.
const KERNEL_SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// File in the peer's directory with the settings as they were.
const KEPT: &str = "kernel-settings";

/// File in the peer's directory with those of the hidden directories that did not exist.
const MADE: &str = "directories-made";

/// Variable with another OCI runtime than runc for the peer, such as hanok-oci: a program with its path.
const RUNTIME: &str = "HANOK_PEER_RUNTIME";

/// Where Debian puts the CNI plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// The peer node of a lab.
#[derive(Debug, Clone)]
pub struct Peer {
    lab: Lab,
}

impl Peer {
    /// The peer node of this lab, running or not.
    pub fn new(lab: &Lab) -> Self {
        Self { lab: lab.clone() }
    }

    /// Starts it, waits until it is ready and makes its pods reachable.
    ///
    /// # Errors
    /// When a program is missing or the node does not become ready.
    pub fn start(&self) -> Result<()> {
        self.prepare()?;
        let hide: String = HIDDEN
            .map(|dir| format!("mount -t tmpfs peer {dir} && "))
            .concat();
        let script = format!(r#"{hide} exec "$0" "$@""#);
        let config = format!("--config={}", self.file("containerd.toml"));
        let unshare = [
            "unshare",
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            &script,
        ];
        let containerd = self.spawn(CONTAINERD, &unshare, "containerd", vec![config])?;
        wait_for("containerd", Duration::from_secs(30), || {
            ensure!(
                self.run_dir().join("containerd.sock").exists(),
                "it has no socket"
            );
            Ok(())
        })?;
        let flags = [
            (
                "kubeconfig",
                self.lab.kubeconfig("node-peer").display().to_string(),
            ),
            ("config", self.file("kubelet.yaml")),
            ("hostname-override", NAME.to_owned()),
            ("node-ip", self.lab.address(topology::host_number(NAME))),
            ("root-dir", self.file("kubelet")),
            ("cert-dir", self.file("pki")),
        ];
        let mounts = format!("--mount=/proc/{}/ns/mnt", containerd.pid);
        let flags = flags.map(|(k, v)| format!("--{k}={v}")).to_vec();
        self.spawn(KUBELET, &["nsenter", &mounts, "--"], "kubelet", flags)?;
        let cidr = self.ask("{.spec.podCIDR}", |cidr| !cidr.is_empty())?;
        fs::write(
            self.dir().join("cni/10-bridge.conflist"),
            self.network(&cidr),
        )?;
        self.ask(
            r#"{.status.conditions[?(@.type=="Ready")].status}"#,
            |ready| ready == "True",
        )
        .with_context(|| self.lab.processes().log_tail(KUBELET))?;
        self.lab.route_pods()
    }

    /// Its network namespace.
    pub fn netns(&self) -> String {
        self.lab.netns(NAME)
    }

    /// Ids of all its processes: daemons, shims and what runs in its pods.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids = network::processes_in(&self.lab.netns(NAME));
        for group in cgroup::of_machine(&self.lab, NAME) {
            pids.extend(cgroup::processes(&group));
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Stops kubelet and containerd; what they run is left to the lab's end.
    ///
    /// # Errors
    /// When one survives SIGKILL.
    pub fn stop(&self) -> Result<()> {
        for name in [KUBELET, CONTAINERD] {
            self.lab
                .processes()
                .stop(name, Signal::TERM, Duration::from_secs(10))?;
        }
        Ok(())
    }

    /// Where manifests of its static pods are.
    pub fn manifests(&self) -> PathBuf {
        self.dir().join("manifests")
    }

    fn dir(&self) -> PathBuf {
        self.lab.dir().join(NAME)
    }

    fn run_dir(&self) -> PathBuf {
        self.lab.run_dir().join(NAME)
    }

    fn file(&self, name: &str) -> String {
        self.dir().join(name).display().to_string()
    }

    fn prepare(&self) -> Result<()> {
        for dir in [self.dir().join("cni"), self.manifests(), self.run_dir()] {
            fs::create_dir_all(dir)?;
        }
        fs::write(
            self.dir().join("containerd.toml"),
            self.containerd_configuration(),
        )?;
        self.keep_kernel_settings()?;
        self.make_hidden_directories()?;
        let root = cgroup::create_common(&self.lab, NAME)?;
        fs::write(
            self.dir().join("kubelet.yaml"),
            self.kubelet_configuration(&root).to_string(),
        )?;
        Ok(())
    }

    /// Starts a program behind one that changes its mount namespace and then execs it.
    fn spawn(
        &self,
        name: &str,
        before: &[&str],
        program: &str,
        args: Vec<String>,
    ) -> Result<Process> {
        let netns = self.lab.netns(NAME);
        // containerd looks for its shim in PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", paths::target().join("bin").display());
        let program = paths::go_program(program)?.display().to_string();
        let (first, rest) = before.split_first().context("nothing to run")?;
        let rest = rest.iter().map(|&arg| arg.to_owned());
        self.lab.processes().spawn(&Spawn {
            name,
            netns: Some(&netns),
            program: PathBuf::from(first),
            args: rest.chain([program]).chain(args).collect(),
            env: vec![("PATH".to_owned(), path)],
        })
    }

    fn keep_kernel_settings(&self) -> Result<()> {
        let file = self.dir().join(KEPT);
        if file.exists() {
            return Ok(());
        }
        let line = |name: &str| {
            let value = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
            Some(format!("{name} {}\n", value.trim()))
        };
        Ok(fs::write(
            file,
            KERNEL_SETTINGS
                .into_iter()
                .filter_map(line)
                .collect::<String>(),
        )?)
    }

    fn make_hidden_directories(&self) -> Result<()> {
        let missing: Vec<&str> = HIDDEN
            .into_iter()
            .filter(|d| !Path::new(d).exists())
            .collect();
        let mut made = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir().join(MADE))?;
        for dir in missing {
            writeln!(made, "{dir}")?;
            fs::create_dir_all(dir)?;
        }
        Ok(())
    }

    /// Gives the machine back what the kubelet has changed outside the lab's directories.
    pub(super) fn restore_machine(&self) -> Result<()> {
        let text = |file: &str| fs::read_to_string(self.dir().join(file)).unwrap_or_default();
        for (name, value) in text(KEPT).lines().filter_map(|l| l.split_once(' ')) {
            let path = Path::new("/proc/sys").join(name);
            fs::write(&path, value).with_context(|| path.display().to_string())?;
        }
        for dir in text(MADE).lines().filter(|d| Path::new(d).exists()) {
            fs::remove_dir(dir).with_context(|| dir.to_owned())?;
        }
        Ok(())
    }

    fn ask(&self, path: &str, enough: impl Fn(&str) -> bool) -> Result<String> {
        wait_for(
            &format!("{path} of the peer"),
            Duration::from_secs(60),
            || {
                for name in [CONTAINERD, KUBELET] {
                    ensure!(
                        self.lab.processes().running(name).is_some(),
                        "{name} has ended"
                    );
                }
                let value =
                    self.lab
                        .kubectl(&["get", "node", NAME, "-o", &format!("jsonpath={path}")])?;
                ensure!(enough(&value), "it is {value:?}");
                Ok(value)
            },
        )
    }

    fn containerd_configuration(&self) -> String {
        let run = |name: &str| self.run_dir().join(name).display().to_string();
        let runtime = std::env::var(RUNTIME).unwrap_or_else(|_| "runc".to_owned());
        format!(
            r#"version = 3
root = "{root}"
state = "{state}"
[grpc]
address = "{socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{registry}/pause:1"
[plugins."io.containerd.cri.v1.images".registry]
config_path = "{certs}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runtime}"
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{PLUGINS}"]
conf_dir = "{cni}"
[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"
[plugins."io.containerd.nri.v1.nri"]
disable = true
"#,
            root = self.file("containerd"),
            state = run("containerd"),
            socket = run("containerd.sock"),
            registry = self.lab.registry(),
            certs = registry::hosts_directory(&self.lab).display(),
            cni = self.file("cni"),
            opt = self.file("opt"),
        )
    }

    fn kubelet_configuration(&self, cgroup_root: &str) -> serde_json::Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.lab.pki().join("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup_root,
            "clusterDNS": [topology::CLUSTER_DNS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": format!("unix://{}", self.run_dir().join("containerd.sock").display()),
            "enforceNodeAllocatable": [],
            "imageGCHighThresholdPercent": 100,
            "failCgroupV1": false,
            "failSwapOn": false,
            // The machine's disk may be full of other things; a tenth of a large one is much.
            "evictionHard": { "nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi" },
            "kubeAPIBurst": 500,
            "kubeAPIQPS": 500,
            "maxPods": 250,
            "podLogsDir": self.dir().join("pod-logs"),
            "registryPullQPS": 0,
            "serializeImagePulls": false,
            "staticPodPath": self.manifests(),
            "volumePluginDir": self.dir().join("plugins"),
        })
    }

    fn network(&self, cidr: &str) -> String {
        let config = json!({
            "cniVersion": "1.0.0",
            "name": "bridge",
            "plugins": [{
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": self.run_dir().join("leases"),
                    "ranges": [[{ "subnet": cidr }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        });
        config.to_string()
    }
}
