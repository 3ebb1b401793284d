//! A cgroup's directories one by one, for limits that a pod cannot have and `hanok oci` can.

use std::path::{Path, PathBuf};

use super::{CgroupError, Cgroups, checked, remove, write_file};
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
    /// Writes a value to one of its files.
    pub fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        write_file(&self.directory.join(file), value)
    }
}

impl Cgroups {
    /// Makes the cgroup, without limits, and tells where it is.
    pub fn make(&self, path: &str) -> Result<Vec<Place>, CgroupError> {
        self.update(path, &Resources::default())?;
        let path = checked(path)?;
        let places = self.hierarchies.iter().map(|hierarchy| Place {
            directory: hierarchy.base.join(path),
            controllers: match hierarchy.unified {
                true => Vec::new(),
                false => hierarchy.controllers.clone(),
            },
            unified: hierarchy.unified,
        });
        Ok(places.collect())
    }
}

/// Kills what is left in a cgroup's directory and below it, and removes it. Absent is success.
pub async fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    let unified = directory.join("cgroup.kill").exists();
    remove::remove_tree(directory, unified).await
}
