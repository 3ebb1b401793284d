//! bridge: a veth pair between the pod and a bridge of the node.
//!
//! ```text
//! node's namespace                    pod's namespace
//!   bridge 10.1.0.1/24 ── vethHASH ════ eth0 10.1.0.5/24, default via 10.1.0.1
//! ```
//! One thread does it all: it opens a netlink socket in the node's namespace, and after that enters the
//! pod's. What ADD makes is named after the container, so that DEL finds it without any result.

mod conf;
mod pod;

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;

use ipnet::IpNet;
use nix::errno::Errno;

use super::{Call, PluginError, hash, sysctl};
use crate::ipam;
use crate::masquerade::{self, Masquerade, ports_table_name, table_name};
use crate::netlink::link::{self, Link, Veth};
use crate::netlink::{NetlinkError, Socket, address, gone};
use crate::netns;
use crate::spec::{AddResult, Interface};
use crate::task::on_thread;
use conf::BridgeConf;

/// Deletes a bridge with its addresses, and its tables of masquerade and host ports. Ports of pods stay and lose their
/// bridge. For the end of a node; safe to repeat.
pub async fn remove_bridge(name: &str) -> Result<(), NetlinkError> {
    let owned = name.to_owned();
    on_thread("bridge", move || {
        Socket::route()?.execute(vec![link::delete(&owned)])
    })
    .await
    .map_err(|source| NetlinkError {
        what: "start a thread".to_owned(),
        source,
    })??;
    masquerade::remove_masquerade(&table_name(name)).await?;
    masquerade::remove_masquerade(&ports_table_name(name)).await
}

pub(super) fn add(call: &Call) -> Result<AddResult, PluginError> {
    let conf = BridgeConf::parse(&call.config)?;
    let netns = netns::open(&call.attachment.netns)?;
    let mut host = Socket::route()?;
    let (leased, subnets) = lease(call, &conf)?;
    let made = wire(call, &conf, &mut host, &netns, leased, &subnets);
    if made.is_err() && call.ipam_result.is_none() {
        // The first error is the one to tell; a lease that stays is found by its container's id.
        if let Err(e) = release(call, &conf) {
            tracing::warn!(error = %e, "lease stays after a failed ADD");
        }
    }
    made
}

pub(super) fn del(call: &Call) -> Result<(), PluginError> {
    let conf = BridgeConf::parse(&call.config)?;
    let unwired = unwire(call);
    // Addresses are freed last: nobody shall get one that still answers.
    unwired?;
    if call.ipam_result.is_none() {
        release(call, &conf)
    } else {
        Ok(())
    }
}

pub(super) fn check(call: &Call) -> Result<(), PluginError> {
    let host = host_name(call);
    let mut socket = Socket::route()?;
    if link::get(&mut socket, &host)?.controller.is_none() {
        return Err(PluginError::Mismatch(format!(
            "interface {host:?} is on no bridge"
        )));
    }
    let netns = netns::open(&call.attachment.netns)?;
    pod::check(call, &netns)
}

/// Leases addresses, unless an IPAM plugin was executed. Also the subnets they come from.
fn lease(call: &Call, conf: &BridgeConf) -> Result<(AddResult, Vec<IpNet>), PluginError> {
    if let Some(result) = &call.ipam_result {
        let subnets = result.ips.iter().map(|ip| ip.address.trunc()).collect();
        return Ok((result.clone(), subnets));
    }
    let Some(host_local) = &conf.host_local else {
        return Ok((AddResult::default(), Vec::new()));
    };
    let dir = host_local.dir(&call.ipam_dir, &call.network);
    let result = host_local.allocate(&dir, &call.attachment.id, &call.attachment.ifname)?;
    Ok((result, host_local.subnets()))
}

fn release(call: &Call, conf: &BridgeConf) -> Result<(), PluginError> {
    if let Some(host_local) = &conf.host_local {
        let dir = host_local.dir(&call.ipam_dir, &call.network);
        ipam::release(&dir, &call.attachment.id, &call.attachment.ifname)?;
    }
    Ok(())
}

/// Bridge, forwarding, masquerade, veth pair, and the pod's side of it.
fn wire(
    call: &Call,
    conf: &BridgeConf,
    socket: &mut Socket,
    netns: &File,
    leased: AddResult,
    subnets: &[IpNet],
) -> Result<AddResult, PluginError> {
    let ipv6 = sysctl::has_ipv6();
    let bridge = ensure_bridge(socket, conf, &leased, ipv6)?;
    if conf.masquerade {
        let wanted = Masquerade {
            table: table_name(&conf.bridge),
            pod_cidrs: subnets.to_vec(),
            non_masquerade_cidrs: conf.non_masquerade_cidrs.clone(),
        };
        masquerade::ensure(&mut Socket::netfilter()?, &wanted)?;
    }
    let mac = pod_mac(call, &leased);
    let host = host_name(call);
    let veth = Veth {
        host: &host,
        bridge: bridge.index,
        peer: &call.attachment.ifname,
        peer_mac: mac,
        peer_netns: netns.as_fd(),
        mtu: conf.mtu,
        hairpin: conf.hairpin,
        ipv6,
    };
    let made = socket.execute(veth.add());
    // EEXIST: one of the two names is taken, and not by us. Everything else leaves a pair behind.
    let ours = !matches!(&made, Err(e) if e.is(Errno::EEXIST));
    let result = describe(call, conf, &bridge, &host, &mac, leased);
    let done = made
        .map_err(PluginError::from)
        .and_then(|()| pod::configure(call, netns, &result));
    match done {
        Ok(()) => Ok(result),
        Err(e) => {
            if ours && let Err(left) = socket.execute(vec![link::delete(&host)]) {
                tracing::warn!(error = %left, interface = host, "veth stays after a failed ADD");
            }
            Err(e)
        }
    }
}

/// Finds or makes the bridge, with the gateways' addresses. Many ADDs may do this at once.
fn ensure_bridge(
    socket: &mut Socket,
    conf: &BridgeConf,
    leased: &AddResult,
    ipv6: bool,
) -> Result<Link, PluginError> {
    let bridge = match link::get(socket, &conf.bridge) {
        Err(e) if e.is_gone() => {
            let mac = mac_of(
                0x0a,
                hash(&format!("{} {}", conf.bridge, std::process::id())),
            );
            socket.execute(vec![link::add_bridge(&conf.bridge, mac, conf.mtu)])?;
            link::get(socket, &conf.bridge)?
        }
        other => other?,
    };
    if !bridge.is_bridge {
        let text = format!("interface {:?} exists and is not a bridge", conf.bridge);
        return Err(PluginError::Mismatch(text));
    }
    let mut requests = Vec::new();
    if conf.is_gateway {
        for ip in &leased.ips {
            let Some(gateway) = ip.gateway else { continue };
            if let Ok(net) = IpNet::new(gateway, ip.address.prefix_len()) {
                requests.push(address::add(bridge.index, net, &[Errno::EEXIST]));
            }
        }
        forward(leased, ipv6)?;
    }
    if !bridge.up {
        let v6 = leased.ips.iter().any(|ip| ip.address.addr().is_ipv6());
        if ipv6 {
            sysctl::set(&format!("ipv6/conf/{}/accept_ra", conf.bridge), "0")?;
            if !v6 {
                sysctl::set(&format!("ipv6/conf/{}/disable_ipv6", conf.bridge), "1")?;
            }
        }
        requests.push(link::up(&conf.bridge));
    }
    socket.execute(requests)?;
    Ok(bridge)
}

/// Lets the node route for the families in use.
fn forward(leased: &AddResult, ipv6: bool) -> Result<(), PluginError> {
    let uses = |v4: bool| {
        leased
            .ips
            .iter()
            .any(|ip| ip.address.addr().is_ipv4() == v4)
    };
    if uses(true) {
        sysctl::set("ipv4/ip_forward", "1")?;
    }
    if uses(false) && ipv6 {
        sysctl::set("ipv6/conf/all/forwarding", "1")?;
    }
    Ok(())
}

/// Deletes the pair by the host's end, or from inside when another program has named that end.
fn unwire(call: &Call) -> Result<(), PluginError> {
    let host = host_name(call);
    match link::get(&mut Socket::route()?, &host) {
        Ok(_) => Ok(gone::delete_link(&host)?),
        Err(e) if e.is_gone() => pod::delete(call),
        Err(e) => Err(e.into()),
    }
}

fn describe(
    call: &Call,
    conf: &BridgeConf,
    bridge: &Link,
    host: &str,
    mac: &[u8; 6],
    leased: AddResult,
) -> AddResult {
    let interface = |name: &str, mac: String, sandbox: String, mtu| Interface {
        name: name.to_owned(),
        mac,
        sandbox,
        mtu,
        ..Interface::default()
    };
    let sandbox = call.attachment.netns.to_string_lossy().into_owned();
    let mut result = leased;
    result.interfaces = vec![
        interface(
            &conf.bridge,
            show_mac(&bridge.mac),
            String::new(),
            Some(bridge.mtu),
        ),
        interface(host, String::new(), String::new(), conf.mtu),
        interface(&call.attachment.ifname, show_mac(mac), sandbox, conf.mtu),
    ];
    for ip in &mut result.ips {
        ip.interface = Some(2);
    }
    if conf.is_default_gateway {
        pod::add_default_routes(&mut result);
    }
    result
}

/// Name of the host's end: the same for every call about this container's interface, on whatever network.
fn host_name(call: &Call) -> String {
    let attachment = &call.attachment;
    let key = format!("{} {}", attachment.id, attachment.ifname);
    format!("veth{:011x}", hash(&key) >> 20)
}

/// A pod's hardware address follows from its IP address: when the address goes to another pod, the
/// neighbours' caches stay right, and nobody waits for them to forget.
fn pod_mac(call: &Call, leased: &AddResult) -> [u8; 6] {
    match leased.ips.first().map(|ip| ip.address.addr()) {
        Some(IpAddr::V4(v4)) => {
            let [a, b, c, d] = v4.octets();
            [0x0a, 0x58, a, b, c, d]
        }
        Some(IpAddr::V6(v6)) => mac_of(0x0e, hash(&v6.to_string())),
        None => mac_of(0x0e, hash(&host_name(call))),
    }
}

/// A locally administered unicast address.
fn mac_of(first: u8, bits: u64) -> [u8; 6] {
    let [_, _, _, b, c, d, e, f] = bits.to_be_bytes();
    [first, b, c, d, e, f]
}

fn show_mac(mac: &[u8]) -> String {
    let parts: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(":")
}
