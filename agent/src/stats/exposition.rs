//! Metrics in the Prometheus text format.

use std::fmt::Write;
use std::time::SystemTime;

/// A page of metrics, written family by family.
#[derive(Debug, Default)]
pub(super) struct Page(String);

/// What a family's numbers mean.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One line of a family.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: f64,
    /// When it was read, if not now.
    pub(super) at: Option<SystemTime>,
}

impl Page {
    /// Adds a family; nothing when there is no sample of it.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str, samples: Vec<Sample>) {
        if samples.is_empty() {
            return;
        }
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for sample in samples {
            self.0.push_str(name);
            self.labels(&sample.labels);
            let _ = write!(self.0, " {}", sample.value);
            if let Some(at) = sample.at.and_then(milliseconds) {
                let _ = write!(self.0, " {at}");
            }
            self.0.push('\n');
        }
    }

    fn labels(&mut self, labels: &[(&'static str, String)]) {
        if labels.is_empty() {
            return;
        }
        let pairs: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
            .collect();
        let _ = write!(self.0, "{{{}}}", pairs.join(","));
    }

    /// The text.
    pub(super) fn text(self) -> String {
        self.0
    }
}

/// A count. Beyond 2^53 it is a little off, as in every Prometheus.
#[expect(
    clippy::cast_precision_loss,
    reason = "the format's numbers are floats"
)]
pub(super) fn count(number: u64) -> f64 {
    number as f64
}

fn milliseconds(at: SystemTime) -> Option<u128> {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .map(|since| since.as_millis())
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn families_have_a_head_and_labels_are_escaped() {
        let mut page = Page::default();
        page.family("none", Kind::Gauge, "Nothing.", vec![]);
        let sample = |value, at| Sample {
            labels: vec![("a", "x\"\\\n".to_owned()), ("b", String::new())],
            value,
            at,
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1500);
        page.family(
            "some",
            Kind::Counter,
            "Some.",
            vec![sample(0.5, Some(at)), sample(2.0, None)],
        );
        assert_eq!(
            page.text(),
            "# HELP some Some.\n# TYPE some counter\n\
             some{a=\"x\\\"\\\\\\n\",b=\"\"} 0.5 1500\nsome{a=\"x\\\"\\\\\\n\",b=\"\"} 2\n"
        );
    }
}
