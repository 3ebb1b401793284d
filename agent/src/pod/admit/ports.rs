//! Host ports: no two pods of a node have the same one, and none has a port of the node itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hanok_runtime::api::PortMapping;
use k8s_openapi::api::core::v1::Pod;

use super::Unmet;
use crate::pod::config::host_ports;
use crate::pod::spec;

/// What does not hold of every host port.
const TAKEN: &str = "node(s) didn't have free ports for the requested pod ports";

/// The rule that does not hold when another pod has one of the pod's host ports: the same protocol and port, on the
/// same address or on all of them. Or when the node `listens` there: the pod would get what is meant for the node,
/// and nobody could reach the agent any more. Who has the node's network takes nothing away: its program is told
/// that the address is in use.
pub(super) fn conflict(pod: &Pod, listens: &[SocketAddr], others: &[Arc<Pod>]) -> Option<Unmet> {
    let wanted = host_ports(pod);
    if wanted.is_empty() {
        return None;
    }
    let unmet = |why| Unmet::Rule {
        name: "NodePorts",
        why,
    };
    let mut used = others.iter().flat_map(|other| host_ports(other));
    let taken = used.any(|used| {
        wanted.iter().any(|wanted| {
            wanted.host_port == used.host_port
                && wanted.protocol == used.protocol
                && addresses_meet(&wanted.host_ip, &used.host_ip)
        })
    });
    if taken {
        return Some(unmet(TAKEN.into()));
    }
    let mut own = listens.iter().filter(|_| !spec::host_network(pod));
    let own = own.find(|own| wanted.iter().any(|wanted| leads_away(wanted, own)))?;
    let why = format!("{TAKEN}: the node itself listens on {own}");
    Some(unmet(why.into()))
}

/// Whether connections to that address of the node would go into the pod.
fn leads_away(wanted: &PortMapping, own: &SocketAddr) -> bool {
    if wanted.protocol != "tcp" || wanted.host_port != own.port() {
        return false;
    }
    let own = own.ip();
    match wanted.host_ip.parse::<IpAddr>() {
        // No address is every address, and 0.0.0.0 is no less.
        Err(_) | Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => true,
        // Who listens on :: hears IPv4 too.
        Ok(ip) if own.is_unspecified() => own.is_ipv6() || ip.is_ipv4(),
        Ok(ip) if ip.is_unspecified() => own.is_ipv6(),
        Ok(ip) => ip == own,
    }
}

/// Whether a packet could be meant for both. As schedulers have it, only 0.0.0.0 stands for every address.
fn addresses_meet(a: &str, b: &str) -> bool {
    let is_any = |address: &str| matches!(address, "" | "0.0.0.0");
    is_any(a) || is_any(b) || a == b
}
