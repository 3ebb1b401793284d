//! Which ids of the machine are for pods' users: those that user `kubelet` has in /etc/subuid and /etc/subgid, as
//! `getsubids` tells them, or all but the first ones.
//!
//! The rules and the file are the kubelet's, so that a node can change between the two.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::pod::users::{Ids, UNIT};

/// Whose subordinate ids are for pods.
const USER: &str = "kubelet";

/// What the machine says. `ids_per_pod` is KubeletConfiguration's.
pub fn look(ids_per_pod: u32, max_pods: u32) -> anyhow::Result<Ids> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = passwd
        .lines()
        .any(|line| line.split(':').next() == Some(USER));
    let ids = if known {
        let (users, groups) = (
            subordinate("/etc/subuid", &[])?,
            subordinate("/etc/subgid", &["-g"])?,
        );
        of_user(&users, &groups, ids_per_pod)?
    } else {
        Ids::all_with(ids_per_pod)
    };
    check(ids, max_pods)?;
    Ok(ids)
}

/// The lines of user `kubelet`: from getsubids, which asks whoever the machine's administrator has chosen, or from the
/// file when there is no such program.
fn subordinate(file: &str, flags: &[&str]) -> anyhow::Result<String> {
    match Command::new("getsubids").args(flags).arg(USER).output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        // It fails when the user has none.
        Ok(_) => Ok(String::new()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let text = std::fs::read_to_string(Path::new(file)).unwrap_or_default();
            let own = |line: &&str| line.split(':').next() == Some(USER);
            Ok(text.lines().filter(own).collect::<Vec<_>>().join("\n"))
        }
        Err(error) => Err(error).context("cannot run getsubids"),
    }
}

/// One range, the same for users and groups; all of them when there is none.
fn of_user(users: &str, groups: &str, per_pod: u32) -> anyhow::Result<Ids> {
    let (users, groups) = (ranges(users)?, ranges(groups)?);
    ensure!(
        users == groups,
        "subordinate users and groups of {USER} are not the same: {users:?} and {groups:?}"
    );
    match users[..] {
        [] => Ok(Ids::all_with(per_pod)),
        [(first, count)] => Ok(Ids {
            first,
            count,
            per_pod,
        }),
        _ => bail!(
            "user {USER} has {} ranges of subordinate ids, and one is expected",
            users.len()
        ),
    }
}

/// `0: kubelet 65536 7208960` of getsubids, `kubelet:65536:7208960` of the file.
fn ranges(text: &str) -> anyhow::Result<Vec<(u32, u32)>> {
    let parse = |line: &str| {
        let mut words = line.rsplit([':', ' ']).filter(|word| !word.is_empty());
        let count = words.next()?.parse().ok()?;
        Some((words.next()?.parse().ok()?, count))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| parse(line.trim()).with_context(|| format!("subordinate ids {line:?}")))
        .collect()
}

/// What the kubelet asks of the range.
fn check(ids: Ids, max_pods: u32) -> anyhow::Result<()> {
    let Ids {
        first,
        count,
        per_pod,
    } = ids;
    ensure!(
        per_pod != 0 && per_pod.is_multiple_of(UNIT),
        "userNamespaces.idsPerPod {per_pod} is not a multiple of {UNIT}"
    );
    ensure!(
        first.is_multiple_of(per_pod),
        "{USER} user assigned ID {first} is not a multiple of {per_pod}"
    );
    ensure!(
        first >= per_pod,
        "{USER} user assigned ID {first} must be greater or equal to {per_pod}"
    );
    ensure!(
        count.is_multiple_of(per_pod),
        "{USER} user assigned IDs length {count} is not a multiple of {per_pod}"
    );
    ensure!(
        count / per_pod >= max_pods,
        "{USER} user assigned IDs are not enough to support {max_pods} pods"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_an_absent_range_is_the_default() {
        let want = Ids {
            first: 65_536,
            count: 7_208_960,
            per_pod: UNIT,
        };
        for text in ["0: kubelet 65536 7208960\n", "kubelet:65536:7208960"] {
            assert_eq!(of_user(text, text, UNIT).unwrap(), want);
        }
        assert_eq!(of_user("", "\n", UNIT).unwrap(), Ids::default());
        for (users, groups) in [
            ("kubelet:65536:65536", "kubelet:131072:65536"),
            (
                "kubelet:65536:65536\nkubelet:196608:65536",
                "kubelet:65536:65536\nkubelet:196608:65536",
            ),
            ("kubelet:x:65536", "kubelet:x:65536"),
        ] {
            assert!(of_user(users, groups, UNIT).is_err(), "{users}");
        }
    }

    #[test]
    fn a_range_that_pods_cannot_use_is_refused() {
        let ids = |first, count, per_pod| Ids {
            first,
            count,
            per_pod,
        };
        assert!(check(Ids::default(), 110).is_ok());
        assert!(check(ids(UNIT, 110 * UNIT, UNIT), 110).is_ok());
        for bad in [
            ids(0, 200 * UNIT, UNIT),
            ids(UNIT + 1, 200 * UNIT, UNIT),
            ids(UNIT, 200 * UNIT + 1, UNIT),
            ids(UNIT, 109 * UNIT, UNIT),
            ids(UNIT, 400 * UNIT, 2 * UNIT),
            ids(UNIT, 400 * UNIT, UNIT / 2),
            ids(UNIT, 400 * UNIT, 0),
        ] {
            assert!(check(bad, 110).is_err(), "{bad:?}");
        }
    }
}
