//! Termination messages: the file that a container leaves its last words in, or the end of its log.
//!
//! Both were written by the container and are not trusted: reads are bounded, and what is no UTF-8 is replaced.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Most bytes of a message.
const MAX_MESSAGE: usize = 4096;
/// Most bytes of a message that comes from the log.
const MAX_LOG_MESSAGE: usize = 2048;
/// Most lines of a message that comes from the log.
const MAX_LOG_LINES: usize = 80;
/// How much of the log's end is looked at.
const LOG_WINDOW: u64 = 64 * 1024;

/// The last bytes of the message file. Absent is empty. Blocks.
pub fn read_file(path: &Path) -> String {
    let bytes = tail(path, MAX_MESSAGE as u64).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of a log in the CRI format. Absent is empty. Blocks.
pub fn read_log(path: &Path) -> String {
    let bytes = tail(path, LOG_WINDOW).unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&bytes))
}

/// The last bytes of a file.
fn tail(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The content of the last lines, without times, streams and tags.
fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| content(line).is_some()).collect();
    let from = lines.len().saturating_sub(MAX_LOG_LINES);
    let mut text = String::new();
    for (partial, content) in lines[from..].iter().filter_map(|line| content(line)) {
        text.push_str(content);
        if !partial {
            text.push('\n');
        }
    }
    let mut cut = text.len().saturating_sub(MAX_LOG_MESSAGE);
    while !text.is_char_boundary(cut) {
        cut += 1;
    }
    text.split_off(cut)
}

/// Whether a line is partial, and its content: `TIME STREAM TAG CONTENT`. None for a line cut at its start.
fn content(line: &str) -> Option<(bool, &str)> {
    let mut parts = line.splitn(4, ' ');
    let (_time, stream, tag) = (parts.next()?, parts.next()?, parts.next()?);
    if !matches!(stream, "stdout" | "stderr") {
        return None;
    }
    Some((tag.starts_with('P'), parts.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn log_lines_lose_their_headers_and_partial_ones_are_joined() {
        let log = "ut off\n2025-01-01T00:00:00.1Z stdout P ab\n2025-01-01T00:00:00.2Z stdout F c\n\
                   2025-01-01T00:00:00.3Z stderr F \n2025-01-01T00:00:00.4Z stderr F last words\n";
        assert_eq!(last_lines(log), "abc\n\nlast words\n");
    }

    #[test]
    fn a_long_log_gives_its_last_lines_only() {
        let log: String = (0..200).map(|n| format!("t stdout F line {n}\n")).collect();
        let text = last_lines(&log);
        assert_eq!(text.lines().count(), MAX_LOG_LINES);
        assert!(text.ends_with("line 199\n"));
        let wide = format!("t stdout F {}\n", "é".repeat(3000));
        assert!(last_lines(&wide).len() <= MAX_LOG_MESSAGE);
    }

    #[test]
    fn a_long_message_gives_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("message");
        assert_eq!(read_file(&path), "");
        std::fs::write(&path, format!("{}end", "x".repeat(MAX_MESSAGE))).expect("written");
        let message = read_file(&path);
        assert!(message.len() == MAX_MESSAGE && message.ends_with("end"));
    }

    proptest! {
        #[test]
        fn any_log_is_read_without_panic(log in "\\PC*") {
            prop_assert!(last_lines(&log).len() <= MAX_LOG_MESSAGE);
        }
    }
}
