//! The container's view of its cgroups, as the node has them: one tree on v2, one per controller on v1.
//!
//! The mounts are made after the process was put into its cgroups and into a cgroup namespace, so that each
//! tree begins at the container's own directory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use hanok_shim::protocol::Mount;
use rustix::fs::{Mode, OFlags, mkdirat, openat, symlinkat};

use super::mounts::{attach, new_filesystem, place};
use crate::failure::{Doing, Result};
use crate::host::Host;

/// One line of /proc/self/cgroup with a controller: the hierarchy's directory name and its options.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    name: String,
    options: Vec<(String, String)>,
}

/// Mounts it.
pub(super) fn mount(
    root: BorrowedFd<'_>,
    host: &Host,
    mount: &Mount,
    label: Option<&str>,
) -> Result<()> {
    let hierarchies = v1_hierarchies(&host.read_proc("self/cgroup")?);
    if hierarchies.is_empty() {
        return place(root, host, mount, &new_filesystem("cgroup2", &[], 0, None)?);
    }
    let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let base = new_filesystem(
        "tmpfs",
        &[option("mode", "755"), option("size", "64k")],
        0,
        label,
    )?;
    // Made while it is still writable, mounted on once it is in place: a detached tree takes no mounts
    // before Linux 6.15.
    let directories = hierarchies
        .iter()
        .map(|h| make_directory(&base, h))
        .collect::<Result<Vec<OwnedFd>>>()?;
    place(root, host, mount, &base)?;
    for (hierarchy, directory) in hierarchies.iter().zip(&directories) {
        let tree = new_filesystem("cgroup", &hierarchy.options, mount.attr_set, None)?;
        attach(tree.as_fd(), directory.as_fd())
            .doing(|| format!("mount the cgroup tree of {}", hierarchy.name))?;
    }
    Ok(())
}

fn make_directory(base: &OwnedFd, hierarchy: &Hierarchy) -> Result<OwnedFd> {
    let name = Path::new(&hierarchy.name);
    let doing = || format!("make a directory for cgroup {}", hierarchy.name);
    mkdirat(base, name, Mode::from_raw_mode(0o755)).doing(doing)?;
    if hierarchy.options.len() > 1 && hierarchy.name.contains(',') {
        for (controller, _) in &hierarchy.options {
            symlinkat(name, base, controller.as_str()).doing(doing)?;
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(base, name, flags, Mode::empty()).doing(doing)
}

/// The v1 hierarchies that the process is in; none on v2.
fn v1_hierarchies(cgroup_file: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let controllers = line.split(':').nth(1).filter(|c| !c.is_empty())?;
        let flag = |key: &str| (key.to_owned(), String::new());
        Some(match controllers.strip_prefix("name=") {
            Some(name) => Hierarchy {
                name: name.to_owned(),
                options: vec![flag("none"), ("name".to_owned(), name.to_owned())],
            },
            None => Hierarchy {
                name: controllers.to_owned(),
                options: controllers.split(',').map(flag).collect(),
            },
        })
    };
    cgroup_file.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_hierarchies_are_named_by_their_controllers_and_v2_has_none() {
        assert_eq!(v1_hierarchies("0::/a/b\n"), []);
        let names: Vec<_> =
            v1_hierarchies("3:cpu,cpuacct:/x\n2:memory:/\n1:name=systemd:/\n0::/\n")
                .into_iter()
                .map(|h| {
                    (
                        h.name,
                        h.options
                            .into_iter()
                            .map(|o| o.0)
                            .collect::<Vec<_>>()
                            .join("+"),
                    )
                })
                .collect();
        let want = [
            ("cpu,cpuacct", "cpu+cpuacct"),
            ("memory", "memory"),
            ("systemd", "none+name"),
        ];
        assert_eq!(names, want.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
