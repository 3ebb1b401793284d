//! Output of the commands that list things: a table for people, JSON for programs.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// How a list is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(super) enum Format {
    /// Columns with a heading.
    #[default]
    Table,
    /// One JSON document.
    Json,
}

/// Lays rows out under a heading; columns are as wide as what is in them.
pub(super) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = heading.iter().map(|title| title.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let start = text.len();
        for (cell, width) in cells.zip(&widths) {
            text.push_str(&format!("{:<width$}   ", printable(cell)));
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    };
    line(&mut heading.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Names come from images and manifests; a terminal must not obey them.
fn printable(cell: &str) -> String {
    cell.chars()
        .map(|one| if one.is_control() { '?' } else { one })
        .collect()
}

/// Prints to standard output. A reader that has gone away is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// An age as kubectl writes it: 5s, 3m, 2h, 4d.
pub(super) fn age(since: SystemTime, now: SystemTime) -> String {
    let seconds = now
        .duration_since(since)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A number of bytes in a unit that fits: 512B, 2.2MB.
pub(super) fn size(bytes: u64) -> String {
    let mut units = ["kB", "MB", "GB", "TB"].iter();
    let (mut tenths, mut unit) = (bytes.saturating_mul(10), "B");
    while tenths >= 10_000 {
        let Some(next) = units.next() else { break };
        (tenths, unit) = (tenths / 1_000, next);
    }
    if unit == "B" {
        return format!("{bytes}B");
    }
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

/// The first digits of an id, as docker and crictl show it.
pub(super) fn short(id: &str) -> &str {
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    id.get(..13).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = vec![
            vec!["web".to_owned(), "Running".to_owned()],
            vec!["a-long-name".to_owned(), "\x1b[31mred".to_owned()],
        ];
        let expected = "NAME          STATE\nweb           Running\na-long-name   ?[31mred\n";
        assert_eq!(table(&["NAME", "STATE"], &rows), expected);
    }

    #[test]
    fn numbers_fit_their_units() {
        let ago = |seconds| {
            age(
                SystemTime::UNIX_EPOCH,
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            )
        };
        assert_eq!(
            [ago(5), ago(180), ago(7200), ago(400_000)],
            ["5s", "3m", "2h", "4d"]
        );
        assert_eq!(
            [size(512), size(2_200_000), size(1_000)],
            ["512B", "2.2MB", "1.0kB"]
        );
        assert_eq!(short(&format!("sha256:{}", "a".repeat(64))), "a".repeat(13));
    }
}
