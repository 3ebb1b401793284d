//! The phases of a pod's start, from the timeline that the agent logs for each pod.

use std::collections::BTreeMap;

/// Median milliseconds of each phase over all pods in a log.
pub(super) fn medians(log: &str) -> BTreeMap<String, f64> {
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (phase, millis) in log.lines().flat_map(phases_of) {
        phases.entry(phase).or_default().push(millis);
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    phases
        .into_iter()
        .map(|(phase, values)| (phase, median(values)))
        .collect()
}

/// The `phase=12.3ms` pairs of a line that tells a pod's timeline.
fn phases_of(line: &str) -> Vec<(String, f64)> {
    let Some((_, rest)) = line.split_once("timeline") else {
        return Vec::new();
    };
    let pairs = rest.split_whitespace().filter_map(|word| {
        let (phase, time) = word.trim_end_matches(',').split_once('=')?;
        Some((phase.to_owned(), time.strip_suffix("ms")?.parse().ok()?))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_taken_over_the_pods_of_a_log() {
        let log = "x timeline netns=1.0ms cni=2.5ms\nother\ny timeline netns=3.0ms cni=9ms\nz timeline netns=2.0ms";
        let medians = medians(log);
        assert_eq!(medians["netns"], 2.0);
        assert_eq!(medians["cni"], 9.0);
    }
}
