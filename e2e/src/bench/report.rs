//! Figures, printed a line each: name, value, unit, what it is compared to, ratio.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::Result;

/// What hanok aims at, by figure.
const AIMS: [(&str, f64); 13] = [
    ("create_to_ready_p50", 50.0),
    ("create_to_ready_p99", 50.0),
    ("create_to_ready_two_inits_p50", 90.0),
    ("create_to_ready_two_inits_p99", 90.0),
    ("burst_last_ready", 2000.0),
    ("burst_pods_per_second", 25.0),
    ("delete_to_gone_p50", 50.0),
    ("delete_to_gone_p99", 50.0),
    ("burst_last_gone", 2000.0),
    ("pss_per_pod", 1.2),
    ("pss_all", 90.0),
    ("idle_cpu", 0.5),
    ("probes_cpu_beyond_execs", 3.0),
];

#[derive(Debug)]
struct Figure {
    subject: &'static str,
    name: String,
    value: f64,
    unit: &'static str,
}

/// All figures of a run.
#[derive(Debug, Default)]
pub(super) struct Report {
    figures: Vec<Figure>,
    /// Sentences.
    remarks: Vec<String>,
}

impl Report {
    /// Adds a figure.
    pub(super) fn add(
        &mut self,
        subject: &'static str,
        name: &str,
        value: f64,
        unit: &'static str,
    ) {
        eprintln!("{subject:<10} {name:<34} {value:>10.2} {unit}");
        self.figures.push(Figure {
            subject,
            name: name.to_owned(),
            value,
            unit,
        });
    }

    /// Adds a sentence for whoever reads the printed figures.
    pub(super) fn remark(&mut self, text: String) {
        self.remarks.push(text);
    }

    /// Adds median, 99th percentile of times in milliseconds.
    pub(super) fn add_times(&mut self, subject: &'static str, name: &str, mut millis: Vec<f64>) {
        millis.sort_by(f64::total_cmp);
        for (suffix, share) in [("p50", 50), ("p99", 99)] {
            self.add(
                subject,
                &format!("{name}_{suffix}"),
                percentile(&millis, share),
                "ms",
            );
        }
    }

    /// Prints the figures and writes them to `figures.tsv` in the directory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(&mut self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir)?;
        let mut file = fs::File::create(dir.join("figures.tsv"))?;
        writeln!(
            file,
            "subject\tname\tvalue\tunit\tagainst\tagainst_value\tratio"
        )?;
        let mut out = std::io::stdout().lock();
        for figure in &self.figures {
            let (against, reference) = self.against(figure);
            let ratio = if reference > 0.0 {
                figure.value / reference
            } else {
                f64::NAN
            };
            writeln!(
                file,
                "{}\t{}\t{:.3}\t{}\t{against}\t{reference:.3}\t{ratio:.4}",
                figure.subject, figure.name, figure.value, figure.unit
            )?;
            if figure.subject == "kubelet" && against == "none" {
                continue;
            }
            let name = match figure.subject {
                "hanok" => figure.name.clone(),
                other => format!("{other}:{}", figure.name),
            };
            let compared = match against {
                _ if ratio.is_nan() => "-  -".to_owned(),
                _ => format!("{against}={reference:.2}  {ratio:.3}"),
            };
            writeln!(
                out,
                "{name:<34} {:>10.2} {:<9} {compared}",
                figure.value, figure.unit
            )?;
        }
        for remark in &self.remarks {
            writeln!(out, "{remark}")?;
        }
        Ok(())
    }

    /// What a figure is compared to: the peer's, or else the aim.
    fn against(&self, figure: &Figure) -> (&'static str, f64) {
        if figure.subject == "kubelet" {
            return ("none", 0.0);
        }
        let theirs = self
            .figures
            .iter()
            .find(|f| f.subject == "kubelet" && f.name == figure.name);
        if let Some(theirs) = theirs {
            return ("kubelet", theirs.value);
        }
        let aim = AIMS.iter().find(|(name, _)| *name == figure.name);
        aim.map_or(("none", 0.0), |(_, value)| ("aim", *value))
    }
}

/// The value below which `share` percent of the sorted values are.
fn percentile(sorted: &[f64], share: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((sorted.len() * share / 100).min(last))
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_from_what_was_measured() {
        let values: Vec<f64> = (1..=30).map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 16.0);
        assert_eq!(percentile(&values, 99), 30.0);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn figure_is_compared_to_the_peer_before_the_aim() {
        let mut report = Report::default();
        report.add("hanok", "create_to_ready_p50", 40.0, "ms");
        assert_eq!(report.against(&report.figures[0]), ("aim", 50.0));
        report.add("kubelet", "create_to_ready_p50", 230.0, "ms");
        assert_eq!(report.against(&report.figures[0]), ("kubelet", 230.0));
    }
}
