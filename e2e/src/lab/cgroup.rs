//! Cgroups of the lab: below the caller's own cgroup in each hierarchy, named after lab and node.
//!
//! The caller's own cgroup may differ from shell to shell, so every base that was ever used is remembered in
//! the lab's directory, for `down` and the leak check.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Lab;

/// File in the lab's directory with the cgroups that had to be made above those of its machines, deepest first.
const MADE: &str = "cgroups-made";

/// A mounted cgroup hierarchy and the caller's own place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its controllers as /proc/self/cgroup names them; empty for v2.
    pub controllers: String,
    /// Where it is mounted.
    pub mount: PathBuf,
    /// The caller's own cgroup, relative to the mount point.
    pub path: String,
}

impl Hierarchy {
    /// The caller's own cgroup, as a directory.
    pub fn own(&self) -> PathBuf {
        self.mount.join(&self.path)
    }
}

/// Every mounted hierarchy.
///
/// # Errors
/// When /proc cannot be read.
pub(crate) fn hierarchies() -> Result<Vec<Hierarchy>> {
    let memberships = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    Ok(parse(&memberships, &mounts))
}

fn parse(memberships: &str, mountinfo: &str) -> Vec<Hierarchy> {
    let mounts: Vec<(&str, &str, &str)> = mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let kind = right.next()?;
            Some((kind, left.split(' ').nth(4)?, right.nth(1)?))
        })
        .collect();
    let own = memberships.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let controllers = fields.nth(1)?;
        let path = fields.next()?.trim_start_matches('/');
        let (_, mount, _) = mounts.iter().find(|(kind, _, options)| match controllers {
            "" => *kind == "cgroup2",
            name => {
                *kind == "cgroup" && name.split(',').all(|n| options.split(',').any(|o| o == n))
            }
        })?;
        Some(Hierarchy {
            controllers: controllers.to_owned(),
            mount: PathBuf::from(mount),
            path: path.to_owned(),
        })
    });
    own.collect()
}

/// Makes a machine's cgroup at one and the same path in every v1 hierarchy, as a kubelet wants it, and returns
/// the path. It is below the caller's own cgroup wherever that is not the root.
///
/// # Errors
/// When a cgroup cannot be made.
pub(super) fn create_common(lab: &Lab, machine: &str) -> Result<String> {
    let all = hierarchies()?;
    let deepest = all
        .iter()
        .map(|h| h.path.as_str())
        .max_by_key(|p| p.len())
        .unwrap_or_default();
    let bases: Vec<PathBuf> = all.iter().map(|h| h.mount.join(deepest)).collect();
    add(lab, &bases)?;
    for base in bases {
        let dir = base.join(lab.netns(machine));
        // Cgroups above it that this makes go with it, and no others.
        let above = dir.ancestors().skip(1).filter(|d| !d.exists());
        let above: Vec<String> = above.map(|d| d.display().to_string() + "\n").collect();
        let mut made = fs::File::options()
            .create(true)
            .append(true)
            .open(lab.dir().join(MADE))?;
        std::io::Write::write_all(&mut made, above.concat().as_bytes())?;
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        inherit_cpuset(&dir)?;
    }
    Ok(format!(
        "/{}",
        Path::new(deepest).join(lab.netns(machine)).display()
    ))
}

/// A v1 cpuset begins empty and takes no process until it has CPUs and memory nodes; parents first.
pub(crate) fn inherit_cpuset(dir: &Path) -> Result<()> {
    let (Some(parent), true) = (dir.parent(), dir.join("cpuset.cpus").exists()) else {
        return Ok(());
    };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(dir.join(file))?.trim().is_empty() {
            inherit_cpuset(parent)?;
            fs::write(dir.join(file), fs::read_to_string(parent.join(file))?)?;
        }
    }
    Ok(())
}

/// Adds the caller's own cgroups to those that the lab may have used.
///
/// # Errors
/// When /proc or the lab's directory cannot be used.
pub(super) fn remember(lab: &Lab) -> Result<()> {
    let own: Vec<PathBuf> = hierarchies()?.iter().map(Hierarchy::own).collect();
    add(lab, &own)
}

fn add(lab: &Lab, more: &[PathBuf]) -> Result<()> {
    let mut bases = remembered(lab);
    bases.extend(more.iter().cloned());
    bases.sort();
    bases.dedup();
    let lines: Vec<String> = bases.iter().map(|b| b.display().to_string()).collect();
    fs::write(file(lab), lines.join("\n") + "\n")?;
    Ok(())
}

fn remembered(lab: &Lab) -> Vec<PathBuf> {
    let text = fs::read_to_string(file(lab)).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

fn file(lab: &Lab) -> PathBuf {
    lab.dir().join("cgroups")
}

/// The existing cgroups of a machine of the lab, one in each hierarchy.
pub(super) fn of_machine(lab: &Lab, machine: &str) -> Vec<PathBuf> {
    let bases = remembered(lab).into_iter();
    bases
        .map(|base| base.join(lab.netns(machine)))
        .filter(|dir| dir.is_dir())
        .collect()
}

/// Every cgroup at and below a directory, children before their parents.
pub(super) fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for child in entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        all.extend(tree(&child.path()));
    }
    all.push(dir.to_path_buf());
    all
}

/// Process ids in a cgroup and those below it.
pub(super) fn processes(dir: &Path) -> Vec<i32> {
    let files = tree(dir).into_iter().map(|d| d.join("cgroup.procs"));
    let texts: Vec<String> = files.filter_map(|f| fs::read_to_string(f).ok()).collect();
    texts
        .iter()
        .flat_map(|t| t.lines())
        .filter_map(|l| l.parse().ok())
        .collect()
}

/// Removes a cgroup with those below it; their processes must have ended.
///
/// # Errors
/// At the first that cannot be removed.
pub(super) fn remove(dir: &Path) -> Result<()> {
    for dir in tree(dir) {
        match fs::remove_dir(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("remove cgroup {}", dir.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes what [`create_common`] had to make above the machines' cgroups. Absent is success.
///
/// # Errors
/// At the first that cannot be removed.
pub(super) fn remove_made(lab: &Lab) -> Result<()> {
    let text = fs::read_to_string(lab.dir().join(MADE)).unwrap_or_default();
    for dir in text.lines().filter(|d| Path::new(d).exists()) {
        fs::remove_dir(dir).with_context(|| format!("remove cgroup {dir}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cgroup_is_found_in_every_mounted_hierarchy() {
        let memberships = "4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/u\n";
        let mounts = "30 29 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      31 29 0:27 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n\
                      32 29 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let own: Vec<PathBuf> = parse(memberships, mounts)
            .into_iter()
            .map(|h| h.own())
            .collect();
        let wanted = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/cpu,cpuacct",
            "/sys/fs/cgroup/unified/u",
        ];
        assert_eq!(own, wanted.map(PathBuf::from));
    }
}
