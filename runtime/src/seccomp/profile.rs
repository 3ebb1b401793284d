//! A filter's policy as data, and the OCI JSON form of it.
//!
//! Parsing knows the fields of the OCI runtime specification (config-linux, "Seccomp"); fields that other
//! tools add to the same files (`archMap`, `includes`, ...) are left alone. It takes bytes and does no I/O.

use serde::{Deserialize, Serialize};

use super::{SeccompError, default};

/// What to do with every system call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Action for what no rule names, `SCMP_ACT_*`.
    pub default_action: String,
    /// errno of an `SCMP_ACT_ERRNO` default; EPERM when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u16>,
    /// `SCMP_ARCH_*` beside the native one.
    #[serde(default)]
    pub architectures: Vec<String>,
    /// `SECCOMP_FILTER_FLAG_*` names.
    #[serde(default)]
    pub flags: Vec<String>,
    /// The rules. The first that matches a call decides; libseccomp forbids contradicting ones.
    #[serde(default)]
    pub syscalls: Vec<Rule>,
    /// Judgement of recent calls by number, before all rules.
    #[serde(skip)]
    pub recent: Option<Recent>,
}

/// Calls that libseccomp may not know by name yet. Their numbers are the same on all architectures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recent {
    /// Numbers from here on are allowed,
    pub first: u32,
    /// up to here; what is above (and below the private ranges) is answered with ENOSYS, so that a C
    /// library that tries a newer call falls back to the older one.
    pub newest: u32,
    /// Those in between that the rules decide.
    pub except: Vec<u32>,
}

/// One action for some system calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Names; unknown ones are skipped, as they cannot be called either.
    pub names: Vec<String>,
    /// `SCMP_ACT_*`.
    pub action: String,
    /// errno of `SCMP_ACT_ERRNO`, value of `SCMP_ACT_TRACE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u16>,
    /// Conditions. On different arguments all must hold; on the same argument one is enough.
    #[serde(default)]
    pub args: Vec<Arg>,
}

/// A condition on an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arg {
    /// Which argument, 0..=5.
    pub index: u32,
    /// What it is compared with; the mask of `SCMP_CMP_MASKED_EQ`.
    pub value: u64,
    /// What the masked value is compared with.
    #[serde(default)]
    pub value_two: u64,
    /// `SCMP_CMP_*`.
    pub op: String,
}

impl Policy {
    /// Reads an OCI profile.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// RuntimeDefault for a container with these capabilities (bit n = capability n). Its OCI JSON form leaves
    /// [`Policy::recent`] out.
    pub fn runtime_default(capabilities: u64) -> Self {
        default::policy(capabilities)
    }

    /// The bits of [`Policy::flags`].
    pub(super) fn flag_bits(&self) -> Result<u32, SeccompError> {
        self.flags.iter().try_fold(0, |bits, flag| {
            let bit = match flag.as_str() {
                // The filter is loaded by a process with one thread: nothing to synchronise.
                "SECCOMP_FILTER_FLAG_TSYNC" => 0,
                "SECCOMP_FILTER_FLAG_LOG" => 1 << 1,
                "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => super::FLAG_SPEC_ALLOW,
                _ => return Err(SeccompError::Compile(format!("unsupported flag {flag:?}"))),
            };
            Ok(bits | bit)
        })
    }
}
