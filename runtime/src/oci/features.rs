//! `features`: what this runtime can do, as features.md of the specification wants it told.

use serde_json::{Value, json};

use super::mounts::known_options;
use super::record::OCI_VERSION;
use crate::spec::capabilities;

/// The document.
pub fn features() -> Value {
    json!({
        "ociVersionMin": "1.0.0",
        "ociVersionMax": OCI_VERSION,
        "hooks": ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"],
        "mountOptions": known_options(),
        "linux": {
            "namespaces": ["cgroup", "ipc", "mount", "network", "pid", "user", "uts"],
            "capabilities": capabilities::names(),
            "cgroup": {
                "v1": true,
                "v2": true,
                "systemd": true,
                "systemdUser": false,
                "rdma": true,
            },
            "seccomp": {
                "enabled": true,
                "actions": [
                    "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
                    "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP",
                ],
                "operators": [
                    "SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT",
                    "SCMP_CMP_MASKED_EQ", "SCMP_CMP_NE",
                ],
                "archs": ["SCMP_ARCH_X86", "SCMP_ARCH_X86_64", "SCMP_ARCH_X32", "SCMP_ARCH_ARM", "SCMP_ARCH_AARCH64"],
                "knownFlags": [
                    "SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
                ],
                "supportedFlags": [
                    "SECCOMP_FILTER_FLAG_TSYNC", "SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW",
                ],
            },
            "apparmor": { "enabled": true },
            "selinux": { "enabled": true },
            "intelRdt": { "enabled": false },
            "mountExtensions": { "idmap": { "enabled": false } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_one_that_the_library_reads() {
        let read: oci_spec::runtime::Features = serde_json::from_value(features()).unwrap();
        assert_eq!(read.oci_version_max(), OCI_VERSION);
    }
}
