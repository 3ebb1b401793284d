//! A tar reader for layers: ustar, PAX and GNU long names, one pass, bounded memory.
//!
//! Layers come from strangers. There is one parser, a PAX size goes before the header's, and what two
//! readers could take differently (a clash of sizes, a link that carries data, sparse files) is an error.
//! It only reads; where an entry may go is decided by [`super::extract`].

mod header;

use std::io::{self, BufRead};

use header::{Extension, Header, padding, pax_record, until_nul};

/// Size of a tar block.
const BLOCK: usize = 512;
/// Longest PAX header or long name; real ones are below a few KiB, xattrs included.
const MAX_EXTENSION: u64 = 1 << 20;
/// Most extension headers before one entry: a PAX header, a long name and a long link.
const MAX_EXTENSIONS: u32 = 3;
/// Longest path of an entry or of a link's target: PATH_MAX without its terminator.
const MAX_PATH: usize = 4095;

/// What is wrong with a tar stream.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The stream cannot be read (or decompressed).
    #[error("failed to read the layer")]
    Read(#[source] io::Error),
    /// The stream ends in the middle of an entry.
    #[error("the layer is truncated")]
    Truncated,
    /// A header that makes no sense.
    #[error("malformed tar header at offset {offset}: {what}")]
    Header {
        /// Where, in the uncompressed stream.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, with data.
    File,
    /// Another name of an earlier file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A directory.
    Dir,
    /// A named pipe.
    Fifo,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path as written.
    pub path: Vec<u8>,
    /// Target of a link, as written.
    pub link: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Bytes of data that follow; 0 for all but files.
    pub size: u64,
    /// Permission bits, setuid, setgid and sticky among them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, seconds since the epoch.
    pub mtime: i64,
    /// Nanoseconds to add to `mtime`.
    pub mtime_nanos: u32,
    /// Device number: major, minor.
    pub device: (u32, u32),
    /// Extended attributes: name, value.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Reads entries one after the other.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    offset: u64,
    /// Data of the current entry that has not been read.
    left: u64,
    /// Padding after it.
    padding: u64,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads tar from `inner`, which is uncompressed.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            offset: 0,
            left: 0,
            padding: 0,
            ended: false,
        }
    }

    /// The underlying reader, for its counters.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// Gives the underlying reader back.
    pub fn into_inner(self) -> R {
        self.inner
    }

    /// The next entry; none at the end of the archive. Unread data of the last one is skipped.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        self.skip(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        let mut extension = Extension::default();
        let mut extensions = 0;
        loop {
            let Some(block) = self.header_block()? else {
                if extensions > 0 {
                    return Err(TarError::Truncated);
                }
                return Ok(None);
            };
            let header = Header(&block);
            match header.kind_byte() {
                b'x' => {
                    let bytes = self.extension(&header)?;
                    self.pax(&bytes, &mut extension)?;
                }
                // A global header speaks of the whole archive; nothing in it concerns the files.
                b'g' => drop(self.extension(&header)?),
                b'L' => extension.path = Some(until_nul(&self.extension(&header)?)),
                b'K' => extension.link = Some(until_nul(&self.extension(&header)?)),
                _ => return self.entry(&header, extension).map(Some),
            }
            extensions += u32::from(header.kind_byte() != b'g');
            if extensions > MAX_EXTENSIONS {
                return Err(self.bad("too many extension headers for one entry"));
            }
        }
    }

    /// Unread data of the current entry, as much of it as is buffered; empty at its end.
    pub fn data(&mut self) -> Result<&[u8], TarError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let buffer = self.inner.fill_buf().map_err(TarError::Read)?;
        if buffer.is_empty() {
            return Err(TarError::Truncated);
        }
        let n = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        Ok(&buffer[..n])
    }

    /// Marks `n` bytes of [`Reader::data`] as read.
    pub fn consume(&mut self, n: usize) {
        self.inner.consume(n);
        self.left -= n as u64;
        self.offset += n as u64;
    }

    /// Reads what follows the end of the archive, so that the whole stream is hashed.
    pub fn drain(&mut self) -> Result<(), TarError> {
        loop {
            let n = self.inner.fill_buf().map_err(TarError::Read)?.len();
            if n == 0 {
                return Ok(());
            }
            self.inner.consume(n);
        }
    }

    fn bad(&self, what: &'static str) -> TarError {
        TarError::Header {
            offset: self.offset.saturating_sub(BLOCK as u64),
            what,
        }
    }

    fn skip(&mut self, mut count: u64) -> Result<(), TarError> {
        while count > 0 {
            let buffered = self.inner.fill_buf().map_err(TarError::Read)?.len();
            if buffered == 0 {
                return Err(TarError::Truncated);
            }
            let n = usize::try_from(count).unwrap_or(usize::MAX).min(buffered);
            self.inner.consume(n);
            self.offset += n as u64;
            count -= n as u64;
        }
        Ok(())
    }

    /// One block; none when the stream ends before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            let buffer = self.inner.fill_buf().map_err(TarError::Read)?;
            if buffer.is_empty() {
                return if filled == 0 {
                    Ok(None)
                } else {
                    Err(TarError::Truncated)
                };
            }
            let n = buffer.len().min(BLOCK - filled);
            block[filled..filled + n].copy_from_slice(&buffer[..n]);
            self.inner.consume(n);
            filled += n;
        }
        self.offset += BLOCK as u64;
        Ok(Some(block))
    }

    /// The next header with a good checksum; none at the end (two zero blocks, or the end of the stream).
    fn header_block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let Some(block) = self.block()? else {
            self.ended = true;
            return Ok(None);
        };
        if block.iter().all(|byte| *byte == 0) {
            self.ended = true;
            return match self.block()? {
                Some(second) if second.iter().any(|byte| *byte != 0) => {
                    Err(self.bad("data after a lone zero block"))
                }
                _ => Ok(None),
            };
        }
        if !Header(&block).checksum_fits() {
            return Err(self.bad("bad checksum"));
        }
        Ok(Some(block))
    }

    /// The content of an extension header.
    fn extension(&mut self, header: &Header<'_>) -> Result<Vec<u8>, TarError> {
        let size = header.number(124, 12).ok_or_else(|| self.bad("bad size"))?;
        if size > MAX_EXTENSION {
            return Err(self.bad("extension header larger than 1 MiB"));
        }
        (self.left, self.padding) = (size, padding(size));
        let mut bytes = Vec::new();
        while self.left > 0 {
            let data = self.data()?;
            bytes.extend_from_slice(data);
            let n = data.len();
            self.consume(n);
        }
        self.skip(self.padding)?;
        self.padding = 0;
        Ok(bytes)
    }

    fn pax(&self, mut bytes: &[u8], extension: &mut Extension) -> Result<(), TarError> {
        while !bytes.is_empty() {
            let (key, value, rest) = pax_record(bytes).ok_or_else(|| self.bad("bad PAX record"))?;
            bytes = rest;
            extension.apply(key, value).map_err(|what| self.bad(what))?;
        }
        Ok(())
    }

    fn entry(&mut self, header: &Header<'_>, extension: Extension) -> Result<Entry, TarError> {
        let path = extension.path.unwrap_or_else(|| header.path());
        let kind = match header.kind_byte() {
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Dir,
            b'0' | 0 | b'7' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::Char,
            b'4' => Kind::Block,
            b'5' => Kind::Dir,
            b'6' => Kind::Fifo,
            b'S' => return Err(self.bad("sparse files are not supported")),
            _ => return Err(self.bad("unknown type of entry")),
        };
        let written = header.number(124, 12).ok_or_else(|| self.bad("bad size"))?;
        let size = extension.size.unwrap_or(written);
        if size != written && written != 0 {
            return Err(self.bad("two different sizes"));
        }
        if kind != Kind::File && size != 0 {
            return Err(self.bad("an entry that is not a file has data"));
        }
        let link = extension
            .link
            .unwrap_or_else(|| until_nul(&header.0[157..257]));
        if path.is_empty() || path.len() > MAX_PATH || path.contains(&0) {
            return Err(self.bad("empty, overlong or unprintable path"));
        }
        if link.len() > MAX_PATH || link.contains(&0) {
            return Err(self.bad("overlong or unprintable link target"));
        }
        if matches!(kind, Kind::HardLink | Kind::Symlink) && link.is_empty() {
            return Err(self.bad("link without a target"));
        }
        let owner = |given: Option<u32>, at| match given {
            Some(id) => Ok(id),
            None => self.field(header, at, 8),
        };
        let (uid, gid) = (owner(extension.uid, 108)?, owner(extension.gid, 116)?);
        // To the kernel this number is no owner but the wish to keep the old one.
        if uid == u32::MAX || gid == u32::MAX {
            return Err(self.bad("the owner 4294967295 is nobody"));
        }
        let entry = Entry {
            path,
            link,
            kind,
            size,
            mode: self.field(header, 100, 8)? & 0o7777,
            uid,
            gid,
            mtime: extension
                .mtime
                .map_or_else(|| header.mtime(), |(seconds, _)| seconds),
            mtime_nanos: extension.mtime.map_or(0, |(_, nanos)| nanos),
            device: match kind {
                Kind::Char | Kind::Block => {
                    (self.field(header, 329, 8)?, self.field(header, 337, 8)?)
                }
                _ => (0, 0),
            },
            xattrs: extension.xattrs,
        };
        (self.left, self.padding) = (size, padding(size));
        Ok(entry)
    }

    fn field(&self, header: &Header<'_>, at: usize, len: usize) -> Result<u32, TarError> {
        header
            .number(at, len)
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| self.bad("bad number"))
    }
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
