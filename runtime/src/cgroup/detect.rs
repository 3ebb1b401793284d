//! Where the hierarchies are: `/proc/self/mountinfo` and `/proc/self/cgroup` (cgroups(7)) → [`Hierarchy`].
//!
//! Takes text, does no I/O.

use std::path::{Path, PathBuf};

use super::make::AGENT_LEAF;
use super::{CgroupError, Hierarchy};

/// A mounted cgroup filesystem.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The cgroup that is mounted, seen from our cgroup namespace.
    root: PathBuf,
    /// Where.
    point: PathBuf,
    unified: bool,
    /// Super options: on v1 the controllers are among them.
    options: Vec<String>,
}

/// The hierarchies in use, seen from `root`: v1 ones when a v1 memory controller is mounted (then v2, if
/// mounted, has no memory controller), the unified one otherwise. Of v1, those with a `wanted` controller.
pub(super) fn hierarchies(
    mountinfo: &str,
    own: &str,
    root: &str,
    wanted: &[&str],
) -> Result<Vec<Hierarchy>, CgroupError> {
    let mounts: Vec<Mount> = mountinfo.lines().filter_map(mount).collect();
    let mut found = Vec::new();
    for (controllers, path) in own_paths(own) {
        let unified = controllers.is_empty();
        let names: Vec<String> = controllers.split(',').map(str::to_owned).collect();
        if !unified && !names.iter().any(|name| wanted.contains(&name.as_str())) {
            continue;
        }
        let mount = mounts.iter().find(|mount| {
            mount.unified == unified && (unified || mount.options.contains(&names[0]))
        });
        if let Some(mount) = mount {
            let mut own = directory(mount, path);
            if unified && own.ends_with(AGENT_LEAF) {
                // We moved into it, or were started by somebody who had; our cgroup is the one around it.
                own.pop();
            }
            let base = match root.strip_prefix('/') {
                Some(absolute) => mount.point.join(absolute),
                None => own.join(root),
            };
            let controllers = if unified { Vec::new() } else { names };
            found.push(Hierarchy {
                controllers,
                unified,
                own,
                base,
            });
        }
    }
    let v1 = found.iter().any(|hierarchy| hierarchy.has("memory"));
    found.retain(|hierarchy| hierarchy.unified != v1);
    if found.is_empty() {
        Err(CgroupError::NoHierarchy)
    } else {
        Ok(found)
    }
}

/// Where systemd itself keeps account on a machine with v1 controllers: a hierarchy without any, of v1, of v2, or both.
/// None on v2, whose only hierarchy serves for all.
pub(super) fn tracking(mountinfo: &str) -> Vec<PathBuf> {
    let mounts = mountinfo.lines().filter_map(mount);
    let named = |mount: &Mount| mount.options.iter().any(|option| option == "name=systemd");
    let (named, others): (Vec<Mount>, Vec<Mount>) = mounts.partition(named);
    if !others.iter().any(|mount| !mount.unified) {
        return Vec::new();
    }
    let unified = others.into_iter().filter(|mount| mount.unified);
    named
        .into_iter()
        .chain(unified)
        .map(|mount| mount.point)
        .collect()
}

/// `/proc/self/cgroup` as (controllers, path); the controllers are empty for v2.
pub(super) fn own_paths(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    })
}

/// Our cgroup's directory. A mount may show only a part of the hierarchy, as it does in a container.
fn directory(mount: &Mount, path: &str) -> PathBuf {
    let path = Path::new(path);
    let below = path
        .strip_prefix(&mount.root)
        .or_else(|_| path.strip_prefix("/"));
    mount.point.join(below.unwrap_or(path))
}

/// A line of mountinfo: `id parent dev root point options [tags] - type source superoptions`.
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, point) = (left.next()?, left.next()?);
    let mut right = right.split(' ');
    let (fstype, _, options) = (right.next()?, right.next()?, right.next()?);
    let unified = match fstype {
        "cgroup" => false,
        "cgroup2" => true,
        _ => return None,
    };
    Some(Mount {
        root: unescaped(root),
        point: unescaped(point),
        unified,
        options: options.split(',').map(str::to_owned).collect(),
    })
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    escapes
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        .into()
}

#[cfg(test)]
mod tests {
    use super::super::V1_CONTROLLERS;
    use super::*;

    const HYBRID: &str = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=1k";
    const HYBRID_OWN: &str = "4:memory:/process/x\n3:blkio:/\n1:cpu,cpuacct:/\n0::/u\n";

    fn bases(mountinfo: &str, own: &str, root: &str) -> Vec<String> {
        let found = hierarchies(mountinfo, own, root, &V1_CONTROLLERS).unwrap();
        found
            .iter()
            .map(|hierarchy| hierarchy.base.display().to_string())
            .collect()
    }

    #[test]
    fn relative_root_is_below_our_own_cgroup_in_each_hierarchy() {
        assert_eq!(
            bases(HYBRID, HYBRID_OWN, "lab/n1"),
            [
                "/sys/fs/cgroup/memory/process/x/lab/n1",
                "/sys/fs/cgroup/cpu/lab/n1"
            ]
        );
    }

    #[test]
    fn absolute_root_is_the_same_in_each_hierarchy() {
        assert_eq!(
            bases(HYBRID, HYBRID_OWN, "/hanok"),
            ["/sys/fs/cgroup/memory/hanok", "/sys/fs/cgroup/cpu/hanok"]
        );
    }

    #[test]
    fn unified_hierarchy_is_used_when_no_v1_controller_has_memory() {
        let mountinfo = "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let own = "0::/system.slice/hanok.service\n";
        let found = hierarchies(mountinfo, own, "pods", &V1_CONTROLLERS).unwrap();
        assert!(found[0].unified);
        assert_eq!(
            found[0].base,
            Path::new("/sys/fs/cgroup/system.slice/hanok.service/pods")
        );
        assert_eq!(bases(mountinfo, own, "/"), ["/sys/fs/cgroup/"]);
    }

    #[test]
    fn leaf_of_the_agent_is_not_a_place_of_its_own() {
        let mountinfo = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let own = "0::/hanok.service/hanok-agent\n";
        assert_eq!(
            bases(mountinfo, own, "pods"),
            ["/sys/fs/cgroup/hanok.service/pods"]
        );
    }

    #[test]
    fn part_of_a_hierarchy_is_seen_from_its_root() {
        let mountinfo = "30 24 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            bases(mountinfo, "0::/docker/abc/inner\n", "x"),
            ["/sys/fs/cgroup/inner/x"]
        );
    }

    #[test]
    fn systemd_keeps_account_where_no_controller_is() {
        let named = "42 31 0:39 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";
        assert_eq!(
            tracking(&format!("{HYBRID}\n{named}")),
            ["/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"].map(PathBuf::from)
        );
        let only = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        assert!(tracking(only).is_empty());
    }

    #[test]
    fn nothing_mounted_is_an_error_and_odd_lines_are_skipped() {
        assert!(matches!(
            hierarchies("", HYBRID_OWN, "x", &V1_CONTROLLERS),
            Err(CgroupError::NoHierarchy)
        ));
        assert!(matches!(
            hierarchies("a b - c\n - \n", "::\nx\n", "x", &V1_CONTROLLERS),
            Err(CgroupError::NoHierarchy)
        ));
        assert_eq!(unescaped("/a\\040b\\134"), Path::new("/a b\\"));
    }
}
