//! ginkgo's report in JSON, reduced to the specs that were to run.

use anyhow::{Context, Result};
use serde::Deserialize;

/// A spec that ran.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spec {
    /// Its whole text.
    pub(super) name: String,
    /// How it ended.
    pub(super) verdict: Verdict,
    /// How long it took.
    pub(super) seconds: f64,
    /// How often it was run: more than once when the first time failed.
    pub(super) attempts: u32,
    /// Why it failed or was skipped.
    pub(super) message: String,
}

/// How a spec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should.
    Passed,
    /// Otherwise, or not at all.
    Failed,
    /// The spec found that it does not apply here.
    Skipped,
}

impl Verdict {
    /// The word in tables.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Report>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    #[serde(default)]
    run_time: f64,
    #[serde(default)]
    failure: Failure,
    #[serde(default)]
    num_attempts: u32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// The specs of a report, in the order of their names.
///
/// # Errors
/// When it is none.
pub(super) fn parse(json: &[u8]) -> Result<Vec<Spec>> {
    let suites: Vec<Suite> = serde_json::from_slice(json).context("ginkgo's report")?;
    let reports = suites.into_iter().filter_map(|s| s.spec_reports).flatten();
    let mut specs: Vec<Spec> = reports.filter_map(Report::into_spec).collect();
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(specs)
}

impl Report {
    /// None for what the focus has left out: only that is skipped or pending without a word.
    fn into_spec(self) -> Option<Spec> {
        let message = self.failure.message;
        let verdict = match self.state.as_str() {
            "passed" => Verdict::Passed,
            "skipped" | "pending" if message.is_empty() => return None,
            "skipped" => Verdict::Skipped,
            _ => Verdict::Failed,
        };
        let is_spec = self.leaf_node_type == "It";
        // What is prepared and cleared for all specs counts when it fails.
        if !is_spec && verdict != Verdict::Failed {
            return None;
        }
        let mut texts = self.container_hierarchy_texts.unwrap_or_default();
        texts.push(if is_spec {
            self.leaf_node_text
        } else {
            self.leaf_node_type
        });
        Some(Spec {
            name: texts.join(" "),
            verdict,
            seconds: self.run_time / 1e9,
            attempts: self.num_attempts.max(1),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_out_of_focus_are_left_out_and_every_other_end_has_a_verdict() {
        let json = r#"[{"SpecReports": [
            {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "run",
             "State": "passed", "RunTime": 2500000000},
            {"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": "hang",
             "State": "timedout", "RunTime": 1, "Failure": {"Message": "too long"}},
            {"ContainerHierarchyTexts": ["x"], "LeafNodeType": "It", "LeafNodeText": "y", "State": "skipped"},
            {"ContainerHierarchyTexts": ["x"], "LeafNodeType": "It", "LeafNodeText": "z", "State": "skipped",
             "Failure": {"Message": "needs two nodes"}},
            {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"}
        ]}]"#;
        let specs = parse(json.as_bytes()).expect("a report");
        let seen: Vec<(&str, Verdict)> =
            specs.iter().map(|s| (s.name.as_str(), s.verdict)).collect();
        assert_eq!(
            seen,
            [
                ("[sig-node] Pods hang", Verdict::Failed),
                ("[sig-node] Pods run", Verdict::Passed),
                ("x z", Verdict::Skipped),
            ]
        );
        assert!((specs[1].seconds - 2.5).abs() < f64::EPSILON);
    }
}
