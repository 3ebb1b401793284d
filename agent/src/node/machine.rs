//! What there is of this machine: processors, memory, disk, names. Readers do the I/O; parsers take text.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use crate::pod::resources;
use crate::quantity::Amount;

/// Where the kernel has a directory for each size of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// Addresses of the documentation's networks: asking for the way to them sends nothing.
const ELSEWHERE: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
);

/// The machine as the Node object shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Machine {
    /// Processors that are online.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Swap in bytes.
    pub swap: u64,
    /// Size of the filesystem with the pods' volumes, bytes.
    pub storage: u64,
    /// Bytes of huge pages by page size, as resources are named: `2Mi`.
    pub huge_pages: BTreeMap<String, u64>,
    /// /etc/machine-id.
    pub machine_id: String,
    /// The firmware's id of the machine.
    pub system_uuid: String,
    /// Changes with every boot.
    pub boot_id: String,
    /// Kernel release.
    pub kernel: String,
    /// Name of the distribution.
    pub os_image: String,
    /// As Go names it: amd64, arm64.
    pub architecture: String,
}

/// Looks at the machine. What cannot be read is left empty: no reason not to join.
pub fn look(storage: &Path) -> Machine {
    let text = |path: &str| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let meminfo = text("/proc/meminfo");
    let machine_id = text("/etc/machine-id");
    let product = text("/sys/class/dmi/id/product_uuid");
    Machine {
        cpus: count_cpus(&text("/sys/devices/system/cpu/online")),
        memory: meminfo_bytes(&meminfo, "MemTotal"),
        swap: meminfo_bytes(&meminfo, "SwapTotal"),
        storage: storage_bytes(storage),
        huge_pages: huge_pages(Path::new(HUGE_PAGES)),
        system_uuid: if product.is_empty() {
            machine_id.clone()
        } else {
            product
        },
        machine_id,
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        kernel: text("/proc/sys/kernel/osrelease"),
        os_image: os_image(&text("/etc/os-release")),
        architecture: architecture(std::env::consts::ARCH).to_owned(),
    }
}

/// The name of this host.
pub fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// `0-3,5` is five.
fn count_cpus(online: &str) -> u32 {
    let ranges = online.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.fold(0u32, u32::saturating_add).max(1)
}

/// A line of /proc/meminfo in bytes.
fn meminfo_bytes(meminfo: &str, field: &str) -> u64 {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Size of the filesystem at the path, or at the closest directory above that exists.
fn storage_bytes(path: &Path) -> u64 {
    let stat = path
        .ancestors()
        .find_map(|path| rustix::fs::statvfs(path).ok());
    stat.map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Sizes of the kernel's huge pages, as the files of cgroups have them (`2MB`).
pub fn huge_page_sizes() -> Vec<String> {
    let sizes = huge_pages(Path::new(HUGE_PAGES)).into_keys();
    let sizes = sizes.filter_map(|size| Amount::parse(&size).ok()?.to_units().try_into().ok());
    sizes.filter_map(resources::page_size).collect()
}

/// `hugepages-2048kB/nr_hugepages` as `2Mi`.
fn huge_pages(dir: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name
            .strip_prefix("hugepages-")?
            .strip_suffix("kB")?
            .parse()
            .ok()?;
        let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        let bytes = count
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(kib)?
            .checked_mul(1024)?;
        Some((page_size(kib), bytes))
    });
    sizes.collect()
}

/// Kibibytes in the largest unit that is whole.
fn page_size(kib: u64) -> String {
    match kib {
        kib if kib % (1 << 20) == 0 => format!("{}Gi", kib >> 20),
        kib if kib % (1 << 10) == 0 => format!("{}Mi", kib >> 10),
        kib => format!("{kib}Ki"),
    }
}

/// PRETTY_NAME of /etc/os-release.
fn os_image(os_release: &str) -> String {
    let name = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or("Linux", |name| name.trim().trim_matches(['"', '\'']))
        .to_owned()
}

/// Rust's name of an architecture as Go's.
fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Memory and the like as amounts.
impl Machine {
    /// Everything that pods can be given, before reservations, by resource name.
    pub fn capacity(&self, pods: u32) -> BTreeMap<String, Amount> {
        let bytes = |bytes: u64| Amount::units(i64::try_from(bytes).unwrap_or(i64::MAX));
        let mut capacity: BTreeMap<String, Amount> = [
            ("cpu", Amount::units(i64::from(self.cpus))),
            ("memory", bytes(self.memory)),
            ("ephemeral-storage", bytes(self.storage)),
            ("pods", Amount::units(i64::from(pods))),
        ]
        .map(|(name, amount)| (name.to_owned(), amount))
        .into();
        for (size, total) in &self.huge_pages {
            capacity.insert(format!("hugepages-{size}"), bytes(*total));
        }
        capacity
    }
}

/// The address by which this machine reaches a peer: a UDP socket that is connected and never used says it.
pub fn address_towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if peer.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The machine's address that leads elsewhere, as far as its routes say; the loopback's when none does.
pub fn own_address(v6: bool) -> IpAddr {
    let (elsewhere, loopback): (SocketAddr, IpAddr) = match v6 {
        true => ((ELSEWHERE.1, 9).into(), Ipv6Addr::LOCALHOST.into()),
        false => ((ELSEWHERE.0, 9).into(), Ipv4Addr::LOCALHOST.into()),
    };
    address_towards(elsewhere).unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_over_ranges() {
        for (text, count) in [
            ("0", 1),
            ("0-1", 2),
            ("0-3,5", 5),
            ("0,2,4-7", 6),
            ("", 1),
            ("x", 1),
        ] {
            assert_eq!(count_cpus(text), count, "{text}");
        }
    }

    #[test]
    fn memory_is_read_in_kibibytes() {
        let meminfo = "MemTotal:       25165824 kB\nMemFree: 1 kB\nSwapTotal:             0 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), 24 << 30);
        assert_eq!(meminfo_bytes(meminfo, "SwapTotal"), 0);
        assert_eq!(meminfo_bytes("", "MemTotal"), 0);
    }

    #[test]
    fn page_sizes_are_named_as_resources_are() {
        for (kib, name) in [(4, "4Ki"), (64, "64Ki"), (2048, "2Mi"), (1 << 20, "1Gi")] {
            assert_eq!(page_size(kib), name);
        }
    }

    #[test]
    fn the_distributions_name_loses_its_quotes() {
        assert_eq!(
            os_image("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"),
            "Debian GNU/Linux 12"
        );
        assert_eq!(os_image(""), "Linux");
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let machine = look(Path::new("/nowhere/below/root"));
        assert!(machine.cpus > 0 && machine.memory > 0 && machine.storage > 0);
        assert!(!machine.boot_id.is_empty() && !machine.kernel.is_empty());
        assert_eq!(machine.capacity(110)["pods"].to_units(), 110);
    }

    #[test]
    fn the_way_to_the_loopback_starts_at_the_loopback() {
        let address = address_towards(([127, 0, 0, 1], 9).into());
        assert_eq!(address, Some([127, 0, 0, 1].into()));
    }
}
