//! A root filesystem as a list of entries, and the layer that it makes.
//!
//! Order, times and owners are fixed, so that the same content is always the same layer.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::layout::hex;

/// What one layer holds, in order.
#[derive(Debug, Clone, Default)]
pub struct Rootfs {
    entries: Vec<(String, Entry)>,
}

#[derive(Debug, Clone)]
enum Entry {
    Directory { mode: u32 },
    Text { text: String, mode: u32 },
    Program { from: PathBuf, mode: u32 },
    Symlink { target: String },
    Hardlink { target: String },
}

/// A compressed layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// The gzip bytes.
    pub(super) blob: Vec<u8>,
    /// Digest of the tar inside, as `rootfs.diff_ids` wants it.
    pub(super) diff_id: String,
}

impl Rootfs {
    /// An empty layer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.with(path, Entry::Directory { mode })
    }

    /// Adds a directory that everybody may read, unless it is there.
    pub(super) fn directory_once(self, path: &str) -> Self {
        if path.is_empty() || self.has(path) {
            return self;
        }
        self.directory(path, 0o755)
    }

    /// Adds an executable copied from the machine, unless it is there.
    pub(super) fn program_once(self, path: &str, from: &Path) -> Self {
        if self.has(path) {
            return self;
        }
        self.program(path, from)
    }

    fn has(&self, path: &str) -> bool {
        self.entries.iter().any(|(p, _)| p == path)
    }

    /// Adds a file with this text.
    #[must_use]
    pub fn text(self, path: &str, text: &str) -> Self {
        self.with(
            path,
            Entry::Text {
                text: text.to_owned(),
                mode: 0o644,
            },
        )
    }

    /// Adds an executable copied from the machine.
    #[must_use]
    pub fn program(self, path: &str, from: &Path) -> Self {
        self.with(
            path,
            Entry::Program {
                from: from.to_path_buf(),
                mode: 0o755,
            },
        )
    }

    /// Adds an executable that runs as its owner, root, whoever starts it.
    #[must_use]
    pub fn set_user_id_program(self, path: &str, from: &Path) -> Self {
        self.with(
            path,
            Entry::Program {
                from: from.to_path_buf(),
                mode: 0o4755,
            },
        )
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.with(
            path,
            Entry::Symlink {
                target: target.to_owned(),
            },
        )
    }

    /// Adds another name for a file of this layer.
    #[must_use]
    pub fn hardlink(self, path: &str, target: &str) -> Self {
        self.with(
            path,
            Entry::Hardlink {
                target: target.to_owned(),
            },
        )
    }

    fn with(mut self, path: &str, entry: Entry) -> Self {
        self.entries.push((path.to_owned(), entry));
        self
    }

    /// Feeds everything that decides the layer's content to a hash.
    ///
    /// # Errors
    /// When a program cannot be read.
    pub(super) fn hash_into(&self, hash: &mut Sha256) -> Result<()> {
        for (path, entry) in &self.entries {
            hash.update(format!("{path} {entry:?}\n"));
            if let Entry::Program { from, .. } = entry {
                hash.update(read(from)?);
            }
        }
        Ok(())
    }

    /// Makes the layer.
    ///
    /// # Errors
    /// When a program cannot be read.
    pub(super) fn layer(&self) -> Result<Layer> {
        let gzip = GzEncoder::new(Vec::new(), Compression::new(6));
        let mut tar = Builder::new(Hashing {
            inner: gzip,
            hash: Sha256::new(),
        });
        for (path, entry) in &self.entries {
            append(&mut tar, path, entry).with_context(|| path.clone())?;
        }
        let hashing = tar.into_inner()?;
        let diff_id = format!("sha256:{}", hex(&hashing.hash.finalize()));
        Ok(Layer {
            blob: hashing.inner.finish()?,
            diff_id,
        })
    }
}

fn append(tar: &mut Builder<impl Write>, path: &str, entry: &Entry) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    match entry {
        Entry::Directory { mode } => {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(*mode);
            tar.append_data(&mut header, path, std::io::empty())?;
        }
        Entry::Text { text, mode } => append_file(tar, header, path, text.as_bytes(), *mode)?,
        Entry::Program { from, mode } => append_file(tar, header, path, &read(from)?, *mode)?,
        Entry::Symlink { target } => append_link(tar, header, EntryType::Symlink, path, target)?,
        Entry::Hardlink { target } => append_link(tar, header, EntryType::Link, path, target)?,
    }
    Ok(())
}

fn append_file(
    tar: &mut Builder<impl Write>,
    mut header: Header,
    path: &str,
    bytes: &[u8],
    mode: u32,
) -> Result<()> {
    header.set_entry_type(EntryType::Regular);
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    Ok(tar.append_data(&mut header, path, bytes)?)
}

fn append_link(
    tar: &mut Builder<impl Write>,
    mut header: Header,
    kind: EntryType,
    path: &str,
    target: &str,
) -> Result<()> {
    header.set_entry_type(kind);
    header.set_mode(0o777);
    Ok(tar.append_link(&mut header, path, target)?)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("read {}", path.display()))
}

/// Hashes what goes through it.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(buf)?;
        self.hash.update(&buf[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_content_is_the_same_layer() {
        let make = || {
            Rootfs::new()
                .directory("tmp", 0o1777)
                .text("etc/motd", "x")
                .symlink("a", "b")
        };
        let (first, second) = (
            make().layer().expect("layer"),
            make().layer().expect("layer"),
        );
        assert_eq!(first.blob, second.blob);
        assert_eq!(first.diff_id, second.diff_id);
    }
}
