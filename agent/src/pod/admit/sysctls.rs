//! Sysctls of pods: the safe ones, those that the operator allows, and never one of the node's own namespaces.

use k8s_openapi::api::core::v1::Pod;

use super::failure;
use crate::pod::spec;
use crate::pod::status::Failure;

/// Sysctls that reach no further than the pod. Kernels that do not have the newest of them per namespace (before 4.15)
/// are none that a node runs on.
const SAFE: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// A pattern of sysctls that no namespace contains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no sysctl of a namespace, nor the beginning of some with a * behind it: kernel.sem, kernel.shm*, kernel.msg*, fs.mqueue.*, net.* are"
)]
pub struct SysctlPatternError(pub String);

/// Whose a sysctl is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
    Uts,
    User,
}

impl Namespace {
    /// As messages spell it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
            Self::Uts => "UTS",
            Self::User => "User",
        }
    }

    /// The namespace of a sysctl, or of all that begin like this.
    fn of(name: &str) -> Option<Self> {
        match name {
            "kernel.domainname" => Some(Self::Uts),
            "kernel.sem"
            | "kernel.shm"
            | "kernel.shmall"
            | "kernel.shmmax"
            | "kernel.shmmni"
            | "kernel.shm_rmid_forced"
            | "kernel.msg"
            | "kernel.msgmax"
            | "kernel.msgmnb"
            | "kernel.msgmni" => Some(Self::Ipc),
            name if name.starts_with("net.") => Some(Self::Net),
            name if name.starts_with("fs.mqueue.") => Some(Self::Ipc),
            name if name.starts_with("user.") => Some(Self::User),
            _ => None,
        }
    }
}

/// Refuses a pattern of `allowedUnsafeSysctls` that would reach beyond pods.
pub fn check_pattern(pattern: &str) -> Result<(), SysctlPatternError> {
    let name = dotted(pattern);
    let known = Namespace::of(name.strip_suffix('*').unwrap_or(&name));
    match known {
        Some(_) if is_well_written(pattern) => Ok(()),
        _ => Err(SysctlPatternError(pattern.to_owned())),
    }
}

/// Whether the parts are made of small letters and digits, with - and _ within; * stands at the very end.
fn is_well_written(pattern: &str) -> bool {
    /// Most characters of a name.
    const MOST: usize = 253;
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |part: &[u8]| part.iter().all(|byte| plain(byte) || b"-_".contains(byte));
    let whole = |part: &[u8]| {
        inner(part) && part.first().is_some_and(plain) && part.last().is_some_and(plain)
    };
    let mut parts: Vec<&[u8]> = pattern
        .as_bytes()
        .split(|byte| b"./".contains(byte))
        .collect();
    let last = parts.pop().unwrap_or_default();
    let last = match last.split_last() {
        Some((b'*', [])) => true,
        Some((b'*', [first, rest @ ..])) => plain(first) && inner(rest),
        _ => whole(last),
    };
    pattern.len() <= MOST && last && parts.into_iter().all(whole)
}

/// Refuses the first sysctl that is not allowed.
pub(super) fn check(pod: &Pod, unsafe_allowed: &[String]) -> Result<(), Failure> {
    let Some(spec) = spec::spec(pod) else {
        return Ok(());
    };
    let security = spec.security_context.as_ref();
    let sysctls = security.and_then(|security| security.sysctls.as_ref());
    for sysctl in sysctls.into_iter().flatten() {
        let name = dotted(&sysctl.name);
        let refuse = |why: String| {
            failure(
                "SysctlForbidden",
                format!("forbidden sysctl: {name:?} {why}"),
            )
        };
        let Some(namespace) = allowed(&name, unsafe_allowed) else {
            return Err(refuse("not allowlisted".to_owned()));
        };
        let of_node = match namespace {
            Namespace::Ipc => spec.host_ipc.unwrap_or(false),
            Namespace::Net => spec.host_network.unwrap_or(false),
            Namespace::User => spec.host_users.unwrap_or(true),
            Namespace::Uts => false,
        };
        if of_node {
            let namespace = namespace.as_str();
            return Err(refuse(format!("not allowed with host {namespace} enabled")));
        }
    }
    Ok(())
}

/// The namespace of a sysctl that may be set.
fn allowed(name: &str, unsafe_allowed: &[String]) -> Option<Namespace> {
    if SAFE.contains(&name) {
        return Namespace::of(name);
    }
    unsafe_allowed.iter().find_map(|pattern| {
        let pattern = dotted(pattern);
        match pattern.strip_suffix('*') {
            Some(prefix) if name.starts_with(prefix) => Namespace::of(prefix),
            None if name == pattern => Namespace::of(name),
            _ => None,
        }
    })
}

/// The name with dots between its parts. As sysctl(8) has it, the separator that comes first is the separator: behind
/// slashes, dots are part of a name, and the other way round.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name[first..].starts_with('/') => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}
