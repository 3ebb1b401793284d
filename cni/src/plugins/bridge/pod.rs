//! The pod's side of a veth pair. The calling thread enters the pod's namespace and stays there: it is
//! one that ends with the call.

use std::fs::File;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::netlink::{Socket, address, gone, link};
use crate::netns::{self, NetnsError};
use crate::plugins::{Call, PluginError, sysctl};
use crate::spec::{AddResult, Route};

/// Addresses, loopback and routes; settings of IPv6 before the interface is up.
pub(super) fn configure(call: &Call, netns: &File, result: &AddResult) -> Result<(), PluginError> {
    enter(call, netns)?;
    let ifname = &call.attachment.ifname;
    if sysctl::has_ipv6() {
        let v6 = result.ips.iter().any(|ip| ip.address.addr().is_ipv6());
        // Whoever sits on the same bridge could otherwise give routes and addresses to this pod
        // (CVE-2020-10749), also where nobody has asked for IPv6.
        sysctl::set(&format!("ipv6/conf/{ifname}/accept_ra"), "0")?;
        if v6 {
            sysctl::set(&format!("ipv6/conf/{ifname}/accept_dad"), "0")?;
        } else {
            sysctl::set(&format!("ipv6/conf/{ifname}/disable_ipv6"), "1")?;
        }
    }
    let mut socket = Socket::route()?;
    let index = link::get(&mut socket, ifname)?.index;
    let mut requests = vec![link::up("lo")];
    requests.extend(
        result
            .ips
            .iter()
            .map(|ip| address::add(index, ip.address, &[])),
    );
    requests.push(link::up(ifname));
    for route in &result.routes {
        let gateway = route.gw.or_else(|| gateway_of(result, route.dst.addr()));
        requests.push(address::add_route(index, route, gateway));
    }
    Ok(socket.execute(requests)?)
}

/// A default route for every family that has a gateway and no default route yet.
pub(super) fn add_default_routes(result: &mut AddResult) {
    let defaults: [IpNet; 2] = [Ipv4Net::default().into(), Ipv6Net::default().into()];
    for dst in defaults {
        let gateway = gateway_of(result, dst.addr());
        if gateway.is_some() && !result.routes.iter().any(|route| route.dst == dst) {
            result.routes.push(Route::new(dst, gateway));
        }
    }
}

/// Deletes the interface from inside; a missing namespace or interface is fine.
pub(super) fn delete(call: &Call) -> Result<(), PluginError> {
    let Ok(netns) = netns::open(&call.attachment.netns) else {
        return Ok(());
    };
    enter(call, &netns)?;
    Ok(gone::delete_link(&call.attachment.ifname)?)
}

/// Compares the interface with the result of ADD.
pub(super) fn check(call: &Call, netns: &File) -> Result<(), PluginError> {
    enter(call, netns)?;
    let ifname = &call.attachment.ifname;
    let mut socket = Socket::route()?;
    let link = link::get(&mut socket, ifname)?;
    if !link.up {
        return Err(PluginError::Mismatch(format!(
            "interface {ifname:?} is down"
        )));
    }
    let there = address::list(&mut socket, link.index)?;
    let previous = call.previous.as_ref();
    let expected = previous.into_iter().flat_map(|result| {
        let here = |i: usize| result.interfaces.get(i).is_some_and(|x| x.name == *ifname);
        result
            .ips
            .iter()
            .filter(move |ip| ip.interface.is_some_and(here))
    });
    for ip in expected {
        if !there.contains(&ip.address) {
            let text = format!("interface {ifname:?} lacks address {}", ip.address);
            return Err(PluginError::Mismatch(text));
        }
    }
    Ok(())
}

fn gateway_of(result: &AddResult, destination: IpAddr) -> Option<IpAddr> {
    let same = |ip: &&crate::spec::IpConfig| ip.address.addr().is_ipv4() == destination.is_ipv4();
    result.ips.iter().filter(same).find_map(|ip| ip.gateway)
}

fn enter(call: &Call, netns: &File) -> Result<(), PluginError> {
    netns::enter(netns).map_err(|source| {
        NetnsError {
            step: "enter",
            path: call.attachment.netns.clone(),
            source,
        }
        .into()
    })
}
