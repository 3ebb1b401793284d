//! Where the last lines of a log file begin, read backwards.
//!
//! A line is a logical one: parts that belong together count once.

use std::io;

use bytes::BytesMut;

use super::entry::{self, Origin};
use super::file::{LogFile, PIECE};
use super::options::Which;

/// Longest line that is looked at; the shim cuts at 16 KiB.
const MAX_LINE: usize = 1 << 20;

/// The offset at which the last `lines` lines before `end` begin.
pub(super) async fn start(
    file: &mut LogFile,
    end: u64,
    lines: u64,
    stream: Which,
) -> io::Result<u64> {
    if lines == 0 {
        return Ok(end);
    }
    let mut counter = Counter {
        left: lines,
        stream,
        inside: [false; 2],
    };
    let mut from = end;
    // The beginning of the line that the block behind ended in.
    let mut rest = Vec::new();
    while from > 0 {
        let length = from.min(PIECE as u64);
        let mut block = read_at(file, from - length, length).await?;
        block.extend_from_slice(&rest);
        from -= length;
        let Some(first) = block.iter().position(|byte| *byte == b'\n') else {
            if block.len() > MAX_LINE {
                return Ok(from);
            }
            rest = block;
            continue;
        };
        if let Some(offset) = counter.count(&block, first + 1) {
            return Ok(from + offset as u64);
        }
        block.truncate(first + 1);
        rest = block;
    }
    let first = rest.strip_suffix(b"\n").unwrap_or(&rest);
    Ok(if counter.is_enough(first) {
        rest.len() as u64
    } else {
        0
    })
}

async fn read_at(file: &mut LogFile, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(offset).await?;
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut block = BytesMut::with_capacity(length);
    while block.len() < length {
        if file.read(&mut block).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    block.truncate(length);
    Ok(block.to_vec())
}

/// Counts logical lines from the last one backwards.
struct Counter {
    left: u64,
    stream: Which,
    /// Whether the entries seen last, of stdout and of stderr, belong to a counted line.
    inside: [bool; 2],
}

impl Counter {
    /// Looks at the lines of `block` from its end down to offset `first`. Returns the offset behind the line
    /// at which there are enough.
    fn count(&mut self, block: &[u8], first: usize) -> Option<usize> {
        let mut end = block.len();
        while end > first {
            // Without a newline at its end it is the last line, which is being written.
            let text_end = if block[end - 1] == b'\n' {
                end - 1
            } else {
                end
            };
            let begin = block[..text_end]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |newline| newline + 1)
                .max(first);
            if self.is_enough(&block[begin..text_end]) {
                return Some(end);
            }
            end = begin;
        }
        None
    }

    /// Takes one more line; true when it is one too many.
    fn is_enough(&mut self, line: &[u8]) -> bool {
        let Some(entry) = entry::parse(line) else {
            return false;
        };
        let (index, wanted) = match entry.origin {
            Origin::Stdout => (0, self.stream != Which::Stderr),
            Origin::Stderr => (1, self.stream != Which::Stdout),
        };
        if !wanted || (entry.partial && self.inside[index]) {
            return false;
        }
        // An end, or a part whose end has not been written: another line.
        if self.left == 0 {
            return true;
        }
        self.left -= 1;
        self.inside[index] = true;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn tail(log: &str, lines: u64, stream: Which) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, log).unwrap();
        let mut file = LogFile::open(&path).await.unwrap();
        let start = start(&mut file, log.len() as u64, lines, stream)
            .await
            .unwrap();
        log[usize::try_from(start).unwrap()..].to_owned()
    }

    #[tokio::test]
    async fn parts_of_a_line_count_once() {
        let (a, b, c) = (
            "t stdout F a\n",
            "t stdout P b1\nt stdout P b2\nt stdout F b3\n",
            "t stdout F c\n",
        );
        let log = [a, b, c].concat();
        assert_eq!(tail(&log, 0, Which::All).await, "");
        assert_eq!(tail(&log, 1, Which::All).await, c);
        assert_eq!(tail(&log, 2, Which::All).await, [b, c].concat());
        assert_eq!(tail(&log, 3, Which::All).await, log);
        assert_eq!(tail(&log, 9, Which::All).await, log);
        let open = [a, "t stdout P b1\nt stdout P b2\n"].concat();
        assert_eq!(
            tail(&open, 1, Which::All).await,
            "t stdout P b1\nt stdout P b2\n"
        );
    }

    #[tokio::test]
    async fn lines_of_the_other_stream_do_not_count() {
        let log = "t stdout F a\nt stderr F b\nt stdout F c\nt stderr F d\n";
        // What begins in between is left out later on.
        let last = "t stderr F b\nt stdout F c\nt stderr F d\n";
        assert_eq!(tail(log, 1, Which::Stdout).await, last);
    }

    #[tokio::test]
    async fn lines_may_be_longer_than_a_block() {
        let long = format!("t stdout F {}\n", "x".repeat(2 * PIECE + 17));
        let log = format!("{long}{long}t stdout F end\n");
        assert_eq!(
            tail(&log, 2, Which::All).await,
            format!("{long}t stdout F end\n")
        );
        assert_eq!(tail("", 3, Which::All).await, "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_tail_has_as_many_lines_as_asked(
            lengths in proptest::collection::vec(0_usize..40_000, 0..12), lines in 0_u64..14,
        ) {
            let log: String = lengths.iter().map(|n| format!("t stdout F {}\n", "x".repeat(*n))).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let tail = runtime.block_on(tail(&log, lines, Which::All));
            prop_assert_eq!(tail.lines().count() as u64, lines.min(lengths.len() as u64));
        }
    }
}
