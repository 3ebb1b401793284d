//! Records on disk: JSON files whose commit is rename(2), in directories of ours.
//!
//! They live on a tmpfs and die with the boot, as the processes do that they tell of; so they are not synced.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest record that is read back. The longest, config.json, has the pod's environment in it.
const MAX_RECORD: u64 = 16 << 20;

/// Something of ours cannot be read for want of descriptors or memory. That says nothing of the thing itself, so nothing
/// may follow from it: what is behind it may run.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub(crate) struct Unseen {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What came of reading `path`, unless it could not be looked at.
pub(crate) fn seen<T>(path: &Path, result: io::Result<T>) -> Result<io::Result<T>, Unseen> {
    match result {
        Err(source) if is_want(&source) => Err(Unseen {
            path: path.to_owned(),
            source,
        }),
        seen => Ok(seen),
    }
}

/// Whether an error is one of the machine at this moment.
fn is_want(error: &io::Error) -> bool {
    const WANTS: [Errno; 6] = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOBUFS,
        Errno::AGAIN,
        Errno::IO,
    ];
    Errno::from_io_error(error).is_some_and(|errno| WANTS.contains(&errno))
}

/// 64 random hexadecimal digits.
pub(crate) fn new_id() -> io::Result<String> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// An id that no other exec has, be it of another agent. Unlike [`new_id`]'s it can be guessed, and takes no look at a
/// source of randomness: probes need one every second.
pub(crate) fn exec_id() -> io::Result<String> {
    static AGENT: OnceLock<String> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let agent = match AGENT.get() {
        Some(agent) => agent,
        None => {
            let made = new_id()?;
            AGENT.get_or_init(|| made)
        }
    };
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(format!("{agent}-{count}"))
}

/// Makes a directory for root only, and those above it that are missing.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// Writes a record whole or not at all.
pub(crate) fn write<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?;
    replace(path, &bytes, 0o600)
}

/// As [`write`], for a file that containers read.
pub(crate) fn write_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o644)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let temporary = temporary(path)?;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)?;
    file.write_all(bytes)?;
    fs::rename(&temporary, path)
}

fn temporary(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    Ok(path.with_file_name(format!(".{}.tmp", name.to_string_lossy())))
}

/// Reads a record.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(MAX_RECORD)
        .read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Removes a directory with everything in it. Absent is success.
pub(crate) fn remove_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The directories in a directory; none when it is absent.
pub(crate) fn subdirectories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_replaced_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, &vec![1, 2]).unwrap();
        write(&path, &vec![3]).unwrap();
        assert_eq!(read::<Vec<i32>>(&path).unwrap(), [3]);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn broken_records_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert!(read::<Vec<i32>>(&path).is_err());
        fs::write(&path, "[1,").unwrap();
        assert!(read::<Vec<i32>>(&path).is_err());
    }

    #[test]
    fn want_of_the_machine_says_nothing_of_a_record() {
        let path = Path::new("/r");
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for want in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            assert!(seen::<()>(path, Err(error(want))).is_err(), "{want}");
        }
        for broken in [Errno::NOENT, Errno::ISDIR, Errno::NOTDIR, Errno::LOOP] {
            assert!(seen::<()>(path, Err(error(broken))).is_ok(), "{broken}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(&path, "[1,").unwrap();
        assert!(seen(&path, read::<Vec<i32>>(&path)).is_ok());
    }

    #[test]
    fn ids_are_sixty_four_digits_and_differ() {
        let (one, two) = (new_id().unwrap(), new_id().unwrap());
        assert!(crate::service::is_id(&one));
        assert_ne!(one, two);
    }

    #[test]
    fn removing_what_is_absent_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        remove_dir(&dir.path().join("x")).unwrap();
        assert!(subdirectories(&dir.path().join("x")).unwrap().is_empty());
    }
}
