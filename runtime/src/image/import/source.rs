//! The files of an archive, by name: from a directory, or from a tar that is read once.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use super::ImportError;
use crate::content::{ContentStore, Digest, Sealed};
use crate::unpack::pipe::decoder;
use crate::unpack::tar::{Kind, Reader};

/// Most files in an archive.
const MAX_FILES: usize = 100_000;
/// Most links from name to name that are followed.
const MAX_LINKS: usize = 8;
/// Size of the buffers.
const BUFFER: usize = 256 << 10;

/// An archive's files.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    content: ContentStore,
    files: Files,
    /// What was taken already; links may name it again.
    taken: HashMap<String, Digest>,
}

#[derive(Debug)]
enum Files {
    Dir(OwnedFd),
    /// A tar's files, in the ingest directory, and its links.
    Tar {
        files: HashMap<String, Sealed>,
        links: HashMap<String, String>,
    },
}

impl Source {
    /// Opens a directory, or reads a whole tar.
    pub(super) fn open(
        path: &Path,
        content: &ContentStore,
    ) -> Result<Self, super::super::ImageError> {
        let read = |source: io::Error| ImportError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let files = match file.metadata().map_err(read)?.is_dir() {
            true => Files::Dir(file.into()),
            false => read_tar(path, file, content)?,
        };
        let (path, content) = (path.to_owned(), content.clone());
        Ok(Self {
            path,
            content,
            files,
            taken: HashMap::new(),
        })
    }

    /// Whether there is such a file.
    pub(super) fn has(&self, name: &str) -> bool {
        match &self.files {
            Files::Dir(dir) => open_beneath(dir, name).is_ok(),
            Files::Tar { files, .. } => files.contains_key(name),
        }
    }

    /// The digest of a file that was taken before.
    pub(super) fn taken(&self, name: &str) -> Option<Digest> {
        self.taken.get(&self.follow(name)).copied()
    }

    /// Takes a file; it can be taken once.
    pub(super) fn take(&mut self, name: &str) -> Result<Sealed, super::super::ImageError> {
        let real = self.follow(name);
        let missing = || ImportError::Missing {
            path: self.path.clone(),
            name: name.to_owned(),
        };
        let sealed = match &mut self.files {
            Files::Dir(dir) => {
                let mut file = open_beneath(dir, &real).map_err(|e| match e {
                    rustix::io::Errno::NOENT => missing(),
                    e => ImportError::Read {
                        path: self.path.join(name),
                        source: e.into(),
                    },
                })?;
                let failed = |source| ImportError::Read {
                    path: self.path.join(name),
                    source,
                };
                copy(&self.content, |buffer| file.read(buffer).map_err(failed))?
            }
            Files::Tar { files, .. } => files.remove(&real).ok_or_else(missing)?,
        };
        self.taken.insert(real, sealed.digest());
        Ok(sealed)
    }

    /// Where the links of a tar lead.
    fn follow(&self, name: &str) -> String {
        let mut name = normal(name);
        if let Files::Tar { links, .. } = &self.files {
            for _ in 0..MAX_LINKS {
                let Some(target) = links.get(&name) else {
                    break;
                };
                name.clone_from(target);
            }
        }
        name
    }
}

fn open_beneath(dir: &OwnedFd, name: &str) -> rustix::io::Result<File> {
    // Not even a fifo may make us wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(rustix::io::Errno::INVAL),
    }
}

fn copy(
    content: &ContentStore,
    mut read: impl FnMut(&mut [u8]) -> Result<usize, ImportError>,
) -> Result<Sealed, super::super::ImageError> {
    let mut ingest = content.ingest()?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = read(&mut buffer)?;
        if n == 0 {
            return Ok(ingest.seal());
        }
        ingest.write(&buffer[..n])?;
    }
}

fn read_tar(
    path: &Path,
    file: File,
    content: &ContentStore,
) -> Result<Files, super::super::ImageError> {
    let bad = |source| ImportError::Tar {
        path: path.to_owned(),
        source,
    };
    let decoder =
        decoder(BufReader::with_capacity(BUFFER, file)).map_err(|source| ImportError::Read {
            path: path.to_owned(),
            source,
        })?;
    let mut tar = Reader::new(BufReader::with_capacity(BUFFER, decoder));
    let (mut files, mut links) = (HashMap::new(), HashMap::new());
    while let Some(entry) = tar.next_entry().map_err(bad)? {
        let name = normal(&String::from_utf8_lossy(&entry.path));
        let target = String::from_utf8_lossy(&entry.link).into_owned();
        match entry.kind {
            Kind::File => {
                let sealed = copy(content, |buffer| {
                    let data = tar.data().map_err(bad)?;
                    let n = data.len().min(buffer.len());
                    buffer[..n].copy_from_slice(&data[..n]);
                    tar.consume(n);
                    Ok(n)
                })?;
                files.insert(name, sealed);
            }
            Kind::HardLink => drop(links.insert(name, normal(&target))),
            Kind::Symlink => {
                let dir = name.rsplit_once('/').map_or("", |(dir, _)| dir);
                let target = normal(&format!("{dir}/{target}"));
                links.insert(name, target);
            }
            _ => {}
        }
        if files.len() + links.len() > MAX_FILES {
            let why = format!("it has more than {MAX_FILES} files");
            return Err(ImportError::Unknown {
                path: path.to_owned(),
                why,
            }
            .into());
        }
    }
    Ok(Files::Tar { files, links })
}

/// A name without `.` and `..`; it is a key only and opens nothing.
fn normal(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}
