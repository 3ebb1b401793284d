//! A node that is measured, and its processes by what they are.

use std::collections::BTreeMap;
use std::fs;

use crate::lab::{Node, Peer};
use crate::network;

/// A node under measurement.
#[derive(Debug)]
pub(super) enum Subject {
    /// `hanok agent`.
    Hanok(Node),
    /// kubelet and containerd.
    Kubelet(Peer),
}

impl Subject {
    /// The name in figures.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hanok(_) => "hanok",
            Self::Kubelet(_) => "kubelet",
        }
    }

    /// The node's name in the cluster.
    pub(super) fn node(&self) -> &str {
        match self {
            Self::Hanok(node) => node.name(),
            Self::Kubelet(_) => "peer",
        }
    }

    /// The node's network namespace.
    pub(super) fn netns(&self) -> String {
        match self {
            Self::Hanok(node) => node.netns(),
            Self::Kubelet(peer) => peer.netns(),
        }
    }

    /// Process ids of the node's own processes, without the pods' programs, by kind: `agent`, `shim`, `pause` ...
    pub(super) fn processes(&self) -> BTreeMap<&'static str, Vec<i32>> {
        let pids = match self {
            Self::Hanok(node) => {
                let mut pids = network::processes_in(&node.netns());
                pids.extend(node.cgroup_processes());
                // A shim's zygote may live in the network of its pod.
                let made: Vec<i32> = pids.iter().flat_map(|pid| children(*pid)).collect();
                pids.extend(made);
                pids
            }
            Self::Kubelet(peer) => peer.processes(),
        };
        let mut kinds: BTreeMap<&'static str, Vec<i32>> = BTreeMap::new();
        for pid in pids {
            if let Some(kind) = kind(pid) {
                let list = kinds.entry(kind).or_default();
                if !list.contains(&pid) {
                    list.push(pid);
                }
            }
        }
        kinds
    }
}

fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = text.split_whitespace();
    children.filter_map(|pid| pid.parse().ok()).collect()
}

/// What a process is; none for a pod's own program.
fn kind(pid: i32) -> Option<&'static str> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // By name, since a shim's executable is sealed away from its path; the kernel cuts names at 15 bytes. Both
    // pause programs are told from the pods' by how they are started: the peer's image has nothing else.
    match name.trim_end() {
        "hanok" => Some("agent"),
        "hanok-shim" | "hanok-zygote" | "containerd-shim" => Some("shim"),
        "hanok-pause" | "pause" => Some("pause"),
        "kubelet" => Some("kubelet"),
        "containerd" => Some("containerd"),
        "testapp" if command == b"/testapp\0sleep\0" => Some("pause"),
        _ => None,
    }
}
