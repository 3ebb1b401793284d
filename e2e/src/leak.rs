//! What a node must not have once its last pod is gone.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::lab::{Lab, Node};
use crate::network;
use crate::process::{run, wait_for};

/// How long the node may take to tidy up after the API server has let the last pod go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until no node of the lab has anything of any pod.
///
/// # Errors
/// With a line for each thing that is left.
pub fn check(lab: &Lab) -> Result<()> {
    for name in lab.nodes() {
        let node = lab.node(name);
        wait_for(&format!("nothing to be left on {name}"), PATIENCE, || {
            let left = left_on(&node)?;
            ensure!(left.is_empty(), "left on {name}: {left:#?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// Everything of pods that a node has, a line for each thing.
fn left_on(node: &Node) -> Result<BTreeSet<String>> {
    if node.is_machine() {
        return Ok(node.left_in_machine()?.into_iter().collect());
    }
    let mut left = BTreeSet::new();
    processes(node, &mut left);
    cgroups(node, &mut left);
    left.extend(node.mounts().into_iter().map(|m| format!("mount {m}")));
    links(node, &mut left)?;
    nft_elements(node, &mut left)?;
    for (what, dir) in node.pod_directories() {
        left.extend(entries(&dir).map(|path| format!("{what} {}", path.display())));
    }
    leases(&node.lease_directory(), &mut left);
    Ok(left)
}

fn processes(node: &Node, left: &mut BTreeSet<String>) {
    let agent = node.agent().map_or(0, |p| p.pid);
    let mut pids = network::processes_in(&node.netns());
    pids.extend(node.cgroup_processes());
    for pid in pids.into_iter().filter(|pid| *pid != agent) {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        left.insert(format!("process {pid} {}", line.replace('\0', " ")));
    }
}

fn cgroups(node: &Node, left: &mut BTreeSet<String>) {
    let roots = node.cgroups();
    let all = roots.iter().flat_map(|root| Node::cgroup_tree(root));
    let of_pods = all.filter(|dir| {
        dir.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("pod"))
    });
    left.extend(of_pods.map(|dir| format!("cgroup {}", dir.display())));
}

/// Every link beside the node's own uplink, its loopback and the bridge.
fn links(node: &Node, left: &mut BTreeSet<String>) -> Result<()> {
    let text = run(
        "ip",
        &["-n", &node.netns(), "-o", "link", "show", "type", "veth"],
    )?;
    let names = text.lines().filter_map(|line| line.split(": ").nth(1));
    left.extend(
        names
            .filter(|n| !n.starts_with("eth0"))
            .map(|n| format!("link {n}")),
    );
    Ok(())
}

/// Whatever in the ruleset names a pod's address; the rules that all pods share name whole subnets.
fn nft_elements(node: &Node, left: &mut BTreeSet<String>) -> Result<()> {
    let text = network::in_namespace(&node.netns(), &["nft", "list", "ruleset"])?;
    let of_pods = text.lines().filter(|line| names_a_pod(line));
    left.extend(of_pods.map(|line| format!("nft {}", line.trim())));
    Ok(())
}

fn names_a_pod(line: &str) -> bool {
    line.split([' ', ','])
        .any(|word| word.starts_with("10.244.") && !word.contains('/'))
}

/// Files named after an address, in the directories of the node's networks.
fn leases(dir: &Path, left: &mut BTreeSet<String>) {
    let is_lease = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().parse::<IpAddr>().is_ok())
    };
    let networks = entries(dir).flat_map(|network| entries(&network).collect::<Vec<_>>());
    left.extend(
        networks
            .filter(is_lease)
            .map(|path| format!("lease {}", path.display())),
    );
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_addresses_of_pods_count() {
        assert!(names_a_pod("elements = { 10.244.0.7 }"));
        assert!(!names_a_pod(
            "ip saddr 10.244.0.0/24 ip daddr != 224.0.0.0/4 masquerade"
        ));
    }
}
