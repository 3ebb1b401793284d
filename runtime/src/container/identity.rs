//! Who a process is, as its user namespace counts.

use std::fs;

use crate::api::Identity;

/// Reads it from procfs; none when the process has gone or its ids have no meaning in its own namespace.
pub(super) fn of(pid: i32) -> Option<Identity> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    parse(&read("status")?, &read("uid_map")?, &read("gid_map")?)
}

fn parse(status: &str, uid_map: &str, gid_map: &str) -> Option<Identity> {
    let ids = |key: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().map(|id| id.parse().ok()).collect()
    };
    let groups = ids("Groups:")?;
    Some(Identity {
        uid: inside(uid_map, *ids("Uid:")?.first()?)?,
        gid: inside(gid_map, *ids("Gid:")?.first()?)?,
        groups: groups
            .into_iter()
            .filter_map(|group| inside(gid_map, group))
            .collect(),
    })
}

/// An id of this namespace as the other one has it. Lines are: first inside, first outside, count.
fn inside(map: &str, id: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line
            .split_whitespace()
            .map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = id.checked_sub(outside).filter(|offset| *offset < count)?;
        inside.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t5\t5\t5\t5\nGroups:\t5 2000 \n";
    const WHOLE: &str = "         0          0 4294967295\n";

    #[test]
    fn ids_are_those_of_the_container() {
        let want = Identity {
            uid: 1000,
            gid: 5,
            groups: vec![5, 2000],
        };
        assert_eq!(parse(STATUS, WHOLE, WHOLE), Some(want));
        let mapped = parse(STATUS, "0 1000 10\n", "0 0 10\n10 1995 10\n");
        let want = Identity {
            uid: 0,
            gid: 5,
            groups: vec![5, 15],
        };
        assert_eq!(mapped, Some(want));
        assert_eq!(parse(STATUS, "0 5000 10\n", WHOLE), None);
        assert_eq!(parse("", WHOLE, WHOLE), None);
    }
}
