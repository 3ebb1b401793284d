//! Masquerade: what pods send out of the cluster carries the node's address.
//!
//! One nftables table of ours per bridge, with one rule per pod CIDR. A table is replaced as a whole in
//! one transaction, and only when it is not what it should be, which the rules' comments tell.

use ipnet::IpNet;
use netlink_packet_netfilter::nftables::{InetHookNumber, Operator};

use crate::netlink::{NetlinkError, Socket};
use crate::nft::{self, Chain, Kind, Rule};
use crate::task::on_thread;

/// Priority of source NAT (`srcnat`).
const SRCNAT: i32 = 100;

const CHAIN: &str = "postrouting";

/// What is masqueraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masquerade {
    /// Name of the table, in family inet. It is ours alone.
    pub table: String,
    /// Sources: the node's pod CIDRs.
    pub pod_cidrs: Vec<IpNet>,
    /// Destinations that see the pods' own addresses, beside the pod CIDRs themselves and multicast.
    pub non_masquerade_cidrs: Vec<IpNet>,
}

/// The table of a bridge.
#[must_use]
pub fn table_name(bridge: &str) -> String {
    format!("hanok-{bridge}")
}

/// The table of the host ports of a bridge's pods.
pub(crate) fn ports_table_name(bridge: &str) -> String {
    format!("{}-ports", table_name(bridge))
}

/// Makes the table say what is wanted. Safe to repeat; cheap when it does already.
pub async fn ensure_masquerade(masquerade: &Masquerade) -> Result<(), NetlinkError> {
    let masquerade = masquerade.clone();
    in_thread(move || ensure(&mut Socket::netfilter()?, &masquerade)).await
}

/// Removes a table. Safe to repeat; a missing table is fine.
pub async fn remove_masquerade(table: &str) -> Result<(), NetlinkError> {
    let table = table.to_owned();
    in_thread(move || nft::replace_table(&mut Socket::netfilter()?, &table, &[])).await
}

async fn in_thread(
    work: impl FnOnce() -> Result<(), NetlinkError> + Send + 'static,
) -> Result<(), NetlinkError> {
    on_thread("nftables", work)
        .await
        .map_err(|source| NetlinkError {
            what: "start a thread".to_owned(),
            source,
        })?
}

/// [`ensure_masquerade`] on the calling thread.
pub(crate) fn ensure(socket: &mut Socket, masquerade: &Masquerade) -> Result<(), NetlinkError> {
    let rules: Vec<_> = masquerade
        .pod_cidrs
        .iter()
        .map(|cidr| rule(masquerade, cidr))
        .collect();
    let wanted: Vec<_> = rules.iter().map(|rule| rule.comment.clone()).collect();
    if nft::comments(socket, &masquerade.table, CHAIN)? == wanted {
        return Ok(());
    }
    let chain = Chain {
        name: CHAIN,
        kind: Kind::Nat,
        hook: InetHookNumber::PostRouting,
        priority: SRCNAT,
        rules,
    };
    nft::replace_table(socket, &masquerade.table, &[chain])
}

/// `ip saddr CIDR ip daddr != CIDR … ip daddr != 224.0.0.0/4 masquerade fully-random`.
fn rule(masquerade: &Masquerade, cidr: &IpNet) -> Rule {
    let v4 = cidr.addr().is_ipv4();
    let multicast = if v4 { "224.0.0.0/4" } else { "ff00::/8" };
    let mut kept: Vec<IpNet> = masquerade
        .pod_cidrs
        .iter()
        .chain(&masquerade.non_masquerade_cidrs)
        .copied()
        .chain(multicast.parse::<IpNet>())
        .filter(|net| net.addr().is_ipv4() == v4)
        .map(|net| net.trunc())
        .collect();
    kept.sort();
    kept.dedup();
    let mut expressions = nft::family(v4);
    expressions.extend(nft::address(true, Operator::Equal, &cidr.trunc()));
    for net in &kept {
        expressions.extend(nft::address(false, Operator::NotEqual, net));
    }
    expressions.push(nft::masquerade());
    let text = format!("{} to {kept:?}", cidr.trunc());
    Rule {
        comment: format!(
            "hanok {} {:016x}",
            cidr.trunc(),
            crate::plugins::hash(&text)
        ),
        expressions,
    }
}
