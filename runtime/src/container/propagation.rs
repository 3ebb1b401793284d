//! Whether a volume can propagate mounts as it is asked to: only a mount that is shared (or, to receive, a slave) on the
//! node does, and without a check nothing would say why the container sees no mounts.

use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::api::{Mount, Propagation};

/// A line of mountinfo, as far as it matters.
struct Line<'a> {
    mount_point: &'a str,
    shared: bool,
    slave: bool,
}

/// Checks the volumes of a container. The error is what the user reads.
pub(super) fn check(mounts: &[Mount]) -> Result<(), String> {
    if mounts
        .iter()
        .all(|mount| mount.propagation == Propagation::Private)
    {
        return Ok(());
    }
    let table = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read /proc/self/mountinfo: {error}"))?;
    mounts.iter().try_for_each(|mount| check_one(mount, &table))
}

fn check_one(mount: &Mount, table: &str) -> Result<(), String> {
    if mount.propagation == Propagation::Private {
        return Ok(());
    }
    let path = &mount.host_path;
    let found = mount_id(path).and_then(|id| find(table, id));
    let line = found.ok_or_else(|| format!("cannot find the mount of {}", path.display()))?;
    let wanted = match mount.propagation {
        Propagation::HostToContainer if !line.shared && !line.slave => "a shared or slave mount",
        Propagation::Bidirectional if !line.shared => "a shared mount",
        _ => return Ok(()),
    };
    let at = line.mount_point;
    Err(format!(
        "path {:?} is mounted on {at:?} but it is not {wanted}: run `mount --make-rshared {at}` on the node",
        path.display()
    ))
}

/// The id in the first column of mountinfo.
fn mount_id(path: &Path) -> Option<u64> {
    let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    Some(stat.stx_mnt_id)
}

fn find(table: &str, id: u64) -> Option<Line<'_>> {
    let id = id.to_string();
    let line = table
        .lines()
        .find(|line| line.split(' ').next() == Some(&id))?;
    let optional = line.split(' ').skip(6).take_while(|field| *field != "-");
    let has = |tag: &str| optional.clone().any(|field| field.starts_with(tag));
    Some(Line {
        mount_point: line.split(' ').nth(4)?,
        shared: has("shared:"),
        slave: has("master:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        31 27 0:28 / /s rw shared:7 - tmpfs tmpfs rw\n\
        32 27 0:29 / /m rw,relatime master:7 - tmpfs tmpfs rw\n\
        33 27 0:30 / /b rw shared:8 master:7 - tmpfs tmpfs rw\n";

    #[test]
    fn tags_of_a_mount_are_found_by_its_id() {
        for (id, point, shared, slave) in [
            (27, "/", false, false),
            (31, "/s", true, false),
            (32, "/m", false, true),
            (33, "/b", true, true),
        ] {
            let line = find(TABLE, id).unwrap();
            assert_eq!(
                (line.mount_point, line.shared, line.slave),
                (point, shared, slave)
            );
        }
        assert!(find(TABLE, 3).is_none());
    }

    #[test]
    fn a_path_that_is_there_has_a_mount() {
        assert!(mount_id(Path::new("/")).is_some_and(|id| id != 0));
        assert!(mount_id(Path::new("/no/such/path")).is_none());
    }
}
