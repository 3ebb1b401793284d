//! The table: figures by group, each with its ratio to the others of its group; then which aims hold.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Whom a figure is compared to, where the group has them.
const REFERENCES: [&str; 4] = ["crun", "runc", "floor", "floor+cgroups"];

/// All figures so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    lines: String,
    aims: Vec<String>,
}

/// A row of a group.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
}

impl Row {
    /// Of times, in milliseconds.
    pub(crate) fn times(name: &str, times: &[Duration]) -> Self {
        let mut millis: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        millis.sort_by(f64::total_cmp);
        let at = |share: usize| millis[(millis.len() - 1) * share / 100];
        Self {
            name: name.to_owned(),
            p50: at(50),
            p90: at(90),
        }
    }

    /// Of one value.
    pub(crate) fn value(name: &str, value: f64) -> Self {
        Self {
            name: name.to_owned(),
            p50: value,
            p90: value,
        }
    }
}

impl Report {
    /// Prints a group.
    pub(crate) fn group(&mut self, title: &str, unit: &str, rows: &[Row]) {
        let references: Vec<&Row> = REFERENCES
            .iter()
            .filter_map(|name| rows.iter().find(|row| row.name == *name))
            .collect();
        let mut heading = format!("\n{title:<52} {:>9} {:>9}", "p50", "p90");
        for reference in &references {
            write!(heading, " {:>14}", format!("/ {}", reference.name)).unwrap();
        }
        println!("{heading}");
        for row in rows {
            let mut line = format!("  {:<50} {:>9.2} {:>9.2}", row.name, row.p50, row.p90);
            let mut record = format!(
                "{title}\t{}\t{unit}\t{:.4}\t{:.4}",
                row.name, row.p50, row.p90
            );
            for reference in &references {
                let ratio = row.p50 / reference.p50;
                write!(line, " {ratio:>14.2}").unwrap();
                write!(record, "\t{}={ratio:.4}", reference.name).unwrap();
            }
            println!("{line}  {unit}");
            writeln!(self.lines, "{record}").unwrap();
        }
    }

    /// Notes whether a figure is as small as it should be.
    pub(crate) fn aim(&mut self, what: &str, value: f64, most: f64) {
        let verdict = match value <= most {
            true => "holds",
            false => "misses",
        };
        let line = format!("{verdict:<7} {what}: {value:.2}, aim {most}");
        writeln!(self.lines, "aim\t{what}\t{verdict}\t{value:.4}\t{most}").unwrap();
        self.aims.push(line);
    }

    /// Prints the aims, and writes all to `target/bench/runtime.tsv`.
    pub(crate) fn finish(self) {
        println!("\naims");
        self.aims.iter().for_each(|aim| println!("  {aim}"));
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("runtime.tsv"), self.lines).unwrap();
    }
}

/// The median of the row with this name.
pub(crate) fn median(rows: &[Row], name: &str) -> f64 {
    rows.iter()
        .find(|row| row.name == name)
        .map_or(f64::NAN, |row| row.p50)
}
