//! nftables over netlink: one table is replaced in one transaction.
//!
//! Expressions are those of `nft --debug=netlink`. Registers hold values in network byte order, except
//! where an expression says otherwise (`meta nfproto`, `fib type`: the host's).

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP};
use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, Expressions, Hook, HookNumber,
    Immediate, InetHookNumber, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register,
    RuleAttribute, RuleMessage, TableAttribute, TableMessage, Verdict, VerdictAttribute,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use nix::errno::Errno;

use crate::netlink::{NetlinkError, Request, Socket};

/// Subsystem number that a batch names (`NFNL_SUBSYS_NFTABLES`).
const SUBSYSTEM: u16 = 10;
/// `NFT_PAYLOAD_NETWORK_HEADER`.
const NETWORK_HEADER: u32 = 1;
/// Type of the comment in a rule's user data (`NFTNL_UDATA_RULE_COMMENT`).
const UDATA_COMMENT: u8 = 0;

/// A base chain.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) hook: InetHookNumber,
    pub(crate) priority: i32,
    pub(crate) rules: Vec<Rule>,
}

/// What a base chain is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It rewrites addresses of new connections.
    Nat,
    /// It lets packets pass or not.
    Filter,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

/// A rule and the comment that tells whether it is still the one we want.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) comment: String,
    pub(crate) expressions: Vec<Expressions>,
}

/// A rule that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) chain: String,
    pub(crate) handle: u64,
    pub(crate) comment: String,
}

/// Replaces a table of family inet with these chains, or removes it when there are none.
pub(crate) fn replace_table(
    socket: &mut Socket,
    table: &str,
    chains: &[Chain],
) -> Result<(), NetlinkError> {
    // Deleting a table that does not exist fails, making one that exists does not: make, delete, make.
    let mut batch = vec![control(ControlMessage::BatchBegin)];
    batch.push(new_table(table));
    batch.push(inner(NfTablesMessage::DeleteTable(table_message(table)), 0));
    if !chains.is_empty() {
        batch.push(new_table(table));
    }
    for chain in chains {
        batch.push(new_chain(table, chain));
        batch.extend(chain.rules.iter().map(|rule| new_rule(table, chain, rule)));
    }
    batch.push(control(ControlMessage::BatchEnd));
    socket.execute_batch(format!("replace nftables table {table:?}"), batch)
}

/// Appends rules to the chains of a table of family inet; makes the table and the chains where they are missing. Of
/// rules for everybody, which are told by their comments, there is one.
pub(crate) fn append(
    socket: &mut Socket,
    table: &str,
    chains: &[Chain],
    for_everybody: &str,
) -> Result<(), NetlinkError> {
    let known = rules(socket, table)?;
    let is_there = |chain: &Chain, rule: &Rule| {
        rule.comment == for_everybody
            && known
                .iter()
                .any(|known| known.chain == chain.name && known.comment == rule.comment)
    };
    let mut batch = vec![control(ControlMessage::BatchBegin), new_table(table)];
    for chain in chains {
        batch.push(new_chain(table, chain));
        let rules = chain.rules.iter().filter(|rule| !is_there(chain, rule));
        batch.extend(rules.map(|rule| new_rule(table, chain, rule)));
    }
    batch.push(control(ControlMessage::BatchEnd));
    socket.execute_batch(format!("add rules to nftables table {table:?}"), batch)
}

/// Deletes rules in one transaction.
pub(crate) fn delete_rules(
    socket: &mut Socket,
    table: &str,
    rules: &[Found],
) -> Result<(), NetlinkError> {
    let mut batch = vec![control(ControlMessage::BatchBegin)];
    for rule in rules {
        let message = RuleMessage {
            attributes: vec![
                RuleAttribute::Table(table.to_owned()),
                RuleAttribute::Chain(rule.chain.clone()),
                RuleAttribute::Handle(rule.handle),
            ],
        };
        batch.push(inner(NfTablesMessage::DeleteRule(message), 0));
    }
    batch.push(control(ControlMessage::BatchEnd));
    socket.execute_batch(format!("delete rules of nftables table {table:?}"), batch)
}

/// The comments of a chain's rules, in order; none when table or chain do not exist.
pub(crate) fn comments(
    socket: &mut Socket,
    table: &str,
    chain: &str,
) -> Result<Vec<String>, NetlinkError> {
    let rules = rules(socket, table)?.into_iter();
    Ok(rules
        .filter(|rule| rule.chain == chain)
        .map(|rule| rule.comment)
        .collect())
}

/// The rules of a table, in order; none when it does not exist.
pub(crate) fn rules(socket: &mut Socket, table: &str) -> Result<Vec<Found>, NetlinkError> {
    let message = RuleMessage {
        attributes: vec![RuleAttribute::Table(table.to_owned())],
    };
    let request = Request {
        what: format!("list nftables table {table:?}"),
        flags: NLM_F_DUMP,
        message: NetfilterMessage::new(header(), NfTablesMessage::GetRule(message)),
        tolerate: &[],
    };
    let answer = match socket.query(request) {
        Err(e) if e.is(Errno::ENOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for message in answer {
        let NetfilterMessageInner::NfTables(NfTablesMessage::NewRule(rule)) = message.inner else {
            continue;
        };
        // The kernel filters by table only when it knows the attribute.
        if !rule
            .attributes
            .contains(&RuleAttribute::Table(table.to_owned()))
        {
            continue;
        }
        let (mut chain, mut handle) = (String::new(), 0);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Chain(name) => chain.clone_from(name),
                RuleAttribute::Handle(number) => handle = *number,
                _ => {}
            }
        }
        found.push(Found {
            chain,
            handle,
            comment: comment_of(&rule),
        });
    }
    Ok(found)
}

/// Compares an address of the packet's IP header with a prefix. `source` or destination.
pub(crate) fn address(source: bool, operator: Operator, net: &IpNet) -> Vec<Expressions> {
    let (length, offset) = match (net, source) {
        (IpNet::V4(_), true) => (4, 12),
        (IpNet::V4(_), false) => (4, 16),
        (IpNet::V6(_), true) => (16, 8),
        (IpNet::V6(_), false) => (16, 24),
    };
    let mut all = vec![Expressions::Payload(vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(NETWORK_HEADER),
        Payload::Offset(offset),
        Payload::Len(length),
    ])];
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    if net.prefix_len() < net.max_prefix_len() {
        let mask = bytes(net.netmask());
        all.push(Expressions::Bitwise(vec![
            Bitwise::SourceRegister(Register::Reg1),
            Bitwise::DestinationRegister(Register::Reg1),
            Bitwise::Length(length),
            Bitwise::Xor(DataAttribute::Value(vec![0; mask.len()])),
            Bitwise::Mask(DataAttribute::Value(mask)),
        ]));
    }
    all.push(compare(operator, bytes(net.network())));
    all
}

/// Lets only packets of one IP family pass.
pub(crate) fn family(v4: bool) -> Vec<Expressions> {
    let number: u8 = if v4 { 2 } else { 10 };
    vec![
        Expressions::Meta(vec![
            Meta::Key(MetaKey::Nfproto),
            Meta::DestinationRegister(Register::Reg1),
        ]),
        compare(Operator::Equal, vec![number]),
    ]
}

/// Gives the packet the address of the interface it leaves by, and a random port: two connections that
/// begin at once would otherwise race for the same one.
pub(crate) fn masquerade() -> Expressions {
    /// `NFTA_MASQ_FLAGS`.
    const FLAGS: u16 = 1;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
    const RANDOM_FULLY: u32 = 1 << 4;
    other(
        "masq",
        vec![DefaultNla::new(FLAGS, RANDOM_FULLY.to_be_bytes().to_vec())],
    )
}

/// Drops the packet.
pub(crate) fn drop_packet() -> Expressions {
    /// `NF_DROP`.
    const DROP: u32 = 0;
    let verdict = VerdictAttribute::Code(Verdict::Other(DROP));
    Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(vec![verdict])),
    ])
}

/// Compares register 1.
pub(crate) fn compare(operator: Operator, value: Vec<u8>) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value)),
    ])
}

/// An expression that the packet library has no type for.
pub(crate) fn other(name: &str, attributes: Vec<DefaultNla>) -> Expressions {
    Expressions::Other {
        expression_type: name.to_owned(),
        attributes,
    }
}

fn table_message(table: &str) -> TableMessage {
    TableMessage {
        attributes: vec![TableAttribute::Name(table.to_owned())],
    }
}

fn new_chain(table: &str, chain: &Chain) -> (NetfilterMessage, u16) {
    let message = NfTablesMessage::NewChain(chain_message(table, chain));
    inner(message, NLM_F_CREATE)
}

fn new_rule(table: &str, chain: &Chain, rule: &Rule) -> (NetfilterMessage, u16) {
    let message = NfTablesMessage::NewRule(rule_message(table, chain.name, rule));
    inner(message, NLM_F_CREATE | NLM_F_APPEND)
}

fn chain_message(table: &str, chain: &Chain) -> ChainMessage {
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(table.to_owned()),
            ChainAttribute::Name(chain.name.to_owned()),
            ChainAttribute::Hook(vec![
                Hook::Number(HookNumber::Inet(chain.hook)),
                // Priorities are signed; the attribute carries their bits.
                Hook::Priority(chain.priority.cast_unsigned()),
            ]),
            ChainAttribute::Type(chain.kind.as_str().to_owned()),
        ],
    }
}

fn rule_message(table: &str, chain: &str, rule: &Rule) -> RuleMessage {
    let expressions = rule.expressions.iter().cloned().map(Into::into).collect();
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(table.to_owned()),
            RuleAttribute::Chain(chain.to_owned()),
            RuleAttribute::Expressions(expressions),
            RuleAttribute::UserData(comment_bytes(&rule.comment)),
        ],
    }
}

/// Type, length, text and its terminating zero, as `nft` writes a comment.
fn comment_bytes(comment: &str) -> Vec<u8> {
    let text = &comment.as_bytes()[..comment.len().min(120)];
    let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    [&[UDATA_COMMENT, length], text, &[0]].concat()
}

fn comment_of(rule: &RuleMessage) -> String {
    let data = rule.attributes.iter().find_map(|a| match a {
        RuleAttribute::UserData(bytes) => Some(bytes.as_slice()),
        _ => None,
    });
    match data {
        Some([UDATA_COMMENT, length, text @ ..]) => {
            let end = usize::from(*length).saturating_sub(1).min(text.len());
            String::from_utf8_lossy(&text[..end]).into_owned()
        }
        _ => String::new(),
    }
}

fn header() -> NetfilterHeader {
    NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0)
}

fn new_table(table: &str) -> (NetfilterMessage, u16) {
    inner(
        NfTablesMessage::NewTable(table_message(table)),
        NLM_F_CREATE,
    )
}

fn inner(message: NfTablesMessage, flags: u16) -> (NetfilterMessage, u16) {
    (NetfilterMessage::new(header(), message), flags)
}

fn control(message: ControlMessage) -> (NetfilterMessage, u16) {
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, SUBSYSTEM);
    (NetfilterMessage::new(header, message), 0)
}
