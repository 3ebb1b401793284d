//! Compiled seccomp filters, kept on disk from one command to the next: compiling RuntimeDefault takes longer than all
//! the rest of a container's start.
//!
//! A file is named by the hash of the policy and of what compiles it, holds a hash of its content, and belongs to our
//! user alone; any other is no filter, and the policy is compiled. It is trusted as the records beside it are, which
//! hold the containers' filters too.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::seccomp::{Filter, Policy, SeccompError};

/// Below the directory for what all containers share.
const DIRECTORY: &str = "filters";

/// Most filters that are kept; then all are dropped. A node has a few.
const MAX_KEPT: usize = 64;

/// Longest file that is read: the kernel takes 4,096 instructions of 8 bytes.
const MAX_FILE: u64 = 64 << 10;

/// A hash in a file, and the flags behind it.
const HASH: usize = 32;
const FLAGS: usize = 4;

/// The filter of a policy. What cannot be kept is compiled again the next time.
pub(super) fn get(shared_dir: &Path, policy: &Policy) -> Result<Filter, SeccompError> {
    let directory = shared_dir.join(DIRECTORY);
    let Some(name) = key(policy) else {
        return policy.compile();
    };
    if let Some(filter) = load(&directory.join(&name)) {
        return Ok(filter);
    }
    let filter = policy.compile()?;
    if let Err(error) = keep(&directory, &name, &filter) {
        tracing::debug!(%error, "cannot keep a seccomp filter");
    }
    Ok(filter)
}

/// Everything that decides what the filter is: the policy, this program, libseccomp, the kernel.
fn key(policy: &Policy) -> Option<String> {
    let own = fs::metadata("/proc/self/exe").ok()?;
    let library = libseccomp::ScmpVersion::current().ok()?;
    let kernel = rustix::system::uname();
    let mut hash = Sha256::new();
    for number in [
        own.dev(),
        own.ino(),
        own.size(),
        own.mtime().cast_unsigned(),
        own.mtime_nsec().cast_unsigned(),
        library.major.into(),
        library.minor.into(),
        library.micro.into(),
    ] {
        hash.update(number.to_ne_bytes());
    }
    hash.update(kernel.release().to_bytes_with_nul());
    hash.update(serde_json::to_vec(policy).ok()?);
    Some(hex(&hash.finalize()))
}

fn load(path: &Path) -> Option<Filter> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let mut options = File::options();
    let file = options.read(true).custom_flags(flags).open(path).ok()?;
    let found = file.metadata().ok()?;
    let ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    if !found.is_file() || !ours || found.len() > MAX_FILE {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    decode(&bytes)
}

fn decode(bytes: &[u8]) -> Option<Filter> {
    let (hash, content) = bytes.split_at_checked(HASH)?;
    let (flags, program) = content.split_first_chunk::<FLAGS>()?;
    let whole = Sha256::digest(content).as_slice() == hash && !program.is_empty();
    whole.then(|| Filter {
        program: program.to_vec(),
        flags: u32::from_ne_bytes(*flags),
    })
}

fn encode(filter: &Filter) -> Vec<u8> {
    let content = [&filter.flags.to_ne_bytes(), filter.program.as_slice()].concat();
    [Sha256::digest(&content).as_slice(), &content].concat()
}

fn keep(directory: &Path, name: &str, filter: &Filter) -> io::Result<()> {
    if fs::read_dir(directory).is_ok_and(|entries| entries.count() >= MAX_KEPT) {
        fs::remove_dir_all(directory)?;
    }
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(directory)?;
    let temporary = directory.join(format!(".{}", std::process::id()));
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&temporary)?;
    io::Write::write_all(&mut file, &encode(filter))?;
    fs::rename(&temporary, directory.join(name))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn files(dir: &Path) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(dir.join(DIRECTORY)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn a_policy_is_compiled_once() {
        let dir = tempfile::tempdir().unwrap();
        let policy = Policy::runtime_default(0);
        let compiled = get(dir.path(), &policy).unwrap();
        assert_eq!(compiled, policy.compile().unwrap());
        let file = files(dir.path()).pop().unwrap();
        let other = Filter {
            program: vec![7; 16],
            flags: 3,
        };
        fs::write(&file, encode(&other)).unwrap();
        assert_eq!(get(dir.path(), &policy).unwrap(), other, "it is read");
        get(dir.path(), &Policy::runtime_default(1 << 18)).unwrap();
        assert_eq!(files(dir.path()).len(), 2, "another policy, another filter");
    }

    #[test]
    fn a_file_that_is_torn_or_not_ours_is_no_filter() {
        let dir = tempfile::tempdir().unwrap();
        let policy = Policy::runtime_default(0);
        let compiled = get(dir.path(), &policy).unwrap();
        let file = files(dir.path()).pop().unwrap();
        let whole = fs::read(&file).unwrap();
        let mut changed = whole.clone();
        changed[HASH + FLAGS + 1] ^= 1;
        for bytes in [&[], &whole[..HASH], &whole[..whole.len() - 8], &changed] {
            fs::write(&file, bytes).unwrap();
            assert_eq!(get(dir.path(), &policy).unwrap(), compiled);
            assert_eq!(fs::read(&file).unwrap(), whole, "it is replaced");
        }
        let open = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        open(0o622);
        assert_eq!(load(&file), None);
        open(0o600);
        assert_eq!(load(&file), Some(compiled));
    }

    #[test]
    fn only_so_many_filters_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let filter = Filter {
            program: vec![0; 8],
            flags: 0,
        };
        let directory = dir.path().join(DIRECTORY);
        for index in 0..=MAX_KEPT {
            keep(&directory, &index.to_string(), &filter).unwrap();
        }
        assert_eq!(files(dir.path()).len(), 1);
    }
}
