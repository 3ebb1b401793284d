//! loopback: brings `lo` up.

use super::{Call, PluginError};
use crate::netlink::{Socket, link};
use crate::netns;
use crate::spec::{AddResult, Interface, IpConfig};

pub(super) fn add(call: &Call) -> Result<AddResult, PluginError> {
    let file = netns::open(&call.attachment.netns)?;
    enter(call, &file)?;
    Socket::route()?.execute(vec![link::up("lo")])?;
    if let Some(previous) = &call.previous {
        return Ok(previous.clone());
    }
    let addresses: [ipnet::IpNet; 2] = [
        ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::LOCALHOST, 8).into(),
        ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128).into(),
    ];
    Ok(AddResult {
        interfaces: vec![Interface {
            name: "lo".into(),
            mac: "00:00:00:00:00:00".into(),
            sandbox: call.attachment.netns.to_string_lossy().into_owned(),
            ..Interface::default()
        }],
        ips: addresses
            .map(|address| IpConfig {
                address,
                gateway: None,
                interface: Some(0),
            })
            .to_vec(),
        ..AddResult::default()
    })
}

pub(super) fn check(call: &Call) -> Result<(), PluginError> {
    let file = netns::open(&call.attachment.netns)?;
    enter(call, &file)?;
    if link::get(&mut Socket::route()?, "lo")?.up {
        return Ok(());
    }
    Err(PluginError::Mismatch("interface \"lo\" is down".to_owned()))
}

fn enter(call: &Call, file: &std::fs::File) -> Result<(), PluginError> {
    netns::enter(file).map_err(|source| {
        let path = call.attachment.netns.clone();
        netns::NetnsError {
            step: "enter",
            path,
            source,
        }
        .into()
    })
}
