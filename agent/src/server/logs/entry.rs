//! One line of a CRI log file: `TIME stdout|stderr P|F[:TAG...] TEXT`. Pure.

/// Which output a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Stdout,
    Stderr,
}

/// A line taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    /// RFC 3339 with nanoseconds, as written.
    pub(super) time: &'a [u8],
    pub(super) origin: Origin,
    /// The text goes on in the next entry of the same origin.
    pub(super) partial: bool,
    pub(super) text: &'a [u8],
}

/// Takes a line (without its newline) apart; none for what is no log entry.
pub(super) fn parse(line: &[u8]) -> Option<Entry<'_>> {
    let (time, rest) = word(line)?;
    let (origin, rest) = word(rest)?;
    // An entry without text may end right behind its tags.
    let (tags, text) = word(rest).unwrap_or((rest, &[]));
    let origin = match origin {
        b"stdout" => Origin::Stdout,
        b"stderr" => Origin::Stderr,
        _ => return None,
    };
    let partial = match tags.split(|byte| *byte == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    (!time.is_empty()).then_some(Entry {
        time,
        origin,
        partial,
        text,
    })
}

fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(|byte| *byte == b' ')?;
    Some((&line[..end], &line[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_has_time_origin_tags_and_text() {
        let entry = parse(b"2026-11-29T12:00:00.5Z stderr P  two spaces").unwrap();
        assert_eq!(entry.time, b"2026-11-29T12:00:00.5Z");
        assert_eq!((entry.origin, entry.partial), (Origin::Stderr, true));
        assert_eq!(entry.text, b" two spaces");
        assert_eq!(parse(b"t stdout F ").unwrap().text, b"");
        assert_eq!(parse(b"t stdout F").unwrap().text, b"");
        assert!(!parse(b"t stdout F:x y").unwrap().partial);
    }

    #[test]
    fn what_is_no_entry_is_none() {
        for line in [
            &b""[..],
            b"t",
            b"t stdout",
            b"t stdxxx F x",
            b"t stdout X x",
            b" stdout F x",
        ] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn no_line_makes_the_parser_panic(line in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(&line);
        }
    }
}
