//! `process` of the specification → the shim's.

use hanok_shim::protocol;
use oci_spec::runtime::{PosixRlimit, PosixRlimitType, Process};

use super::bundle::Sets;
use super::{OciError, Result};
use crate::lsm::{app_armor, selinux};
use crate::seccomp::Filter;

/// File mode creation mask when none is given.
const UMASK: u32 = 0o022;

/// A process; its filter is that of the container.
pub(super) fn process(
    given: &Process,
    sets: &Sets,
    filter: Option<&Filter>,
) -> Result<protocol::Process> {
    check_enforced(given)?;
    let user = given.user();
    let text = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    Ok(protocol::Process {
        args: given.args().clone().unwrap_or_default(),
        env: given.env().clone().unwrap_or_default(),
        cwd: given.cwd().to_string_lossy().into_owned(),
        user: self::user(
            user.uid(),
            user.gid(),
            user.additional_gids().clone().unwrap_or_default(),
        ),
        capabilities: sets.0,
        no_new_privileges: given.no_new_privileges().unwrap_or(false),
        seccomp: filter
            .map(|filter| filter.program.clone())
            .unwrap_or_default(),
        seccomp_flags: filter.map_or(0, |filter| filter.flags),
        rlimits: rlimits(given.rlimits().as_deref().unwrap_or_default())?,
        oom_score_adj: given.oom_score_adj(),
        umask: Some(user.umask().unwrap_or(UMASK)),
        apparmor: text(given.apparmor_profile()),
        selinux: text(given.selinux_label()),
    })
}

/// What nobody would enforce is not taken: without a policy, the kernel takes any label and does nothing.
fn check_enforced(given: &Process) -> Result<()> {
    let is_given = |value: &Option<String>| value.as_ref().is_some_and(|value| !value.is_empty());
    check_label(is_given(given.selinux_label()), "process.selinuxLabel")?;
    match is_given(given.apparmor_profile()) && !app_armor::is_in_kernel() {
        true => Err(OciError::Config(
            "process.apparmorProfile is given, but AppArmor is not enabled on this machine".into(),
        )),
        false => Ok(()),
    }
}

/// Refuses a label that is given where there is no SELinux.
pub(super) fn check_label(given: bool, name: &str) -> Result<()> {
    match given && !selinux::is_enabled() {
        true => Err(OciError::Config(format!(
            "{name} is given, but SELinux is not enabled on this machine"
        ))),
        false => Ok(()),
    }
}

/// A user by numbers alone.
pub(super) fn user(uid: u32, gid: u32, additional_gids: Vec<u32>) -> protocol::User {
    protocol::User {
        spec: uid.to_string(),
        gid: Some(gid),
        additional_gids,
        strict_groups: true,
    }
}

fn rlimits(given: &[PosixRlimit]) -> Result<Vec<(u32, u64, u64)>> {
    let mut limits: Vec<(u32, u64, u64)> = Vec::new();
    for limit in given {
        let number = number(limit.typ());
        if limits.iter().any(|(other, ..)| *other == number) {
            return Err(OciError::Config(format!(
                "rlimit {} is there twice",
                limit.typ()
            )));
        }
        limits.push((number, limit.soft(), limit.hard()));
    }
    Ok(limits)
}

fn number(kind: PosixRlimitType) -> u32 {
    match kind {
        PosixRlimitType::RlimitCpu => libc::RLIMIT_CPU,
        PosixRlimitType::RlimitFsize => libc::RLIMIT_FSIZE,
        PosixRlimitType::RlimitData => libc::RLIMIT_DATA,
        PosixRlimitType::RlimitStack => libc::RLIMIT_STACK,
        PosixRlimitType::RlimitCore => libc::RLIMIT_CORE,
        PosixRlimitType::RlimitRss => libc::RLIMIT_RSS,
        PosixRlimitType::RlimitNproc => libc::RLIMIT_NPROC,
        PosixRlimitType::RlimitNofile => libc::RLIMIT_NOFILE,
        PosixRlimitType::RlimitMemlock => libc::RLIMIT_MEMLOCK,
        PosixRlimitType::RlimitAs => libc::RLIMIT_AS,
        PosixRlimitType::RlimitLocks => libc::RLIMIT_LOCKS,
        PosixRlimitType::RlimitSigpending => libc::RLIMIT_SIGPENDING,
        PosixRlimitType::RlimitMsgqueue => libc::RLIMIT_MSGQUEUE,
        PosixRlimitType::RlimitNice => libc::RLIMIT_NICE,
        PosixRlimitType::RlimitRtprio => libc::RLIMIT_RTPRIO,
        PosixRlimitType::RlimitRttime => libc::RLIMIT_RTTIME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Process {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_process_is_its_numbers() {
        let given = parse(
            r#"{"cwd":"/w","args":["a"],"user":{"uid":5,"gid":6,"additionalGids":[7],"umask":63},
            "rlimits":[{"type":"RLIMIT_NOFILE","soft":1,"hard":2}],"oomScoreAdj":3,"apparmorProfile":""}"#,
        );
        let made = process(&given, &Sets::default(), None).unwrap();
        assert_eq!(made.user, user(5, 6, vec![7]));
        assert_eq!(made.rlimits, [(libc::RLIMIT_NOFILE, 1, 2)]);
        assert_eq!(
            (made.umask, made.oom_score_adj, made.apparmor),
            (Some(63), Some(3), None)
        );
    }

    #[test]
    fn a_limit_is_given_once() {
        let twice = r#"{"user":{},"cwd":"/","rlimits":[{"type":"RLIMIT_AS","soft":1,"hard":2},{"type":"RLIMIT_AS","soft":1,"hard":2}]}"#;
        assert!(process(&parse(twice), &Sets::default(), None).is_err());
    }
}
