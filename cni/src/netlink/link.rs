//! Requests about links: bridges, veth pairs, bridge ports.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoBridgePort, InfoData, InfoKind,
    InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use nix::errno::Errno;

use super::{NetlinkError, Request, RouteRequest, Socket};

/// A link as the kernel tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    pub(crate) is_bridge: bool,
    /// Index of the bridge it is a port of.
    pub(crate) controller: Option<u32>,
}

/// Looks a link up by name.
pub(crate) fn get(socket: &mut Socket, name: &str) -> Result<Link, NetlinkError> {
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::IfName(name.to_owned()));
    let what = format!("find interface {name:?}");
    let answer = socket.query(Request {
        what: what.clone(),
        flags: 0,
        message: RouteNetlinkMessage::GetLink(message),
        tolerate: &[],
    })?;
    answer
        .into_iter()
        .find_map(|m| match m {
            RouteNetlinkMessage::NewLink(link) => Some(describe(link)),
            _ => None,
        })
        .ok_or_else(|| NetlinkError {
            what,
            source: Errno::ENODEV.into(),
        })
}

fn describe(message: LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: Vec::new(),
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        is_bridge: false,
        controller: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(index) => link.controller = Some(index),
            LinkAttribute::LinkInfo(infos) => {
                link.is_bridge = infos.contains(&LinkInfo::Kind(InfoKind::Bridge));
            }
            _ => {}
        }
    }
    link
}

/// Brings a link up.
pub(crate) fn up(name: &str) -> RouteRequest {
    change(
        format!("bring interface {name:?} up"),
        named(name, true, Vec::new()),
    )
}

/// Makes a bridge without spanning tree. Its address is given at birth: a bridge without one of its own
/// takes that of its lowest port, and changes it with every pod.
pub(crate) fn add_bridge(name: &str, mac: [u8; 6], mtu: Option<u32>) -> RouteRequest {
    let mut attributes = vec![
        LinkAttribute::Address(mac.to_vec()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::StpState(
                netlink_packet_route::link::BridgeStpState::Disabled,
            )])),
        ]),
    ];
    attributes.extend(mtu.map(LinkAttribute::Mtu));
    Request {
        what: format!("make bridge {name:?}"),
        flags: NLM_F_CREATE | NLM_F_EXCL,
        message: RouteNetlinkMessage::NewLink(named(name, false, attributes)),
        tolerate: &[Errno::EEXIST],
    }
}

/// A veth pair: `host` here as a port of a bridge, `peer` born in another namespace.
#[derive(Debug)]
pub(crate) struct Veth<'a> {
    pub(crate) host: &'a str,
    pub(crate) bridge: u32,
    pub(crate) peer: &'a str,
    pub(crate) peer_mac: [u8; 6],
    pub(crate) peer_netns: BorrowedFd<'a>,
    pub(crate) mtu: Option<u32>,
    pub(crate) hairpin: bool,
    /// Whether the kernel has IPv6 at all.
    pub(crate) ipv6: bool,
}

impl Veth<'_> {
    /// Makes the pair, sets the port up and leaves the peer down. The host's end gets no address of its
    /// own: a bridge port needs none, and IPv6 would send solicitations for it.
    pub(crate) fn add(&self) -> Vec<RouteRequest> {
        let mut peer = named(
            self.peer,
            false,
            vec![
                LinkAttribute::Address(self.peer_mac.to_vec()),
                LinkAttribute::NetNsFd(self.peer_netns.as_raw_fd()),
            ],
        );
        peer.attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        let mut attributes = vec![
            LinkAttribute::Controller(self.bridge),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        attributes.extend(self.mtu.map(LinkAttribute::Mtu));
        let pair = Request {
            what: format!("make veth pair {:?} and {:?}", self.host, self.peer),
            flags: NLM_F_CREATE | NLM_F_EXCL,
            message: RouteNetlinkMessage::NewLink(named(self.host, false, attributes)),
            tolerate: &[],
        };
        let mut port = vec![LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::HairpinMode(
                self.hairpin,
            )])),
        ])];
        if self.ipv6 {
            port.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
                vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)],
            )]));
        }
        let what = format!("set bridge port {:?} up", self.host);
        vec![pair, change(what, named(self.host, true, port))]
    }
}

/// Deletes a link; a missing one is fine.
pub(crate) fn delete(name: &str) -> RouteRequest {
    Request {
        what: format!("delete interface {name:?}"),
        flags: 0,
        message: RouteNetlinkMessage::DelLink(named(name, false, Vec::new())),
        tolerate: &[Errno::ENODEV],
    }
}

fn change(what: String, message: LinkMessage) -> RouteRequest {
    Request {
        what,
        flags: 0,
        message: RouteNetlinkMessage::NewLink(message),
        tolerate: &[],
    }
}

fn named(name: &str, up: bool, mut attributes: Vec<LinkAttribute>) -> LinkMessage {
    attributes.insert(0, LinkAttribute::IfName(name.to_owned()));
    let mut message = LinkMessage::default();
    if up {
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
    }
    message.attributes = attributes;
    message
}
