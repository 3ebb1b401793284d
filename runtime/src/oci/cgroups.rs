//! The cgroups of a container: planned, made with their limits before its process is to join them, and removed after it.

use std::fs;
use std::io;
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

/// Whoever is in a container's cgroup is killed with it, so nobody may be there before it.
fn check_unused(directory: &Path) -> Result<()> {
    let count = match processes(directory) {
        Err(OciError::Io { source, .. }) if is_gone(&source) => 0,
        found => found?.len(),
    };
    if count == 0 {
        return Ok(());
    }
    let directory = directory.display();
    let message = format!("cgroup {directory} is in use: processes in it: {count}");
    Err(OciError::Config(message))
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

/// Process ids in a directory and below it.
pub(super) fn processes(directory: &Path) -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        match look(&next, &mut pids, &mut left) {
            // Nobody is in one that goes just now. Whose threads are in a threaded one is told by the nearest one above
            // that is not, which was looked at: the first would have been an error.
            Err(OciError::Io { source, .. })
                if next != directory && (is_gone(&source) || is_threaded(&source)) => {}
            looked => looked?,
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// Adds who is in one directory, and the directories in it.
fn look(directory: &Path, pids: &mut Vec<i32>, left: &mut Vec<PathBuf>) -> Result<()> {
    let file = directory.join("cgroup.procs");
    let text = fs::read_to_string(&file).map_err(OciError::io("read", &file))?;
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(directory).map_err(OciError::io("read", directory))? {
        let entry = entry.map_err(OciError::io("read", directory))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            left.push(entry.path());
        }
    }
    Ok(())
}

/// What reading says of a cgroup that was removed, before and after its file was opened.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// What reading says of a cgroup that has threads and not processes.
fn is_threaded(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
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
    fn a_cgroup_that_cannot_be_read_is_not_taken_for_an_unused_one() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path();
        check_unused(&top.join("absent")).unwrap();
        // As one looks that is being removed.
        fs::create_dir(top.join("gone")).unwrap();
        check_unused(&top.join("gone")).unwrap();
        fs::write(top.join("cgroup.procs"), "7\n").unwrap();
        assert_eq!(processes(top).unwrap(), [7]);
        fs::write(top.join("cgroup.procs"), "").unwrap();
        check_unused(top).unwrap();
        fs::create_dir_all(top.join("odd/cgroup.procs")).unwrap();
        assert!(processes(top).is_err());
        assert!(check_unused(top).is_err() && check_unused(&top.join("odd")).is_err());
    }

    #[test]
    fn root_threads_in_a_cgroup_of_their_own_hide_nobody() {
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let is_unified = |mount: &&Path| mount.join("cgroup.procs").exists();
        let mount = mounts.into_iter().find(is_unified).unwrap();
        let top = mount.join(format!("hanok-oci-threads-{}", std::process::id()));
        let (domain, threads) = (top.join("a"), top.join("a/b"));
        fs::create_dir_all(&threads).unwrap();
        fs::write(threads.join("cgroup.type"), "threaded").unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id().to_string();
        let moved = fs::write(domain.join("cgroup.procs"), &pid)
            .and_then(|()| fs::write(threads.join("cgroup.threads"), &pid));
        let found = processes(&top);
        let checked = [&top, &domain, &threads].map(|one| check_unused(one).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        for directory in [&threads, &domain, &top] {
            fs::remove_dir(directory).unwrap();
        }
        moved.unwrap();
        assert_eq!(found.unwrap(), [pid.parse::<i32>().unwrap()]);
        assert_eq!(checked, [true; 3]);
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
