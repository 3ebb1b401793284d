//! Ranges of addresses and the order in which they are given out.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::spec::{Field, IpConfig, ParseError};

/// Consecutive addresses of one subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

/// Ranges of one family out of which one address is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range>);

/// Reads one set: `[{"subnet": …, "rangeStart": …, "rangeEnd": …, "gateway": …}, …]`.
pub(super) fn read_range_set(fields: &[Field<'_>]) -> Result<RangeSet, ParseError> {
    let mut ranges = Vec::new();
    for field in fields {
        let range = read_range(field)?;
        let family = |r: &Range| r.start.is_ipv4();
        if ranges
            .first()
            .is_some_and(|first| family(first) != family(&range))
        {
            return Err(field.wrong("a range of the same family as the others of its set"));
        }
        ranges.push(range);
    }
    if ranges.is_empty() {
        return Err(ParseError::Missing {
            field: "ipam.ranges[].subnet".into(),
        });
    }
    Ok(RangeSet(ranges))
}

fn read_range(field: &Field<'_>) -> Result<Range, ParseError> {
    let subnet_field = field.need("subnet")?;
    let subnet: IpNet = subnet_field.parse("a subnet like 10.1.0.0/24")?;
    let subnet = subnet.trunc();
    if subnet.max_prefix_len() - subnet.prefix_len() < 2 {
        return Err(subnet_field.wrong("a subnet of at least four addresses"));
    }
    let bits = |ip: IpAddr| number(ip);
    // The first address names the subnet and the last of IPv4 is its broadcast: neither is a host's.
    let first = bits(subnet.network()) + 1;
    let last = bits(subnet.broadcast()) - u128::from(subnet.addr().is_ipv4());
    let inside = |name: &str, default: u128| -> Result<IpAddr, ParseError> {
        let Some(field) = field.get(name)?.filter(|f| !matches!(f.string(), Ok(""))) else {
            return Ok(address(default, &subnet));
        };
        let ip: IpAddr = field.parse("an IP address")?;
        let right = ip.is_ipv4() == subnet.addr().is_ipv4() && (first..=last).contains(&bits(ip));
        if right {
            Ok(ip)
        } else {
            Err(field.wrong("an address for a host of the subnet"))
        }
    };
    let range = Range {
        start: inside("rangeStart", first)?,
        end: inside("rangeEnd", last)?,
        gateway: inside("gateway", first)?,
        subnet,
    };
    if bits(range.start) > bits(range.end) {
        return Err(field.wrong("a range that starts before it ends"));
    }
    Ok(range)
}

impl RangeSet {
    pub(super) fn subnets(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.0.iter().map(|range| range.subnet)
    }

    /// Every address but the gateways, each once, beginning after `last`.
    pub(super) fn after(&self, last: Option<IpAddr>) -> impl Iterator<Item = IpConfig> + '_ {
        let found = last.and_then(|ip| {
            self.0.iter().position(|r| {
                r.start.is_ipv4() == ip.is_ipv4()
                    && (number(r.start)..=number(r.end)).contains(&number(ip))
            })
        });
        let (pivot, split) = match (found, last) {
            (Some(i), Some(ip)) => (i, number(ip) + 1),
            _ => (0, number(self.0[0].start)),
        };
        let (before, rest) = self.0.split_at(pivot);
        let (this, behind) = rest.split_at(1);
        let all = |r: &Range| number(r.start)..=number(r.end);
        let tail = this.iter().map(move |r| (r, split..=number(r.end)));
        let head = this
            .iter()
            .map(move |r| (r, number(r.start)..=split.saturating_sub(1)));
        tail.chain(behind.iter().map(move |r| (r, all(r))))
            .chain(before.iter().map(move |r| (r, all(r))))
            .chain(head)
            .flat_map(|(range, numbers)| {
                numbers
                    .map(move |n| (range, address(n, &range.subnet)))
                    .filter(|(range, ip)| *ip != range.gateway)
            })
            .filter_map(|(range, ip)| {
                Some(IpConfig {
                    address: IpNet::new(ip, range.subnet.prefix_len()).ok()?,
                    gateway: Some(range.gateway),
                    interface: None,
                })
            })
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self
            .0
            .iter()
            .map(|r| format!("{}-{}", r.start, r.end))
            .collect();
        f.write_str(&ranges.join(","))
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn address(number: u128, subnet: &IpNet) -> IpAddr {
    if subnet.addr().is_ipv4() {
        // Numbers come from a range of IPv4 addresses and fit.
        let bits = u32::try_from(number & u128::from(u32::MAX)).unwrap_or(u32::MAX);
        IpAddr::V4(bits.into())
    } else {
        IpAddr::V6(number.into())
    }
}
