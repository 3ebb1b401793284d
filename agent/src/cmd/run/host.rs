//! What `hanok run` finds out about the machine, and the identities that it gives to pods.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pod::files::dns::ResolvConf;
use crate::quantity::Amount;

/// The node's name servers, where a stub resolver hides them.
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";

/// Gives a pod the fields that an API server would give it. No two runs share a UID.
pub(super) fn identified(mut pod: Pod, index: usize) -> Pod {
    let random = |salt: u64| RandomState::new().hash_one((index, salt, std::process::id()));
    let (high, low) = (random(0), random(1));
    pod.metadata.uid = Some(format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    ));
    pod.metadata.generation = Some(1);
    pod.metadata.creation_timestamp = Some(Time(jiff::Timestamp::now()));
    pod.status = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
    pod
}

/// Memory of the machine in bytes; 0 when it does not say.
pub(super) fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .and_then(|word| word.parse().ok());
    kib.map_or(0, |kib: u64| kib.saturating_mul(1024))
}

/// What pods without limits may use.
pub(super) fn allocatable(memory: u64) -> BTreeMap<String, Amount> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let units = |count: u64| Amount::units(i64::try_from(count).unwrap_or(i64::MAX));
    [("cpu", units(cpus as u64)), ("memory", units(memory))]
        .map(|(name, amount)| (name.to_owned(), amount))
        .into()
}

/// The machine's resolver configuration as a pod can use it: a stub on the loopback is of no use to it.
pub(super) fn resolv_conf() -> ResolvConf {
    let read = |path: &str| ResolvConf::parse(&fs::read_to_string(path).unwrap_or_default());
    let own = read("/etc/resolv.conf");
    let loopback = own
        .nameservers
        .iter()
        .any(|server| server.starts_with("127.") || server == "::1");
    match loopback && Path::new(BEHIND_STUB).exists() {
        true => read(BEHIND_STUB),
        false => own,
    }
}

/// The cgroup below which the pods go: on v2 beside everybody's, since a cgroup with processes has no children
/// with controllers; on v1 below our own.
pub(super) fn cgroup_root() -> String {
    match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        true => "/hanok-run".to_owned(),
        false => "hanok-run".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_gets_a_uid_of_its_own() {
        let uid = |index| {
            identified(Pod::default(), index)
                .metadata
                .uid
                .expect("a UID")
        };
        let (one, two) = (uid(0), uid(0));
        assert_ne!(one, two);
        assert_eq!(one.len(), 36, "{one}");
        assert!(
            one.chars().all(|c| c.is_ascii_hexdigit() || c == '-'),
            "{one}"
        );
    }

    #[test]
    fn the_machine_says_what_it_has() {
        assert!(memory() > 0);
        assert!(allocatable(1)["cpu"] >= Amount::units(1));
    }
}
