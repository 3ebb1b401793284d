//! Times: the life of a container that runs `true`, and an exec of `true`.

use std::collections::BTreeMap;
use std::time::Duration;

use hanok_runtime::api::RuntimeService;

use crate::in_process::{Pod, program};
use crate::report::{Report, Row, median};
use crate::worker::Worker;

/// Rounds that are not counted.
const WARM_UP: usize = 3;

/// Of the time of the others, how much ours may be.
const AIMS: [(&str, f64); 4] = [
    ("crun", 0.6),
    ("runc", 0.15),
    ("floor", 2.0),
    ("floor+cgroups", 2.0),
];

type Times = BTreeMap<String, Vec<Duration>>;

/// In turn, so that what else happens on the machine happens to all. `runtimes` are the command lines to measure, ours
/// first.
pub(crate) async fn measure(
    pod: &Pod,
    worker: &mut Worker,
    (runtimes, rounds): (&[&str], usize),
    report: &mut Report,
) {
    let sleeper = pod.start(program("sleeper", &["/bin/sleep", "1000"])).await;
    // The last one is where the floor makes its exec.
    for runtime in runtimes.iter().rev() {
        worker.ask(&format!("sleeper {runtime}")).unwrap();
    }
    let (mut lives, mut steps, mut runs, mut owns, mut execs) = Default::default();
    for round in 0..rounds + WARM_UP {
        if round == WARM_UP {
            (lives, steps, runs, owns, execs) = Default::default();
        }
        let (life, code) = pod.life(program("c", &["/bin/true"])).await;
        assert_eq!(code, 0);
        add(&mut lives, "hanok", life.whole());
        for (step, took) in [
            ("create", life.create),
            ("start", life.start),
            ("wait", life.wait),
            ("remove", life.remove),
        ] {
            add(&mut steps, step, took);
        }
        add(&mut execs, "hanok", pod.exec(&sleeper).await);
        for name in runtimes {
            let shown = shown(name);
            ask(worker, &mut lives, shown, &format!("life {name} pod"));
            ask(worker, &mut runs, shown, &format!("run {name} pod"));
            ask(worker, &mut owns, shown, &format!("run {name} own"));
            ask(worker, &mut execs, shown, &format!("exec {name}"));
        }
        for (shown, cgroups) in [("floor", "none"), ("floor+cgroups", "cgroups")] {
            let pods = [&mut lives, &mut runs];
            for times in pods {
                ask(worker, times, shown, &format!("floor pod {cgroups}"));
            }
            ask(worker, &mut owns, shown, &format!("floor own {cgroups}"));
            ask(worker, &mut execs, shown, &format!("floor-exec {cgroups}"));
        }
    }
    pod.rig.runtime().remove_container(&sleeper).await.unwrap();
    let lives = group(report, "create, start, wait, delete: in a pod", &lives);
    group(report, "of which, hanok's steps", &steps);
    group(report, "run: in a pod", &runs);
    group(report, "run: in namespaces of its own, network too", &owns);
    let execs = group(report, "exec", &execs);
    aims(report, "create, start, wait, delete", &lives);
    aims(report, "exec", &execs);
}

fn aims(report: &mut Report, what: &str, rows: &[Row]) {
    for subject in ["hanok", "hanok-oci"] {
        for (reference, most) in AIMS {
            if !rows.iter().any(|row| row.name == reference) {
                continue;
            }
            let ratio = median(rows, subject) / median(rows, reference);
            report.aim(&format!("{what}: {subject} / {reference}"), ratio, most);
        }
    }
}

fn shown(name: &str) -> &str {
    match name {
        "oci" => "hanok-oci",
        other => other,
    }
}

fn add(times: &mut Times, name: &str, took: Duration) {
    times.entry(name.to_owned()).or_default().push(took);
}

fn ask(worker: &mut Worker, times: &mut Times, shown: &str, task: &str) {
    match worker.ask(task) {
        Ok(took) => add(times, shown, took),
        Err(why) => panic!("{task}: {why}"),
    }
}

fn group(report: &mut Report, title: &str, times: &Times) -> Vec<Row> {
    let order = [
        "hanok",
        "create",
        "start",
        "wait",
        "remove",
        "hanok-oci",
        "crun",
        "runc",
        "floor",
        "floor+cgroups",
    ];
    let rows: Vec<Row> = order
        .iter()
        .filter_map(|name| times.get(*name).map(|all| Row::times(name, all)))
        .collect();
    report.group(title, "ms", &rows);
    rows
}
