//! From log entries to what the client gets: parts joined, times in front or cut off, what is too old or too much
//! left out. Pure: bytes in, bytes out.

use bytes::{BufMut, BytesMut};
use jiff::Timestamp;

use super::entry::{self, Entry, Origin};
use super::options::{LogOptions, Which};

/// Longest line that is kept while its end is not there. The shim cuts at 16 KiB; a longer one is no entry.
const MAX_LINE: usize = 1 << 20;

/// Where the formatter is within a logical line of one origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The next entry begins a line.
    Start,
    /// Within a line that is shown.
    Shown,
    /// Within a line that is left out.
    Hidden,
}

/// Formats entries. Feed it the file's bytes in any pieces.
#[derive(Debug)]
pub(super) struct Formatter {
    timestamps: bool,
    since: Option<Timestamp>,
    stream: Which,
    /// Bytes that may still go out.
    left: u64,
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    places: [Place; 2],
}

impl Formatter {
    pub(super) fn new(options: &LogOptions) -> Self {
        Self {
            timestamps: options.timestamps,
            since: options.since,
            stream: options.stream,
            left: options.limit.unwrap_or(u64::MAX),
            rest: Vec::new(),
            places: [Place::Start; 2],
        }
    }

    /// Whether nothing more is wanted.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Forgets the beginning of a line whose end will not come: the file was cut short under it.
    pub(super) fn forget(&mut self) {
        self.rest.clear();
    }

    /// Takes bytes of the file, gives bytes for the client.
    pub(super) fn push(&mut self, mut bytes: &[u8], out: &mut BytesMut) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.rest.is_empty() {
                self.line(line, out);
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.line(&whole, out);
                whole.clear();
                self.rest = whole;
            }
        }
        if self.rest.len() + bytes.len() > MAX_LINE {
            // Its end will not parse either, and is left out like every line that is no entry.
            self.rest.clear();
            return;
        }
        self.rest.extend_from_slice(bytes);
    }

    fn line(&mut self, line: &[u8], out: &mut BytesMut) {
        let Some(entry) = entry::parse(line) else {
            return;
        };
        let index = match entry.origin {
            Origin::Stdout => 0,
            Origin::Stderr => 1,
        };
        if self.places[index] == Place::Start {
            self.places[index] = if self.is_wanted(&entry) {
                Place::Shown
            } else {
                Place::Hidden
            };
            if self.places[index] == Place::Shown && self.timestamps {
                self.write(entry.time, out);
                self.write(b" ", out);
            }
        }
        if self.places[index] == Place::Shown {
            self.write(entry.text, out);
            if !entry.partial {
                self.write(b"\n", out);
            }
        }
        if !entry.partial {
            self.places[index] = Place::Start;
        }
    }

    fn is_wanted(&self, entry: &Entry<'_>) -> bool {
        let origin = match self.stream {
            Which::All => true,
            Which::Stdout => entry.origin == Origin::Stdout,
            Which::Stderr => entry.origin == Origin::Stderr,
        };
        origin
            && self.since.is_none_or(|since| {
                let time = std::str::from_utf8(entry.time)
                    .ok()
                    .and_then(|time| time.parse().ok());
                time.is_some_and(|time: Timestamp| time >= since)
            })
    }

    fn write(&mut self, bytes: &[u8], out: &mut BytesMut) {
        let length = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        out.put_slice(&bytes[..length]);
        self.left = self.left.saturating_sub(length as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOG: &str = "2026-11-29T12:00:00.1Z stdout P hel\n\
                       2026-11-29T12:00:00.2Z stdout F lo\n\
                       rubbish\n\
                       2026-11-29T12:00:01Z stderr F oh\n\
                       2026-11-29T12:00:02Z stdout F \n";

    fn format(options: &LogOptions, log: &[u8], piece: usize) -> String {
        let mut formatter = Formatter::new(options);
        let mut out = BytesMut::new();
        for bytes in log.chunks(piece) {
            formatter.push(bytes, &mut out);
        }
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn parts_are_joined_and_stamped_once() {
        assert_eq!(
            format(&LogOptions::default(), LOG.as_bytes(), 7),
            "hello\noh\n\n"
        );
        let stamped = LogOptions {
            timestamps: true,
            ..LogOptions::default()
        };
        assert_eq!(
            format(&stamped, LOG.as_bytes(), 1000),
            "2026-11-29T12:00:00.1Z hello\n2026-11-29T12:00:01Z oh\n2026-11-29T12:00:02Z \n"
        );
    }

    #[test]
    fn a_line_is_as_old_as_its_first_part() {
        let since = |time: &str| LogOptions {
            since: Some(time.parse().unwrap()),
            ..LogOptions::default()
        };
        assert_eq!(
            format(&since("2026-11-29T12:00:00.1Z"), LOG.as_bytes(), 9),
            "hello\noh\n\n"
        );
        assert_eq!(
            format(&since("2026-11-29T12:00:00.2Z"), LOG.as_bytes(), 9),
            "oh\n\n"
        );
        assert_eq!(
            format(&since("2026-11-29T12:00:03Z"), LOG.as_bytes(), 9),
            ""
        );
    }

    #[test]
    fn one_stream_or_a_few_bytes_can_be_wanted() {
        let stderr = LogOptions {
            stream: Which::Stderr,
            ..LogOptions::default()
        };
        assert_eq!(format(&stderr, LOG.as_bytes(), 1000), "oh\n");
        let limit = LogOptions {
            limit: Some(7),
            ..LogOptions::default()
        };
        assert_eq!(format(&limit, LOG.as_bytes(), 1000), "hello\no");
    }

    #[test]
    fn a_last_part_without_end_comes_as_it_is() {
        let log = b"2026-11-29T12:00:00Z stdout P abc\n";
        assert_eq!(format(&LogOptions::default(), log, 1000), "abc");
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            log in proptest::collection::vec(
                prop::sample::select(vec!["t stdout P a\n", "t stderr F b\n", "x\n", "t std", "\n"]), 0..20),
            piece in 1_usize..40,
        ) {
            let log = log.concat();
            let options = LogOptions { timestamps: true, ..LogOptions::default() };
            prop_assert_eq!(
                format(&options, log.as_bytes(), piece),
                format(&options, log.as_bytes(), log.len().max(1))
            );
        }
    }
}
