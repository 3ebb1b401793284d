//! What is kept of a container between two commands, and what state it is in.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use hanok_shim::hook::Hook;
use serde::{Deserialize, Serialize};

use super::{OciError, Result, pause};
use crate::cgroup::Place;

/// Version of the runtime specification that we follow.
pub(super) const OCI_VERSION: &str = "1.2.0";

/// The socket at which a created container waits.
pub(super) const START_SOCKET: &str = "start.sock";
/// The specification as it was at creation.
pub(super) const CONFIG: &str = "config.json";
/// The container's process as the shim takes it.
pub(super) const PROCESS: &str = "process";
/// The record itself.
const RECORD: &str = "state.json";

/// Longest id; it is a part of paths, and the shim's limit.
const MAX_ID: usize = 128;

/// A container on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: String,
    /// Its process; 0 while it is being made.
    pub pid: i32,
    /// When that process was started, in clock ticks since the boot: process ids are used again.
    pub started: u64,
    /// The bundle's directory.
    pub bundle: PathBuf,
    /// The root filesystem's directory.
    pub rootfs: PathBuf,
    /// When it was created, RFC 3339.
    pub created: String,
    /// Annotations of the specification.
    pub annotations: BTreeMap<String, String>,
    /// Its cgroup directories.
    pub cgroups: Vec<PathBuf>,
    /// The unit that systemd has made of them.
    #[serde(default)]
    pub unit: Option<String>,
    /// Whether its mounts are in a mount namespace that others use too.
    pub chrooted: bool,
    /// What user and group 0 of its user namespace are outside; none without one.
    pub users: Option<(u32, u32)>,
    /// Hooks that run once its program was started.
    pub poststart: Vec<Hook>,
    /// Hooks that run once it was deleted.
    pub poststop: Vec<Hook>,
    /// Its directory.
    #[serde(skip)]
    pub(super) dir: PathBuf,
}

/// Where a container is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It is being made.
    Creating,
    /// All is there, and its program waits to be started.
    Created,
    /// It was started and has not ended.
    Running,
    /// Its processes stand still.
    Paused,
    /// Its process has ended.
    Stopped,
}

impl Status {
    /// Those in which its process lives; the last one is that of a paused container.
    pub(super) const ALIVE: [Self; 3] = [Self::Created, Self::Running, Self::Paused];
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Creating => "creating",
            Status::Created => "created",
            Status::Running => "running",
            Status::Paused => "paused",
            Status::Stopped => "stopped",
        })
    }
}

impl Record {
    /// Reserves an id: the directory is new, or it is an error.
    pub(super) fn reserve(root: &Path, id: &str) -> Result<PathBuf> {
        check_id(id)?;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o711);
        if !root.is_dir() {
            builder
                .recursive(true)
                .create(root)
                .map_err(OciError::io("create", root))?;
            builder.recursive(false);
        }
        let dir = root.join(id);
        match builder.mode(0o700).create(&dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(OciError::Exists(id.to_owned()))
            }
            done => done
                .map(|()| dir.clone())
                .map_err(OciError::io("create", &dir)),
        }
    }

    pub(super) fn load(root: &Path, id: &str) -> Result<Self> {
        check_id(id)?;
        let dir = root.join(id);
        let path = dir.join(RECORD);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(OciError::NotFound(id.to_owned()));
            }
            done => done.map_err(OciError::io("read", &path))?,
        };
        let record: Self =
            serde_json::from_slice(&bytes).map_err(|source| OciError::Parse { path, source })?;
        Ok(Self { dir, ..record })
    }

    pub(super) fn save(&self) -> Result<()> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        self.put(RECORD, &bytes)
    }

    /// Writes a file into its directory, whole or not at all.
    pub(super) fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        let temporary = self.dir.join(format!(".{name}.tmp"));
        fs::write(&temporary, bytes)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(OciError::io("write", &path))
    }

    /// Looks.
    pub fn status(&self) -> Status {
        if self.pid == 0 {
            return Status::Creating;
        }
        if !is_alive(self.pid, self.started) {
            return Status::Stopped;
        }
        if pause::is_frozen(self) {
            return Status::Paused;
        }
        match self.dir.join(START_SOCKET).exists() {
            true => Status::Created,
            false => Status::Running,
        }
    }

    /// Its cgroup in every hierarchy with controllers: beside those of v1, systemd uses the unified one to keep track only.
    pub(super) fn places(&self) -> Vec<Place> {
        let mut places: Vec<Place> = self.cgroups.iter().map(|dir| Place::of(dir)).collect();
        if places.iter().any(|place| !place.unified) {
            places.retain(|place| !place.unified);
        }
        places
    }

    /// An error unless the container is in one of these states.
    pub(super) fn require(&self, verb: &'static str, allowed: &[Status]) -> Result<()> {
        let status = self.status();
        if allowed.contains(&status) {
            return Ok(());
        }
        Err(OciError::Status {
            verb,
            id: self.id.clone(),
            status,
        })
    }

    /// The state as the specification defines it, with runc's additions.
    pub fn document(&self) -> serde_json::Value {
        let status = self.status();
        let pid = if status == Status::Stopped {
            0
        } else {
            self.pid
        };
        let mut state = serde_json::json!({
            "ociVersion": OCI_VERSION,
            "id": self.id,
            "pid": pid,
            "status": status.to_string(),
            "bundle": self.bundle,
            "rootfs": self.rootfs,
            "created": self.created,
            "owner": "",
        });
        if !self.annotations.is_empty() {
            state["annotations"] = serde_json::json!(self.annotations);
        }
        state
    }

    /// The state for a hook, as the texts before and after the process id.
    pub(super) fn hook_state(&self, status: Status) -> (String, String) {
        let quoted = |value: &dyn fmt::Display| serde_json::json!(value.to_string()).to_string();
        let mut rest = format!(
            ",\"status\":{},\"bundle\":{}",
            quoted(&status),
            quoted(&self.bundle.display())
        );
        if !self.annotations.is_empty() {
            rest += &format!(",\"annotations\":{}", serde_json::json!(self.annotations));
        }
        let head = format!(
            "{{\"ociVersion\":\"{OCI_VERSION}\",\"id\":{},\"pid\":",
            quoted(&self.id)
        );
        (head, rest + "}")
    }
}

fn check_id(id: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
    if id.is_empty() || id.len() > MAX_ID || id.starts_with('.') || !id.chars().all(plain) {
        return Err(OciError::Id(id.to_owned()));
    }
    Ok(())
}

/// Whether this very process is there and no zombie.
pub(super) fn is_alive(pid: i32, started: u64) -> bool {
    matches!(stat(pid), Some((state, time)) if time == started && !matches!(state, 'Z' | 'X'))
}

/// When a process was started, in clock ticks since the boot.
pub(super) fn start_time(pid: i32) -> Option<u64> {
    stat(pid).map(|(_, started)| started)
}

fn stat(pid: i32) -> Option<(char, u64)> {
    hanok_shim::launch::parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(test)]
impl Record {
    /// One that is being made.
    pub(super) fn sample(dir: &Path) -> Self {
        Self {
            id: "a".into(),
            pid: 0,
            started: 0,
            bundle: "/b \"x\"".into(),
            rootfs: "/b/r".into(),
            created: String::new(),
            annotations: [("k".to_owned(), "\"pid\":0".to_owned())].into(),
            cgroups: vec![],
            unit: None,
            chrooted: false,
            users: None,
            poststart: vec![],
            poststop: vec![],
            dir: dir.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unified_hierarchy_beside_those_of_v1_has_no_limits() {
        let root = tempfile::tempdir().unwrap();
        let mut record = Record::sample(root.path());
        for (name, file) in [
            ("memory", "memory.usage"),
            ("unified", "cgroup.controllers"),
        ] {
            let directory = root.path().join(name);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join(file), "").unwrap();
            record.cgroups.push(directory);
        }
        let places = record.places();
        assert_eq!(places.len(), 1);
        assert_eq!(places[0].controllers, ["memory"]);
        record.cgroups.remove(0);
        assert!(record.places()[0].unified);
    }

    #[test]
    fn an_id_is_given_once_and_is_one_plain_name() {
        let root = tempfile::tempdir().unwrap();
        Record::reserve(root.path(), "a_b+c-d.e").unwrap();
        let again = Record::reserve(root.path(), "a_b+c-d.e");
        assert!(matches!(again, Err(OciError::Exists(_))));
        let long = "x".repeat(MAX_ID + 1);
        for id in ["", ".", "..", ".shared", "a/b", "a b", "ä", &long] {
            assert!(Record::reserve(root.path(), id).is_err(), "{id:?}");
            assert!(Record::load(root.path(), id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn a_process_is_known_by_its_start_and_not_by_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::sample(dir.path());
        assert_eq!(record.status(), Status::Creating);
        record.pid = i32::try_from(std::process::id()).unwrap();
        record.started = start_time(record.pid).unwrap();
        assert_eq!(record.status(), Status::Running);
        fs::write(dir.path().join(START_SOCKET), "").unwrap();
        assert_eq!(record.status(), Status::Created);
        record.started += 1;
        assert_eq!(record.status(), Status::Stopped);
        assert_eq!(record.document()["pid"], 0);
    }

    #[test]
    fn a_hooks_state_is_json_with_the_process_id_in_its_place() {
        let record = Record::sample(Path::new("/d"));
        let (head, tail) = record.hook_state(Status::Created);
        let state: serde_json::Value = serde_json::from_str(&format!("{head}7{tail}")).unwrap();
        assert_eq!(state["pid"], 7);
        assert_eq!(state["status"], "created");
        assert_eq!(state["bundle"], "/b \"x\"");
        assert_eq!(state["annotations"]["k"], "\"pid\":0");
    }

    #[test]
    fn a_record_survives_the_disk() {
        let root = tempfile::tempdir().unwrap();
        let dir = Record::reserve(root.path(), "a").unwrap();
        let record = Record::sample(&dir);
        assert!(matches!(
            Record::load(root.path(), "a"),
            Err(OciError::NotFound(_))
        ));
        record.save().unwrap();
        assert_eq!(Record::load(root.path(), "a").unwrap(), record);
    }
}
