//! Versions of the CNI specification.

use std::fmt;
use std::str::FromStr;

/// A version of the specification that this crate speaks, in order of age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Version {
    /// 0.1.0, what a configuration without a version means.
    V0_1_0,
    /// 0.2.0: same documents as 0.1.0.
    V0_2_0,
    /// 0.3.0: results list interfaces.
    V0_3_0,
    /// 0.3.1: plugin chains.
    V0_3_1,
    /// 0.4.0: CHECK.
    V0_4_0,
    /// 1.0.0: addresses lose their `version`.
    V1_0_0,
    /// 1.1.0: GC, STATUS.
    #[default]
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// As it is written in `cniVersion`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Whether plugins of this version understand CHECK.
    #[must_use]
    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// Whether plugins of this version understand GC and STATUS.
    #[must_use]
    pub fn has_gc_and_status(self) -> bool {
        self >= Self::V1_1_0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Version {
    type Err = UnknownVersion;

    fn from_str(s: &str) -> Result<Self, UnknownVersion> {
        Self::ALL
            .into_iter()
            .find(|v| v.as_str() == s)
            .ok_or(UnknownVersion)
    }
}

/// Not a version of [`Version::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the CNI specification from 0.1.0 to 1.1.0")]
pub struct UnknownVersion;
