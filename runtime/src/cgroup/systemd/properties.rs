//! The kernel's files → properties of systemd's units (systemd.resource-control(5)). Pure.
//!
//! Limits are told to systemd so that it does not undo them, for it writes what it knows whenever it touches a unit.
//! What it does not know (huge pages, `memory.oom.group`) has no row here, and is written by us alone; so is every
//! limit once more, since it rounds some.

use crate::cgroup::{DeviceAccess, DeviceRule};

/// No limit.
const INFINITY: u64 = u64::MAX;

/// CFS period when none is given, microseconds.
const PERIOD: u64 = 100_000;

/// systemd thinks in whole per cent of a processor, and cuts off.
const PER_CENT: u64 = 10_000;

/// The version from which a unit has a CFS period.
const HAS_PERIOD: u32 = 242;
/// The version from which a unit has cpusets.
const HAS_CPUSET: u32 = 244;
/// The version from which a unit has `memory.min`.
const HAS_MEMORY_MIN: u32 = 240;

/// A property's value, by its type on the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// `b`
    Bool(bool),
    /// `t`
    Number(u64),
    /// `s`
    Text(String),
    /// `ay`
    Bits(Vec<u8>),
    /// `au`
    Pids(Vec<u32>),
    /// `a(ss)`
    Pairs(Vec<(String, String)>),
}

/// A property of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Property {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
}

/// A value for one of the kernel's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) file: String,
    pub(crate) value: String,
}

pub(crate) fn property(name: &'static str, value: Value) -> Property {
    Property { name, value }
}

fn text(name: &'static str, value: &str) -> Property {
    property(name, Value::Text(value.to_owned()))
}

/// What every unit of ours has.
pub(super) fn common(description: &str, unified: bool) -> Vec<Property> {
    let io = match unified {
        true => "IOAccounting",
        false => "BlockIOAccounting",
    };
    let mut list = vec![
        text("Description", description),
        property("DefaultDependencies", Value::Bool(false)),
    ];
    let counted = ["CPUAccounting", "MemoryAccounting", "TasksAccounting", io];
    list.extend(counted.map(|name| property(name, Value::Bool(true))));
    list
}

/// What a scope has besides: somebody to begin with, the cgroups below it for itself, and no trace when it has ended.
pub(super) fn scope(slice: &str, pid: u32) -> Vec<Property> {
    vec![
        text("Slice", slice),
        property("PIDs", Value::Pids(vec![pid])),
        property("Delegate", Value::Bool(true)),
        text("CollectMode", "inactive-or-failed"),
        // Otherwise it is the system's default, a share of all processes.
        property("TasksMax", Value::Number(INFINITY)),
    ]
}

/// The limits that a systemd of this version knows; the last of two of one name counts.
pub(super) fn limits(settings: &[Setting], version: u32) -> Vec<Property> {
    let mut list = Vec::new();
    for setting in settings {
        limit(setting, settings, version, &mut list);
    }
    list
}

fn limit(setting: &Setting, all: &[Setting], version: u32, list: &mut Vec<Property>) {
    let value = setting.value.trim();
    let mut number = |name| list.extend(maximum(value).map(|n| property(name, Value::Number(n))));
    match setting.file.as_str() {
        "cpu.weight" => number("CPUWeight"),
        "cpu.shares" => number("CPUShares"),
        "memory.max" => number("MemoryMax"),
        "memory.limit_in_bytes" => number("MemoryLimit"),
        "memory.high" => number("MemoryHigh"),
        "memory.low" => number("MemoryLow"),
        "memory.min" if version >= HAS_MEMORY_MIN => number("MemoryMin"),
        "memory.swap.max" => number("MemorySwapMax"),
        "pids.max" => number("TasksMax"),
        "cpu.max" => {
            let (quota, period) = value.split_once(' ').unwrap_or((value, ""));
            list.extend(quota_of(quota, period, version));
        }
        "cpu.cfs_quota_us" => {
            let period = all.iter().find(|one| one.file == "cpu.cfs_period_us");
            let period = period.map_or("", |one| one.value.as_str());
            list.extend(quota_of(value, period, version));
        }
        "cpuset.cpus" if version >= HAS_CPUSET => {
            list.extend(bits(value).map(|set| property("AllowedCPUs", Value::Bits(set))));
        }
        "cpuset.mems" if version >= HAS_CPUSET => {
            list.extend(bits(value).map(|set| property("AllowedMemoryNodes", Value::Bits(set))));
        }
        "io.weight" => {
            let weight = value.strip_prefix("default ").unwrap_or(value).parse();
            list.extend(weight.ok().map(|n| property("IOWeight", Value::Number(n))));
        }
        _ => {}
    }
}

/// A number; "max" and -1 are none.
fn maximum(value: &str) -> Option<u64> {
    match value {
        "max" | "-1" => Some(INFINITY),
        number => number.parse().ok(),
    }
}

fn quota_of(quota: &str, period: &str, version: u32) -> Vec<Property> {
    let Some(quota) = maximum(quota) else {
        return Vec::new();
    };
    let period = match period.trim().parse() {
        Ok(0) | Err(_) => PERIOD,
        Ok(period) => period,
    };
    let per_second = match quota {
        INFINITY => INFINITY,
        quota => {
            let exact = u128::from(quota) * 1_000_000 / u128::from(period);
            // Not less than what is written afterwards: on v1 a child may not have more than its parent.
            let rounded = u64::try_from(exact).map_or(INFINITY, |n| n.div_ceil(PER_CENT));
            rounded.saturating_mul(PER_CENT)
        }
    };
    let mut list = vec![property("CPUQuotaPerSecUSec", Value::Number(per_second))];
    if version >= HAS_PERIOD {
        list.push(property("CPUQuotaPeriodUSec", Value::Number(period)));
    }
    list
}

/// A list as `0-3,7` as a set of bits, the lowest first; none when it is no list.
fn bits(list: &str) -> Option<Vec<u8>> {
    /// More than any kernel knows.
    const MOST: usize = 1 << 16;
    let mut set = Vec::new();
    for part in list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        if from > to || to >= MOST {
            return None;
        }
        set.resize(set.len().max(to / 8 + 1), 0);
        for number in from..=to {
            set[number / 8] |= 1 << (number % 8);
        }
    }
    (!set.is_empty()).then_some(set)
}

/// The devices of a scope on v1, where systemd writes the list anew when it touches the unit; on v2 it leaves a filter
/// that is not its own alone. `known` is `/proc/devices`, by which a list without a minor number is named.
pub(super) fn devices(rules: &[DeviceRule], known: &str) -> Vec<Property> {
    if rules.iter().any(|rule| rule.access == DeviceAccess::All) {
        return Vec::new();
    }
    let allowed = rules.iter().filter_map(|rule| {
        let name = device(rule.access, known)?;
        Some((name, rule.permissions.clone()))
    });
    vec![
        text("DevicePolicy", "strict"),
        property("DeviceAllow", Value::Pairs(allowed.collect())),
    ]
}

fn device(access: DeviceAccess, known: &str) -> Option<String> {
    let (kind, heading, major, minor) = match access {
        DeviceAccess::All => return None,
        DeviceAccess::Char(major, minor) => ("char", "Character devices:", major, minor),
        DeviceAccess::Block(major, minor) => ("block", "Block devices:", major, minor),
    };
    match (major, minor) {
        (None, None) => Some(format!("{kind}-*")),
        (Some(major), Some(minor)) => Some(format!("/dev/{kind}/{major}:{minor}")),
        (Some(major), None) => {
            let mut lines = known.lines().skip_while(|line| *line != heading).skip(1);
            let name = lines
                .by_ref()
                .take_while(|line| !line.is_empty())
                .find_map(|line| line.trim().strip_prefix(&format!("{major} ")));
            name.map(|name| format!("{kind}-{name}"))
        }
        // systemd has no word for it, and a container without it is safe.
        (None, Some(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(list: &[(&str, &str)]) -> Vec<Setting> {
        let setting = |(file, value): &(&str, &str)| Setting {
            file: (*file).to_owned(),
            value: (*value).to_owned(),
        };
        list.iter().map(setting).collect()
    }

    fn numbers(list: &[(&str, &str)], version: u32) -> Vec<(&'static str, u64)> {
        let of = |one: Property| match one.value {
            Value::Number(number) => Some((one.name, number)),
            _ => None,
        };
        limits(&settings(list), version)
            .into_iter()
            .filter_map(of)
            .collect()
    }

    #[test]
    fn every_limit_that_systemd_knows_has_its_property() {
        let table = [
            ("cpu.weight", "59", "CPUWeight", 59),
            ("cpu.shares", "512", "CPUShares", 512),
            ("memory.max", "1048576", "MemoryMax", 1 << 20),
            ("memory.max", "max", "MemoryMax", INFINITY),
            ("memory.limit_in_bytes", "-1", "MemoryLimit", INFINITY),
            ("memory.high", "9", "MemoryHigh", 9),
            ("memory.low", "9", "MemoryLow", 9),
            ("memory.min", "9", "MemoryMin", 9),
            ("memory.swap.max", "0", "MemorySwapMax", 0),
            ("pids.max", "max", "TasksMax", INFINITY),
            ("io.weight", "default 70", "IOWeight", 70),
        ];
        for (file, value, name, number) in table {
            assert_eq!(numbers(&[(file, value)], 252), [(name, number)], "{file}");
        }
    }

    #[test]
    fn what_systemd_does_not_know_is_left_to_the_files() {
        for (file, value, version) in [
            ("memory.oom.group", "1", 257),
            ("hugetlb.2MB.max", "4", 257),
            ("memory.max", "much", 257),
            ("cpuset.cpus", "all", 257),
            ("cpuset.cpus", "3-1", 257),
            ("cpuset.cpus", "0-99999999", 257),
            ("cpuset.cpus", "0", 243),
            ("memory.min", "9", 239),
        ] {
            let list = limits(&settings(&[(file, value)]), version);
            assert_eq!(list, [], "{file} {value}");
        }
    }

    #[test]
    fn quota_is_of_a_second_in_whole_per_cents_and_never_less() {
        for (quota, per_second) in [
            ("50000 100000", 500_000),
            ("12345 100000", 130_000),
            ("50000 200000", 250_000),
            ("50000", 500_000),
            ("max 100000", INFINITY),
            ("18446744073709551614 1", INFINITY),
        ] {
            let found = numbers(&[("cpu.max", quota)], 239);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].0, "CPUQuotaPerSecUSec");
            assert!(
                found[0].1 == per_second || found[0].1 > INFINITY - PER_CENT,
                "{quota}: {found:?}"
            );
        }
        let both = numbers(
            &[
                ("cpu.cfs_period_us", "50000"),
                ("cpu.cfs_quota_us", "25000"),
            ],
            252,
        );
        assert_eq!(
            both,
            [
                ("CPUQuotaPerSecUSec", 500_000),
                ("CPUQuotaPeriodUSec", 50_000)
            ]
        );
    }

    #[test]
    fn cpusets_are_bits_with_the_lowest_first() {
        assert_eq!(bits("0"), Some(vec![1]));
        assert_eq!(bits("0-2,9"), Some(vec![0b111, 0b10]));
        assert_eq!(bits(""), None);
        assert_eq!(bits("x"), None);
    }

    #[test]
    fn devices_of_a_scope_are_those_of_the_list() {
        let known = "Character devices:\n  1 mem\n136 pts\n\nBlock devices:\n  1 ramdisk\n";
        let list = devices(&DeviceRule::standard(), known);
        assert_eq!(list[0], text("DevicePolicy", "strict"));
        let Value::Pairs(pairs) = &list[1].value else {
            panic!("{list:?}");
        };
        let pair = |name: &str, permissions: &str| (name.to_owned(), permissions.to_owned());
        for wanted in [
            pair("char-*", "m"),
            pair("block-*", "m"),
            pair("/dev/char/1:3", "rwm"),
            pair("char-pts", "rwm"),
        ] {
            assert!(pairs.contains(&wanted), "{wanted:?} in {pairs:?}");
        }
        assert_eq!(pairs.len(), DeviceRule::standard().len());
        assert_eq!(devices(&DeviceRule::everything(), known), []);
    }
}
