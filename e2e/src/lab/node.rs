//! A node of the lab: `hanok agent` in the node's namespace, with every path, cgroup and bridge of its own.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::{Lab, cgroup, down, registry, topology};
use crate::paths;
use crate::process::{Process, Spawn, wait_for};

/// A node by name.
#[derive(Debug, Clone)]
pub struct Node {
    lab: Lab,
    name: String,
}

impl Node {
    pub(super) fn new(lab: &Lab, name: &str) -> Self {
        Self {
            lab: lab.clone(),
            name: name.to_owned(),
        }
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.lab.address(topology::host_number(&self.name))
    }

    /// Its network namespace.
    pub fn netns(&self) -> String {
        self.lab.netns(&self.name)
    }

    /// Where everything of it is.
    pub fn dir(&self) -> PathBuf {
        self.lab.dir().join(&self.name)
    }

    /// Its part of the tmpfs.
    pub fn run_dir(&self) -> PathBuf {
        self.lab.run_dir().join(&self.name)
    }

    /// Where manifests of its static pods are.
    pub fn manifests(&self) -> PathBuf {
        self.dir().join("manifests")
    }

    /// The agent's process, when it runs.
    pub fn agent(&self) -> Option<Process> {
        self.lab.processes().running(&self.record())
    }

    /// What the agent has logged so far.
    pub fn log(&self) -> String {
        let text = fs::read(self.lab.processes().log(&self.record())).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Starts the agent. The node need not be ready when this returns.
    ///
    /// # Errors
    /// When the program is missing or cannot be started.
    pub fn start(&self) -> Result<()> {
        ensure!(
            self.agent().is_none(),
            "the agent of {} runs already",
            self.name
        );
        cgroup::remember(&self.lab)?;
        for dir in [self.dir().join("cni"), self.manifests(), self.run_dir()] {
            fs::create_dir_all(dir)?;
        }
        fs::write(self.dir().join("config.yaml"), self.configuration())?;
        self.lab.processes().spawn(&Spawn {
            name: &self.record(),
            netns: Some(&self.netns()),
            program: paths::hanok()?,
            args: self.flags(),
            env: vec![("RUST_LOG".into(), "info".into())],
        })?;
        Ok(())
    }

    /// Waits until the node is ready.
    ///
    /// # Errors
    /// When the agent ends or the deadline passes.
    pub fn wait_ready(&self, deadline: Duration) -> Result<()> {
        let condition = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let ready = wait_for(&format!("node {}", self.name), deadline, || {
            if self.agent().is_none() {
                let tail = self.lab.processes().log_tail(&self.record());
                return Ok(Err(anyhow::anyhow!(
                    "the agent of {} has ended: {tail}",
                    self.name
                )));
            }
            let status = self
                .lab
                .kubectl(&["get", "node", &self.name, "-o", condition])?;
            ensure!(status == "True", "node {} is Ready={status:?}", self.name);
            Ok(Ok(()))
        });
        ready.with_context(|| self.lab.processes().log_tail(&self.record()))?
    }

    /// Ends the agent with SIGKILL; its pods run on.
    ///
    /// # Errors
    /// When it survives.
    pub fn kill(&self) -> Result<()> {
        self.lab
            .processes()
            .stop(&self.record(), Signal::KILL, Duration::from_secs(10))
    }

    /// Asks the agent to end with SIGTERM; its pods run on.
    ///
    /// # Errors
    /// When it survives SIGKILL after ten seconds.
    pub fn stop(&self) -> Result<()> {
        self.lab
            .processes()
            .stop(&self.record(), Signal::TERM, Duration::from_secs(10))
    }

    /// The node's cgroups, one in each hierarchy that has any.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        cgroup::of_machine(&self.lab, &self.name)
    }

    /// Every cgroup at and below one, children before their parents.
    pub fn cgroup_tree(dir: &std::path::Path) -> Vec<PathBuf> {
        cgroup::tree(dir)
    }

    /// Ids of the processes in the node's cgroups.
    pub fn cgroup_processes(&self) -> Vec<i32> {
        self.cgroups()
            .iter()
            .flat_map(|dir| cgroup::processes(dir))
            .collect()
    }

    /// Mount points below the node's directories.
    pub fn mounts(&self) -> Vec<String> {
        [self.dir(), self.run_dir()]
            .iter()
            .flat_map(|dir| down::mounts_below(dir))
            .collect()
    }

    /// Directories in which every entry belongs to a pod, with a word for what the entries are.
    pub fn pod_directories(&self) -> Vec<(&'static str, PathBuf)> {
        let (dir, run) = (self.dir(), self.run_dir());
        vec![
            ("network namespace", run.join("netns")),
            ("sandbox", run.join("run/sandboxes")),
            ("CNI result", run.join("run/cni/results")),
            ("volumes", dir.join("state/pods")),
            ("logs", dir.join("pod-logs")),
            ("log link", dir.join("container-logs")),
        ]
    }

    /// Directory below which leases of pods' addresses are files named after the address.
    pub fn lease_directory(&self) -> PathBuf {
        self.run_dir().join("run/ipam")
    }

    /// The flags of its agent.
    pub fn flags(&self) -> Vec<String> {
        let dir = |sub: &str| self.dir().join(sub).display().to_string();
        let run = |sub: &str| self.run_dir().join(sub).display().to_string();
        let kubeconfig = self.lab.kubeconfig(&format!("node-{}", self.name));
        let flags = [
            ("kubeconfig", kubeconfig.display().to_string()),
            ("config", dir("config.yaml")),
            ("hostname-override", self.name.clone()),
            ("node-ip", self.address()),
            ("state-dir", dir("state")),
            ("run-dir", run("run")),
            ("netns-dir", run("netns")),
            ("containers-log-dir", dir("container-logs")),
            ("cni-conf-dir", dir("cni")),
            (
                "registry-config",
                registry::hosts_directory(&self.lab).display().to_string(),
            ),
            ("bridge-name", "hanok0".to_owned()),
        ];
        std::iter::once("agent".to_owned())
            .chain(flags.into_iter().map(|(k, v)| format!("--{k}={v}")))
            .collect()
    }

    /// Its KubeletConfiguration.
    fn configuration(&self) -> String {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.lab.pki().join("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            "clusterDNS": [topology::CLUSTER_DNS],
            "cgroupRoot": self.netns(),
            "failSwapOn": false,
            "maxPods": 250,
            "podLogsDir": self.dir().join("pod-logs"),
            "staticPodPath": self.manifests(),
        });
        config.to_string() + "\n"
    }

    fn record(&self) -> String {
        format!("agent-{}", self.name)
    }
}
