//! Memory and CPU of a node's own processes, as the kernel counts them.

use std::fs;
use std::time::{Duration, Instant};

use super::report::Report;
use super::subject::Subject;

/// Unit of the times in /proc/PID/stat: USER_HZ, 100 on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;

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
    spent(subject, report, "idle", duration).await;
}

/// Percent of a core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spent {
    /// By the node's processes.
    pub(super) own: f64,
    /// By them and all that they have waited for.
    pub(super) all: f64,
}

/// The same under another name than `idle`.
pub(super) async fn spent(
    subject: &Subject,
    report: &mut Report,
    name: &str,
    duration: Duration,
) -> Spent {
    // What the burst has set going may end first.
    tokio::time::sleep(duration.min(Duration::from_secs(10))).await;
    let kinds = subject.processes();
    let began = Instant::now();
    let before: Vec<f64> = kinds.values().map(|pids| cpu_seconds(pids)).collect();
    let with_children = || -> f64 { kinds.values().flatten().map(|pid| tree_seconds(*pid)).sum() };
    let tree = with_children();
    tokio::time::sleep(duration).await;
    let seconds = began.elapsed().as_secs_f64();
    let mut own = 0.0;
    for ((kind, pids), before) in kinds.iter().zip(before) {
        let percent = (cpu_seconds(pids) - before) / seconds * 100.0;
        report.add(subject.name(), &format!("{name}_cpu_{kind}"), percent, "%");
        own += percent;
    }
    report.add(subject.name(), &format!("{name}_cpu"), own, "%");
    let all = (with_children() - tree) / seconds * 100.0;
    Spent { own, all }
}

fn pss_mib(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Pss:"));
    let kib: f64 = line
        .and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0.0);
    kib / 1024.0
}

/// Time that processes have spent in user and kernel mode.
fn cpu_seconds(pids: &[i32]) -> f64 {
    pids.iter().map(|pid| task_seconds(*pid)).sum()
}

/// From schedstat for a process of one thread, since `stat` counts in ticks, which is too coarse for an idle
/// one; from `stat` for one of several, since schedstat forgets the threads that have ended.
fn task_seconds(pid: i32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    if threads == 1 {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        return first_number(text.split(' ')) / 1e9;
    }
    ticks(pid).iter().take(2).sum::<f64>() / TICKS_PER_SECOND
}

/// Time of a process and of those that it has waited for.
fn tree_seconds(pid: i32) -> f64 {
    ticks(pid).iter().sum::<f64>() / TICKS_PER_SECOND
}

/// In user and in kernel mode, then both of the children that were waited for.
fn ticks(pid: i32) -> Vec<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let numbers = fields.split(' ').skip(11).take(4);
    numbers
        .map(|number| number.parse().unwrap_or(0.0))
        .collect()
}

fn first_number<'a>(mut fields: impl Iterator<Item = &'a str>) -> f64 {
    fields.next().and_then(|f| f.parse().ok()).unwrap_or(0.0)
}
