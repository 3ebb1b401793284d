//! Kernel settings below /proc/sys/net, which shows the namespace of the thread that opens a file.

use std::fs;
use std::path::Path;

use super::PluginError;

/// Writes a setting unless it has the value already: /proc/sys is read-only in some places where
/// everything is as it should be.
pub(super) fn set(name: &str, value: &str) -> Result<(), PluginError> {
    let path = Path::new("/proc/sys/net").join(name);
    if fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    fs::write(&path, value).map_err(|source| PluginError::Sysctl { path, source })
}

/// Whether this kernel has IPv6.
pub(super) fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").is_dir()
}
