//! The container's view of its cgroups, as the node has them: one tree on v2, one per controller on v1.
//!
//! The mounts are made after the process was put into its cgroups and into a cgroup namespace, so that each
//! tree begins at the container's own directory.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use hanok_shim::protocol::Mount;
use hanok_shim::sys::mount::{Attributes, mount_setattr};
use rustix::fs::{Mode, mkdirat, symlinkat};
use rustix::mount::{MountFlags, MoveMountFlags, mount as mount_by_path, move_mount};
use rustix::process::{chdir, fchdir};

use super::mounts::{self, new_filesystem, place};
use super::source::Source;
use crate::failure::{Doing, Result};
use crate::host::Host;

/// One line of /proc/self/cgroup with a controller: the hierarchy's directory name and its options.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    name: String,
    options: Vec<(String, String)>,
}

/// Who else can reach into the mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// Nobody: it is new.
    Alone,
    /// Those who use it too.
    Others,
}

/// Mounts it. May leave the process in `/`.
pub(super) fn mount(
    root: BorrowedFd<'_>,
    host: &Host,
    mount: &Mount,
    label: Option<&str>,
    company: Company,
) -> Result<()> {
    let hierarchies = v1_hierarchies(&host.read_proc("self/cgroup")?);
    if hierarchies.is_empty() {
        let tree = Source::new(mount, ("cgroup2", &[]), None)?;
        return place(root, host, mount, &tree);
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
    for hierarchy in &hierarchies {
        make_directory(&base, hierarchy)?;
    }
    let base = Source::from(base);
    place(root, host, mount, &base)?;
    match company {
        Company::Alone => mount_by_name(&base.tree, &hierarchies, mount.attr_set),
        Company::Others => mount_by_descriptor(&base.tree, &hierarchies, mount.attr_set),
    }
}

fn make_directory(base: &OwnedFd, hierarchy: &Hierarchy) -> Result<()> {
    let name = hierarchy.name.as_str();
    let doing = || format!("make a directory for cgroup {name}");
    mkdirat(base, name, Mode::from_raw_mode(0o755)).doing(doing)?;
    if hierarchy.options.len() > 1 && name.contains(',') {
        for (controller, _) in &hierarchy.options {
            symlinkat(name, base, controller.as_str()).doing(doing)?;
        }
    }
    Ok(())
}

/// One call for each tree, where a mount by descriptor takes eight. mount(2) would follow a link, so it is for a directory
/// that nobody but this process can reach.
fn mount_by_name(base: &OwnedFd, hierarchies: &[Hierarchy], attributes: u64) -> Result<()> {
    fchdir(base).doing(|| "enter the directory of the cgroup trees")?;
    for hierarchy in hierarchies {
        let name = hierarchy.name.as_str();
        let doing = || format!("mount the cgroup tree of {name}");
        let options = hierarchy
            .options
            .iter()
            .map(|(key, value)| match value.as_str() {
                "" => key.clone(),
                value => format!("{key}={value}"),
            });
        let options = CString::new(options.collect::<Vec<_>>().join(","));
        let options = options.map_err(std::io::Error::from).doing(doing)?;
        // Not read-only yet: here that would be the whole filesystem's, which is the node's too.
        let flags = MountFlags::empty();
        mount_by_path("cgroup", name, "cgroup", flags, Some(options.as_c_str())).doing(doing)?;
    }
    let all = Attributes {
        set: attributes,
        clear: mounts::to_clear(attributes),
        ..Attributes::default()
    };
    mount_setattr(base, true, all).doing(|| "restrict the cgroup trees")?;
    chdir("/").doing(|| "leave the directory of the cgroup trees")
}

fn mount_by_descriptor(base: &OwnedFd, hierarchies: &[Hierarchy], attributes: u64) -> Result<()> {
    for hierarchy in hierarchies {
        let tree = new_filesystem("cgroup", &hierarchy.options, attributes, None)?;
        // One component, and a link in its place is not followed.
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&tree, "", base, hierarchy.name.as_str(), flags)
            .doing(|| format!("mount the cgroup tree of {}", hierarchy.name))?;
    }
    Ok(())
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
