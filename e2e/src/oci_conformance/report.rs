//! The table, and whether it is good: what runc passes we pass, and what we fail has its reason.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

use super::verdict::Verdict;

/// Programs that fail for a reason.
#[derive(Debug, Default)]
pub struct Known(BTreeMap<String, String>);

impl Known {
    /// Lines of name, colon, reason; empty ones and those that begin with `#` do not count.
    ///
    /// # Errors
    /// When a line is something else, or a program is there twice.
    pub fn parse(text: &str) -> Result<Self> {
        let mut known = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (name, reason) = line
                .split_once(':')
                .with_context(|| format!("known failure {line:?}"))?;
            let reason = reason.trim();
            ensure!(!reason.is_empty(), "{name} has no reason");
            ensure!(
                known.insert(name.to_owned(), reason.to_owned()).is_none(),
                "{name} is there twice"
            );
        }
        Ok(Self(known))
    }

    /// The programs.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

/// How a program counts.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// It passes.
    Pass,
    /// It fails for a known reason, and runc does not pass it either.
    Excused(String),
    /// It fails, and should not.
    Fail,
}

#[derive(Debug)]
struct Row {
    name: String,
    ours: Verdict,
    peer: Verdict,
    outcome: Outcome,
    /// It passes although a reason is written down why it does not.
    outdated: bool,
}

/// All programs.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Judges what was found. A program that has no verdict has failed.
    pub fn new(
        names: &[String],
        mut ours: BTreeMap<String, Verdict>,
        mut peer: BTreeMap<String, Verdict>,
        known: &Known,
    ) -> Self {
        let missing = || Verdict::of(None, "", "no verdict");
        let rows = names.iter().map(|name| {
            let ours = ours.remove(name).unwrap_or_else(missing);
            let peer = peer.remove(name).unwrap_or_else(missing);
            let reason = known.0.get(name);
            let outcome = match reason {
                _ if ours.is_pass() => Outcome::Pass,
                Some(reason) if !peer.is_pass() => Outcome::Excused(reason.clone()),
                _ => Outcome::Fail,
            };
            Row {
                name: name.clone(),
                outdated: ours.is_pass() && reason.is_some(),
                ours,
                peer,
                outcome,
            }
        });
        Self {
            rows: rows.collect(),
        }
    }

    fn count(&self, wanted: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(row)).count()
    }

    fn failures(&self) -> usize {
        self.count(|row| row.outcome == Outcome::Fail)
    }

    /// Whether nothing fails that should not.
    pub fn is_good(&self) -> bool {
        self.failures() == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<34} {:<24} {:<24} note",
            "program", "hanok oci", "runc"
        )?;
        for row in &self.rows {
            let note = match &row.outcome {
                Outcome::Pass if row.outdated => "passes now: take its reason away",
                Outcome::Pass => "",
                Outcome::Excused(reason) => reason,
                Outcome::Fail => &row.ours.first,
            };
            let mark = if row.outcome == Outcome::Fail {
                "FAILED: "
            } else {
                ""
            };
            let (ours, peer) = (row.ours.short(), row.peer.short());
            writeln!(f, "{:<34} {ours:<24} {peer:<24} {mark}{note}", row.name)?;
        }
        let excused = self.count(|row| matches!(row.outcome, Outcome::Excused(_)));
        writeln!(
            f,
            "\nhanok oci passes {} of {}, runc {}; {excused} fail for a known reason",
            self.count(|row| row.ours.is_pass()),
            self.rows.len(),
            self.count(|row| row.peer.is_pass()),
        )?;
        let verdict = if self.is_good() { "ok" } else { "FAILED" };
        let failures = self.failures();
        let good = self.rows.len() - failures;
        writeln!(
            f,
            "test result: {verdict}. {good} passed; {failures} failed;"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(list: &[(&str, bool)]) -> BTreeMap<String, Verdict> {
        let one = |(name, pass): &(&str, bool)| {
            (
                name.to_string(),
                Verdict::of(Some(i32::from(!pass)), "", ""),
            )
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn a_failure_needs_a_reason_and_a_runc_that_fails_too() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let ours = verdicts(&[("a", true), ("b", false), ("c", false), ("d", false)]);
        let peer = verdicts(&[
            ("a", true),
            ("b", false),
            ("c", true),
            ("d", false),
            ("e", false),
        ]);
        let known = Known::parse("# why\na: no more\n\nb: it is so\nc: it is so\n").unwrap();
        let report = Report::new(&names, ours, peer, &known);
        let outcomes: Vec<&Outcome> = report.rows.iter().map(|row| &row.outcome).collect();
        let excused = Outcome::Excused("it is so".to_owned());
        assert_eq!(
            outcomes,
            [
                &Outcome::Pass,
                &excused,
                &Outcome::Fail,
                &Outcome::Fail,
                &Outcome::Fail
            ]
        );
        let text = report.to_string();
        assert!(text.contains("passes now"));
        assert!(text.ends_with("test result: FAILED. 2 passed; 3 failed;\n"));
    }

    #[test]
    fn a_list_of_reasons_has_a_reason_for_every_name_once() {
        for bad in ["a", "a:", "a: x\na: y"] {
            assert!(Known::parse(bad).is_err(), "{bad:?}");
        }
    }
}
