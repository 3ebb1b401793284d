//! The phases of a pod's start, from the timeline that the agent logs for each pod:
//! `sandbox.netns 0.4+1.2 sandbox.cni 1.6+2.0 container.start(main) 9.8+4.1 ready 14.2`, that is offset and time
//! taken, in milliseconds.

use std::collections::BTreeMap;

/// Median milliseconds of each phase over all pods in a log; a phase that a pod has several times counts in sum.
pub(super) fn medians(log: &str) -> BTreeMap<String, f64> {
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for pod in log.lines().map(phases_of) {
        for (phase, millis) in pod {
            phases.entry(phase).or_default().push(millis);
        }
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

/// The phases of a line that tells a pod's timeline; none for other lines.
fn phases_of(line: &str) -> BTreeMap<String, f64> {
    let mut phases = BTreeMap::new();
    let words: Vec<&str> = line
        .split([' ', '"', '='])
        .filter(|w| !w.is_empty())
        .collect();
    for pair in words.windows(2) {
        let name = pair[0].split('(').next().unwrap_or_default();
        let took = match (name, pair[1].split_once('+')) {
            ("ready", None) => pair[1].parse::<f64>(),
            (_, Some((offset, took))) if offset.parse::<f64>().is_ok() => took.parse::<f64>(),
            _ => continue,
        };
        if let Ok(millis) = took {
            *phases.entry(name.replace('.', "_")).or_default() += millis;
        }
    }
    // A line without an end is no timeline.
    if phases.contains_key("ready") {
        phases
    } else {
        BTreeMap::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_taken_over_the_pods_of_a_log() {
        let log = "INFO pod is ready: sandbox.cni 0.4+2.0 container.start(a) 3+1 container.start(b) 4+1.5 ready 9 uid=x\n\
                   something else ready 3+4\n\
                   INFO pod is ready: sandbox.cni 0.4+4.0 ready 11.0 uid=y\n\
                   INFO pod is ready: sandbox.cni 0.4+3.0 ready 10.0\n";
        let medians = medians(log);
        assert_eq!(medians["sandbox_cni"], 3.0);
        assert_eq!(medians["container_start"], 2.5);
        assert_eq!(medians["ready"], 10.0);
    }
}
