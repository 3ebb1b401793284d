//! Hostile and odd layers: contained or refused, and never a change outside.

#[path = "unpack/tests/corpus.rs"]
mod corpus;
#[path = "unpack/tests/meaning.rs"]
mod meaning;
#[path = "unpack/tests/pipe.rs"]
mod pipes;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

/// One entry as the tests write it; every byte of name and link goes into the tar as it is.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    path: Vec<u8>,
    kind: u8,
    link: Vec<u8>,
    data: Vec<u8>,
    mode: u32,
    pax: Vec<(&'static str, Vec<u8>)>,
    device: (u32, u32),
}

pub(super) fn raw(kind: u8, path: impl AsRef<[u8]>) -> Raw {
    Raw {
        path: path.as_ref().to_vec(),
        kind,
        link: Vec::new(),
        data: Vec::new(),
        mode: 0o644,
        pax: Vec::new(),
        device: (0, 0),
    }
}

pub(super) fn file(path: impl AsRef<[u8]>, data: &str) -> Raw {
    Raw {
        data: data.as_bytes().to_vec(),
        ..raw(b'0', path)
    }
}

pub(super) fn dir(path: impl AsRef<[u8]>, mode: u32) -> Raw {
    Raw {
        mode,
        ..raw(b'5', path)
    }
}

pub(super) fn link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Raw {
    Raw {
        link: target.as_ref().to_vec(),
        ..raw(b'2', path)
    }
}

pub(super) fn hard(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Raw {
    Raw {
        link: target.as_ref().to_vec(),
        ..raw(b'1', path)
    }
}

pub(super) fn tar(entries: &[Raw]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let mut pax = entry.pax.clone();
        if entry.path.len() > 100 {
            pax.push(("path", entry.path.clone()));
        }
        if entry.link.len() > 100 {
            pax.push(("linkpath", entry.link.clone()));
        }
        if !pax.is_empty() {
            let mut builder = ::tar::Builder::new(Vec::new());
            let records = pax.iter().map(|(key, value)| (*key, value.as_slice()));
            builder.append_pax_extensions(records).unwrap();
            let extension = builder.into_inner().unwrap();
            bytes.extend_from_slice(&extension[..extension.len() - 1024]);
        }
        let mut header = ::tar::Header::new_ustar();
        header.set_entry_type(::tar::EntryType::new(entry.kind));
        header.set_size(entry.data.len() as u64);
        header.set_mode(entry.mode);
        header.set_mtime(1_700_000_000);
        header.set_uid(1000);
        header.set_gid(1001);
        let old = header.as_old_mut();
        let short = entry.path.len().min(100);
        old.name[..short].copy_from_slice(&entry.path[..short]);
        let short = entry.link.len().min(100);
        old.linkname[..short].copy_from_slice(&entry.link[..short]);
        header.set_device_major(entry.device.0).unwrap();
        header.set_device_minor(entry.device.1).unwrap();
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&entry.data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// A tree of its own, with the canary beside it.
pub(super) struct Yard {
    temp: tempfile::TempDir,
    before: Vec<String>,
}

impl Yard {
    pub(super) fn new() -> Self {
        let temp = tempfile::Builder::new()
            .prefix("hanok-images-")
            .tempdir()
            .unwrap();
        let canary = temp.path().join("canary");
        fs::create_dir_all(canary.join("dir")).unwrap();
        fs::write(canary.join("file"), "canary").unwrap();
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(temp.path().join("root")).unwrap();
        let before = look(&canary);
        Self { temp, before }
    }

    pub(super) fn root(&self) -> PathBuf {
        self.temp.path().join("root")
    }

    pub(super) fn canary(&self) -> String {
        self.temp.path().join("canary").to_str().unwrap().to_owned()
    }

    pub(super) fn unpack(&self, entries: &[Raw]) -> Result<Unpacked, UnpackError> {
        self.unpack_tar(&tar(entries))
    }

    pub(super) fn unpack_tar(&self, bytes: &[u8]) -> Result<Unpacked, UnpackError> {
        let unpacked = apply(bytes, &self.root(), Limits::default(), None);
        if let Ok(unpacked) = &unpacked {
            settle(unpacked, &[]).unwrap();
        }
        self.check();
        unpacked
    }

    /// Nothing beside the root has changed.
    pub(super) fn check(&self) {
        assert_eq!(look(Path::new(&self.canary())), self.before);
        let beside: Vec<_> = fs::read_dir(self.temp.path()).unwrap().collect();
        assert_eq!(beside.len(), 2);
    }
}

/// Everything about a tree that a layer could change.
fn look(path: &Path) -> Vec<String> {
    let meta = fs::symlink_metadata(path).unwrap();
    let mut seen = vec![format!(
        "{} {:o} {} {} {} {}",
        path.display(),
        meta.mode(),
        meta.uid(),
        meta.gid(),
        meta.nlink(),
        meta.mtime_nsec()
    )];
    if meta.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            seen.extend(look(&entry.unwrap().path()));
        }
    } else {
        seen.push(fs::read_to_string(path).unwrap());
    }
    seen.sort();
    seen
}
