//! Memory of who supervises containers, as their share of it (PSS): hanok's shims, conmon, containerd's shim.
//!
//! conmon is one process a container; so is containerd's shim here, as it is one a pod.

use std::fs;
use std::time::Duration;

use hanok_runtime::api::RuntimeService;

use crate::arena::Arena;
use crate::containerd::Containerd;
use crate::in_process::{Pod, program, remove, sandbox, shim};
use crate::log::Conmon;
use crate::report::{Report, Row};

/// How many containers there are at a time.
const COUNTS: [usize; 3] = [1, 10, 100];

/// After that a shim at which nothing happens is at rest.
const REST: Duration = Duration::from_millis(4500);

/// Shims of containerd that share their program.
const CONTAINERD_SHIMS: usize = 10;

/// Most that a pod's shim should have, MiB,
const A_POD: f64 = 0.6;
/// what a container should add to it,
const A_CONTAINER: f64 = 0.1;
/// and what all should have for 100 containers.
const HUNDRED: f64 = 30.0;

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

pub(crate) async fn measure(pod: &Pod, arena: &Arena, report: &mut Report) {
    let shared = one_pod(pod).await;
    let pods = many_pods(pod).await;
    let mut rows = Vec::new();
    for (count, mebibytes) in COUNTS.iter().zip(&shared) {
        rows.push(Row::value(&format!("hanok, 1 pod of {count}"), *mebibytes));
    }
    for (count, mebibytes) in COUNTS.iter().zip(&pods) {
        rows.push(Row::value(&format!("hanok, {count} pods of 1"), *mebibytes));
    }
    for (count, mebibytes) in COUNTS.iter().zip(conmons(arena)) {
        rows.push(Row::value(
            &format!("conmon, {count} containers"),
            mebibytes,
        ));
    }
    if let Some(all) = containerd_shims(arena) {
        rows.push(Row::value(
            &format!("containerd-shim-runc-v2, {CONTAINERD_SHIMS} pods of 1"),
            all,
        ));
    }
    report.group("memory of all who supervise", "MiB PSS", &rows);
    let each = (shared[2] - shared[0]) / 99.0;
    report.aim(
        "MiB of a pod's shim, of 10 on the node",
        pods[1] / 10.0,
        A_POD,
    );
    // Beside the one of the bench's pod: it pays for half of the program, which all shims of a node share.
    report.aim("MiB of a pod's shim, of 2 on the node", pods[0], A_POD);
    report.aim("MiB more a container", each, A_CONTAINER);
    report.aim("MiB of 100 pods of one container", pods[2], HUNDRED);
    report.aim("MiB of a pod of 100 containers", shared[2], HUNDRED);
}

async fn one_pod(pod: &Pod) -> Vec<f64> {
    let other = sandbox(&pod.rig, "crowd").await;
    let mut found = Vec::new();
    let mut there = 0;
    for count in COUNTS {
        for index in there..count {
            let config = program(&format!("s{index}"), &SLEEP);
            pod.rig.start(&other.id, config).await;
        }
        there = count;
        tokio::time::sleep(REST).await;
        found.push(pss(&[shim(&pod.rig, &other.id)]));
    }
    remove(&pod.rig, &other.id).await;
    found
}

async fn many_pods(pod: &Pod) -> Vec<f64> {
    let mut all = Vec::new();
    let mut found = Vec::new();
    // The pod of the bench has a shim too, which shares its program with the others.
    for count in COUNTS {
        while all.len() < count {
            let other = sandbox(&pod.rig, &format!("many{}", all.len())).await;
            pod.rig.start(&other.id, program("s", &SLEEP)).await;
            all.push(other);
        }
        tokio::time::sleep(REST).await;
        let shims: Vec<u32> = all.iter().map(|one| shim(&pod.rig, &one.id)).collect();
        found.push(pss(&shims));
    }
    for one in all {
        remove(&pod.rig, &one.id).await;
        let cgroup = &one.config.cgroup_parent;
        pod.rig.runtime().remove_cgroup(cgroup).await.unwrap();
    }
    found
}

fn conmons(arena: &Arena) -> Vec<f64> {
    let mut all = Vec::new();
    let mut found = Vec::new();
    for count in COUNTS {
        while all.len() < count {
            let name = format!("conmon{}", all.len());
            match Conmon::start(arena, &name, &SLEEP, None) {
                Some(conmon) => all.push(conmon),
                None => return found,
            }
        }
        let pids: Vec<u32> = all.iter().map(|conmon| conmon.pid).collect();
        found.push(pss(&pids));
    }
    all.into_iter().for_each(Conmon::stop);
    found
}

/// None where they are not there.
fn containerd_shims(arena: &Arena) -> Option<f64> {
    let mut containerd = Containerd::start(arena)?;
    if !(0..CONTAINERD_SHIMS).all(|_| containerd.add()) {
        return None;
    }
    let shims = containerd.shims();
    (shims.len() == CONTAINERD_SHIMS).then(|| pss(&shims))
}

/// Of all these together, MiB.
fn pss(pids: &[u32]) -> f64 {
    let of = |pid: &u32| -> f64 {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
        kibibytes.parse().unwrap()
    };
    pids.iter().map(of).sum::<f64>() / 1024.0
}
