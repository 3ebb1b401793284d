//! Paths of /proc and /sys that a container does not see, or cannot write.

use super::HostFacts;
use crate::api::ContainerConfig;

/// They tell about the hardware and the kernel, or let a container act on them.
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

pub(super) fn masked(config: &ContainerConfig, host: &HostFacts) -> Vec<String> {
    if bare(config) {
        return Vec::new();
    }
    let fixed = MASKED.iter().map(ToString::to_string);
    fixed
        .chain(host.extra_masked_paths.iter().cloned())
        .collect()
}

pub(super) fn readonly(config: &ContainerConfig) -> Vec<String> {
    if bare(config) {
        return Vec::new();
    }
    READONLY.iter().map(ToString::to_string).collect()
}

fn bare(config: &ContainerConfig) -> bool {
    config.security.privileged || config.security.proc_unmasked
}
