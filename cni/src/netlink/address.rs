//! Requests about addresses and routes.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use super::{NetlinkError, Request, RouteRequest, Socket};
use crate::spec::Route;

/// Adds an address. Duplicate address detection is off: the address is ours by its lease, and IPv6
/// would keep it unusable for a second or more.
pub(crate) fn add(index: u32, address: IpNet, tolerate: &'static [Errno]) -> RouteRequest {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    let ip = address.addr();
    message.attributes.push(AddressAttribute::Local(ip));
    message.attributes.push(AddressAttribute::Address(ip));
    match address {
        IpNet::V4(v4) if v4.prefix_len() < 31 => {
            message
                .attributes
                .push(AddressAttribute::Broadcast(v4.broadcast()));
        }
        IpNet::V4(_) => {}
        IpNet::V6(_) => {
            message
                .attributes
                .push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
    }
    Request {
        what: format!("add address {address}"),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        message: RouteNetlinkMessage::NewAddress(message),
        tolerate,
    }
}

/// The addresses of a link.
pub(crate) fn list(socket: &mut Socket, index: u32) -> Result<Vec<IpNet>, NetlinkError> {
    let answer = socket.query(Request {
        what: "list addresses".to_owned(),
        flags: NLM_F_DUMP,
        message: RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        tolerate: &[],
    })?;
    let mut found = Vec::new();
    for message in answer {
        let RouteNetlinkMessage::NewAddress(message) = message else {
            continue;
        };
        if message.header.index != index {
            continue;
        }
        let ip = message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        });
        if let Some(net) = ip.and_then(|ip| IpNet::new(ip, message.header.prefix_len).ok()) {
            found.push(net);
        }
    }
    Ok(found)
}

/// Adds a route through a link.
pub(crate) fn add_route(index: u32, route: &Route, gateway: Option<IpAddr>) -> RouteRequest {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.dst.addr());
    message.header.destination_prefix_length = route.dst.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Boot;
    message.header.kind = RouteType::Unicast;
    message.header.scope = if gateway.is_some() {
        RouteScope::Universe
    } else {
        RouteScope::Link
    };
    if let Some(scope) = route.scope.and_then(|s| u8::try_from(s).ok()) {
        message.header.scope = RouteScope::from(scope);
    }
    if let Some(table) = route.table {
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.attributes.push(RouteAttribute::Table(table));
    }
    if route.dst.prefix_len() > 0 {
        message
            .attributes
            .push(RouteAttribute::Destination(route.dst.network().into()));
    }
    message.attributes.push(RouteAttribute::Oif(index));
    if let Some(gateway) = gateway {
        message
            .attributes
            .push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    }
    message
        .attributes
        .extend(route.priority.map(RouteAttribute::Priority));
    let mut metrics = Vec::new();
    metrics.extend(route.mtu.map(RouteMetric::Mtu));
    metrics.extend(route.advmss.map(RouteMetric::Advmss));
    if !metrics.is_empty() {
        message.attributes.push(RouteAttribute::Metrics(metrics));
    }
    Request {
        what: format!("add route to {}", route.dst),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        message: RouteNetlinkMessage::NewRoute(message),
        tolerate: &[],
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}
