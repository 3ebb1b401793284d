//! The content store: every blob of every image, by its digest.
//!
//! ```text
//! content/blobs/sha256/HEX    a blob; its name is the digest of its bytes; durable before it has the name
//! content/ingest/…            being written; swept at open when nobody else uses the store
//! content/corrupt/HEX         found not to match its name; kept for a look, never used
//! ```
//! Everything here blocks: callers are on blocking threads. It knows nothing of manifests or layers.

pub mod digest;
mod ingest;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use digest::{Digest, Hasher, InvalidDigest};
use ingest::Temp;
pub use ingest::{Ingest, Sealed};

/// Size of the buffer for re-hashing.
const BUFFER: usize = 256 << 10;

/// What can go wrong with a blob.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// No such blob.
    #[error("blob {0} is not in the content store")]
    Missing(Digest),
    /// The bytes are not what the name says. The blob has been set aside.
    #[error(
        "blob {digest} is corrupt in the content store (its bytes hash to {actual}); it was set aside"
    )]
    Corrupt {
        /// What it was to be.
        digest: Digest,
        /// What it is.
        actual: Digest,
    },
    /// Bytes that came in do not match the digest that was asked for.
    #[error("content does not match its digest: want {expected}, got {actual}")]
    Mismatch {
        /// What was asked for.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// A document is larger than its reader allows.
    #[error("blob {digest} is larger than {limit} bytes")]
    TooLarge {
        /// Which.
        digest: Digest,
        /// The limit.
        limit: u64,
    },
    /// The filesystem said no.
    #[error("failed to {verb} {}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl ContentError {
    pub(crate) fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { verb, path, source }
    }
}

/// The content store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ContentStore {
    root: Arc<Path>,
}

impl ContentStore {
    /// Opens the store at `root`, making its directories.
    pub fn open(root: &Path) -> Result<Self, ContentError> {
        for dir in ["blobs/sha256", "ingest", "corrupt"] {
            make_private_dir(&root.join(dir))?;
        }
        Ok(Self { root: root.into() })
    }

    /// Deletes what interrupted writers left. Only for a caller that knows that nobody writes.
    pub fn sweep(&self) -> Result<(), ContentError> {
        let dir = self.root.join("ingest");
        for entry in fs::read_dir(&dir)
            .map_err(ContentError::io("list", &dir))?
            .flatten()
        {
            remove_left_over(&entry.path());
        }
        Ok(())
    }

    pub(crate) fn path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    /// The size of a blob, or none when it is not here.
    pub fn size(&self, digest: &Digest) -> Option<u64> {
        let meta = fs::symlink_metadata(self.path(digest)).ok()?;
        meta.is_file().then_some(meta.len())
    }

    /// Opens a blob for reading. Its bytes are not checked; see [`ContentStore::verify`].
    pub fn reader(&self, digest: &Digest) -> Result<File, ContentError> {
        let path = self.path(digest);
        File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ContentError::Missing(*digest),
            _ => ContentError::Io {
                verb: "open",
                path,
                source,
            },
        })
    }

    /// Reads a document of at most `limit` bytes into memory and checks it.
    pub fn read(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ContentError> {
        let mut bytes = Vec::new();
        self.reader(digest)?
            .take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(ContentError::io("read", &self.path(digest)))?;
        if bytes.len() as u64 > limit {
            return Err(ContentError::TooLarge {
                digest: *digest,
                limit,
            });
        }
        self.check(digest, Digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Hashes a blob again; one that fails is set aside.
    pub fn verify(&self, digest: &Digest) -> Result<(), ContentError> {
        let mut file = self.reader(digest)?;
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; BUFFER];
        loop {
            let n = file
                .read(&mut buffer)
                .map_err(ContentError::io("read", &self.path(digest)))?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
        }
        self.check(digest, hasher.finish())
    }

    /// Compares what a reader of the blob has found; sets the blob aside when it differs.
    pub fn check(&self, digest: &Digest, actual: Digest) -> Result<(), ContentError> {
        if *digest == actual {
            return Ok(());
        }
        let (from, to) = (
            self.path(digest),
            self.root.join("corrupt").join(digest.hex()),
        );
        fs::rename(&from, &to).map_err(ContentError::io("set aside", &from))?;
        Err(ContentError::Corrupt {
            digest: *digest,
            actual,
        })
    }

    /// Begins a new blob.
    pub fn ingest(&self) -> Result<Ingest, ContentError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = self.root.join("ingest").join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(ContentError::io("create", &path))?;
        Ok(Ingest {
            store: self.clone(),
            temp: Temp(path),
            file,
            hasher: Hasher::default(),
            size: 0,
        })
    }

    /// Stores a document.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, ContentError> {
        let digest = Digest::of(bytes);
        if self.size(&digest) == Some(bytes.len() as u64) {
            return Ok(digest);
        }
        let mut ingest = self.ingest()?;
        ingest.write(bytes)?;
        ingest.finish(&digest)?;
        Ok(digest)
    }

    /// Removes a blob; absent is success.
    pub fn remove(&self, digest: &Digest) -> Result<(), ContentError> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(ContentError::io("remove", &path)(e))
            }
            _ => Ok(()),
        }
    }

    /// Every blob there is. Files with other names are left alone.
    pub fn list(&self) -> Result<Vec<Digest>, ContentError> {
        let dir = self.root.join("blobs/sha256");
        let entries = fs::read_dir(&dir).map_err(ContentError::io("list", &dir))?;
        Ok(entries
            .flatten()
            .filter_map(|entry| Digest::from_hex(entry.file_name().to_str()?).ok())
            .collect())
    }
}

/// Removes what interrupted work left, whatever it is. What cannot be removed harms nobody and is told.
pub(crate) fn remove_left_over(path: &Path) {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove what interrupted work left");
    }
}

/// Makes a directory and its parents, for root's eyes only.
pub(crate) fn make_private_dir(path: &Path) -> Result<(), ContentError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(ContentError::io("create", path))
}

/// Makes a rename in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), ContentError> {
    File::open(dir)
        .and_then(|file| file.sync_all())
        .map_err(ContentError::io("sync", dir))
}

/// Writes a small file so that a reader sees the old one or the new one, also after a power cut.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), ContentError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let dir = path.parent().unwrap_or(Path::new("/"));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let temp = Temp(dir.join(format!(".tmp-{}-{number}", std::process::id())));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temp.0)
        .map_err(ContentError::io("create", &temp.0))?;
    file.write_all(bytes)
        .map_err(ContentError::io("write", &temp.0))?;
    file.sync_data()
        .map_err(ContentError::io("sync", &temp.0))?;
    fs::rename(&temp.0, path).map_err(ContentError::io("rename to", path))?;
    sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, ContentStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = ContentStore::open(&dir.path().join("content")).unwrap();
        (dir, store)
    }

    fn files_in(path: &Path) -> usize {
        fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn a_blob_gets_its_name_only_when_its_digest_matches() {
        let (dir, store) = store();
        let mut ingest = store.ingest().unwrap();
        ingest.write(b"one").unwrap();
        let expected = Digest::of(b"two");
        assert!(matches!(
            ingest.finish(&expected),
            Err(ContentError::Mismatch { .. })
        ));
        assert_eq!(store.size(&expected), None);
        assert_eq!(files_in(&dir.path().join("content/ingest")), 0);

        let digest = store.put(b"two").unwrap();
        assert_eq!(store.read(&digest, 3).unwrap(), b"two");
        assert_eq!(store.list().unwrap(), [digest]);
    }

    #[test]
    fn a_flipped_bit_is_found_and_the_blob_set_aside() {
        let (dir, store) = store();
        let digest = store.put(b"good").unwrap();
        fs::write(store.path(&digest), b"gooe").unwrap();
        assert!(matches!(
            store.verify(&digest),
            Err(ContentError::Corrupt { .. })
        ));
        assert!(matches!(
            store.verify(&digest),
            Err(ContentError::Missing(_))
        ));
        assert_eq!(files_in(&dir.path().join("content/corrupt")), 1);
        store.put(b"good").unwrap();
        store.verify(&digest).unwrap();
    }

    #[test]
    fn a_document_over_its_limit_is_refused() {
        let (_dir, store) = store();
        let digest = store.put(b"12345").unwrap();
        assert!(matches!(
            store.read(&digest, 4),
            Err(ContentError::TooLarge { .. })
        ));
    }

    #[test]
    fn sweep_leaves_no_unfinished_blob() {
        let (dir, store) = store();
        let mut ingest = store.ingest().unwrap();
        ingest.write(b"half").unwrap();
        std::mem::forget(ingest);
        assert_eq!(files_in(&dir.path().join("content/ingest")), 1);
        store.sweep().unwrap();
        assert_eq!(files_in(&dir.path().join("content/ingest")), 0);
    }
}
