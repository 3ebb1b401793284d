//! The smallest memory limit with which a container still runs `true`.

use crate::RUNTIMES;
use crate::in_process::{Pod, program};
use crate::report::{Report, Row};
use crate::worker::Worker;

/// Limits are told apart by so much, bytes.
const STEP: u64 = 64 << 10;

/// In steps: more than anybody needs.
const MOST: u64 = 1024;

/// How often it must work.
const TRIES: usize = 2;

pub(crate) async fn measure(pod: &Pod, worker: &mut Worker, report: &mut Report) {
    let mut rows = Vec::new();
    let (mut fails, mut works) = (0, MOST);
    while works - fails > 1 {
        let middle = fails.midpoint(works);
        let mut good = true;
        for _ in 0..TRIES {
            good = good && starts(pod, middle * STEP).await;
        }
        *(if good { &mut works } else { &mut fails }) = middle;
    }
    rows.push(row("hanok", works));
    for name in RUNTIMES {
        let (mut fails, mut works) = (0, MOST);
        while works - fails > 1 {
            let middle = fails.midpoint(works);
            let task = format!("limit {name} {}", middle * STEP);
            let good = (0..TRIES).all(|_| worker.ask(&task).is_ok());
            *(if good { &mut works } else { &mut fails }) = middle;
        }
        let shown = if name == "oci" { "hanok-oci" } else { name };
        rows.push(row(shown, works));
    }
    report.group("smallest memory limit of a container", "MiB", &rows);
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn row(name: &str, steps: u64) -> Row {
    Row::value(name, (steps * STEP) as f64 / f64::from(1 << 20))
}

async fn starts(pod: &Pod, limit: u64) -> bool {
    let mut config = program("limit", &["/bin/true"]);
    config.resources.memory_limit = limit.cast_signed();
    config.resources.memory_swap_limit = limit.cast_signed();
    pod.life(config).await.1 == 0
}
