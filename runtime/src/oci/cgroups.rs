//! The cgroups of a container: made before its process, with their limits, and removed after it.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{Linux, LinuxResources};

use super::devices::{self, DeviceLine};
use super::resources::{self, Write};
use super::{OciError, Record, Result, Runtime};
use crate::cgroup::systemd::{Holder, Setting, Systemd, Unit};
use crate::cgroup::{
    self, CgroupError, Cgroups, DeviceRule, empty_directory, remove_directory, restrict_devices_v2,
};

/// Who makes the cgroup, and where it is.
enum Place {
    /// We, below our own cgroup ("") or the root of each hierarchy ("/").
    Path { base: &'static str, path: String },
    /// systemd.
    Unit(Unit),
}

/// A path that begins with "/" is one from the root of each hierarchy, any other one below our own cgroup; without a
/// path it is the id there. With systemd it is `slice:prefix:name`.
fn place(text: &str, id: &str, by_systemd: bool) -> Result<Place> {
    if by_systemd {
        let unit = Unit::of_bundle(text, id).ok_or_else(|| {
            let message =
                format!("cgroupsPath {text:?} is not of systemd's form, slice:prefix:name");
            OciError::Config(message)
        })?;
        return Ok(Place::Unit(unit));
    }
    if text.contains(':') {
        let message =
            format!("cgroupsPath {text:?} is of systemd's form, which needs --systemd-cgroup");
        return Err(OciError::Config(message));
    }
    let (base, relative) = match text.strip_prefix('/') {
        Some(absolute) => ("/", absolute.trim_end_matches('/')),
        None => ("", text.trim_end_matches('/')),
    };
    let path = if relative.is_empty() { id } else { relative };
    Ok(Place::Path {
        base,
        path: path.to_owned(),
    })
}

/// Makes the cgroup of a container and sets its limits. What is made is in the record before, also on disk.
/// What it returns keeps the cgroup until the container is in it.
pub(super) fn make(
    runtime: &Runtime,
    linux: &Linux,
    record: &mut Record,
) -> Result<Option<Holder>> {
    let path = linux.cgroups_path().clone().unwrap_or_default();
    let none = LinuxResources::default();
    let resources = linux.resources().as_ref().unwrap_or(&none);
    let others = resources::other_controllers(resources);
    let place = place(&path.to_string_lossy(), &record.id, runtime.systemd)?;
    let (base, relative) = match &place {
        Place::Path { base, path } => (*base, path.as_str()),
        Place::Unit(unit) => ("/", unit.directory.to_str().unwrap_or_default()),
    };
    let cgroups = Cgroups::detect_with(base, &others)?;
    let places = cgroups.places(relative)?;
    check_unused(&places)?;
    let devices = devices::devices(resources)?;
    record
        .cgroups
        .extend(places.iter().map(|place| place.directory.clone()));
    if let Place::Unit(unit) = &place {
        record.unit = Some(unit.name.clone());
        record
            .cgroups
            .extend(cgroup::tracking()?.iter().map(|mount| mount.join(relative)));
    }
    // Before they are there: whoever deletes what a killed caller left has to know them.
    record.save()?;
    let holder = match &place {
        Place::Path { .. } => None,
        Place::Unit(unit) => {
            let limits = limits(&places, resources);
            Some(hold(runtime, unit, cgroups.is_v2(), &limits, &devices)?)
        }
    };
    cgroups.make(relative)?;
    set(&places, resources, &devices)?;
    Ok(holder)
}

/// Whoever is in a container's cgroup is killed with it, so nobody may be there before it.
fn check_unused(places: &[cgroup::Place]) -> Result<()> {
    for place in places {
        let directory = place.directory.display();
        // One that goes just now has nobody in it.
        let found = match place.directory.is_dir() {
            true => processes(&place.directory).unwrap_or_default(),
            false => continue,
        };
        if !found.is_empty() {
            let count = found.len();
            let message = format!("cgroup {directory} is in use: processes in it: {count}");
            return Err(OciError::Config(message));
        }
    }
    Ok(())
}

/// Makes the scope of a container.
fn hold(
    runtime: &Runtime,
    unit: &Unit,
    v2: bool,
    limits: &[Setting],
    devices: &[DeviceLine],
) -> Result<Holder> {
    // What a v1 list denies again after it has allowed it, the files will.
    let allowed: Vec<DeviceRule> = devices
        .iter()
        .filter(|line| line.allow)
        .map(|line| line.rule.clone())
        .collect();
    let asking = async {
        let systemd = Systemd::open(runtime.shim.clone(), v2).await?;
        systemd.hold(unit, limits, &allowed).await
    };
    let held = block_on(&runtime.shim, asking)?;
    Ok(held.map_err(CgroupError::from)?)
}

fn limits(places: &[cgroup::Place], resources: &LinuxResources) -> Vec<Setting> {
    let writes = places
        .iter()
        .flat_map(|place| resources::writes(place, resources));
    writes
        .map(|Write { file, value }| Setting { file, value })
        .collect()
}

/// Everything that is written to the kernel's files.
fn set(places: &[cgroup::Place], resources: &LinuxResources, devices: &[DeviceLine]) -> Result<()> {
    if let Some(controller) = resources::missing_controller(resources, places) {
        let message = format!("no {controller} controller is mounted, which resources need");
        return Err(OciError::Config(message));
    }
    places
        .iter()
        .try_for_each(|place| limit(place, resources, devices))
}

fn limit(place: &cgroup::Place, resources: &LinuxResources, devices: &[DeviceLine]) -> Result<()> {
    for Write { file, value } in resources::writes(place, resources) {
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
        for lines in devices.chunk_by(|one, next| one.allow == next.allow) {
            let file = match lines.first() {
                Some(line) if line.allow => "devices.allow",
                _ => "devices.deny",
            };
            place.write_each(file, lines.iter().map(|line| line.rule.to_string()))?;
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

/// Tells systemd of changed limits, if it made the cgroup: it writes what it knows whenever it starts anew. What it does
/// not know it has set back then, so that is written again.
pub(super) fn tell(
    runtime: &Runtime,
    record: &Record,
    places: &[cgroup::Place],
    resources: &LinuxResources,
) -> Result<()> {
    let Some(unit) = &record.unit else {
        return Ok(());
    };
    let limits = limits(places, resources);
    let telling = async {
        let systemd = Systemd::open(runtime.shim.clone(), true).await?;
        systemd.set(unit, &limits).await
    };
    if !block_on(&runtime.shim, telling)?.map_err(CgroupError::from)? {
        return Ok(());
    }
    for place in places {
        for Write { file, value } in resources::writes(place, resources) {
            place.write(&file, &value)?;
        }
    }
    Ok(())
}

/// Kills what is left in a container's cgroup and removes it.
pub(super) fn remove(runtime: &Runtime, record: &Record) -> Result<()> {
    // systemd itself forgets a scope that has ended.
    let exists = |directory: &&PathBuf| directory.exists();
    if let (Some(unit), Some(left)) = (&record.unit, record.cgroups.iter().find(exists)) {
        let forgetting = async {
            for directory in &record.cgroups {
                empty_directory(directory).await?;
            }
            let systemd = Systemd::open(runtime.shim.clone(), true).await?;
            Ok::<(), CgroupError>(systemd.stop(unit).await?)
        };
        block_on(left, forgetting)??;
    }
    // Usually nothing has to be waited for.
    let left: Vec<&PathBuf> = record
        .cgroups
        .iter()
        .filter(|directory| std::fs::remove_dir(directory).is_err() && directory.exists())
        .collect();
    let Some(first) = left.first() else {
        return Ok(());
    };
    let removing = async {
        for directory in &left {
            remove_directory(directory).await?;
        }
        Ok::<(), CgroupError>(())
    };
    Ok(block_on(first, removing)??)
}

/// Runs what waits; about which file, for the error.
fn block_on<T>(about: &Path, work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(OciError::io("wait for", about))?;
    Ok(runtime.block_on(work))
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
