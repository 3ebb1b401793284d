//! Which images there are, and by what names.
//!
//! ```text
//! images/by-id/HEX.json    a Record; HEX is the image id, the digest of the config
//! images/refs/HEX.json     a Name; HEX is the digest of the reference's normal form
//! images/broken/…          files that could not be read, set aside at open
//! ```
//! Files are written durably, one at a time: record first, names after. A name whose record is missing
//! names nothing. Other processes may write too: what is kept in memory is checked against the directory's
//! time at each use. Everything here blocks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::reference::Reference;
use crate::content::{self, Digest};

/// One image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Digest of the config.
    pub id: Digest,
    /// Manifest, and the indexes that led to it.
    pub documents: Vec<Digest>,
    /// The layers' blobs, bottom first.
    pub layers: Vec<Layer>,
    /// Compressed layers, config and manifest, bytes.
    pub size: u64,
    /// Not to be collected.
    #[serde(default)]
    pub pinned: bool,
    /// The image's USER.
    pub user: String,
    /// The image's STOPSIGNAL.
    pub stop_signal: String,
}

/// A layer of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// The compressed blob.
    pub blob: Digest,
    /// Its size.
    pub size: u64,
    /// Digest of its uncompressed bytes.
    pub diff_id: Digest,
}

/// A name of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// The reference in its normal form.
    pub reference: String,
    /// The image it names.
    pub image: Digest,
}

/// A directory that was changed so recently may change again with the same time: clocks of files tick.
const SETTLED: Duration = Duration::from_millis(100);

/// The names, as of a time of their directory.
type KnownNames = Option<(SystemTime, Arc<[Name]>)>;

/// The store of records and names.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    names: Arc<Mutex<KnownNames>>,
}

impl Store {
    /// Opens the store, making its directories. Returns the files that were set aside.
    pub fn open(root: &Path) -> Result<(Self, Vec<PathBuf>), content::ContentError> {
        for dir in ["by-id", "refs", "broken"] {
            content::make_private_dir(&root.join(dir))?;
        }
        let store = Self {
            root: root.to_owned(),
            names: Arc::default(),
        };
        let mut broken = store.set_aside("by-id", |path| {
            let record: Option<Record> = read(path);
            record.is_some_and(|record| path == store.record_path(&record.id))
        })?;
        broken.extend(store.set_aside("refs", |path| {
            let name: Option<Name> = read(path);
            name.is_some_and(|name| path == store.name_path(&name.reference))
        })?);
        Ok((store, broken))
    }

    /// Moves what is not `good` out of the way. Temporary files may be another process's and stay.
    fn set_aside(
        &self,
        dir: &str,
        good: impl Fn(&Path) -> bool,
    ) -> Result<Vec<PathBuf>, content::ContentError> {
        let mut broken = Vec::new();
        for path in self.files(dir)? {
            let name = path.file_name().unwrap_or_default();
            if good(&path) {
                continue;
            }
            let name = format!("{dir}-{}", name.to_string_lossy());
            let aside = self.root.join("broken").join(name);
            // One of the same name from an earlier time gives way.
            content::remove_left_over(&aside);
            match fs::rename(&path, &aside) {
                Ok(()) => broken.push(aside),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot set aside what is broken");
                }
            }
        }
        Ok(broken)
    }

    /// Deletes what interrupted writers left. Only for a caller that knows that nobody writes.
    pub fn sweep(&self) -> Result<(), content::ContentError> {
        for dir in ["by-id", "refs"] {
            let dir = self.root.join(dir);
            let list = fs::read_dir(&dir).map_err(content::ContentError::io("list", &dir))?;
            for entry in list.flatten() {
                if entry.file_name().as_encoded_bytes().starts_with(b".tmp-") {
                    content::remove_left_over(&entry.path());
                }
            }
        }
        Ok(())
    }

    /// The files of a directory, without those that somebody is writing.
    fn files(&self, dir: &str) -> Result<Vec<PathBuf>, content::ContentError> {
        let dir = self.root.join(dir);
        let list = fs::read_dir(&dir).map_err(content::ContentError::io("list", &dir))?;
        let whole = list
            .flatten()
            .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
        Ok(whole.map(|entry| entry.path()).collect())
    }

    fn record_path(&self, id: &Digest) -> PathBuf {
        self.root.join("by-id").join(format!("{}.json", id.hex()))
    }

    fn name_path(&self, reference: &str) -> PathBuf {
        let file = format!("{}.json", Digest::of(reference.as_bytes()).hex());
        self.root.join("refs").join(file)
    }

    /// An image by its id.
    pub fn record(&self, id: &Digest) -> Option<Record> {
        read(&self.record_path(id))
    }

    /// An image by a name of it.
    pub fn resolve(&self, reference: &Reference) -> Option<Record> {
        let name: Name = read(&self.name_path(&reference.to_string()))?;
        self.record(&name.image)
    }

    /// Every image.
    pub fn records(&self) -> Result<Vec<Record>, content::ContentError> {
        Ok(self
            .files("by-id")?
            .iter()
            .filter_map(|path| read(path))
            .collect())
    }

    /// Every name, in order.
    pub fn names(&self) -> Result<Arc<[Name]>, content::ContentError> {
        let changed = fs::metadata(self.root.join("refs"))
            .and_then(|meta| meta.modified())
            .ok();
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((as_of, names)) = known.as_ref()
            && Some(*as_of) == changed
        {
            return Ok(Arc::clone(names));
        }
        let files = self.files("refs")?;
        let mut names: Vec<Name> = files.iter().filter_map(|path| read(path)).collect();
        names.sort_by(|a, b| a.reference.cmp(&b.reference));
        let names: Arc<[Name]> = names.into();
        let settled = changed.filter(|at| at.elapsed().is_ok_and(|age| age > SETTLED));
        *known = settled.map(|at| (at, Arc::clone(&names)));
        Ok(names)
    }

    /// Stores an image and gives it names; a name that another image had moves.
    pub fn add(&self, record: &Record, names: &[Reference]) -> Result<(), content::ContentError> {
        if self.record(&record.id).as_ref() != Some(record) {
            write(&self.record_path(&record.id), record)?;
        }
        for reference in names {
            let name = Name {
                reference: reference.to_string(),
                image: record.id,
            };
            let path = self.name_path(&name.reference);
            if read::<Name>(&path).as_ref() != Some(&name) {
                write(&path, &name)?;
            }
        }
        Ok(())
    }

    /// Removes a name.
    pub fn remove_name(&self, reference: &str) -> Result<(), content::ContentError> {
        remove(&self.name_path(reference))
    }

    /// Removes an image's record; its names are to be removed before.
    pub fn remove_record(&self, id: &Digest) -> Result<(), content::ContentError> {
        remove(&self.record_path(id))
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), content::ContentError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|e| content::ContentError::io("write", path)(e.into()))?;
    content::write_durably(path, &bytes)
}

fn remove(path: &Path) -> Result<(), content::ContentError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(content::ContentError::io("remove", path)(e))
        }
        _ => Ok(()),
    }
}
