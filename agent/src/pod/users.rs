//! Users and groups of pods with `hostUsers: false`: every pod gets a range of ids of the node that no other pod has.
//!
//! ```text
//! ROOT/pods/UID/userns      {"uidMappings":[{"hostId":H,"containerId":0,"length":N}],"gidMappings":[the same]}
//! ```
//! The disk is the database, in the kubelet's form: a range is taken while a pod's directory says so, or a sandbox
//! runs with it. Nothing has to be given back, and a new agent finds all of it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use hanok_runtime::api::{PodUid, UserNamespace};
use serde::{Deserialize, Serialize};

/// Ids of a pod, and what the ids of pods are multiples of.
pub const UNIT: u32 = 65_536;

/// Name of the file in the pod's directory.
const FILE: &str = "userns";

/// Which ids of the node are for pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// The first one; a multiple of `per_pod`, and not 0.
    pub first: u32,
    /// How many there are.
    pub count: u32,
    /// How many a pod gets.
    pub per_pod: u32,
}

impl Default for Ids {
    fn default() -> Self {
        Self::all_with(UNIT)
    }
}

impl Ids {
    /// All but those of the node itself, when nobody says which.
    pub fn all_with(per_pod: u32) -> Self {
        Self {
            first: per_pod,
            count: u32::MAX - per_pod + 1,
            per_pod,
        }
    }

    /// Ranges that there are. The last id is no id to the kernel.
    fn slots(&self) -> u32 {
        let count = self.count.min(u32::MAX - self.first);
        count / self.per_pod.max(1)
    }
}

/// A range that could not be given.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// Every range has its pod.
    #[error("create user namespace: could not find an empty slot to allocate a user namespace")]
    Full,
    /// The pod's file is not what it should be.
    #[error("user namespace: {path} holds no mapping")]
    Broken {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("user namespace: cannot {verb} {path}")]
    Io {
        /// "read" or "write".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// The ranges of a node's pods.
#[derive(Debug)]
pub struct UserRanges {
    pods_dir: PathBuf,
    ids: Ids,
    /// Held while a range is looked for and written down.
    gate: Mutex<()>,
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl UserRanges {
    /// Ranges of these ids, for pods with directories in `pods_dir`. Reads nothing yet.
    pub fn new(pods_dir: PathBuf, ids: Ids) -> Self {
        Self {
            pods_dir,
            ids,
            gate: Mutex::default(),
        }
    }

    /// The pod's range, chosen now if it has none. `running` are those of sandboxes. Blocks.
    pub fn of_pod(
        &self,
        pod: &PodUid,
        running: &[UserNamespace],
    ) -> Result<UserNamespace, UsersError> {
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.pods_dir.join(pod.as_str());
        if let Some(range) = read(&directory.join(FILE))? {
            return Ok(range);
        }
        let mut taken = self.on_disk();
        taken.extend(running);
        let range = self.choose(pod, &taken).ok_or(UsersError::Full)?;
        write(&directory, range)?;
        Ok(range)
    }

    /// Ranges in the directories of all pods.
    fn on_disk(&self) -> Vec<UserNamespace> {
        let pods = fs::read_dir(&self.pods_dir).into_iter().flatten().flatten();
        let files = pods.map(|pod| pod.path().join(FILE));
        files
            .filter_map(|file| {
                let found = read(&file).inspect_err(|error| {
                    tracing::warn!(%error, "a pod's range of users is not known");
                });
                found.ok().flatten()
            })
            .collect()
    }

    /// A free range. The search begins where the pod's UID says, so that agents which know nothing of each other, on one
    /// machine, hardly ever choose the same, and a range rests before it is used again.
    fn choose(&self, pod: &PodUid, taken: &[UserNamespace]) -> Option<UserNamespace> {
        let slots = u64::from(self.ids.slots());
        let mut hasher = DefaultHasher::new();
        pod.as_str().hash(&mut hasher);
        let begin = hasher.finish().checked_rem(slots)?;
        let candidates = (0..slots).filter_map(|step| {
            let slot = u32::try_from((begin + step) % slots).ok()?;
            Some(UserNamespace {
                host_id: self.ids.first + slot * self.ids.per_pod,
                length: self.ids.per_pod,
            })
        });
        let free = |range: &UserNamespace| !taken.iter().any(|other| overlap(range, other));
        candidates.into_iter().find(free)
    }
}

fn overlap(one: &UserNamespace, other: &UserNamespace) -> bool {
    let end = |range: &UserNamespace| u64::from(range.host_id) + u64::from(range.length);
    u64::from(one.host_id) < end(other) && u64::from(other.host_id) < end(one)
}

/// The range in a file; none when there is no file.
fn read(path: &Path) -> Result<Option<UserNamespace>, UsersError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(source) => {
            return Err(UsersError::Io {
                verb: "read",
                path: path.to_owned(),
                source,
            });
        }
    };
    let broken = || UsersError::Broken {
        path: path.to_owned(),
    };
    let mappings: Mappings = serde_json::from_slice(&bytes).map_err(|_| broken())?;
    match (&mappings.uid_mappings[..], &mappings.gid_mappings[..]) {
        ([uids], [gids])
            if uids == gids && uids.container_id == 0 && uids.host_id != 0 && uids.length != 0 =>
        {
            Ok(Some(UserNamespace {
                host_id: uids.host_id,
                length: uids.length,
            }))
        }
        _ => Err(broken()),
    }
}

/// Writes the file, whole or not at all. It needs not survive a power cut: nothing that uses the range does.
fn write(directory: &Path, range: UserNamespace) -> Result<(), UsersError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = directory.join(FILE);
    let mapping = Mapping {
        host_id: range.host_id,
        container_id: 0,
        length: range.length,
    };
    let mappings = Mappings {
        uid_mappings: vec![mapping],
        gid_mappings: vec![mapping],
    };
    let temporary = directory.join(".userns.new");
    let mut builder = fs::DirBuilder::new();
    let written = builder
        .recursive(true)
        .mode(0o750)
        .create(directory)
        .and_then(|()| fs::write(&temporary, serde_json::to_vec(&mappings)?))
        .and_then(|()| fs::rename(&temporary, &path));
    written.map_err(|source| UsersError::Io {
        verb: "write",
        path,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn few(slots: u32) -> Ids {
        Ids {
            first: UNIT,
            count: slots * UNIT,
            per_pod: UNIT,
        }
    }

    fn uid(name: impl std::fmt::Display) -> PodUid {
        PodUid(name.to_string())
    }

    #[test]
    fn no_range_is_handed_out_twice_and_the_last_one_is_used_too() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = UserRanges::new(dir.path().into(), few(40));
        let mut seen = BTreeSet::new();
        for pod in 0..40 {
            let range = ranges.of_pod(&uid(pod), &[]).unwrap();
            assert_eq!((range.host_id % UNIT, range.length), (0, UNIT));
            assert!((UNIT..=40 * UNIT).contains(&range.host_id));
            assert!(seen.insert(range.host_id), "{range:?}");
        }
        assert!(matches!(
            ranges.of_pod(&uid(40), &[]),
            Err(UsersError::Full)
        ));
        // With its directory a pod gives its range back.
        fs::remove_dir_all(dir.path().join("7")).unwrap();
        assert!(ranges.of_pod(&uid(40), &[]).is_ok());
    }

    #[test]
    fn a_new_agent_knows_every_range_and_a_pod_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let first = UserRanges::new(dir.path().into(), few(2));
        let one = first.of_pod(&uid("one"), &[]).unwrap();
        let second = UserRanges::new(dir.path().into(), few(2));
        assert_eq!(second.of_pod(&uid("one"), &[]).unwrap(), one);
        let two = second.of_pod(&uid("two"), &[]).unwrap();
        assert_ne!(one, two);
        let text = fs::read_to_string(dir.path().join("one/userns")).unwrap();
        let host = one.host_id;
        let mapping = format!("[{{\"hostId\":{host},\"containerId\":0,\"length\":65536}}]");
        assert_eq!(
            text,
            format!("{{\"uidMappings\":{mapping},\"gidMappings\":{mapping}}}")
        );
    }

    #[test]
    fn the_range_of_a_running_sandbox_is_taken_whatever_the_disk_says() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = UserRanges::new(dir.path().into(), few(2));
        // Of another configuration: half of it lies in the second range.
        let running = UserNamespace {
            host_id: 2 * UNIT + 100,
            length: UNIT,
        };
        let range = ranges.of_pod(&uid("a"), &[running]).unwrap();
        assert_eq!(range.host_id, UNIT);
        assert!(ranges.of_pod(&uid("b"), &[running]).is_err());
    }

    #[test]
    fn a_broken_file_is_an_error_for_its_pod_only() {
        let dir = tempfile::tempdir().unwrap();
        let ranges = UserRanges::new(dir.path().into(), Ids::default());
        let root = r#"{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],
            "gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}"#;
        for (index, text) in ["", "{}", root, "{\"uidMappings\":[],\"gidMappings\":[]}"]
            .iter()
            .enumerate()
        {
            let pod = dir.path().join(index.to_string());
            fs::create_dir(&pod).unwrap();
            fs::write(pod.join(FILE), text).unwrap();
            assert!(ranges.of_pod(&uid(index), &[]).is_err(), "{text}");
        }
        assert!(ranges.of_pod(&uid("other"), &[]).is_ok());
    }

    #[test]
    fn the_last_id_is_never_a_pods() {
        let ids = Ids::default();
        let last = u64::from(ids.first) + u64::from(ids.slots()) * u64::from(ids.per_pod);
        assert!(last <= u64::from(u32::MAX), "{last}");
        assert_eq!(ids.slots(), 65_534);
    }
}
