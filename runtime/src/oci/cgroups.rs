//! The cgroups of a container: made before its process, with their limits, and removed after it.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{Linux, LinuxResources};

use super::devices::{self, DeviceLine};
use super::resources::{self, Write};
use super::{OciError, Result};
use crate::cgroup::{CgroupError, Cgroups, Place, remove_directory, restrict_devices_v2};

/// Makes the cgroup of the container `id` and sets its limits. What was made is in `made`, also when it failed
/// half way. A path that begins with "/" is one from the root of each hierarchy, any other one below our own
/// cgroup; without a path it is the id there.
pub(super) fn make(linux: &Linux, id: &str, made: &mut Vec<PathBuf>) -> Result<()> {
    let path = linux.cgroups_path().clone().unwrap_or_default();
    let text = path.to_string_lossy();
    if text.contains(':') {
        let message = format!("cgroupsPath {text:?} is of systemd's form, which is not supported");
        return Err(OciError::Config(message));
    }
    let (base, relative) = match text.strip_prefix('/') {
        Some(absolute) => ("/", absolute.trim_end_matches('/')),
        None => ("", text.trim_end_matches('/')),
    };
    let relative = if relative.is_empty() { id } else { relative };
    let none = LinuxResources::default();
    let resources = linux.resources().as_ref().unwrap_or(&none);
    let others = resources::other_controllers(resources);
    let cgroups = Cgroups::detect_with(base, &others)?;
    let places = cgroups.make(relative)?;
    made.extend(places.iter().map(|place| place.directory.clone()));
    if let Some(controller) = resources::missing_controller(resources, &places) {
        let message = format!("no {controller} controller is mounted, which resources need");
        return Err(OciError::Config(message));
    }
    let devices = devices::devices(resources)?;
    places
        .iter()
        .try_for_each(|place| limit(place, resources, &devices))
}

fn limit(place: &Place, resources: &LinuxResources, devices: &[DeviceLine]) -> Result<()> {
    let writes = match place.unified {
        true => resources::v2(resources),
        false => resources::v1(resources, &place.controllers),
    };
    for Write { file, value } in writes {
        if !is_plain(&file) {
            return Err(OciError::Config(format!("{file:?} is no file of a cgroup")));
        }
        place.write(&file, &value)?;
    }
    if place.unified {
        restrict_devices_v2(&place.directory, &devices::allowed(devices)?)?;
    } else if place
        .controllers
        .iter()
        .any(|controller| controller == "devices")
    {
        for line in devices {
            let file = if line.allow {
                "devices.allow"
            } else {
                "devices.deny"
            };
            place.write(file, &line.rule.to_string())?;
        }
    }
    Ok(())
}

/// A file of a controller, not a path and not the core's own file.
fn is_plain(file: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    file.bytes().all(plain)
        && file.contains('.')
        && !file.starts_with(['.'])
        && !file.starts_with("cgroup.")
}

/// Kills what is left in the directories and removes them.
pub(super) fn remove(directories: &[PathBuf]) -> Result<()> {
    if directories.is_empty() {
        return Ok(());
    }
    // Usually nothing has to be waited for.
    let left: Vec<&PathBuf> = directories
        .iter()
        .filter(|directory| std::fs::remove_dir(directory).is_err() && directory.exists())
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(OciError::io("remove", left[0]))?;
    runtime.block_on(async {
        for directory in left {
            remove_directory(directory).await?;
        }
        Ok::<(), CgroupError>(())
    })?;
    Ok(())
}

/// Process ids in a directory and below it.
pub(super) fn processes(directory: &Path) -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let file = directory.join("cgroup.procs");
        let text = std::fs::read_to_string(&file).map_err(OciError::io("read", &file))?;
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        let entries = std::fs::read_dir(&directory).map_err(OciError::io("read", &directory))?;
        let below = entries.filter_map(std::result::Result::ok);
        left.extend(
            below
                .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                .map(|e| e.path()),
        );
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unified_keys_are_files_of_controllers_only() {
        assert!(is_plain("memory.high") && is_plain("hugetlb.2MB.max"));
        for file in ["cgroup.procs", "../memory.max", "memory", "a/b.c", ".x", ""] {
            assert!(!is_plain(file), "{file:?}");
        }
    }
}
