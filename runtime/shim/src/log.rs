//! A container's log file in the CRI format, with rotation at write time.
//!
//! Every line of output becomes `TIME STREAM TAG TEXT`: RFC 3339 with nanoseconds, `stdout` or `stderr`, `F`
//! for a full line and `P` for a part of one. Lines longer than [`MAX_LINE`] are cut into parts. What
//! remains without a newline at the end of a stream is written as `P`: readers join parts without adding
//! anything, so that they show the very bytes that were written.
//!
//! A full disk loses lines and never stops the container.

mod rotate;
mod timestamp;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use hanok_shim::protocol::Log;

use crate::poller::Stream;
pub(crate) use timestamp::now_ns;

/// Longest text in one line of the file; what other runtimes use, and what readers' buffers expect.
const MAX_LINE: usize = 16 << 10;

/// Formatted lines are written once they are as many bytes as this.
const FLUSH: usize = 16 << 10;

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

    /// Takes output of one stream, all of it now.
    pub(crate) fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let time = timestamp::rfc3339(now_ns());
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
            return;
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
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(dir: &tempfile::TempDir, max_size: u64, max_files: u32) -> LogFile {
        let path = dir.path().join("0.log").to_str().unwrap().to_owned();
        LogFile::open(&Log {
            path,
            max_size,
            max_files,
        })
        .unwrap()
    }

    /// (stream, tag, text) of every line.
    fn lines(bytes: &[u8]) -> Vec<(String, char, Vec<u8>)> {
        let mut lines = Vec::new();
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            let line = line.strip_suffix(b"\n").expect("every line ends");
            let mut fields = line.splitn(4, |&b| b == b' ');
            let time = fields.next().unwrap();
            assert_eq!((time.len(), time.last()), (30, Some(&b'Z')));
            let stream = String::from_utf8(fields.next().unwrap().to_vec()).unwrap();
            let tag = char::from(fields.next().unwrap()[0]);
            lines.push((stream, tag, fields.next().unwrap().to_vec()));
        }
        lines
    }

    fn read(dir: &tempfile::TempDir) -> Vec<(String, char, Vec<u8>)> {
        lines(&std::fs::read(dir.path().join("0.log")).unwrap())
    }

    #[test]
    fn streams_do_not_mix_within_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 0, 0);
        log.write(Stream::Stdout, b"a\nb");
        log.write(Stream::Stderr, b"e\n");
        log.write(Stream::Stdout, b"c\n\nlast");
        log.end(Stream::Stdout);
        log.end(Stream::Stderr);
        let want = [
            ("stdout", 'F', "a"),
            ("stderr", 'F', "e"),
            ("stdout", 'F', "bc"),
            ("stdout", 'F', ""),
            ("stdout", 'P', "last"),
        ];
        let want: Vec<_> = want
            .iter()
            .map(|(s, t, x)| (s.to_string(), *t, x.as_bytes().to_vec()))
            .collect();
        assert_eq!(read(&dir), want);
    }

    #[test]
    fn a_full_file_is_set_aside_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 1000, 3);
        for n in 0..100 {
            log.write(Stream::Stdout, format!("line {n}\n").as_bytes());
        }
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names.len(), 3, "{names:?}");
        let mut all = Vec::new();
        for name in &names[1..] {
            all.extend(lines(&std::fs::read(dir.path().join(name)).unwrap()));
        }
        all.extend(read(&dir));
        let last: Vec<_> = all
            .iter()
            .map(|l| String::from_utf8(l.2.clone()).unwrap())
            .collect();
        let first = 100 - last.len();
        let want: Vec<_> = (first..100).map(|n| format!("line {n}")).collect();
        assert_eq!(
            last, want,
            "no line is lost or out of order among the kept ones"
        );
        for name in names {
            assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() <= 1000);
        }
    }

    /// A disk with so much room.
    struct Disk {
        room: usize,
        file: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.room);
            self.room -= length;
            self.file.extend_from_slice(&bytes[..length]);
            match length {
                0 => Err(io::ErrorKind::StorageFull.into()),
                length => Ok(length),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_a_full_disk_cuts_short_takes_no_other_with_it() {
        let line = b"2026 stdout F text\n";
        for room in 0..2 * line.len() {
            let mut disk = Disk {
                room,
                file: Vec::new(),
            };
            let mut torn = false;
            let mut size = 0;
            for more in [0, 0, 1, 1000, 0] {
                disk.room += more;
                size += append(&mut disk, line, &mut torn);
            }
            assert_eq!(size, disk.file.len(), "{room}");
            assert!(!torn, "{room}");
            let whole = disk.file.split_inclusive(|&byte| byte == b'\n');
            let whole = whole.filter(|found| found == line).count();
            // One of which only the end was missing is whole in the end.
            assert_eq!(whole, (room + 1) / line.len() + 2, "{room}");
        }
    }

    #[test]
    fn a_renamed_file_is_left_alone_after_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(&dir, 0, 0);
        log.write(Stream::Stdout, b"old\n");
        std::fs::rename(dir.path().join("0.log"), dir.path().join("moved")).unwrap();
        log.reopen().unwrap();
        log.write(Stream::Stdout, b"new\n");
        assert_eq!(read(&dir), [("stdout".to_owned(), 'F', b"new".to_vec())]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_text_of_a_stream_is_what_was_written(
            pieces in prop::collection::vec(prop::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'x'), any::<u8>()], 0..3000), 0..12),
            long in 0usize..40_000,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut log = log(&dir, 0, 0);
            let mut all = vec![b'y'; long];
            log.write(Stream::Stdout, &all);
            for piece in &pieces {
                log.write(Stream::Stdout, piece);
                all.extend_from_slice(piece);
            }
            log.end(Stream::Stdout);
            let mut joined = Vec::new();
            for (_, tag, text) in read(&dir) {
                prop_assert!(text.len() <= MAX_LINE);
                joined.extend(text);
                if tag == 'F' {
                    joined.push(b'\n');
                }
            }
            prop_assert_eq!(joined, all);
        }
    }
}
