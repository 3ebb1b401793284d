//! Making a cgroup's directories: what v1's cpuset wants before a process can join, and the controllers that v2 gives to
//! children.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::{CgroupError, Cgroups, Hierarchy, write_file};

/// v2 controllers that are enabled for children.
const V2_CONTROLLERS: [&str; 6] = ["cpu", "memory", "pids", "cpuset", "hugetlb", "io"];

/// The v2 child of our own cgroup into which the agent moves, since a v2 cgroup with controllers for its
/// children cannot hold processes.
pub(super) const AGENT_LEAF: &str = "hanok-agent";

/// How often we leave our own v2 cgroup: a process may be forked while the others move, and a dead one stays until
/// its last context switch. Once in the life of an agent.
const LEAVE_ATTEMPTS: usize = 50;

/// Pause between these.
const LEAVE_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

impl Cgroups {
    /// Makes the directory and those above it that are missing, from the root of the hierarchy on.
    pub(super) fn make_chain(&self, hierarchy: &Hierarchy, path: &Path) -> Result<(), CgroupError> {
        match self.make_leaf(hierarchy, path) {
            Err(CgroupError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            done => return done,
        }
        let target = hierarchy.base.join(path);
        let mut missing: Vec<&Path> = target
            .ancestors()
            .take_while(|directory| !directory.is_dir())
            .collect();
        missing.reverse();
        for directory in missing {
            make_directory(hierarchy, directory)?;
        }
        enable_above(hierarchy, &target)
    }

    /// Makes the directory in one that is there.
    pub(super) fn make_leaf(&self, hierarchy: &Hierarchy, path: &Path) -> Result<(), CgroupError> {
        let target = hierarchy.base.join(path);
        make_directory(hierarchy, &target)?;
        enable_above(hierarchy, &target)
    }
}

/// Makes one directory, which a process can join then.
fn make_directory(hierarchy: &Hierarchy, path: &Path) -> Result<(), CgroupError> {
    if create(path)? && hierarchy.has("cpuset") && !hierarchy.unified {
        inherit_cpuset(path)?;
    }
    Ok(())
}

/// Whether it is new; one that is there already is left as it is.
fn create(path: &Path) -> Result<bool, CgroupError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(source) if source.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(CgroupError::Io {
            verb: "create",
            path: path.to_owned(),
            source,
        }),
    }
}

/// A new v1 cpuset is empty, and no process may join an empty one.
fn inherit_cpuset(directory: &Path) -> Result<(), CgroupError> {
    let Some(parent) = directory.parent() else {
        return Ok(());
    };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let path = parent.join(file);
        let value = fs::read_to_string(&path).map_err(|source| CgroupError::Io {
            verb: "read",
            path,
            source,
        })?;
        write_file(&directory.join(file), value.trim_end())?;
    }
    Ok(())
}

/// Gives controllers to children on v2, from our own cgroup down to the parent of the target; from the root of the
/// hierarchy when the target is somewhere else.
fn enable_above(hierarchy: &Hierarchy, target: &Path) -> Result<(), CgroupError> {
    if !hierarchy.unified {
        return Ok(());
    }
    let inside = target.starts_with(&hierarchy.own);
    let ours = |directory: &&Path| match inside {
        true => directory.starts_with(&hierarchy.own),
        false => directory.join("cgroup.subtree_control").exists(),
    };
    let mut parents: Vec<&Path> = target.ancestors().skip(1).take_while(ours).collect();
    parents.reverse();
    parents
        .into_iter()
        .try_for_each(|parent| enable_controllers(parent, &hierarchy.own))
}

/// Gives the children of a v2 cgroup the controllers that it has.
fn enable_controllers(directory: &Path, own: &Path) -> Result<(), CgroupError> {
    let read = |file: &str| {
        let path = directory.join(file);
        fs::read_to_string(&path).map_err(|source| CgroupError::Io {
            verb: "read",
            path,
            source,
        })
    };
    let available = read("cgroup.controllers")?;
    let enabled = read("cgroup.subtree_control")?;
    let missing: Vec<String> = V2_CONTROLLERS
        .iter()
        .filter(|name| available.split_whitespace().any(|one| one == **name))
        .filter(|name| !enabled.split_whitespace().any(|one| one == **name))
        .map(|name| format!("+{name}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let control = directory.join("cgroup.subtree_control");
    let mut written = write_file(&control, &missing.join(" "));
    for _ in 0..LEAVE_ATTEMPTS {
        match &written {
            Err(CgroupError::Write { source, .. })
                if source.raw_os_error() == Some(libc::EBUSY) && directory == own => {}
            _ => break,
        }
        leave_own_cgroup(own)?;
        written = write_file(&control, &missing.join(" "));
        if written.is_err() {
            std::thread::sleep(LEAVE_PAUSE);
        }
    }
    written
}

/// Moves the processes of our own v2 cgroup (the agent, and shims of an agent before it) into a leaf. Each is looked for
/// right before it is moved: somebody else may have moved it meanwhile, and is not to be undone.
fn leave_own_cgroup(own: &Path) -> Result<(), CgroupError> {
    let leaf = own.join(AGENT_LEAF);
    create(&leaf)?;
    let path = own.join("cgroup.procs");
    let mut moved = std::collections::BTreeSet::new();
    loop {
        let pids = fs::read_to_string(&path).map_err(|source| CgroupError::Io {
            verb: "read",
            path: path.clone(),
            source,
        })?;
        let Some(pid) = pids.lines().find(|pid| !moved.contains(*pid)) else {
            return Ok(());
        };
        match write_file(&leaf.join("cgroup.procs"), pid) {
            // It ended meanwhile.
            Err(CgroupError::Write { source, .. })
                if source.raw_os_error() == Some(libc::ESRCH) => {}
            other => other?,
        }
        moved.insert(pid.to_owned());
    }
}
