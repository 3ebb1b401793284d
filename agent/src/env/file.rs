//! Variables in files of volumes (`valueFrom.fileKeyRef`), which mostly an init container has written.
//!
//! ```text
//! NAME='value'      # a comment may follow, and the value may have several lines
//! ```
//! Nothing is expanded, and a value has no escapes. The rules are the kubelet's: <https://kep.k8s.io/3721>.

use std::io;
use std::path::Path;

use crate::volume::contents;

/// Largest file, bytes: as much as an object of the API could hold.
const LARGEST: u64 = 1 << 20;

/// Reads a file of the volume at `volume`; none where it does not exist. The error says why it cannot be read.
pub(super) fn read(volume: &Path, path: &str) -> Result<Option<String>, String> {
    match contents::read(volume, Path::new(path), LARGEST) {
        Ok(bytes) => Ok(Some(super::text(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The value of the first variable of this name; none where there is none. What follows it is not looked at.
pub(super) fn value(text: &str, name: &str) -> Result<Option<String>, String> {
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let wrong = |what: &str| Err(format!("line {number}: {what}"));
        let line = line.trim_start_matches(BLANK);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((found, value)) = line.split_once('=') else {
            return wrong("there is no \"=\"");
        };
        if found.is_empty() || found.ends_with(BLANK) {
            return wrong("a name is expected right before \"=\"");
        }
        if value.starts_with(BLANK) {
            // As in a shell, it is empty then.
            if found == name {
                return Ok(Some(String::new()));
            }
            continue;
        }
        let Some(value) = value.strip_prefix('\'') else {
            return wrong("a value in single quotes is expected");
        };
        let (mut whole, mut rest) = (String::new(), value);
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                whole.push_str(end);
                break after.trim_start_matches(BLANK);
            }
            whole.push_str(rest);
            whole.push('\n');
            match lines.next() {
                Some((next, _)) => rest = next,
                None => return wrong("the quote is not closed"),
            }
        };
        if !after.is_empty() && !after.starts_with('#') {
            return wrong("only a comment may follow the value");
        }
        if found == name {
            return Ok(Some(whole));
        }
    }
    Ok(None)
}

const BLANK: [char; 2] = [' ', '\t'];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_its_name_counts_and_nothing_is_expanded() {
        let text = "# a comment\n\n  A='1'\nB='$A \"x\" \\n'\t# why\nA='2'\r\nLONG='one\n two\n'\nEMPTY=\nGAP= 'x'\n";
        let table = [
            ("A", Ok(Some("1"))),
            ("B", Ok(Some("$A \"x\" \\n"))),
            ("a", Err("line 9: a value in single quotes is expected")),
        ];
        for (name, want) in table {
            let got = value(text, name);
            let want = want.map(|value| value.map(str::to_owned));
            assert_eq!(got, want.map_err(str::to_owned), "{name}");
        }
        let text = text.replace("EMPTY=\n", "EMPTY=''\n");
        for (name, want) in [
            ("LONG", Some("one\n two\n")),
            ("EMPTY", Some("")),
            ("GAP", Some("")),
            ("NONE", None),
        ] {
            assert_eq!(value(&text, name), Ok(want.map(str::to_owned)), "{name}");
        }
    }

    #[test]
    fn what_is_no_variable_is_told_by_its_line() {
        let table = [
            ("A", "line 1: there is no"),
            ("='x'", "line 1: a name"),
            ("\nA ='x'", "line 2: a name"),
            ("A=x", "line 1: a value in single quotes"),
            ("A=\"x\"", "line 1: a value in single quotes"),
            ("A='x' y", "line 1: only a comment"),
            ("B='x'\nA='x\ny", "line 2: the quote"),
        ];
        for (text, want) in table {
            let error = value(text, "A").expect_err(text);
            assert!(error.starts_with(want), "{text}: {error}");
        }
    }
}
