//! A cgroup's directories one by one, for limits that a pod cannot have and `hanok oci` can.

use std::fs;
use std::path::{Path, PathBuf};

use super::apply::{self, Undo};
use super::values::Write;
use super::{CgroupError, Cgroups, Hierarchy, detect, read, remove, write_each, write_file};
use crate::api::Resources;

/// A cgroup's directory in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub directory: PathBuf,
    /// The v1 controllers there; none on v2.
    pub controllers: Vec<String>,
    /// Whether it is of v2.
    pub unified: bool,
}

impl Place {
    /// The cgroup in a directory that is there. On v1 its files tell which controllers it has.
    pub fn of(directory: &Path) -> Self {
        let mut place = Place {
            directory: directory.to_owned(),
            controllers: Vec::new(),
            unified: directory.join("cgroup.controllers").exists(),
        };
        if !place.unified {
            let names = place.files();
            let names = names
                .iter()
                .filter_map(|name| Some(name.split_once('.')?.0.to_owned()));
            place.controllers = names.filter(|name| name != "cgroup").collect();
            place.controllers.sort();
            place.controllers.dedup();
        }
        place
    }

    /// Names of its files.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.collect()
    }

    /// One of its files, if it is there.
    pub(crate) fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(file)).ok()
    }

    /// A file of one number; none for "max".
    pub(crate) fn number(&self, file: &str) -> Option<u64> {
        self.read(file)?.trim_end().parse().ok()
    }

    /// Writes files of a cgroup that is in use and notes what they held. After an error the caller undoes.
    pub(crate) fn change(
        &self,
        writes: impl Iterator<Item = (String, String)>,
        undo: &mut Undo,
    ) -> Result<(), CgroupError> {
        let writes = writes.map(|(file, value)| Write {
            // Which of two limits comes first depends on whether they grow.
            retry: file.starts_with("memory.") || file.starts_with("cpu."),
            optional: false,
            file,
            value,
        });
        let high = self.read("memory.high");
        let changed = apply::change(&self.directory, writes.collect(), undo);
        // It may have been the container's own limit, and not only what a lower one is tried with.
        match high {
            Some(high) => changed.and(self.write("memory.high", high.trim_end())),
            None => changed,
        }
    }

    /// Writes values to one of its files, one after the other.
    pub fn write_each(
        &self,
        file: &str,
        values: impl Iterator<Item = String>,
    ) -> Result<(), CgroupError> {
        write_each(&self.directory.join(file), values)
    }

    /// Writes a value to one of its files.
    pub fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        write_file(&self.directory.join(file), value)
    }
}

impl Cgroups {
    /// Makes the cgroup, without limits.
    pub fn make(&self, path: &str) -> Result<(), CgroupError> {
        self.set(&self.place(path)?, &Resources::default())
    }

    /// Where a cgroup is.
    pub fn places(&self, path: &str) -> Result<Vec<Place>, CgroupError> {
        let path = self.place(path)?;
        let places = self.hierarchies.iter().map(|hierarchy| Place {
            directory: hierarchy.base.join(&path),
            controllers: match hierarchy.unified {
                true => Vec::new(),
                false => hierarchy.controllers.clone(),
            },
            unified: hierarchy.unified,
        });
        Ok(places.collect())
    }
}

/// The cgroup of a process in v1's freezer; none where that is not mounted.
pub(crate) fn freezer_of(pid: i32) -> Result<Option<PathBuf>, CgroupError> {
    let mounts = read("/proc/self/mountinfo")?;
    let own = read(&format!("/proc/{pid}/cgroup"))?;
    let found = detect::hierarchies(&mounts, &own, "", &["memory", "freezer"])?;
    let freezer = |hierarchy: &Hierarchy| hierarchy.has("freezer");
    Ok(found.into_iter().find(freezer).map(|found| found.own))
}

/// Mount points of the hierarchies by which systemd knows whether a unit lives, beside those with controllers.
pub(crate) fn tracking() -> Result<Vec<PathBuf>, CgroupError> {
    Ok(detect::tracking(&read("/proc/self/mountinfo")?))
}

/// Kills what is left in a cgroup's directory and below it. Absent is success.
pub(crate) async fn empty_directory(directory: &Path) -> Result<(), CgroupError> {
    let unified = directory.join("cgroup.kill").exists();
    remove::empty_tree(directory, unified).await
}

/// Kills what is left in a cgroup's directory and below it, and removes it. Absent is success.
pub async fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    let unified = directory.join("cgroup.kill").exists();
    remove::remove_tree(directory, unified).await
}
