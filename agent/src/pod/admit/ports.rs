//! Host ports: no two pods of a node have the same one.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::Unmet;
use crate::pod::config::host_ports;

/// The rule that does not hold when another pod has one of the pod's host ports: the same protocol and port, on the
/// same address or on all of them.
pub(super) fn conflict(pod: &Pod, others: &[Arc<Pod>]) -> Option<Unmet> {
    let wanted = host_ports(pod);
    if wanted.is_empty() {
        return None;
    }
    let mut used = others.iter().flat_map(|other| host_ports(other));
    let taken = used.any(|used| {
        wanted.iter().any(|wanted| {
            wanted.host_port == used.host_port
                && wanted.protocol == used.protocol
                && addresses_meet(&wanted.host_ip, &used.host_ip)
        })
    });
    taken.then_some(Unmet::Rule {
        name: "NodePorts",
        why: "node(s) didn't have free ports for the requested pod ports",
    })
}

/// Whether a packet could be meant for both. As schedulers have it, only 0.0.0.0 stands for every address.
fn addresses_meet(a: &str, b: &str) -> bool {
    let is_any = |address: &str| matches!(address, "" | "0.0.0.0");
    is_any(a) || is_any(b) || a == b
}
