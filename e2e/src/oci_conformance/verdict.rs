//! What a program has found: TAP on standard output, and its exit code.

use serde::{Deserialize, Serialize};

/// What became of one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Exit code; none when it was killed, or took too long.
    pub exit: Option<i32>,
    /// Lines "ok".
    pub passed: usize,
    /// Lines "not ok".
    pub failed: usize,
    /// The first of those, or the first line of what it said to standard error.
    pub first: String,
}

impl Verdict {
    /// Judges the output of a program.
    pub fn of(exit: Option<i32>, stdout: &str, stderr: &str) -> Self {
        let count = |prefix: &str| {
            stdout
                .lines()
                .filter(|line| line.starts_with(prefix))
                .count()
        };
        let not_ok = stdout.lines().find(|line| line.starts_with("not ok"));
        let said = stderr.lines().map(str::trim).find(|line| !line.is_empty());
        Self {
            exit,
            passed: count("ok "),
            failed: count("not ok"),
            first: not_ok.or(said).unwrap_or_default().to_owned(),
        }
    }

    /// Exit code 0 and nothing that is not ok.
    pub fn is_pass(&self) -> bool {
        self.exit == Some(0) && self.failed == 0
    }

    /// In few letters.
    pub fn short(&self) -> String {
        match (self.is_pass(), self.exit) {
            (true, _) => "pass".to_owned(),
            (false, None) => "killed".to_owned(),
            (false, Some(0)) => format!("{} ok, {} not", self.passed, self.failed),
            (false, Some(code)) => format!("{} ok, {} not, exit {code}", self.passed, self.failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_that_is_not_ok_fails_a_program() {
        let good = Verdict::of(
            Some(0),
            "TAP version 13\nok 1 - a\n  ---\n  ...\nok 2\n1..2\n",
            "noise\n",
        );
        assert!(good.is_pass());
        assert_eq!(good.passed, 2);
        let bad = Verdict::of(Some(0), "ok 1 - a\nnot ok 2 - b\n", "");
        assert_eq!(
            (bad.short().as_str(), bad.first.as_str()),
            ("1 ok, 1 not", "not ok 2 - b")
        );
        let ended = Verdict::of(Some(1), "ok 1\n", "\n why\n");
        assert_eq!(
            (ended.short().as_str(), ended.first.as_str()),
            ("1 ok, 0 not, exit 1", "why")
        );
        assert!(!Verdict::of(None, "", "").is_pass());
    }
}
