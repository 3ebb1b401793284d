//! Which kinds of mandatory access control the kernel enforces.

use std::fs;
use std::path::Path;

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Labels {
    /// AppArmor profiles.
    pub(crate) app_armor: bool,
    /// SELinux labels.
    pub(crate) selinux: bool,
}

impl Labels {
    /// Looks at the kernel.
    pub(super) fn look() -> Self {
        let app_armor = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
        Labels {
            app_armor: app_armor.is_ok_and(|text| text.starts_with('Y')),
            // Mounted only where a policy is loaded.
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        }
    }
}
