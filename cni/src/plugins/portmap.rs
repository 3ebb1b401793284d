//! portmap: ports of the node that lead into a pod (capability `portMappings`).
//!
//! ```text
//! to an address of the node, port 8080 ─► dnat to 10.1.0.5:80 ─► the pod
//!     from outside: the pod sees who it was
//!     from the pod's own subnet, or from the node's loopback: masquerade, since the answer would not come back
//! ```
//! One nftables table (`table` in the configuration, or `hanok-ports-NETWORK`) with rules that carry the container's id: ADD appends
//! in one transaction, DEL removes what carries the id, and the table goes with its last rule. Only packets to
//! addresses of this node are touched, never what it routes for others. The node's loopback stays closed to packets
//! from outside, though the kernel is told to route it.

mod conntrack;
mod rules;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;
use serde_json::Value;

use super::{Call, PluginError, sysctl};
use crate::attachment::PortMapping;
use crate::netlink::Socket;
use crate::nft;
use crate::spec::AddResult;

/// Looking at a table and changing it is one step for this process.
static TABLES: Mutex<()> = Mutex::new(());

/// The table of a network.
fn table_name(call: &Call) -> String {
    let given = call.config.get("table").and_then(Value::as_str);
    given.map_or_else(|| format!("hanok-ports-{}", call.network), str::to_owned)
}

/// One mapping for one address of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Door {
    protocol: Protocol,
    host_ip: Option<IpAddr>,
    host_port: u16,
    pod: IpNet,
    pod_port: u16,
}

/// Protocols with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Its number in IP headers.
    fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

pub(super) fn add(call: &Call) -> Result<AddResult, PluginError> {
    let Some(result) = call.previous.clone() else {
        return Err(PluginError::Mismatch(
            "portmap has to follow a plugin that gives an address".to_owned(),
        ));
    };
    let doors = doors(call, &result)?;
    if doors.is_empty() {
        return Ok(result);
    }
    if doors.iter().any(|door| door.pod.addr().is_ipv4())
        && let Some(bridge) = result.interfaces.iter().find(|i| i.sandbox.is_empty())
    {
        // Answers to the node's own loopback come in by this interface.
        sysctl::set(&format!("ipv4/conf/{}/route_localnet", bridge.name), "1")?;
    }
    let table = table_name(call);
    let mut socket = Socket::netfilter()?;
    {
        let _one = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        remove(&mut socket, &table, &call.attachment.id, false)?;
        nft::append(
            &mut socket,
            &table,
            &rules::chains(&call.attachment.id, &doors),
            rules::GUARD,
        )?;
    }
    // After the rules: a datagram between would make a new entry without them.
    conntrack::forget(&mut socket, &doors)?;
    Ok(result)
}

pub(super) fn del(call: &Call) -> Result<(), PluginError> {
    let table = table_name(call);
    let mut socket = Socket::netfilter()?;
    let removed = {
        let _one = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        remove(&mut socket, &table, &call.attachment.id, true)?
    };
    if removed {
        let result = call.previous.clone().unwrap_or_default();
        conntrack::forget(&mut socket, &doors(call, &result).unwrap_or_default())?;
    }
    Ok(())
}

pub(super) fn check(call: &Call) -> Result<(), PluginError> {
    let result = call.previous.clone().unwrap_or_default();
    let doors = doors(call, &result)?;
    let table = table_name(call);
    let mark = rules::comment(&call.attachment.id);
    let found = nft::rules(&mut Socket::netfilter()?, &table)?;
    let ours = found.iter().filter(|rule| rule.comment == mark).count();
    let expected: usize = match doors.is_empty() {
        true => 0,
        false => rules::chains(&call.attachment.id, &doors)
            .iter()
            .flat_map(|chain| &chain.rules)
            .filter(|rule| rule.comment == mark)
            .count(),
    };
    if ours == expected {
        return Ok(());
    }
    Err(PluginError::Mismatch(format!(
        "table {table:?} has {ours} rules for host ports, expected {expected}"
    )))
}

/// Removes a container's rules, and with the last container's the table. Whether there were any.
fn remove(
    socket: &mut Socket,
    table: &str,
    id: &str,
    with_table: bool,
) -> Result<bool, PluginError> {
    let mark = rules::comment(id);
    let (ours, others): (Vec<_>, Vec<_>) = nft::rules(socket, table)?
        .into_iter()
        .filter(|rule| rule.comment != rules::GUARD)
        .partition(|rule| rule.comment == mark);
    if ours.is_empty() {
        return Ok(false);
    }
    if with_table && others.is_empty() {
        nft::replace_table(socket, table, &[])?;
    } else {
        nft::delete_rules(socket, table, &ours)?;
    }
    Ok(true)
}

/// What the mappings mean for the pod's addresses, each of which has one of its family at most.
fn doors(call: &Call, result: &AddResult) -> Result<Vec<Door>, PluginError> {
    let capable = call.config.get("capabilities");
    let capable = capable.and_then(|all| all.get("portMappings"));
    if capable != Some(&Value::Bool(true)) {
        return Ok(Vec::new());
    }
    let mut doors = Vec::new();
    for mapping in &call.attachment.port_mappings {
        let protocol = protocol(mapping)?;
        for ip in &result.ips {
            let pod = ip.address;
            let wanted = mapping.host_ip.filter(|ip| !ip.is_unspecified());
            let family = mapping
                .host_ip
                .filter(|ip| wanted.is_some() || *ip != IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            if family.is_some_and(|host| host.is_ipv4() != pod.addr().is_ipv4()) {
                continue;
            }
            let door = Door {
                protocol,
                host_ip: wanted,
                host_port: mapping.host_port,
                pod,
                pod_port: mapping.container_port,
            };
            if !doors.contains(&door) {
                doors.push(door);
            }
        }
    }
    Ok(doors)
}

fn protocol(mapping: &PortMapping) -> Result<Protocol, PluginError> {
    match mapping.protocol.to_ascii_lowercase().as_str() {
        "tcp" | "" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "sctp" => Ok(Protocol::Sctp),
        other => Err(PluginError::Mismatch(format!(
            "protocol {other:?} of host port {} is not tcp, udp or sctp",
            mapping.host_port
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    fn call(mappings: &[(&str, u16, u16, Option<&str>)]) -> Call {
        let attachment = crate::Attachment {
            id: "abc".into(),
            netns: "/x".into(),
            ifname: "eth0".into(),
            args: BTreeMap::new(),
            port_mappings: mappings
                .iter()
                .map(
                    |(protocol, host_port, container_port, host_ip)| PortMapping {
                        protocol: (*protocol).into(),
                        container_port: *container_port,
                        host_port: *host_port,
                        host_ip: host_ip.map(|ip| ip.parse().unwrap()),
                    },
                )
                .collect(),
        };
        let config = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        Call {
            attachment,
            network: "n".into(),
            config: config.as_object().unwrap().clone(),
            previous: None,
            ipam_dir: "/x".into(),
            ipam_result: None,
        }
    }

    fn pod(addresses: &[&str]) -> AddResult {
        let ip = |text: &&str| crate::spec::IpConfig {
            interface: None,
            address: text.parse().unwrap(),
            gateway: None,
        };
        AddResult {
            ips: addresses.iter().map(ip).collect(),
            ..AddResult::default()
        }
    }

    #[test]
    fn a_mapping_leads_to_each_address_of_its_family() {
        let both = ["10.1.0.5/24", "fd00::5/64"];
        let table = [
            (vec![("tcp", 80, 8080, None)], 2),
            (vec![("tcp", 80, 8080, Some("0.0.0.0"))], 2),
            (vec![("tcp", 80, 8080, Some("::"))], 1),
            (vec![("udp", 80, 8080, Some("127.0.0.1"))], 1),
            (vec![("SCTP", 80, 8080, Some("fd00::1"))], 1),
            (vec![("tcp", 80, 80, None), ("udp", 80, 80, None)], 4),
            (vec![("tcp", 80, 80, None), ("tcp", 80, 80, None)], 2),
        ];
        for (mappings, count) in table {
            let doors = doors(&call(&mappings), &pod(&both)).unwrap();
            assert_eq!(doors.len(), count, "{mappings:?}");
        }
        assert!(doors(&call(&[("icmp", 1, 1, None)]), &pod(&both)).is_err());
        let mut incapable = call(&[("tcp", 80, 80, None)]);
        incapable.config.clear();
        assert_eq!(doors(&incapable, &pod(&both)).unwrap(), []);
    }
}
