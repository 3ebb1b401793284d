//! The verdicts as tables: one file a node, one with both side by side, and what a person reads at the end.
#![expect(clippy::print_stdout, reason = "the command's output")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::report::{Spec, Verdict};

/// The nodes in the order of the summary's columns.
const SUBJECTS: [&str; 2] = ["hanok", "kubelet"];

/// Lines of a failure that are printed.
const LINES: usize = 6;

/// Writes `SUBJECT.tsv` (spec, verdict, seconds), and `summary.tsv` from what each subject's last run has left.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(dir: &Path, subject: &str, specs: &[Spec]) -> Result<()> {
    let mut text = "spec\tverdict\tseconds\n".to_owned();
    for spec in specs {
        writeln!(
            text,
            "{}\t{}\t{:.1}",
            spec.name,
            spec.verdict.word(),
            spec.seconds
        )?;
    }
    fs::write(dir.join(format!("{subject}.tsv")), text)?;
    let read = |s: &str| fs::read_to_string(dir.join(format!("{s}.tsv"))).unwrap_or_default();
    fs::write(dir.join("summary.tsv"), join(&SUBJECTS.map(read)))?;
    Ok(())
}

/// A line for each spec, with verdict and seconds of each table that has it.
fn join(tables: &[String; 2]) -> String {
    let mut rows: BTreeMap<&str, [&str; 2]> = BTreeMap::new();
    for (column, table) in tables.iter().enumerate() {
        let lines = table.lines().skip(1);
        for (name, rest) in lines.filter_map(|line| line.split_once('\t')) {
            rows.entry(name).or_insert(["\t"; 2])[column] = rest;
        }
    }
    let mut text = "spec".to_owned();
    for subject in SUBJECTS {
        text += &format!("\t{subject}\tseconds");
    }
    for (name, cells) in rows {
        text += &format!("\n{name}\t{}", cells.join("\t"));
    }
    text + "\n"
}

/// Prints what did not pass, and the counts as the standard test runner does.
pub(super) fn print(specs: &[Spec], subject: &str, took: Duration) {
    let count = |verdict| specs.iter().filter(|s| s.verdict == verdict).count();
    let (passed, failed) = (count(Verdict::Passed), count(Verdict::Failed));
    let skipped = count(Verdict::Skipped);
    println!("\nconformance of {subject}: {} specs", specs.len());
    for spec in specs.iter().filter(|s| s.verdict != Verdict::Passed) {
        println!(
            "{:<7} {:>6.1} s  {}",
            spec.verdict.word(),
            spec.seconds,
            spec.name
        );
        spec.message
            .lines()
            .take(LINES)
            .for_each(|line| println!("                  {line}"));
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        took.as_secs_f64()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_a_line_for_a_spec_that_only_one_node_has_run() {
        let ours = "spec\tverdict\tseconds\na\tpassed\t1.0\nb\tfailed\t2.0\n";
        let theirs = "spec\tverdict\tseconds\nb\tpassed\t3.0\n";
        assert_eq!(
            join(&[ours.to_owned(), theirs.to_owned()]),
            "spec\thanok\tseconds\tkubelet\tseconds\na\tpassed\t1.0\t\t\nb\tfailed\t2.0\tpassed\t3.0\n"
        );
    }
}
