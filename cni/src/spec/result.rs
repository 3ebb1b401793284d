//! The result of ADD, and its shapes in the versions of the specification.
//!
//! The newest shape is the only one that the rest of the crate sees. Plugins that speak an older
//! version get and give theirs; what an older shape cannot say is dropped.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::Version;
use super::fields::{Field, ParseError, document};

/// Longest output of a plugin that is read, in bytes.
pub const MAX_RESULT: usize = 1 << 20;

/// What ADD has made (specification 1.1.0, "ADD Success").
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddResult {
    /// Interfaces, on both sides.
    pub interfaces: Vec<Interface>,
    /// Addresses.
    pub ips: Vec<IpConfig>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Name service.
    pub dns: Dns,
}

/// An interface of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Hardware address; may be empty.
    pub mac: String,
    /// Path of the network namespace it is in; empty for the host's.
    pub sandbox: String,
    /// MTU, when the plugin tells it.
    pub mtu: Option<u32>,
    /// Path of a socket file, for interfaces that are one.
    pub socket_path: String,
    /// PCI address of the device.
    pub pci_id: String,
}

/// An address of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpConfig {
    /// Address and prefix length.
    pub address: IpNet,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
    /// Index into [`AddResult::interfaces`].
    pub interface: Option<usize>,
}

/// A route of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; the gateway of the address of the same family when absent.
    pub gw: Option<IpAddr>,
    /// MTU of the path.
    pub mtu: Option<u32>,
    /// MSS to advertise.
    pub advmss: Option<u32>,
    /// Metric.
    pub priority: Option<u32>,
    /// Routing table.
    pub table: Option<u32>,
    /// Scope.
    pub scope: Option<u32>,
}

/// Name service of a result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dns {
    /// Servers.
    pub nameservers: Vec<String>,
    /// Local domain.
    pub domain: String,
    /// Search list.
    pub search: Vec<String>,
    /// resolv.conf options.
    pub options: Vec<String>,
}

impl Route {
    /// A route with nothing but destination and next hop.
    #[must_use]
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self {
            dst,
            gw,
            mtu: None,
            advmss: None,
            priority: None,
            table: None,
            scope: None,
        }
    }
}

impl AddResult {
    /// Reads what a plugin printed, in any version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::from_json(&document(bytes, MAX_RESULT)?)
    }

    /// The pod's addresses: those on interfaces inside a sandbox, or on no interface in particular.
    #[must_use]
    pub fn pod_ips(&self) -> Vec<IpAddr> {
        let inside = |ip: &&IpConfig| {
            ip.interface
                .and_then(|i| self.interfaces.get(i))
                .is_none_or(|interface| !interface.sandbox.is_empty())
        };
        self.ips
            .iter()
            .filter(inside)
            .map(|ip| ip.address.addr())
            .collect()
    }

    /// Reads a result that is JSON already.
    pub(crate) fn from_json(value: &Value) -> Result<Self, ParseError> {
        let root = Field::root(value);
        let mut result = Self::default();
        for field in root.list("interfaces")? {
            result.interfaces.push(read_interface(&field)?);
        }
        for field in root.list("ips")? {
            result.ips.push(read_ip(&field, result.interfaces.len())?);
        }
        for field in root.list("routes")? {
            result.routes.push(read_route(&field)?);
        }
        for name in ["ip4", "ip6"] {
            if let Some(field) = root.get(name)? {
                read_family(&field, &mut result)?;
            }
        }
        if let Some(field) = root.get("dns")? {
            result.dns = Dns {
                nameservers: field.texts("nameservers")?,
                domain: field.text("domain")?,
                search: field.texts("search")?,
                options: field.texts("options")?,
            };
        }
        Ok(result)
    }

    /// Writes it in the shape of a version.
    #[must_use]
    pub fn to_json(&self, version: Version) -> Value {
        let mut out = Map::new();
        out.insert("cniVersion".into(), version.as_str().into());
        if version < Version::V0_3_0 {
            self.write_families(&mut out);
        } else {
            let interfaces = self.interfaces.iter().map(|i| write_interface(i, version));
            out.insert("interfaces".into(), interfaces.collect());
            out.insert(
                "ips".into(),
                self.ips.iter().map(|ip| write_ip(ip, version)).collect(),
            );
            out.insert(
                "routes".into(),
                self.routes
                    .iter()
                    .map(|r| write_route(r, version))
                    .collect(),
            );
        }
        out.insert("dns".into(), write_dns(&self.dns));
        Value::Object(out)
    }

    /// 0.1.0 and 0.2.0 know one address of each family.
    fn write_families(&self, out: &mut Map<String, Value>) {
        for (name, v4) in [("ip4", true), ("ip6", false)] {
            let Some(ip) = self.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4) else {
                continue;
            };
            let routes = self.routes.iter().filter(|r| r.dst.addr().is_ipv4() == v4);
            let mut family = json!({
                "ip": ip.address.to_string(),
                "routes": routes.map(|r| write_route(r, Version::V0_2_0)).collect::<Vec<_>>(),
            });
            if let Some(gateway) = ip.gateway {
                family["gateway"] = gateway.to_string().into();
            }
            out.insert(name.into(), family);
        }
    }
}

fn read_interface(field: &Field<'_>) -> Result<Interface, ParseError> {
    Ok(Interface {
        name: field.text("name")?,
        mac: field.text("mac")?,
        sandbox: field.text("sandbox")?,
        mtu: field.get("mtu")?.map(|f| f.number()).transpose()?,
        socket_path: field.text("socketPath")?,
        pci_id: field.text("pciID")?,
    })
}

fn read_ip(field: &Field<'_>, interfaces: usize) -> Result<IpConfig, ParseError> {
    let interface = match field.get("interface")? {
        None => None,
        // Some plugins write -1 for "no interface".
        Some(f) if f.number().is_err() => None,
        Some(f) => {
            let index = usize::try_from(f.number()?).unwrap_or(usize::MAX);
            if index >= interfaces {
                return Err(f.wrong("an index into the list of interfaces"));
            }
            Some(index)
        }
    };
    Ok(IpConfig {
        address: field
            .need("address")?
            .parse("an address with prefix length")?,
        gateway: address(field, "gateway")?,
        interface,
    })
}

pub(crate) fn read_route(field: &Field<'_>) -> Result<Route, ParseError> {
    let number = |name| field.get(name)?.map(|f| f.number()).transpose();
    Ok(Route {
        dst: field.need("dst")?.parse("an address with prefix length")?,
        gw: address(field, "gw")?,
        mtu: number("mtu")?,
        advmss: number("advmss")?,
        priority: number("priority")?,
        table: number("table")?,
        scope: number("scope")?,
    })
}

fn read_family(field: &Field<'_>, result: &mut AddResult) -> Result<(), ParseError> {
    result.ips.push(IpConfig {
        address: field.need("ip")?.parse("an address with prefix length")?,
        gateway: address(field, "gateway")?,
        interface: None,
    });
    for route in field.list("routes")? {
        result.routes.push(read_route(&route)?);
    }
    Ok(())
}

fn address(field: &Field<'_>, name: &str) -> Result<Option<IpAddr>, ParseError> {
    match field.get(name)? {
        Some(f) if !f.string()?.is_empty() => f.parse("an IP address").map(Some),
        _ => Ok(None),
    }
}

fn write_interface(interface: &Interface, version: Version) -> Value {
    let mut out = json!({"name": interface.name});
    let mut text = |name: &str, value: &str| {
        if !value.is_empty() {
            out[name] = value.into();
        }
    };
    text("mac", &interface.mac);
    text("sandbox", &interface.sandbox);
    if version >= Version::V1_1_0 {
        text("socketPath", &interface.socket_path);
        text("pciID", &interface.pci_id);
        if let Some(mtu) = interface.mtu {
            out["mtu"] = mtu.into();
        }
    }
    out
}

fn write_ip(ip: &IpConfig, version: Version) -> Value {
    let mut out = json!({"address": ip.address.to_string()});
    if version < Version::V1_0_0 {
        out["version"] = if ip.address.addr().is_ipv4() {
            "4"
        } else {
            "6"
        }
        .into();
    }
    if let Some(gateway) = ip.gateway {
        out["gateway"] = gateway.to_string().into();
    }
    if let Some(interface) = ip.interface {
        out["interface"] = interface.into();
    }
    out
}

fn write_route(route: &Route, version: Version) -> Value {
    let mut out = json!({"dst": route.dst.to_string()});
    if let Some(gw) = route.gw {
        out["gw"] = gw.to_string().into();
    }
    if version >= Version::V1_1_0 {
        let numbers = [
            ("mtu", route.mtu),
            ("advmss", route.advmss),
            ("priority", route.priority),
            ("table", route.table),
            ("scope", route.scope),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                out[name] = value.into();
            }
        }
    }
    out
}

fn write_dns(dns: &Dns) -> Value {
    let mut out = json!({});
    if !dns.domain.is_empty() {
        out["domain"] = dns.domain.clone().into();
    }
    let lists = [
        ("nameservers", &dns.nameservers),
        ("search", &dns.search),
        ("options", &dns.options),
    ];
    for (name, list) in lists {
        if !list.is_empty() {
            out[name] = list.clone().into();
        }
    }
    out
}

#[cfg(test)]
mod tests;
