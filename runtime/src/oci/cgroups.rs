//! The cgroups of a container: planned, made with their limits before its process is to join them, and removed after it.

mod processes;

use std::fs;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{Linux, LinuxResources};

use super::devices::{self, DeviceLine};
use super::resources::{self, Write};
use super::{OciError, Record, Result, Runtime};
use crate::cgroup::systemd::{Holder, Setting, Systemd, Unit};
use crate::cgroup::{
    self, CgroupError, Cgroups, DeviceRule, empty_directory, remove_directory, restrict_devices_v2,
};
use processes::check_unused;
pub(super) use processes::processes;

/// Who makes the cgroup, and where it is.
enum Place {
    /// We, below our own cgroup ("") or the root of each hierarchy ("/").
    Path { base: &'static str, path: String },
    /// systemd.
    Unit(Unit),
}

impl Place {
    /// What it is below, and its path there.
    fn path(&self) -> (&'static str, &str) {
        match self {
            Place::Path { base, path } => (base, path),
            Place::Unit(unit) => ("/", unit.directory.to_str().unwrap_or_default()),
        }
    }
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

/// The cgroup of a container, before it is made. Kept until the container is in it: with it goes what holds the cgroup.
pub(super) struct Plan {
    place: Place,
    cgroups: Cgroups,
    places: Vec<cgroup::Place>,
    directories: Vec<PathBuf>,
    resources: LinuxResources,
    devices: Vec<DeviceLine>,
    holder: Option<Holder>,
    made: bool,
}

/// Looks where the cgroup is to be, which the record knows from then on unless systemd makes it.
pub(super) fn plan(runtime: &Runtime, linux: &Linux, record: &mut Record) -> Result<Plan> {
    let path = linux.cgroups_path().clone().unwrap_or_default();
    let resources = linux.resources().clone().unwrap_or_default();
    let others = resources::other_controllers(&resources);
    let place = place(&path.to_string_lossy(), &record.id, runtime.systemd)?;
    let (base, relative) = place.path();
    let cgroups = Cgroups::detect_with(base, &others)?;
    let places = cgroups.places(relative)?;
    let mut directories: Vec<PathBuf> = places.iter().map(|one| one.directory.clone()).collect();
    if let Place::Unit(_) = &place {
        directories.extend(cgroup::tracking()?.iter().map(|mount| mount.join(relative)));
    }
    directories.iter().try_for_each(|one| check_unused(one))?;
    if let Place::Path { .. } = &place {
        record.cgroups = directories.clone();
    }
    Ok(Plan {
        devices: devices::devices(&resources)?,
        place,
        cgroups,
        places,
        directories,
        resources,
        holder: None,
        made: false,
    })
}

impl Plan {
    /// Whether it is not made and need not be before the container's process is there: on v2 that is born in it, and a
    /// unit's directories are in no record before.
    pub(super) fn may_come_later(&self) -> bool {
        let by_us = matches!(self.place, Place::Path { .. });
        !self.made && by_us && !self.cgroups.is_v2()
    }

    /// Makes it and sets its limits, unless that is done. What of it stays when nobody removes it is in the record before,
    /// also on disk.
    pub(super) fn make(&mut self, runtime: &Runtime, record: &mut Record) -> Result<()> {
        if self.made {
            return Ok(());
        }
        if let Place::Unit(unit) = &self.place {
            // Not in the record until it is known to be ours, for what is there is killed in the end. It needs no record
            // so far: systemd ends it when its holder is gone.
            let limits = limits(&self.places, &self.resources);
            let is_v2 = self.cgroups.is_v2();
            self.holder = Some(hold(runtime, unit, is_v2, &limits, &self.devices)?);
            record.unit = Some(unit.name.clone());
            record.cgroups = self.directories.clone();
        }
        // Before the rest is there: whoever deletes what a killed caller left has to know it.
        record.save()?;
        self.cgroups.make(self.place.path().1)?;
        set(&self.places, &self.resources, &self.devices)?;
        self.made = true;
        Ok(())
    }
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
        systemd.hold_new(unit, limits, &allowed).await
    };
    let held = block_on(&runtime.shim, asking)?;
    Ok(held.map_err(CgroupError::from)?)
}

fn limits(places: &[cgroup::Place], resources: &LinuxResources) -> Vec<Setting> {
    let writes = places
        .iter()
        .flat_map(|place| resources::writes(place, resources));
    writes
        .map(|Write { file, value, .. }| Setting { file, value })
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
    for Write { file, value, .. } in resources::writes(place, resources) {
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
        for Write { file, value, .. } in resources::writes(place, resources) {
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
        .filter(|directory| fs::remove_dir(directory).is_err() && directory.exists())
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

    #[test]
    fn root_a_record_knows_of_cgroups_before_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        // No cgroup has a name with an end of line, so nothing is made after the record.
        let name = format!("hanok-oci-unmade-{}\n", std::process::id());
        let linux = oci_spec::runtime::LinuxBuilder::default().cgroups_path(&name);
        let runtime = Runtime::new(dir.path().to_owned(), "/nonexistent".into());
        let mut record = Record::sample(dir.path());
        let mut plan = plan(&runtime, &linux.build().unwrap(), &mut record).unwrap();
        let failed = plan.make(&runtime, &mut record).unwrap_err();
        assert!(matches!(failed, OciError::Cgroup(_)), "{failed:?}");
        let saved = fs::read(dir.path().join("state.json")).unwrap();
        let saved: Record = serde_json::from_slice(&saved).unwrap();
        assert!(!saved.cgroups.is_empty() && saved.cgroups == record.cgroups);
        assert!(!saved.cgroups.iter().any(|directory| directory.exists()));
    }
}
