//! A node of the lab: `hanok agent` in the node's namespace, with every path, cgroup and bridge of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use super::{Lab, cgroup, down, machine, registry, topology};
use crate::paths;
use crate::process::{Process, Spawn, start_time, wait_for};

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

    /// Its lab.
    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The credentials of its agent.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.lab.kubeconfig(&format!("node-{}", self.name))
    }

    /// Whether it is a virtual machine, where nothing can be looked at from here.
    pub fn is_machine(&self) -> bool {
        machine::is_one(&self.dir())
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

    /// Whether the agent runs.
    ///
    /// # Errors
    /// When the node is a machine that does not answer.
    pub fn agent_runs(&self) -> Result<bool> {
        match self.is_machine() {
            true => Ok(machine::ask(self, "running")? == ["yes"]),
            false => Ok(self.agent().is_some()),
        }
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
            !self.agent_runs()?,
            "the agent of {} runs already",
            self.name
        );
        if self.is_machine() {
            return machine::ask(self, "start").map(drop);
        }
        cgroup::remember(&self.lab)?;
        for dir in [self.dir().join("cni"), self.manifests(), self.run_dir()] {
            fs::create_dir_all(dir)?;
        }
        self.configure(&self.netns())?;
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
            if !self.agent_runs()? {
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
        if self.is_machine() {
            return machine::ask(self, "kill").map(drop);
        }
        self.lab
            .processes()
            .stop(&self.record(), Signal::KILL, Duration::from_secs(10))
    }

    /// Asks the agent to end with SIGTERM; its pods run on.
    ///
    /// # Errors
    /// When it survives SIGKILL after ten seconds.
    pub fn stop(&self) -> Result<()> {
        if self.is_machine() {
            return machine::ask(self, "stop").map(drop);
        }
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

    /// Every process in the node's cgroups, as its id with the time of its start.
    ///
    /// # Errors
    /// When the node is a machine that does not answer.
    pub fn processes(&self) -> Result<BTreeSet<String>> {
        if self.is_machine() {
            return Ok(machine::ask(self, "processes")?.into_iter().collect());
        }
        let pids = self.cgroup_processes().into_iter();
        Ok(pids
            .filter_map(|pid| Some(format!("{pid} {}", start_time(pid).ok()?)))
            .collect())
    }

    /// What a machine has of pods, a line for each thing, as it says itself.
    ///
    /// # Errors
    /// When it does not answer.
    pub(crate) fn left_in_machine(&self) -> Result<Vec<String>> {
        machine::ask(self, "left")
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
        let flags = [
            ("kubeconfig", self.kubeconfig().display().to_string()),
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

    /// Writes the agent's configuration; its pods' cgroups are to be below `cgroup_root`.
    pub(super) fn configure(&self, cgroup_root: &str) -> Result<()> {
        let text = self.configuration(cgroup_root);
        Ok(fs::write(self.dir().join("config.yaml"), text)?)
    }

    /// Its KubeletConfiguration.
    fn configuration(&self, cgroup_root: &str) -> String {
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
            "clusterDomain": "cluster.local",
            "cgroupRoot": cgroup_root,
            "failSwapOn": false,
            "maxPods": 250,
            "podLogsDir": self.dir().join("pod-logs"),
            "staticPodPath": self.manifests(),
        });
        config.to_string() + "\n"
    }

    fn record(&self) -> String {
        match self.is_machine() {
            true => machine::record(self),
            false => format!("agent-{}", self.name),
        }
    }
}
