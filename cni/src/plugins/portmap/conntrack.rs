//! Forgets flows of datagrams to host ports. The kernel remembers where a flow went, or that it went nowhere, for as
//! long as somebody goes on to send: a new pod would never see it. TCP finds out by itself.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol as Number, Tuple,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use nix::errno::Errno;

use super::{Door, Protocol};
use crate::netlink::{NetlinkError, Request, Socket};

/// Forgets every flow that was sent to one of these doors.
pub(super) fn forget(socket: &mut Socket, doors: &[Door]) -> Result<(), NetlinkError> {
    for v4 in [true, false] {
        let doors: Vec<&Door> = doors
            .iter()
            .filter(|door| door.protocol == Protocol::Udp && door.pod.addr().is_ipv4() == v4)
            .collect();
        if !doors.is_empty() {
            forget_family(socket, v4, &doors)?;
        }
    }
    Ok(())
}

fn forget_family(socket: &mut Socket, v4: bool, doors: &[&Door]) -> Result<(), NetlinkError> {
    let family = match v4 {
        true => NetfilterProtoFamily::IPv4,
        false => NetfilterProtoFamily::IPv6,
    };
    let message =
        |inner: ConntrackMessage| NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), inner);
    let list = Request {
        what: "list tracked connections".to_owned(),
        flags: NLM_F_REQUEST | NLM_F_DUMP,
        message: message(ConntrackMessage::Get(Vec::new())),
        tolerate: &[],
    };
    let stale = socket
        .query(list)?
        .into_iter()
        .filter_map(|found| match found.inner {
            NetfilterMessageInner::Conntrack(ConntrackMessage::New(flow)) => Some(flow),
            _ => None,
        })
        .filter_map(|flow| {
            flow.into_iter().find_map(|attribute| match attribute {
                ConntrackAttribute::CtaTupleOrig(tuple) => Some(tuple),
                _ => None,
            })
        })
        .filter(|tuple| doors.iter().any(|door| leads_to(tuple, door)));
    let deletions: Vec<_> = stale
        .map(|tuple| Request {
            what: "forget a tracked connection".to_owned(),
            flags: 0,
            message: message(ConntrackMessage::Delete(vec![
                ConntrackAttribute::CtaTupleOrig(tuple),
            ])),
            // It has ended in the meantime.
            tolerate: &[Errno::ENOENT],
        })
        .collect();
    if deletions.is_empty() {
        return Ok(());
    }
    socket.execute(deletions)
}

/// Whether a flow was sent to this door.
fn leads_to(tuple: &[Tuple], door: &Door) -> bool {
    let (mut address, mut protocol, mut port) = (None, None, None);
    for part in tuple {
        match part {
            Tuple::Ip(parts) => {
                address = parts.iter().find_map(|part| match part {
                    IPTuple::DestinationAddress(ip) => Some(*ip),
                    _ => None,
                });
            }
            Tuple::Proto(parts) => {
                for part in parts {
                    match part {
                        ProtoTuple::Protocol(number) => protocol = Some(*number),
                        ProtoTuple::DestinationPort(number) => port = Some(*number),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    let wanted = |ip: &IpAddr| door.host_ip.is_none_or(|host| host == *ip);
    protocol == Some(Number::Udp)
        && port == Some(door.host_port)
        && address.as_ref().is_some_and(wanted)
}
