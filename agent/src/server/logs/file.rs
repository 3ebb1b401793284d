//! Log files on disk: opened without following links, read off the async threads, found again after rotations.
//!
//! A rotated file is the log file's name with something behind it: `0.log.20261129-120000`. Compressed ones and
//! half-written ones (`.gz`, `.tmp`) are not read.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::BytesMut;
use nix::fcntl::OFlag;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};

/// Bytes read at a time.
pub(super) const PIECE: usize = 64 << 10;

/// How often the files are listed again when a rotation comes in between.
const ATTEMPTS: usize = 5;

/// An open log file.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    inode: u64,
    offset: u64,
}

impl LogFile {
    /// Opens a regular file; a link or anything else is refused.
    pub(super) async fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
            .open(path)
            .await?;
        let metadata = file.metadata().await?;
        if !metadata.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(Self {
            file,
            inode: metadata.ino(),
            offset: 0,
        })
    }

    /// Its size now.
    pub(super) async fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata().await?.len())
    }

    /// Where the next read begins.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes to an offset.
    pub(super) async fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.offset = self.file.seek(SeekFrom::Start(offset)).await?;
        Ok(())
    }

    /// Reads what there is, at most [`PIECE`] bytes; 0 at the end.
    pub(super) async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        buffer.reserve(PIECE);
        let length = self.file.read_buf(buffer).await?;
        self.offset += length as u64;
        Ok(length)
    }

    /// Whether it has become shorter than what was read already.
    pub(super) async fn is_cut(&self) -> io::Result<bool> {
        Ok(self.size().await? < self.offset)
    }

    /// Whether another file has taken its name.
    pub(super) async fn is_superseded(&self, path: &Path) -> io::Result<bool> {
        match tokio::fs::symlink_metadata(path).await {
            Ok(metadata) => Ok(metadata.ino() != self.inode),
            // Renamed and not yet made anew, or deleted for good: nothing to go on with.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens every file that was begun after this one, oldest first; the last one has the log's name.
    pub(super) async fn successors(&self, path: &Path) -> io::Result<Vec<Self>> {
        let modified = self.file.metadata().await?.modified()?;
        for _ in 0..ATTEMPTS {
            let (log, inode) = (path.to_owned(), self.inode);
            let list = move || younger(&log, inode, modified);
            let found = tokio::task::spawn_blocking(list)
                .await
                .map_err(io::Error::other)??;
            if let Some(files) = open_all(&found).await? {
                return Ok(files);
            }
        }
        // Rotated faster than it can be listed: go on with the newest.
        Ok(vec![Self::open(path).await?])
    }
}

/// Opens the files that were found; none when a name has come to mean another file meanwhile.
async fn open_all(found: &[(PathBuf, u64)]) -> io::Result<Option<Vec<LogFile>>> {
    let mut files = Vec::with_capacity(found.len());
    for (path, inode) in found {
        match LogFile::open(path).await {
            Ok(file) if file.inode == *inode => files.push(file),
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(files))
}

/// Rotated files younger than the one with `inode`, then the current one. Blocking.
///
/// Younger is: written to later; in the same tick of the clock, with a greater name.
fn younger(path: &Path, inode: u64, modified: SystemTime) -> io::Result<Vec<(PathBuf, u64)>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a log path",
        ));
    };
    let mut ours = (modified, PathBuf::new());
    let mut rotated = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if !is_rotated(&entry.file_name(), name) {
            continue;
        }
        // Deleted or compressed since it was listed.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.ino() == inode {
            ours.1 = entry.path();
        } else if metadata.is_file() {
            rotated.push(((metadata.modified()?, entry.path()), metadata.ino()));
        }
    }
    rotated.retain(|(key, _)| *key > ours);
    rotated.sort();
    let mut files: Vec<_> = rotated
        .into_iter()
        .map(|((_, path), inode)| (path, inode))
        .collect();
    files.push((path.to_owned(), std::fs::symlink_metadata(path)?.ino()));
    Ok(files)
}

fn is_rotated(candidate: &OsStr, log: &OsStr) -> bool {
    let Some(suffix) = candidate.as_bytes().strip_prefix(log.as_bytes()) else {
        return false;
    };
    suffix.starts_with(b".") && !suffix.ends_with(b".gz") && !suffix.ends_with(b".tmp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_link_is_never_opened() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("0.log");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        assert!(LogFile::open(&link).await.is_err());
        assert!(LogFile::open(dir.path()).await.is_err());
    }

    #[test]
    fn rotated_files_carry_the_logs_name() {
        let is = |name: &str| is_rotated(OsStr::new(name), OsStr::new("0.log"));
        assert!(is("0.log.20261129-120000"));
        assert!(is("0.log.1"));
        assert!(!is("0.log"));
        assert!(!is("10.log.1"));
        assert!(!is("0.log.1.gz"));
        assert!(!is("0.log.1.tmp"));
    }

    #[tokio::test]
    async fn successors_come_in_the_order_of_writing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, "a").unwrap();
        let first = LogFile::open(&path).await.unwrap();
        for (name, text) in [("0.log.1", "b"), ("0.log.2", "c"), ("0.log.3", "d")] {
            std::fs::rename(&path, dir.path().join(name)).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let mut text = Vec::new();
        for mut file in first.successors(&path).await.unwrap() {
            let mut buffer = BytesMut::new();
            file.read(&mut buffer).await.unwrap();
            text.extend_from_slice(&buffer);
        }
        assert_eq!(text, b"bcd");
    }
}
