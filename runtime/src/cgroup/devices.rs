//! Which devices a container may use: nothing but what is listed.

use std::fmt;
use std::path::Path;

use super::{CgroupError, write_file};

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAccess {
    /// Every device.
    All,
    /// Character devices; `None` is every number.
    Char(Option<u32>, Option<u32>),
    /// Block devices; `None` is every number.
    Block(Option<u32>, Option<u32>),
}

/// An entry of the list of allowed devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRule {
    /// Which devices.
    pub access: DeviceAccess,
    /// Of "rwm": read, write, mknod.
    pub permissions: String,
}

impl DeviceRule {
    /// Every access to every device: privileged containers.
    pub fn everything() -> Vec<DeviceRule> {
        vec![DeviceRule {
            access: DeviceAccess::All,
            permissions: "rwm".into(),
        }]
    }

    /// What every container gets: its own null, zero, full, random, urandom, tty, console, ptmx and
    /// terminals. Making any device node is allowed (it takes CAP_MKNOD); using it is not.
    pub fn standard() -> Vec<DeviceRule> {
        use DeviceAccess::{Block, Char};
        let make = [Char(None, None), Block(None, None)].map(|access| DeviceRule {
            access,
            permissions: "m".into(),
        });
        let standard = [
            (1, 3),
            (1, 5),
            (1, 7),
            (1, 8),
            (1, 9),
            (5, 0),
            (5, 1),
            (5, 2),
        ];
        let standard = standard.map(|(major, minor)| Char(Some(major), Some(minor)));
        make.into_iter()
            .chain(
                standard
                    .into_iter()
                    .chain([Char(Some(136), None)])
                    .map(|access| DeviceRule {
                        access,
                        permissions: "rwm".into(),
                    }),
            )
            .collect()
    }
}

/// The line that v1's devices.allow takes.
impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, major, minor) = match self.access {
            DeviceAccess::All => return f.write_str("a"),
            DeviceAccess::Char(major, minor) => ('c', major, minor),
            DeviceAccess::Block(major, minor) => ('b', major, minor),
        };
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        write!(
            f,
            "{kind} {}:{} {}",
            number(major),
            number(minor),
            self.permissions
        )
    }
}

/// A new v1 cgroup allows what its parent allows; so first nothing, then the list.
pub(super) fn restrict_v1(directory: &Path, rules: &[DeviceRule]) -> Result<(), CgroupError> {
    if rules.iter().any(|rule| rule.access == DeviceAccess::All) {
        return Ok(());
    }
    write_file(&directory.join("devices.deny"), "a")?;
    let allow = directory.join("devices.allow");
    rules
        .iter()
        .try_for_each(|rule| write_file(&allow, &rule.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_list_is_the_one_of_the_oci_runtimes() {
        let lines: Vec<String> = DeviceRule::standard()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "c *:* m",
                "b *:* m",
                "c 1:3 rwm",
                "c 1:5 rwm",
                "c 1:7 rwm",
                "c 1:8 rwm",
                "c 1:9 rwm",
                "c 5:0 rwm",
                "c 5:1 rwm",
                "c 5:2 rwm",
                "c 136:* rwm",
            ]
        );
    }
}
