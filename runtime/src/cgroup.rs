//! cgroups: the meters of pods and containers, on v1 (hybrid) and v2 by the same calls.
//!
//! A [`Cgroups`] is the tree below one root. Paths in it are relative (`kubepods/burstable/podUID/ID`) and
//! exist in every hierarchy that we use. It makes directories, writes limits and removes; it moves no
//! process into them, except that on v2 the agent may have to leave its own cgroup once. Everything here is
//! a few writes to kernel files, short enough for an async thread; only removal waits, and does so async, and so does
//! whatever is asked of systemd.
//!
//! Who makes the directories, and what they are called, is the [`driver`]'s: we ourselves (cgroupfs), or systemd. The
//! kernel's files are read and written by us in both.
//!
//! Which v1 hierarchies: those that limit (cpu, memory, pids, cpuset, devices, hugetlb) or count (cpuacct).
//! freezer and blkio are left out, since joining a hierarchy costs at every container start; pods have blkio too, for
//! their statistics.

mod apply;
mod detect;
mod devices;
pub mod driver;
mod life;
mod make;
mod places;
mod remove;
pub(crate) mod stats;
pub(crate) mod systemd;
mod values;
mod warm;

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};

use crate::api::Resources;

pub use apply::Undo;
pub(crate) use devices::restrict_v2 as restrict_devices_v2;
pub use devices::{DeviceAccess, DeviceRule};
use driver::Driver;
pub use driver::DriverKind;
pub use life::Prepared;
pub(crate) use places::freezer_of;
pub use places::{Place, remove_directory};
pub(crate) use places::{empty_directory, tracking};
pub use stats::pressure;
use systemd::Setting;
pub use systemd::SystemdError;
pub(crate) use values::weight;
pub(crate) use warm::Warmth;

/// v1 controllers that containers join.
const V1_CONTROLLERS: [&str; 7] = [
    "cpu", "cpuacct", "memory", "pids", "cpuset", "devices", "hugetlb",
];

/// v1 controllers that pods have besides, for their statistics.
const COUNTED: [&str; 1] = ["blkio"];

/// Bytes that a list of mounts often has.
const ROOM: usize = 8 << 10;

/// What went wrong with a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no usable cgroup filesystem.
    #[error("no cgroup hierarchy with a memory controller is mounted")]
    NoHierarchy,
    /// The path is absolute, empty or climbs.
    #[error("invalid cgroup path {0:?}")]
    Path(String),
    /// A value cannot be written.
    #[error("cannot write {value:?} to {file}")]
    Write {
        /// The kernel's file.
        file: PathBuf,
        /// What was to be written.
        value: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another system call failed.
    #[error("cannot {verb} {path}")]
    Io {
        /// "create", "read", "remove", ...
        verb: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// What is in use does not fit in the new memory limit; nothing was changed.
    #[error("cgroup {path} uses {usage} bytes of memory, more than the new limit of {limit}")]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Bytes that cannot be reclaimed, or could not.
        usage: u64,
        /// The limit that was asked for, bytes.
        limit: u64,
    },
    /// systemd did not do its part.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// Processes outlive SIGKILL.
    #[error("cgroup {path} still has processes {pids:?} after they were killed")]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Who is left.
        pids: Vec<i32>,
    },
}

/// One mounted hierarchy, seen from our root in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// v1 controllers mounted together; on v2 those available.
    controllers: Vec<String>,
    /// Whether this is the unified (v2) one.
    unified: bool,
    /// Our own cgroup's directory in it.
    own: PathBuf,
    /// The directory that paths start from.
    base: PathBuf,
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    /// Writes the limits of a new cgroup.
    fn limit(&self, place: &Path, resources: &Resources) -> Result<(), CgroupError> {
        let writes = values::writes(resources, self.unified, &self.controllers);
        apply::set(&self.base.join(place), writes)
    }
}

/// The cgroups below one root, in every hierarchy in use.
#[derive(Debug)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    driver: Driver,
}

impl Cgroups {
    /// Finds the mounted hierarchies. A `root` that starts with "/" is absolute in each of them; any other
    /// is below the calling process's own cgroup, which keeps an agent inside what it was given.
    pub fn detect(root: &str) -> Result<Self, CgroupError> {
        Self::detect_with(root, &[])
    }

    /// As [`Cgroups::detect`], with v1 hierarchies of other controllers too.
    pub fn detect_with(root: &str, others: &[&str]) -> Result<Self, CgroupError> {
        let hierarchies = detect::hierarchies(
            &read("/proc/self/mountinfo")?,
            &read("/proc/self/cgroup")?,
            root,
            &[&V1_CONTROLLERS, others].concat(),
        )?;
        let cgroups = Cgroups {
            hierarchies,
            driver: Driver::Cgroupfs,
        };
        for hierarchy in &cgroups.hierarchies {
            cgroups.make_chain(hierarchy, Path::new(""))?;
        }
        Ok(cgroups)
    }

    /// As [`Cgroups::detect`] for the cgroupfs driver. For systemd's, `root` is the names of the slices above the
    /// pods', from the root of each hierarchy on; `shim` is the program that holds a scope.
    pub async fn open(kind: DriverKind, root: &str, shim: &Path) -> Result<Self, CgroupError> {
        match kind {
            DriverKind::Cgroupfs => Self::detect_with(root, &COUNTED),
            DriverKind::Systemd => {
                let mut cgroups = Self::detect_with("/", &COUNTED)?;
                cgroups.driver = Driver::systemd(root, shim, cgroups.is_v2()).await?;
                Ok(cgroups)
            }
        }
    }

    /// Whether the unified hierarchy carries the controllers.
    pub fn is_v2(&self) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.unified)
    }

    /// The directories that a process of this cgroup joins: one on v2, one per hierarchy on v1.
    pub fn directories(&self, path: &str) -> Result<Vec<PathBuf>, CgroupError> {
        let path = self.place(path)?;
        let ours = self.hierarchies.iter().map(|hierarchy| &hierarchy.base);
        let all = ours.chain(self.driver.tracking());
        Ok(all.map(|base| base.join(&path)).collect())
    }

    /// Where a cgroup is in every hierarchy.
    fn place(&self, path: &str) -> Result<PathBuf, CgroupError> {
        Ok(self.driver.place(checked(path)?))
    }

    /// The limits as the kernel's files, of all hierarchies.
    fn settings(&self, resources: &Resources) -> Vec<Setting> {
        let writes = self
            .hierarchies
            .iter()
            .flat_map(|one| values::writes(resources, one.unified, &one.controllers));
        writes
            .map(|write| Setting {
                file: write.file,
                value: write.value,
            })
            .collect()
    }

    /// Makes what directories are missing, and writes the limits.
    fn set(&self, place: &Path, resources: &Resources) -> Result<(), CgroupError> {
        for hierarchy in &self.hierarchies {
            self.make_chain(hierarchy, place)?;
            hierarchy.limit(place, resources)?;
        }
        Ok(())
    }

    /// Whether the cgroup is there, in every hierarchy.
    pub fn exists(&self, path: &str) -> bool {
        let is_there = |place: PathBuf| {
            let mut bases = self.hierarchies.iter().map(|hierarchy| &hierarchy.base);
            bases.all(|base| base.join(&place).is_dir())
        };
        self.place(path).is_ok_and(is_there)
    }

    /// Lets processes of the cgroup use only the devices that a rule names.
    pub fn restrict_devices(&self, path: &str, rules: &[DeviceRule]) -> Result<(), CgroupError> {
        let path = self.place(path)?;
        for hierarchy in &self.hierarchies {
            let directory = hierarchy.base.join(&path);
            if hierarchy.unified {
                devices::restrict_v2(&directory, rules)?;
            } else if hierarchy.has("devices") {
                devices::restrict_v1(&directory, rules)?;
            }
        }
        Ok(())
    }

    /// Moves a process into the cgroup, in every hierarchy. On v1 this waits, see [`Warmth`].
    pub fn join(&self, path: &str, pid: i32) -> Result<(), CgroupError> {
        for directory in self.directories(path)? {
            write_file(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Names of the cgroups directly below `path`, in any hierarchy.
    pub fn children(&self, path: &str) -> Result<Vec<String>, CgroupError> {
        let path = self.place(path)?;
        let mut names = std::collections::BTreeSet::new();
        for hierarchy in &self.hierarchies {
            for child in subdirectories(&hierarchy.base.join(&path))? {
                let name = child.file_name().and_then(|name| name.to_str());
                names.extend(name.and_then(|name| self.driver.child(name)));
            }
        }
        Ok(names.into_iter().collect())
    }
}

fn read(path: &str) -> Result<String, CgroupError> {
    // procfs tells no size, and what is asked for in small pieces is made in small pieces.
    let mut text = String::with_capacity(ROOM);
    let read = fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(|source| CgroupError::Io {
        verb: "read",
        path: path.into(),
        source,
    })?;
    Ok(text)
}

/// A path below the root, and nothing else.
fn checked(path: &str) -> Result<&Path, CgroupError> {
    let valid = !path.is_empty()
        && Path::new(path)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
    if valid {
        Ok(Path::new(path))
    } else {
        Err(CgroupError::Path(path.to_owned()))
    }
}

/// Writes a value to one of the kernel's files, in one write and without creating or truncating anything.
fn write_file(file: &Path, value: &str) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::Write {
        file: file.to_owned(),
        value: value.to_owned(),
        source,
    };
    let mut handle = open_to_write(file).map_err(failed)?;
    handle.write_all(value.as_bytes()).map_err(failed)
}

/// Writes one value after the other.
fn write_each(file: &Path, values: impl Iterator<Item = String>) -> Result<(), CgroupError> {
    let mut handle = None;
    for value in values {
        let written = match &mut handle {
            Some(handle) => Ok(handle),
            None => open_to_write(file).map(|opened| handle.insert(opened)),
        };
        let written = written.and_then(|handle| handle.write_all(value.as_bytes()));
        written.map_err(|source| CgroupError::Write {
            file: file.to_owned(),
            value,
            source,
        })?;
    }
    Ok(())
}

fn open_to_write(file: &Path) -> io::Result<fs::File> {
    let mut open = fs::OpenOptions::new();
    open.write(true).open(file)
}

/// The directories in a directory; none when it does not exist.
fn subdirectories(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let failed = |source| CgroupError::Io {
        verb: "read",
        path: directory.to_owned(),
        source,
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
