//! The rules of host ports, as `nft` would print them in brackets. Pure.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::{
    Bitwise, DataAttribute, Expressions, Immediate, InetHookNumber, Meta, MetaKey, Operator,
    Payload, Register,
};

use super::Door;
use crate::nft::{self, Chain, Kind, Rule};

/// Comment of the rule that keeps the loopback closed. It belongs to no container.
pub(super) const GUARD: &str = "hanok guard";

/// Priority of destination NAT (`dstnat`).
const DSTNAT: i32 = -100;
/// Priority of source NAT (`srcnat`).
const SRCNAT: i32 = 100;
/// Before anything is tracked (`raw`).
const RAW: i32 = -300;

/// The comment of a container's rules.
pub(super) fn comment(id: &str) -> String {
    format!("hanok {id}")
}

/// The chains with a container's rules.
pub(super) fn chains(id: &str, doors: &[Door]) -> Vec<Chain> {
    let rules = |make: &dyn Fn(&Door) -> Vec<Vec<Expressions>>| -> Vec<Rule> {
        let all = doors.iter().flat_map(make);
        all.map(|expressions| Rule {
            comment: comment(id),
            expressions,
        })
        .collect()
    };
    let chain = |name, kind, hook, priority, rules| Chain {
        name,
        kind,
        hook,
        priority,
        rules,
    };
    let guard = Rule {
        comment: GUARD.to_owned(),
        expressions: guard(),
    };
    vec![
        chain(
            "guard",
            Kind::Filter,
            InetHookNumber::PreRouting,
            RAW,
            vec![guard],
        ),
        chain(
            "prerouting",
            Kind::Nat,
            InetHookNumber::PreRouting,
            DSTNAT,
            rules(&|door| vec![forward(door)]),
        ),
        chain(
            "output",
            Kind::Nat,
            InetHookNumber::LocalOut,
            DSTNAT,
            rules(&|door| vec![forward(door)]),
        ),
        chain(
            "postrouting",
            Kind::Nat,
            InetHookNumber::PostRouting,
            SRCNAT,
            rules(&returns),
        ),
    ]
}

/// `[ip daddr HOST] meta l4proto P th dport PORT fib daddr type local dnat to POD:PORT`.
fn forward(door: &Door) -> Vec<Expressions> {
    let v4 = door.pod.addr().is_ipv4();
    let mut all = nft::family(v4);
    if let Some(ip) = door.host_ip {
        all.extend(nft::address(false, Operator::Equal, &ip.into()));
    }
    all.extend(port(door.protocol.number(), door.host_port));
    all.extend(to_this_node());
    all.push(load(Register::Reg1, bytes(door.pod.addr())));
    all.push(load(Register::Reg2, door.pod_port.to_be_bytes().to_vec()));
    all.push(destination_nat(v4));
    all
}

/// Who would answer past the node gets the node's address: the pod's neighbours, and the node's loopback.
/// `ct status dnat [ip saddr SUBNET] ip daddr POD meta l4proto P th dport PORT masquerade`.
fn returns(door: &Door) -> Vec<Vec<Expressions>> {
    let v4 = door.pod.addr().is_ipv4();
    let loopback = Ipv4Net::new(std::net::Ipv4Addr::new(127, 0, 0, 0), 8).ok();
    let sources = [
        Some(door.pod.trunc()),
        loopback.map(IpNet::from).filter(|_| v4),
    ];
    let one = |source: IpNet| {
        let mut all = nft::family(v4);
        all.extend(redirected());
        all.extend(nft::address(true, Operator::Equal, &source));
        all.extend(nft::address(
            false,
            Operator::Equal,
            &door.pod.addr().into(),
        ));
        all.extend(port(door.protocol.number(), door.pod_port));
        all.push(nft::masquerade());
        all
    };
    sources.into_iter().flatten().map(one).collect()
}

/// `iifname != "lo" ip daddr 127.0.0.0/8 drop`: what is routed for the node's own sake is for nobody else.
fn guard() -> Vec<Expressions> {
    let mut name = b"lo".to_vec();
    // The register holds the name as the kernel has it.
    name.resize(16, 0);
    let mut all = vec![Expressions::Meta(vec![
        Meta::Key(MetaKey::Iifname),
        Meta::DestinationRegister(Register::Reg1),
    ])];
    all.push(nft::compare(Operator::NotEqual, name));
    all.extend(nft::family(true));
    let loopback = Ipv4Net::new(std::net::Ipv4Addr::new(127, 0, 0, 0), 8);
    if let Ok(loopback) = loopback {
        all.extend(nft::address(false, Operator::Equal, &loopback.into()));
    }
    all.push(nft::drop_packet());
    all
}

/// `meta l4proto P th dport PORT`.
fn port(protocol: u8, port: u16) -> Vec<Expressions> {
    /// `NFT_PAYLOAD_TRANSPORT_HEADER`.
    const TRANSPORT_HEADER: u32 = 2;
    vec![
        Expressions::Meta(vec![
            Meta::Key(MetaKey::L4Proto),
            Meta::DestinationRegister(Register::Reg1),
        ]),
        nft::compare(Operator::Equal, vec![protocol]),
        Expressions::Payload(vec![
            Payload::DestinationRegister(Register::Reg1),
            Payload::Base(TRANSPORT_HEADER),
            Payload::Offset(2),
            Payload::Len(2),
        ]),
        nft::compare(Operator::Equal, port.to_be_bytes().to_vec()),
    ]
}

/// `fib daddr type local`.
fn to_this_node() -> Vec<Expressions> {
    /// `NFTA_FIB_DREG`, `NFTA_FIB_RESULT`, `NFTA_FIB_FLAGS`.
    const ATTRIBUTES: [u16; 3] = [1, 2, 3];
    /// `NFT_FIB_RESULT_ADDRTYPE`.
    const ADDRESS_TYPE: u32 = 3;
    /// `NFTA_FIB_F_DADDR`.
    const DESTINATION: u32 = 1 << 1;
    /// `RTN_LOCAL`.
    const LOCAL: u32 = 2;
    let values = [u32::from(Register::Reg1), ADDRESS_TYPE, DESTINATION];
    vec![
        nft::other("fib", numbers(&ATTRIBUTES, &values)),
        nft::compare(Operator::Equal, LOCAL.to_ne_bytes().to_vec()),
    ]
}

/// `ct status dnat`: the connection's destination has been changed.
fn redirected() -> Vec<Expressions> {
    /// `NFTA_CT_DREG`, `NFTA_CT_KEY`.
    const ATTRIBUTES: [u16; 2] = [1, 2];
    /// `NFT_CT_STATUS`.
    const STATUS: u32 = 2;
    /// `IPS_DST_NAT`.
    const DST_NAT: u32 = 1 << 5;
    vec![
        nft::other(
            "ct",
            numbers(&ATTRIBUTES, &[u32::from(Register::Reg1), STATUS]),
        ),
        Expressions::Bitwise(vec![
            Bitwise::SourceRegister(Register::Reg1),
            Bitwise::DestinationRegister(Register::Reg1),
            Bitwise::Length(4),
            Bitwise::Xor(DataAttribute::Value(vec![0; 4])),
            Bitwise::Mask(DataAttribute::Value(DST_NAT.to_ne_bytes().to_vec())),
        ]),
        nft::compare(Operator::NotEqual, vec![0; 4]),
    ]
}

/// `dnat to` address in register 1, port in register 2.
fn destination_nat(v4: bool) -> Expressions {
    /// `NFTA_NAT_TYPE`, `NFTA_NAT_FAMILY`, `NFTA_NAT_REG_ADDR_MIN`, `NFTA_NAT_REG_PROTO_MIN`, `NFTA_NAT_FLAGS`.
    const ATTRIBUTES: [u16; 5] = [1, 2, 3, 5, 7];
    /// `NFT_NAT_DNAT`.
    const DNAT: u32 = 1;
    /// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`.
    const FLAGS: u32 = 0b11;
    let family = if v4 { 2 } else { 10 };
    let values = [
        DNAT,
        family,
        u32::from(Register::Reg1),
        u32::from(Register::Reg2),
        FLAGS,
    ];
    nft::other("nat", numbers(&ATTRIBUTES, &values))
}

fn load(register: Register, value: Vec<u8>) -> Expressions {
    Expressions::Immediate(vec![
        Immediate::DestinationRegister(register),
        Immediate::Data(DataAttribute::Value(value)),
    ])
}

fn bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn numbers(attributes: &[u16], values: &[u32]) -> Vec<DefaultNla> {
    let pairs = attributes.iter().zip(values);
    pairs
        .map(|(attribute, value)| DefaultNla::new(*attribute, value.to_be_bytes().to_vec()))
        .collect()
}
