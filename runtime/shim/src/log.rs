//! A container's log file in the CRI format, with rotation at write time.
//!
//! Every line of output becomes `TIME STREAM TAG TEXT`: RFC 3339 with nanoseconds, `stdout` or `stderr`, `F`
//! for a full line and `P` for a part of one. Lines longer than [`MAX_LINE`] are cut into parts. What
//! remains without a newline at the end of a stream is written as `P`: readers join parts without adding
//! anything, so that they show the very bytes that were written.
//!
//! A full disk loses lines and never stops the container. A file that somebody has removed or renamed is made anew by what
//! is written a second later: without a name it would take room that nobody finds, and never be rotated.

mod rotate;
mod timestamp;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use hanok_shim::protocol::Log;

use crate::poller::Stream;
pub(crate) use timestamp::now_ns;

/// Longest text in one line of the file; what other runtimes use, and what readers' buffers expect.
const MAX_LINE: usize = 16 << 10;

/// Formatted lines are written once they are as many bytes as this.
const FLUSH: usize = 16 << 10;

/// How long is written without a look at whether the file still has its name, nanoseconds.
const UNSEEN: u64 = 1_000_000_000;

/// An open log file.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    max_size: u64,
    max_files: u32,
    file: File,
    size: u64,
    /// The file ends in the middle of a line that the disk had no room for.
    torn: bool,
    /// The second in the name of the last file that was set aside.
    last_rotation: i64,
    /// When its name was looked at.
    looked_ns: i64,
    /// Formatted lines that are not in the file yet; empty between calls.
    pending: Vec<u8>,
    /// Text without its newline, by stream.
    partial: [Vec<u8>; 2],
}

impl LogFile {
    /// Opens or makes the file; its directory must exist.
    pub(crate) fn open(log: &Log) -> io::Result<Self> {
        let path = PathBuf::from(&log.path);
        let file = open(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            max_size: log.max_size,
            max_files: log.max_files,
            file,
            size,
            torn: false,
            last_rotation: 0,
            looked_ns: now_ns(),
            pending: Vec::new(),
            partial: [Vec::new(), Vec::new()],
        })
    }

    /// Opens the path again, after somebody renamed the file.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        self.size = self.file.metadata()?.len();
        self.torn = false;
        Ok(())
    }

    /// Opens the path again when it no longer names the file. What cannot be opened is no log, and the file goes on.
    fn keep_name(&mut self) {
        let is_named = match (fs::symlink_metadata(&self.path), self.file.metadata()) {
            (Ok(named), Ok(open)) => (named.dev(), named.ino()) == (open.dev(), open.ino()),
            (Err(error), _) => error.kind() != io::ErrorKind::NotFound,
            (_, Err(_)) => true,
        };
        if !is_named {
            let _ = self.reopen();
        }
    }

    /// Takes output of one stream, all of it now.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let now = now_ns();
        if now.abs_diff(self.looked_ns) > UNSEEN {
            self.looked_ns = now;
            self.keep_name();
        }
        let time = timestamp::rfc3339(now);
        let full = head(&time, stream, b'F');
        let mut rest = bytes;
        while !rest.is_empty() {
            let held = self.partial[index(stream)].len();
            let window = &rest[..rest.len().min(MAX_LINE - held)];
            let Some(end) = memchr::memchr(b'\n', window) else {
                let (part, after) = rest.split_at(window.len());
                self.hold(stream, part, &time);
                rest = after;
                continue;
            };
            let (text, after) = rest.split_at(end + 1);
            if held == 0 {
                self.emit(&full, text);
            } else {
                let mut line = std::mem::take(&mut self.partial[index(stream)]);
                line.extend_from_slice(text);
                self.emit(&full, &line);
            }
            rest = after;
        }
        self.flush();
        self.pending = Vec::new();
    }

    /// Writes what is left of a stream without a newline.
    pub(crate) fn end(&mut self, stream: Stream) {
        if !self.partial[index(stream)].is_empty() {
            self.emit_part(stream, &timestamp::rfc3339(now_ns()));
            self.flush();
        }
    }

    /// Keeps text until its newline comes, or writes it as a part once it is as long as a line may be.
    fn hold(&mut self, stream: Stream, text: &[u8], time: &str) {
        let partial = &mut self.partial[index(stream)];
        partial.extend_from_slice(text);
        if partial.len() == MAX_LINE {
            self.emit_part(stream, time);
        }
    }

    fn emit_part(&mut self, stream: Stream, time: &str) {
        let mut line = std::mem::take(&mut self.partial[index(stream)]);
        line.push(b'\n');
        self.emit(&head(time, stream, b'P'), &line);
    }

    /// One line of the file; `text` ends with its newline.
    fn emit(&mut self, head: &[u8], text: &[u8]) {
        let length = head.len() + text.len();
        let after = self.size + (self.pending.len() + length) as u64;
        if self.max_size > 0 && after > self.max_size {
            self.flush();
            if self.size > 0 {
                self.rotate();
            }
        }
        if self.pending.is_empty() {
            self.pending.reserve(FLUSH + length);
        }
        self.pending.extend_from_slice(head);
        self.pending.extend_from_slice(text);
        if self.pending.len() >= FLUSH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        // The container must not stop for a full disk: what cannot be written is lost.
        self.size += append(&mut self.file, &self.pending, &mut self.torn) as u64;
        self.pending.clear();
    }

    /// Sets the file aside under the kubelet's name for it and begins a new one. When that fails, the
    /// file goes on growing.
    fn rotate(&mut self) {
        let Ok(second) = rotate::set_aside(&self.path, self.last_rotation) else {
            return self.keep_name();
        };
        self.last_rotation = second;
        if let Ok(file) = open(&self.path) {
            self.file = file;
            self.size = 0;
            self.torn = false;
        }
        rotate::prune(&self.path, self.max_files);
    }
}

/// Writes whole lines as far as they go; returns how many bytes that were. A line that was cut short is ended before
/// the next one begins, so that it takes no other with it. It stays: a reader may have read it already.
fn append(file: &mut impl Write, lines: &[u8], torn: &mut bool) -> usize {
    let end: &[u8] = if *torn { b"\n" } else { b"" };
    let mut written = 0;
    for bytes in [end, lines] {
        let part = write_most(file, bytes);
        written += part;
        if let Some(last) = part.checked_sub(1) {
            *torn = bytes[last] != b'\n';
        }
        if part < bytes.len() {
            break;
        }
    }
    written
}

/// How many bytes could be written.
fn write_most(file: &mut impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(length) => written += length,
        }
    }
    written
}

/// What stands before the text of a line.
fn head(time: &str, stream: Stream, tag: u8) -> Vec<u8> {
    let name: &[u8] = match stream {
        Stream::Stdout => b" stdout ",
        Stream::Stderr => b" stderr ",
    };
    [time.as_bytes(), name, &[tag, b' ']].concat()
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

fn open(path: &std::path::Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )),
    }
}

#[cfg(test)]
mod tests;
