//! What becomes of output in a log file.

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

#[test]
fn a_file_that_lost_its_name_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let mut log = log(&dir, 0, 0);
    let texts = || {
        let texts = read(&dir).into_iter().map(|(.., text)| text);
        texts.collect::<Vec<_>>()
    };
    log.write(Stream::Stdout, b"a\nbe");
    std::fs::remove_file(&path).unwrap();
    log.write(Stream::Stdout, b"gun\n");
    assert!(!path.exists(), "a look at every write costs too much");
    log.looked_ns = 0;
    log.write(Stream::Stdout, b"c\nd");
    assert_eq!(texts(), [b"c"]);
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    log.looked_ns = 0;
    log.write(Stream::Stdout, b"ay\n");
    assert_eq!(texts(), [b"day"]);
}

#[test]
fn what_is_no_file_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, canary) = (dir.path().join("0.log"), dir.path().join("canary"));
    let mut log = log(&dir, 0, 0);
    std::fs::write(&canary, "").unwrap();
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    // It has a reader, so that it can be opened.
    let fifo = dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let _reader = File::options().read(true).write(true).open(&fifo).unwrap();
    for put in [
        &|| std::os::unix::fs::symlink(&canary, &path).unwrap() as (),
        &|| std::fs::create_dir(&path).unwrap(),
        &|| std::fs::rename(&fifo, &path).unwrap(),
    ] as [&dyn Fn(); 3]
    {
        put();
        log.looked_ns = 0;
        log.write(Stream::Stdout, b"x\n");
        assert!(log.file.metadata().unwrap().is_file());
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
    }
    assert_eq!(std::fs::read(&canary).unwrap(), b"");
    let moved = std::fs::read(dir.path().join("moved")).unwrap();
    assert_eq!(lines(&moved).len(), 3);
}

#[test]
fn a_file_that_was_removed_before_it_was_full_does_not_grow_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = log(&dir, 1000, 3);
    log.write(Stream::Stdout, b"first\n");
    std::fs::remove_file(dir.path().join("0.log")).unwrap();
    for n in 0..100 {
        log.write(Stream::Stdout, format!("line {n}\n").as_bytes());
    }
    let kept = read(&dir);
    assert_eq!(kept.last().unwrap().2, b"line 99");
    assert!(log.file.metadata().unwrap().len() <= 1000);
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
