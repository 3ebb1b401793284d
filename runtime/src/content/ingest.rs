//! Blobs on their way into the store.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use super::{ContentError, ContentStore, Digest, Hasher, sync_dir};

/// A file that disappears unless it was renamed.
#[derive(Debug)]
pub(super) struct Temp(pub(super) PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        // After the rename there is nothing here any more, which is the usual case.
        let _ = fs::remove_file(&self.0);
    }
}

/// A blob being written. Dropping it discards it.
#[derive(Debug)]
pub struct Ingest {
    pub(super) store: ContentStore,
    pub(super) temp: Temp,
    pub(super) file: File,
    pub(super) hasher: Hasher,
    pub(super) size: u64,
}

impl Ingest {
    /// Appends.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ContentError> {
        self.file
            .write_all(bytes)
            .map_err(ContentError::io("write", &self.temp.0))?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Bytes written so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Ends the writing, whatever the digest turns out to be.
    pub fn seal(self) -> Sealed {
        Sealed {
            digest: self.hasher.finish(),
            store: self.store,
            temp: self.temp,
            size: self.size,
        }
    }

    /// Ends the writing; the blob is stored, durably, if it is the one that was `expected`.
    pub fn finish(self, expected: &Digest) -> Result<(), ContentError> {
        let sealed = self.seal();
        if sealed.digest != *expected {
            return Err(ContentError::Mismatch {
                expected: *expected,
                actual: sealed.digest,
            });
        }
        sealed.commit()
    }
}

/// A blob written and hashed, not yet in the store. Dropping it discards it.
#[derive(Debug)]
pub struct Sealed {
    digest: Digest,
    pub(super) store: ContentStore,
    temp: Temp,
    size: u64,
}

impl Sealed {
    /// Its digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads at most `limit` bytes of it from the start; more is an error.
    pub fn read(&self, limit: u64) -> Result<Vec<u8>, ContentError> {
        if self.size > limit {
            return Err(ContentError::TooLarge {
                digest: self.digest,
                limit,
            });
        }
        fs::read(&self.temp.0).map_err(ContentError::io("read", &self.temp.0))
    }

    /// Gives it its name in the store.
    pub fn commit(self) -> Result<(), ContentError> {
        let path = self.store.path(&self.digest);
        // Not kept open meanwhile: an archive may have thousands of files.
        File::open(&self.temp.0)
            .and_then(|file| file.sync_data())
            .map_err(ContentError::io("sync", &self.temp.0))?;
        fs::rename(&self.temp.0, &path).map_err(ContentError::io("rename to", &path))?;
        sync_dir(&self.store.root.join("blobs/sha256"))
    }
}
