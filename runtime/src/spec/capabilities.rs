//! Capability names, and which a container gets. Sets are bit masks: bit n is capability n of
//! `linux/capability.h`.

use oci_spec::runtime::{Capabilities, Capability};

use super::SpecError;

/// Names in the order of their numbers.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container has when the pod says nothing: containerd's fourteen.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Every name as the kernel's headers have it.
pub fn names() -> Vec<String> {
    NAMES.iter().map(|name| format!("CAP_{name}")).collect()
}

/// The default set as a mask.
pub fn default_set() -> u64 {
    DEFAULT
        .iter()
        .filter_map(|name| bit(name))
        .fold(0, |set, bit| set | bit)
}

/// The set after `add` and `drop`, limited to what we hold ourselves. "ALL" goes first, adding before
/// dropping, so that `add: [ALL], drop: [X]` and `drop: [ALL], add: [X]` mean what they say; then the
/// single names, dropping last.
pub fn resolve(add: &[String], drop: &[String], held: u64) -> Result<u64, SpecError> {
    let all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    let mut set = default_set();
    if all(add) {
        set = u64::MAX;
    }
    if all(drop) {
        set = 0;
    }
    for name in add {
        set |= single(name)?;
    }
    for name in drop {
        set &= !single(name)?;
    }
    Ok(set & held)
}

/// The bit of a name; nothing for "ALL".
fn single(name: &str) -> Result<u64, SpecError> {
    if name.eq_ignore_ascii_case("ALL") {
        return Ok(0);
    }
    bit(name).ok_or_else(|| SpecError::Invalid {
        field: "capability",
        value: name.to_owned(),
        reason: "no such capability",
    })
}

/// The bit of a name, with or without `CAP_`.
pub(crate) fn bit(name: &str) -> Option<u64> {
    let upper = name.to_ascii_uppercase();
    let plain = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES
        .iter()
        .position(|known| *known == plain)
        .map(|number| 1 << number)
}

/// A mask as OCI writes it.
pub fn to_oci(set: u64) -> Capabilities {
    NAMES
        .iter()
        .enumerate()
        .filter(|(number, _)| set & (1 << number) != 0)
        .filter_map(|(_, name)| name.parse::<Capability>().ok())
        .collect()
}

/// A set of OCI as a mask.
pub fn from_oci(set: Option<&Capabilities>) -> u64 {
    let names = set.into_iter().flatten().map(ToString::to_string);
    names
        .filter_map(|name| bit(&name))
        .fold(0, |set, bit| set | bit)
}

/// The capabilities of this process, from the text of `/proc/self/status`.
pub fn held(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(add: &[&str], drop: &[&str]) -> u64 {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        resolve(&owned(add), &owned(drop), (1 << 41) - 1).unwrap()
    }

    #[test]
    fn add_and_drop_work_as_in_containerd() {
        let all = (1 << 41) - 1;
        let default = 0xa804_25fb;
        let table: [(&[&str], &[&str], u64); 9] = [
            (&[], &[], default),
            (&["NET_ADMIN"], &[], default | 1 << 12),
            (&["CAP_net_admin"], &[], default | 1 << 12),
            (&[], &["CHOWN", "CAP_KILL"], default & !(1 | 1 << 5)),
            (&[], &["ALL"], 0),
            (&["NET_BIND_SERVICE"], &["ALL"], 1 << 10),
            (&["ALL"], &["CHOWN"], all & !1),
            (&["all"], &[], all),
            (&["SYS_TIME"], &["SYS_TIME"], default),
        ];
        for (add, drop, expected) in table {
            assert_eq!(set(add, drop), expected, "{add:?} {drop:?}");
        }
    }

    #[test]
    fn nobody_gets_what_we_do_not_hold() {
        assert_eq!(resolve(&["ALL".into()], &[], 0b110).unwrap(), 0b110);
    }

    #[test]
    fn unknown_names_are_errors() {
        assert!(resolve(&["FLY".into()], &[], 0).is_err());
        assert!(resolve(&[], &["CAP_".into()], 0).is_err());
    }

    #[test]
    fn names_survive_the_way_through_oci() {
        for (number, name) in NAMES.iter().enumerate() {
            assert_eq!(from_oci(Some(&to_oci(1 << number))), 1 << number, "{name}");
        }
    }

    #[test]
    fn held_set_is_read_from_status() {
        assert_eq!(held("Name:\tx\nCapEff:\t00000000a80425fb\n"), 0xa804_25fb);
        assert_eq!(held("nothing"), 0);
    }
}
