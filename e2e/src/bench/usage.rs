//! Memory and CPU of a node's own processes, as the kernel counts them.

use std::fs;
use std::time::{Duration, Instant};

use super::report::Report;
use super::subject::Subject;

/// Adds the proportional set size of each kind of process, of shim and pause for a pod, and of all of them.
pub(super) fn memory(subject: &Subject, report: &mut Report) {
    let mut all = 0.0;
    let mut per_pod = 0.0;
    for (kind, pids) in subject.processes() {
        let mib: f64 = pids.iter().map(|pid| pss_mib(*pid)).sum();
        report.add(subject.name(), &format!("pss_{kind}"), mib, "MiB");
        all += mib;
        if matches!(kind, "shim" | "pause") {
            #[expect(clippy::cast_precision_loss, reason = "a few dozen processes")]
            let each = mib / pids.len() as f64;
            per_pod += each;
        }
    }
    report.add(subject.name(), "pss_per_pod", per_pod, "MiB");
    report.add(subject.name(), "pss_all", all, "MiB");
}

/// Waits, and adds the share of one core that the node's processes took meanwhile.
pub(super) async fn idle(subject: &Subject, report: &mut Report, duration: Duration) {
    // What the burst has set going may end first.
    tokio::time::sleep(duration.min(Duration::from_secs(10))).await;
    let kinds = subject.processes();
    let began = Instant::now();
    let before: Vec<f64> = kinds.values().map(|pids| cpu_seconds(pids)).collect();
    tokio::time::sleep(duration).await;
    let seconds = began.elapsed().as_secs_f64();
    let mut all = 0.0;
    for ((kind, pids), before) in kinds.iter().zip(before) {
        let percent = (cpu_seconds(pids) - before) / seconds * 100.0;
        report.add(subject.name(), &format!("idle_cpu_{kind}"), percent, "%");
        all += percent;
    }
    report.add(subject.name(), "idle_cpu", all, "%");
}

fn pss_mib(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"));
    let kib: f64 = line
        .and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0.0);
    kib / 1024.0
}

/// Time that processes have spent in user and kernel mode, with a resolution of nanoseconds.
fn cpu_seconds(pids: &[i32]) -> f64 {
    pids.iter().map(|pid| task_seconds(*pid)).sum()
}

/// The sum over the threads, from schedstat: `stat` counts in ticks, which is too coarse for an idle process.
fn task_seconds(pid: i32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}
